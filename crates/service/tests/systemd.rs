//! The unit files under a real systemd, in a container of systemd-nspawn that shares this machine's
//! programs. Skipped by name where that cannot be.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use datapipes_testkit::TempFolder;

/// Runs in the container, and writes what it sees to files of `/out`.
const CHECK: &str = r#"#!/bin/bash
exec > /out/said 2>&1
touch /out/begun
show() {
    systemctl show dpiped.service -p ActiveState -p StatusText -p NRestarts -p ExecMainCode -p ExecMainStatus > "/out/$1"
    echo "Owner=$(ps -o user= -p "$(systemctl show -P MainPID dpiped.service)")" >> "/out/$1"
}
# Waits for a condition, for as long as the container lives.
wait_for() { until eval "$1"; do sleep 0.1; done; }
restarts() { [ "$(systemctl show -P NRestarts dpiped.service)" -ge "$1" ] && systemctl is-active -q dpiped.service; }
main_pid() { systemctl show -P MainPID dpiped.service; }

systemctl start dpiped.socket dpiped-metrics.socket || exit
show before
# A client that does not speak the protocol starts the service, and is cut off.
/opt/client /run/dpiped.sock
wait_for 'systemctl is-active -q dpiped.service'
wait_for 'journalctl -q -u dpiped.service DATAPIPES_EVENT=ClientCutOff | grep -q .'
show activated
exec 3<>/dev/tcp/127.0.0.1/9465
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
cat <&3 > /out/metrics
exec 3>&-
pid=$(main_pid)
kill -STOP "$pid"
wait_for '[ "$(main_pid)" != "$pid" ] && restarts 1'
show hung
pid=$(main_pid)
kill -KILL "$pid"
wait_for '[ "$(main_pid)" != "$pid" ] && restarts 2'
show killed
systemctl stop dpiped.service dpiped.socket dpiped-metrics.socket
show stopped
[ -e /run/dpiped.sock ] || touch /out/socket-removed
journalctl -q -u dpiped.service -o json > /out/journal
touch /out/finished
systemctl --force poweroff
"#;

/// A client in the container, which has no other program that opens such a socket.
const CLIENT: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                      s.connect(sys.argv[1])\ns.send(b'nonsense')\ns.recv(4096)\n";

/// What there must be for a container, or what is missing.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root starts containers".into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !on_path("systemd-nspawn") {
        return Some("there is no systemd-nspawn".into());
    }
    // The container has nothing of this machine but /usr.
    let programs = ["/usr/bin/python3", "/usr/bin/bash", "/usr/bin/ps", "/usr/bin/journalctl"];
    let outside = |path: &&str| !fs::canonicalize(path).is_ok_and(|path| path.starts_with("/usr"));
    if let Some(program) = programs.into_iter().find(outside) {
        return Some(format!("there is no {program}, or it is not below /usr"));
    }
    if !Path::new("/etc/ld.so.cache").exists() {
        return Some("there is no /etc/ld.so.cache".into());
    }
    let merged = fs::symlink_metadata("/bin").is_ok_and(|meta| meta.is_symlink());
    (!merged).then(|| "programs are not all below /usr".into())
}

/// The files of a container: its root, without /usr.
fn container(root: &Path) {
    for folder in ["usr", "etc/systemd/system/dpiped.service.d", "var", "run", "tmp", "opt", "out"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name)).unwrap();
    }
    fs::copy("/usr/lib/os-release", root.join("etc/os-release")).unwrap();
    fs::write(root.join("etc/machine-id"), "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    fs::copy("/etc/ld.so.cache", root.join("etc/ld.so.cache")).unwrap();
    let units = root.join("etc/systemd/system");
    for unit in ["dpiped.service", "dpiped.socket", "dpiped-metrics.socket"] {
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(unit), units.join(unit)).unwrap();
    }
    // The program lies elsewhere, and nobody wants to wait for half a minute.
    let own = "[Service]\nExecStart=\nExecStart=/opt/dpiped --timeout 60\nWatchdogSec=10\nTimeoutStopSec=5\nTimeoutAbortSec=1\n";
    fs::write(units.join("dpiped.service.d/test.conf"), own).unwrap();
    let check = "[Unit]\nDescription=Check\nFailureAction=poweroff-force\n[Service]\nType=oneshot\nExecStart=/opt/check\nTimeoutStartSec=600\n";
    fs::write(units.join("check.service"), check).unwrap();
    let client = format!("#!/usr/bin/python3\n{CLIENT}");
    for (name, text) in [("check", CHECK), ("client", client.as_str())] {
        let path = root.join("opt").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(root.join("opt/dpiped"), "").unwrap();
}

