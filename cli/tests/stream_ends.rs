//! Where streams of `dpipe stream` come from and go to: named pipes, the standard streams, links;
//! modes, patience, signals.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use scene::streams::{bad, bytes, ended, from_file, good, joined, serve, signal, stream, until};
use scene::{folder, on_path};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn with_mode(path: &Path, data: &[u8], mode: u32) {
    fs::write(path, data).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn dash() -> &'static Path {
    Path::new("-")
}

#[test]
fn what_was_private_stays_private() {
    let folder = folder();
    let path = |name: &str| folder.path(name);
    for (name, of_source, through) in [("a", 0o600, "crc32"), ("b", 0o640, "zstd"), ("c", 0o400, "exec:cat")] {
        with_mode(&path("in"), b"secret", of_source);
        good(&mut stream(&from_file(&path("in")), through, &path(name)));
        // Its owner replaces it under the next placement.
        assert_eq!(mode(&path(name)) & !of_source & !0o600, 0, "{name}: {:o}", mode(&path(name)));
        fs::remove_file(path("in")).unwrap();
    }
    // As the standard input, too.
    with_mode(&path("in"), b"secret", 0o600);
    let input = fs::File::open(path("in")).unwrap();
    good(stream("-", "crc32", &path("d")).stdin(input));
    assert_eq!((mode(&path("d")), fs::read(path("d")).unwrap()), (0o600, b"secret".to_vec()));
    // What is replaced keeps its mode, whatever the source's is.
    with_mode(&path("in"), b"public", 0o644);
    with_mode(&path("out"), b"before", 0o600);
    for from in [from_file(&path("in")), "generate:10".into()] {
        good(stream(&from, "crc32", &path("out")).args(["--placement", "all"]));
        assert_eq!(mode(&path("out")), 0o600, "{from}");
    }
}

#[test]
fn a_link_is_followed_as_copy_follows_it() {
    let dpipe = env!("CARGO_BIN_EXE_dpipe");
    for by_copy in [false, true] {
        let folder = folder();
        let path = |name: &str| folder.path(name);
        fs::write(path("in"), b"new").unwrap();
        with_mode(&path("real"), b"old", 0o600);
        symlink("real", path("link")).unwrap();
        symlink("to-be", path("dangling")).unwrap();
        for to in ["link", "dangling"] {
            if by_copy {
                let output = Command::new(dpipe).arg("copy").arg(path("in")).arg(path(to)).output().unwrap();
                assert!(output.status.success(), "{output:?}");
            } else {
                good(&mut stream(&from_file(&path("in")), "forward", &path(to)));
            }
        }
        assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("real"));
        assert_eq!(fs::read_link(path("dangling")).unwrap(), Path::new("to-be"));
        assert_eq!((fs::read(path("real")).unwrap(), mode(&path("real"))), (b"new".to_vec(), 0o600));
        assert_eq!(fs::read(path("to-be")).unwrap(), b"new");
        assert_eq!(folder.names().unwrap(), ["dangling", "in", "link", "real", "to-be"]);
    }
}

#[test]
fn a_named_pipe_is_read_until_its_writer_closes() {
    let folder = folder();
    let (pipe, out) = (folder.path("pipe"), folder.path("out"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (through, due_from, verified) in
        [("crc32", "sent", true.into()), ("lz4,unlz4", "sink", serde_json::Value::Null)]
    {
        for placement in ["application", "central", "distributed"] {
            let data = bytes(7, 1_234_567);
            let mut command = stream(&from_file(&pipe), through, &out);
            command.args(["--json", "--placement", placement, "--block-size", "64K"]);
            let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            // It waits for a writer: this opens it.
            let mut writer = datapipes_testkit::fifo_writer(&pipe).unwrap();
            for part in data.chunks(100_000) {
                writer.write_all(part).unwrap();
            }
            drop(writer);
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(
                (&report["runs"][0]["due_from"], &report["verified"]),
                (&due_from.into(), &verified),
                "{report}"
            );
            assert!(fs::read(&out).unwrap() == data, "{through} {placement}");
        }
    }
    // Nobody writes: patience ends it, or a signal.
    let error = bad(stream(&from_file(&pipe), "crc32", &out).args(["--timeout", "0.2"]));
    // A writer that has it open and writes nothing is as silent as none.
    assert!(error.contains("a writer of") && error.contains("and its first bytes"), "{error}");
    assert!(error.contains("--timeout"), "{error}");
    let mut child = stream(&from_file(&pipe), "crc32", &out).spawn().unwrap();
    // Without a writer it has opened the pipe, and waits: a writer that does not wait for readers
    // finds one.
    let no_wait = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    until("a reader", || rustix::fs::open(&pipe, no_wait, rustix::fs::Mode::empty()).is_ok());
    signal(&child, Signal::INT);
    let status = ended(&mut child);
    // The look above may have been taken for a writer that wrote nothing.
    assert!(status.signal() == Some(libc::SIGINT) || status.success(), "{status}");
    let error = bad(stream(&from_file(&pipe), "crc32", &out).args(["--placement", "all"]));
    assert!(error.contains("read once"), "{error}");
}

#[test]
fn the_standard_streams_are_ends() {
    let data = bytes(8, 2_345_678);
    let mut command = stream("-", "crc32,zstd,unzstd", dash());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, sent) = (child.stdin.take().unwrap(), data.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    joined(writer);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == data, "{told}");
    assert!(told.contains("not verified") && !told.contains(": verified"), "{told}");

    // The report as JSON is all that the standard error has.
    let output = stream("generate:100000", "xor=3", dash()).arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&report["runs"][0]["due_from"], output.stdout.len()), (&"replay".into(), 100_000), "{report}");
    assert!(report["verified"].is_null() && report["to"] == "-", "{report}");
}

