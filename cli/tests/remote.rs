//! Memory of another process on the command line: `dpiped --export` gives a ticket, `dpipe copy`
//! and `dpipe explain` take it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use datapipes_testkit::TempFolder;
use scene::json;

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");
const EXPORTED: usize = 4 << 20;

/// The service, with exported memory; it ends with this.
struct Service {
    child: Child,
    folder: Arc<TempFolder>,
}

impl Service {
    /// Starts it; `None` where it is not built or UCX is not installed, which is said.
    fn start(test: &str) -> Option<Service> {
        Service::start_in(Arc::new(TempFolder::new().unwrap()), test)
    }

    fn start_in(folder: Arc<TempFolder>, test: &str) -> Option<Service> {
        let export = format!("{}={EXPORTED}", folder.join("ticket").display());
        let mut command = dpiped(test)?;
        command.arg("--socket").arg(folder.join("s")).args(["--export", &export]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut service = Service { child, folder };
        let mut lines = BufReader::new(service.child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let said: Vec<String> = lines.by_ref().take_while(|line| !line.contains("serves at")).collect();
        if said.iter().any(|line| line.contains("install UCX")) {
            println!("SKIPPED: {test}: {said:?}");
            return None;
        }
        assert!(said.iter().any(|line| line.contains("exports 4194304 bytes")), "{said:?}");
        std::thread::spawn(move || lines.for_each(drop));
        Some(service)
    }

    fn ticket(&self) -> PathBuf {
        self.folder.join("ticket")
    }

    fn remote(&self) -> String {
        format!("remote://{}", self.ticket().display())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program `dpiped`, which is built beside `dpipe`.
fn dpiped(test: &str) -> Option<Command> {
    let program = Path::new(DPIPE).with_file_name("dpiped");
    if program.exists() {
        return Some(Command::new(program));
    }
    println!("SKIPPED: {test}: {} is not built", program.display());
    None
}

fn dpipe(arguments: &[&str]) -> Output {
    Command::new(DPIPE).args(arguments).output().unwrap()
}

fn done(arguments: &[&str]) -> String {
    let output = dpipe(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that cannot do what it is asked for.
fn refused(arguments: &[&str]) -> String {
    let output = dpipe(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn bytes_go_to_another_process_and_come_back() {
    let Some(service) = Service::start("bytes go to another process and come back") else { return };
    let (folder, remote) = (&service.folder, service.remote());
    let mut random = datapipes_testkit::Random(7);
    let bytes: Vec<u8> = (0..3_000_001).map(|_| random.next() as u8).collect();
    let (data, back) = (folder.join("data"), folder.join("back"));
    std::fs::write(&data, &bytes).unwrap();
    let outcome = json(&done(&["copy", text(&data), &remote, "--verify", "--json"]));
    assert_eq!((outcome["bytes"].as_u64(), outcome["verified"].as_bool()), (Some(3_000_001), Some(true)));
    // By the kernel's copies, or by UCX where the kernel refuses them.
    let route = outcome["route"].to_string();
    assert!(route.contains("\"vm-put\"") || route.contains("\"ucx-put\""), "{route}");
    done(&["copy", &remote, text(&back), "--size", "3000001", "--verify"]);
    assert!(std::fs::read(&back).unwrap() == bytes);
    // The service tells what it exports.
    let mut status = dpiped("exports in the status").unwrap();
    let status = status.arg("--status").arg("--socket").arg(folder.join("s")).output().unwrap();
    let status = json(&String::from_utf8(status.stdout).unwrap());
    assert_eq!(status["exports"]["bytes"].as_u64(), Some(EXPORTED as u64), "{status}");
    // What was memory is not readable by others.
    assert_eq!(std::fs::metadata(&back).unwrap().permissions().mode() & 0o777, 0o600);
    // The whole of it, with the zeros behind.
    done(&["copy", &remote, text(&back)]);
    let all = std::fs::read(&back).unwrap();
    assert_eq!((all.len(), &all[..bytes.len()] == bytes.as_slice()), (EXPORTED, true));
    assert!(all[bytes.len()..].iter().all(|byte| *byte == 0));
    for (pair, primitive) in [([text(&data), &remote], "-put"), ([&remote, "dram:"], "-get")] {
        let said = done(&["explain", pair[0], pair[1]]);
        let either = ["vm", "ucx"].map(|way| format!("{way}{primitive}"));
        assert!(either.iter().any(|way| said.contains(way)) && said.contains("remote:unix:"), "{said}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let Some(service) = Service::start("what cannot be done is refused by name") else { return };
    let (folder, remote) = (&service.folder, service.remote());
    let long = folder.join("long");
    std::fs::File::create(&long).unwrap().set_len(EXPORTED as u64 + 1).unwrap();
    let said = refused(&["copy", text(&long), &remote]);
    assert!(said.contains("4194305 bytes to remote://"), "{said}");
    for command in
        [&["sort", &remote][..], &["gen", "records", "--size", "10K", &remote], &["check", "records", &remote]]
    {
        let said = refused(command);
        assert!(said.contains("takes no memory of other processes"), "{command:?}: {said}");
    }
    for command in [
        &["sort", "-c", &remote][..],
        &["sort", &format!("--files0-from={remote}")],
        &["sort", text(&long), "-T", &remote],
        &["copy", text(&long), text(&folder.join("out")), "--metrics", &remote],
        &["copy", text(&long), text(&folder.join("out")), "--report-html", &remote],
        &["man", &remote],
    ] {
        let said = refused(command);
        assert!(said.contains("takes no memory of other processes"), "{command:?}: {said}");
    }
    let said = refused(&["sort", text(&long), "-o", &remote]);
    assert!(said.contains("takes no memory of other processes"), "{said}");
    let said = refused(&["copy", &format!("{remote}?network=trusted"), text(&folder.join("out"))]);
    // Memory of this machine is shared without UCX. A network is asked of it.
    if said.contains("install UCX") {
        println!("SKIPPED: networks for memory of this machine: {said}");
    } else {
        assert!(said.contains("by shared memory, and a network was asked for"), "{said}");
        assert!(said.contains("`?network=trusted`"), "{said}");
    }
    // Something else is not made private.
    let public = folder.join("public");
    std::fs::write(&public, "no ticket\n").unwrap();
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = refused(&["copy", &format!("remote://{}", text(&public)), text(&folder.join("out"))]);
    assert!(said.contains("no ticket") && !said.contains("chmod"), "{said}");
    let said = refused(&["copy", &format!("{remote}?network=tcp"), text(&folder.join("out"))]);
    assert!(said.contains("not encrypted"), "{said}");
    let ticket = service.ticket();
    std::fs::set_permissions(&ticket, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = refused(&["copy", &remote, text(&folder.join("out"))]);
    assert!(said.contains("others may read this key"), "{said}");
    assert!(!folder.join("out").exists());
    // A ticket is never written over what is there.
    let said = cannot_export(&["--export", &format!("{}=1M", text(&ticket))], folder);
    assert!(said.contains("ticket"), "{said}");
}

#[test]
fn exports_end_with_the_service() {
    let Some(mut service) = Service::start("exports end with the service") else { return };
    let (remote, out) = (service.remote(), service.folder.join("out"));
    let kept = service.folder.join("kept");
    std::fs::copy(service.ticket(), &kept).unwrap();
    done(&["copy", &remote, text(&out), "--size", "1"]);
    let pid = rustix::process::Pid::from_child(&service.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(service.child.wait().unwrap().success());
    assert!(!service.ticket().exists() && !service.folder.join("s-memory.sock").exists());
    refused(&["copy", &format!("remote://{}", text(&kept)), text(&out)]);
}

#[test]
fn a_ticket_is_removed_and_replaced_by_its_own_service_alone() {
    const TEST: &str = "a ticket is removed and replaced by its own service alone";
    let Some(mut service) = Service::start(TEST) else { return };
    let folder = service.folder.clone();
    service.child.kill().unwrap();
    service.child.wait().unwrap();
    // What a killed service left is replaced by the next one at that address.
    let old = std::fs::read(service.ticket()).unwrap();
    let mut next = Service::start_in(folder.clone(), TEST).unwrap();
    assert!(std::fs::read(next.ticket()).unwrap() != old);
    done(&["copy", &next.remote(), text(&folder.join("out")), "--size", "1"]);
    // What somebody else put there stays.
    std::fs::remove_file(next.ticket()).unwrap();
    std::fs::write(next.ticket(), "precious").unwrap();
    let pid = rustix::process::Pid::from_child(&next.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(next.child.wait().unwrap().success());
    assert_eq!(std::fs::read(next.ticket()).unwrap(), b"precious");
    let export = format!("{}=1M", text(&next.ticket()));
    assert!(cannot_export(&["--export", &export], &folder).contains("choose another one"));
}

#[test]
fn networks_are_named_by_who_exports() {
    const TEST: &str = "networks are named by who exports";
    let folder = TempFolder::new().unwrap();
    if dpiped(TEST).is_none() {
        return;
    }
    let export = format!("{}=1M", text(&folder.join("ticket")));
    let said = cannot_export(&["--export", &export, "--export-at", "0.0.0.0:0"], &folder);
    assert!(said.contains("`--export-trusted-network`"), "{said}");
    // What no client could reach is not announced.
    for (flags, why) in [
        (&["--export-at", "127.0.0.1:0", "--export-trusted-network", "all"][..], "ucx_info"),
        (&["--export-trusted-network", "tcp"], "`--export-devices`"),
        (&["--export-at", "0.0.0.0:0", "--export-trusted-network", "tcp", "--export-devices", "lo,all"], "ucx_info"),
    ] {
        let said = cannot_export(&[&["--export", &export], flags].concat(), &folder);
        assert!(said.contains(why) && !said.contains("exports 1048576 bytes"), "{said}");
    }
    let said = cannot_export(&["--export", "nothing"], &folder);
    assert!(said.contains("TICKET=SIZE"), "{said}");
    let said = cannot_export(&["--export-at", "unix:/x"], &folder);
    assert!(said.contains("--export"), "{said}");
    assert!(!folder.join("ticket").exists());
}

/// What the service says when it does not start.
fn cannot_export(flags: &[&str], folder: &TempFolder) -> String {
    let mut command = dpiped("an export that is refused").unwrap();
    let command = command.arg("--socket").arg(folder.join("another")).args(flags).stderr(Stdio::piped());
    // One that starts would serve for ever.
    let mut child = command.spawn().unwrap();
    let status = datapipes_testkit::ended(&mut child);
    let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(status.code(), Some(2), "{flags:?}: {said}");
    said
}