/// Starts the container, which ends when the check has ended.
fn boot(root: &Path) -> Output {
    // The name is that of the machine, and must be one of its own.
    let name = format!("--machine=dpiped-{}", std::process::id());
    let program = format!("--bind-ro={}:/opt/dpiped", env!("CARGO_BIN_EXE_dpiped"));
    let mut command = Command::new("systemd-nspawn");
    command.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--bind-ro=/usr", &name, &program]);
    command.arg("--directory").arg(root).args(["--boot", "--", "--unit=check.service"]);
    command.stdin(Stdio::null()).output().unwrap()
}

/// `NAME=VALUE` lines of a file.
fn properties(path: &Path) -> HashMap<String, String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter_map(|line| line.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

#[test]
fn units_start_watch_and_restart_the_service() {
    if let Some(why) = missing() {
        return println!("SKIPPED: units_start_watch_and_restart_the_service: {why}");
    }
    let folder = TempFolder::new().unwrap();
    let root = folder.join("root");
    container(&root);
    let output = boot(&root);
    let out = root.join("out");
    if !out.join("begun").exists() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return println!("SKIPPED: units_start_watch_and_restart_the_service: no container starts here: {why}");
    }
    let said = fs::read_to_string(out.join("said")).unwrap();
    assert!(out.join("finished").exists(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    let state = |name: &str| properties(&out.join(name));
    assert_eq!(state("before")["ActiveState"], "inactive");
    let activated = state("activated");
    assert_eq!(activated["ActiveState"], "active", "{activated:?}");
    assert!(activated["StatusText"].starts_with("Serves "), "{activated:?}");
    // Nothing looks up the name of a dynamic user here.
    assert!(activated["Owner"].parse::<u32>().is_ok_and(|user| user > 0), "a user of its own: {activated:?}");
    assert!(fs::read_to_string(out.join("metrics")).unwrap().contains("datapipes_service_"));
    // Stopped, it does not answer the watchdog; killed, it is started again.
    for (name, restarts) in [("hung", 1), ("killed", 2)] {
        let state = state(name);
        let began_anew: u32 = state["NRestarts"].parse().unwrap();
        assert!(state["ActiveState"] == "active" && began_anew >= restarts, "{state:?}");
    }
    // It exited by itself (1: CLD_EXITED), with 0. A unit that ended well may be forgotten (0).
    // With control groups of version 1 nobody tells a systemd in a container that a group is empty:
    // then the unit has failed, because of that alone.
    let stopped = state("stopped");
    let ended = (stopped["ExecMainCode"].as_str(), stopped["ExecMainStatus"].as_str());
    assert!([("1", "0"), ("0", "0")].contains(&ended) && stopped["ActiveState"] != "active", "{stopped:?}");
    assert!(out.join("socket-removed").exists());
    let journal = fs::read_to_string(out.join("journal")).unwrap();
    let cut_off = journal.lines().find(|line| line.contains(r#""DATAPIPES_EVENT":"ClientCutOff""#)).unwrap();
    let id = datapipes_service::server::LogEvent::ClientCutOff.message_id();
    for part in [format!(r#""MESSAGE_ID":"{id}""#), r#""PRIORITY":"4""#.into(), r#""DATAPIPES_CLIENT_UID":"0""#.into()]
    {
        assert!(cut_off.contains(&part), "{part}: {cut_off}");
    }
    assert!(journal.contains("atchdog timeout"), "{journal}");
}