#[test]
fn a_standard_stream_that_cannot_be_used_is_told() {
    // A reader that went away: the end that others have of it.
    let mut child = stream("generate:1G", "crc32", dash())
        .arg("--no-verify")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    drop(stdout);
    assert_eq!(ended(&mut child).signal(), Some(libc::SIGPIPE));
    // A device that is full.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = stream("generate:1M", "crc32", dash()).stdout(full).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("No space left"), "{told}");
    // Streams that are closed, and more than one run for one stream.
    let run = |redirect: &str, arguments: &str| {
        let script = format!("exec \"$DPIPE\" stream {arguments} {redirect}");
        let output =
            Command::new("sh").args(["-c", &script]).env("DPIPE", env!("CARGO_BIN_EXE_dpipe")).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let folder = folder();
    let out = folder.path("out").display().to_string();
    for (redirect, arguments, why) in [
        ("<&-", format!("--from - --to {out}"), "standard input"),
        (">&-", "--from generate:10 --to -".into(), "standard output"),
        ("", "--from generate:10 --to - --placement all".into(), "one stream"),
        ("</dev/null", format!("--from - --to {out} --placement all"), "read once"),
    ] {
        let (code, told) = run(redirect, &arguments);
        assert!(code == Some(2) && told.contains(why), "{redirect} {arguments}: {code:?} {told}");
    }
    assert!(folder.names().unwrap().is_empty());
}

#[test]
fn patience_ends_what_stands_still_and_nothing_that_moves() {
    let folder = folder();
    let out = folder.path("out");
    for placement in ["application", "central", "distributed"] {
        let (address, thread) = serve(bytes(3, 300_000), true);
        let error = bad(stream(&address, "crc32", &out).args(["--timeout", "0.3", "--placement", placement]));
        assert!(error.contains("a block to move") && error.contains("source -> crc32"), "{placement}: {error}");
        joined(thread);
    }
    // Longer than patience in all, and never standing still for that long.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        for n in 0..110 {
            peer.write_all(&[n; 4096]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    });
    // A busy disk may take seconds for the sync at the end, which counts as standing still.
    good(stream(&address, "crc32", &out).args(["--timeout", "20", "--block-size", "4096"]));
    joined(thread);
    assert_eq!(fs::metadata(&out).unwrap().len(), 110 * 4096);
}

#[test]
fn a_signal_ends_what_waits_for_a_silent_peer() {
    let folder = folder();
    let out = folder.path("out");
    fs::write(&out, "before").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let mut child = stream(&address, "crc32", &out).stderr(Stdio::null()).spawn().unwrap();
    let (_peer, _) = listener.accept().unwrap();
    signal(&child, Signal::TERM);
    assert_eq!(ended(&mut child).signal(), Some(libc::SIGTERM));
    assert_eq!((folder.names().unwrap(), fs::read(&out).unwrap()), (vec!["out".into()], b"before".to_vec()));
}

/// The folders of control groups whose names begin so.
fn groups_named(prefix: &str) -> Vec<PathBuf> {
    let is_dir = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(is_dir) {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
                found.push(path.clone());
            }
            folders.push(path);
        }
    }
    found
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    children.flat_map(|all| all.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// As a terminal does it: the signal goes to the controller and the devices too.
#[test]
fn a_signal_to_the_whole_group_leaves_no_control_group() {
    for how in [Signal::INT, Signal::TERM, Signal::HUP] {
        let folder = folder();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        // Whoever runs the tests may ignore signals. `env` becomes the command.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_dpipe"), "stream", "--from", &address]);
        command.args(["--through", "crc32", "--output"]).arg(folder.path("out"));
        let mut child = command.stderr(Stdio::null()).process_group(0).spawn().unwrap();
        let (_peer, _) = listener.accept().unwrap();
        // The devices are children of the controller, which is a child of the command.
        let mut controllers = Vec::new();
        until("devices", || {
            controllers = children(child.id());
            controllers.iter().any(|controller| children(*controller).len() == 3)
        });
        let groups = || controllers.iter().flat_map(|pid| groups_named(&format!("fabric-{pid}-"))).collect::<Vec<_>>();
        println!("control groups before {how:?}: {:?}", groups());
        rustix::process::kill_process_group(rustix::process::Pid::from_child(&child), how).unwrap();
        assert_eq!(ended(&mut child).signal(), Some(how.as_raw()));
        until("control groups that are removed", || groups().is_empty());
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }
}

/// On a terminal, with the keys of one.
#[test]
fn the_replay_shows_how_far_it_is_and_ctrl_c_ends_it() {
    if !on_path("script") {
        return println!("SKIPPED: the replay on a terminal: there is no `script`");
    }
    let folder = folder();
    let dpipe = env!("CARGO_BIN_EXE_dpipe");
    // So much that applying the transforms takes minutes.
    let command =
        format!("{dpipe} stream --from generate:500G --through crc32,gzip --output {}", folder.path("out").display());
    // A shell's background job has Ctrl-C ignored, and so had the program.
    let mut child = Command::new("env")
        .args(["--default-signal=INT", "script", "-qefc", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdout, mut shown) = (child.stdout.take().unwrap(), Vec::new());
    let mut buffer = [0; 4096];
    while !(shown.windows(8).any(|w| w == b"applying") && shown.contains(&b'%')) {
        let n = stdout.read(&mut buffer).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&buffer[..n]);
    }
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    // `script` passes on how it ended.
    let _ = stdout.read_to_end(&mut shown);
    let status = ended(&mut child);
    assert_eq!(status.code(), Some(128 + libc::SIGINT), "{status}: {}", String::from_utf8_lossy(&shown));
    assert!(folder.names().unwrap().is_empty());
}
