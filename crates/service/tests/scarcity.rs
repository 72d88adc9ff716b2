//! A service that is short of something: threads, descriptors, slots; and clients that stop or fork
//! in the middle.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use datapipes::descriptor::wire::TransferRequest;
use datapipes::{ConnectFdOptions, ErrorKind, Span, Ssd};
use datapipes_service::server::{Listener, Server, ServerOptions, ServiceLimits, ServiceLog};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use datapipes_testkit::child::{NoThreads, as_another_user};
use rustix::net::SendFlags;
use scene::{Dir, MIB, Raw, Service, memory_of, pattern};

#[test]
fn a_client_for_whom_there_is_no_thread_hears_so_and_keeps_no_place() {
    if !as_another_user("a_client_for_whom_there_is_no_thread_hears_so_and_keeps_no_place") {
        return;
    }
    let dir = Dir::new();
    let path = dir.0.join("s");
    let config =
        ServerOptions::default().limits(ServiceLimits::default().clients(3)).log(ServiceLog::to(std::io::sink()));
    let server = Server::start(&datapipes::discover(), Listener::bind(&path, 0o600).unwrap(), config).unwrap();
    let first = Client::connect(&path).unwrap();
    let limit = NoThreads::from_now_on();
    for _ in 0..8 {
        let e = Client::connect(&path).unwrap_err();
        assert!(e.errno() == Some(11) && e.to_string().contains("thread"), "{e}");
    }
    assert_eq!(first.status().unwrap().connected, 1);
    drop(limit);
    assert!(Client::connect(&path).unwrap().status().is_ok());
    drop(first);
    assert!(server.stop(Duration::from_secs(60)));
}

#[test]
fn limits_of_nothing_are_refused_when_it_starts() {
    let dir = Dir::new();
    type Change = fn(&mut ServiceLimits);
    let changes: [Change; 7] = [
        |limits| limits.clients = 0,
        |limits| limits.clients_per_uid = 0,
        |limits| limits.pipes = 0,
        |limits| limits.transfers = 0,
        |limits| limits.descriptors = 0,
        |limits| limits.hello_ms = 0,
        |limits| limits.requests_per_s = 0,
    ];
    for change in changes {
        let mut limits = ServiceLimits::default();
        change(&mut limits);
        let listener = Listener::bind(dir.0.join("s"), 0o600).unwrap();
        let config = ServerOptions::default().limits(limits.clone());
        let e = Server::start(&datapipes::discover(), listener, config).map(|_| ()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{limits:?}: {e}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    let output = command.args(["--pipes", "0", "--socket"]).arg(dir.0.join("s")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pipes: 0"));
}

/// A client that asks without end is served at a limited rate. It affects neither other clients nor
/// the end of the service.
#[test]
fn who_asks_too_often_waits() {
    let service = Service::start(&["--requests", "50"]);
    let (greedy, other) = (service.client(), service.client());
    let begun = std::time::Instant::now();
    for _ in 0..110 {
        greedy.status().unwrap();
    }
    // Fifty are served at once (the hello is not counted), and then fifty a second.
    assert!(begun.elapsed() > Duration::from_millis(1150), "{:?}", begun.elapsed());
    other.status().unwrap();
    // Requests that still wait are not carried out for a client that left, and the end does not
    // wait for them.
    let flood = || {
        let raw = Raw::hello(&service.socket);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while rustix::net::send(&raw.0, br#"{"ask":"status"}"#, flags).is_ok() {}
        raw
    };
    drop(flood());
    service.until("the one that left is gone", |now| now.connected == 3);
    let _stays = flood();
    service.signal(libc::SIGTERM);
    let (status, log) = service.end_within(Duration::from_secs(60));
    assert!(status.success(), "{log}");
}

#[test]
fn without_descriptors_clients_hear_so_and_it_recovers() {
    let dir = Dir::new();
    let socket = dir.0.join("s");
    let mut command = Command::new("sh");
    let script = "ulimit -n 40; exec \"$0\" --socket \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_dpiped")]).arg(&socket);
    let service = Service::of(command, socket, dir);
    let before = service.with(0);
    let bytes = pattern(MIB as usize, 1);
    let (source, target) = (memory_of(&bytes), SharedMemory::create(bytes.len()).unwrap());
    let first = service.client();
    let mut pipe = first
        .connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
        .unwrap();
    let (mut clients, mut refused) = (Vec::new(), 0);
    while refused < 20 {
        match Client::connect(&service.socket) {
            Ok(client) => clients.push(client),
            Err(e) => {
                assert!(matches!(e.errno(), Some(23 | 24)), "{e}");
                refused += 1;
            }
        }
        assert!(clients.len() < 40);
    }
    // A connected client is served, unless it passes more.
    pipe.transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
    assert!(target.to_vec().unwrap() == bytes);
    let file = Ssd::unlinked_in(scene::disk()).unwrap();
    let e = first
        .connect_pipe(&ClientPlace::memory(&source), &ClientPlace::file(&file), &ConnectFdOptions::default())
        .map(|_| ());
    let e = e.unwrap_err();
    assert!(e.errno().is_some() || e.to_string().contains("descriptors"), "{e}");
    drop((clients, pipe, first));
    service.until_as(&before);
}

#[test]
fn with_too_few_descriptors_it_does_not_start() {
    let dir = Dir::new();
    let mut command = Command::new("sh");
    let script = "ulimit -n 12; exec \"$0\" --socket \"$1\"";
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_dpiped")]).arg(dir.0.join("s")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("12 descriptors"), "{said}");
}

#[test]
fn one_user_does_not_get_all_the_memory() {
    let service = Service::start(&["--mapped-bytes", "2M", "--mapped-bytes-per-uid", "3M"]);
    let memories: Vec<_> = (0..4).map(|i| memory_of(&pattern(MIB as usize, i))).collect();
    let clients = [service.client(), service.client()];
    let pipe = |client: &Client, from: usize| {
        client.connect_pipe(
            &ClientPlace::memory(&memories[from]),
            &ClientPlace::memory(&memories[from]),
            &ConnectFdOptions::default(),
        )
    };
    let kept = (pipe(&clients[0], 0).unwrap(), pipe(&clients[0], 1).unwrap(), pipe(&clients[1], 2).unwrap());
    let e = pipe(&clients[1], 3).map(|_| ()).unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("--mapped-bytes-per-uid"), "{e}");
    drop(kept);
    service.until("it comes back", |now| now.mapped_bytes == 0);
    assert!(pipe(&clients[1], 3).is_ok());
}

#[test]
#[ignore = "run by clients_that_stop_or_fork_hold_nobody_up"]
fn child_that_is_stopped() {
    let (socket, fork) = scene::told();
    let raw = Raw::hello(&socket);
    let memory = memory_of(&pattern(MIB as usize, 1));
    let request = r#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1},"depth":64}"#;
    let pipe = raw.pipe(request, &[memory.as_fd(), memory.as_fd()]).unwrap();
    let span = Span { source: 0, target: MIB / 2, len: MIB / 2 };
    for token in 0..200 {
        // Completions are not taken.
        let _ = rustix::net::send(
            &pipe,
            &TransferRequest { token, span }.to_bytes(),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        );
    }
    if fork == 1 {
        // A child has copies of all descriptors, and lives on for a while.
        let mut child = Command::new("sleep");
        for fd in [raw.0.as_fd(), pipe.as_fd()] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
        }
        println!("child {}", child.arg("300").spawn().unwrap().id());
    }
    println!("begins");
    std::thread::sleep(Duration::from_secs(300));
}

#[test]
fn clients_that_stop_or_fork_hold_nobody_up() {
    use std::io::BufRead;
    let service = Service::start(&[]);
    let before = service.with(0);
    let kill = |pid: u32, signal| {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    for fork in [0, 1] {
        let mut child = scene::child("child_that_is_stopped", &service.socket, fork);
        let mut copies = None;
        for line in std::io::BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            if let Some(pid) = line.strip_prefix("child ") {
                copies = pid.parse::<u32>().ok();
            }
            if line.contains("begins") {
                break;
            }
        }
        kill(child.id(), rustix::process::Signal::STOP);
        // Others are served beside it.
        let bytes = pattern(MIB as usize, 2);
        let (source, target) = (memory_of(&bytes), SharedMemory::create(bytes.len()).unwrap());
        let client = service.client();
        let mut pipe = client
            .connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
            .unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
        assert!(target.to_vec().unwrap() == bytes);
        drop((pipe, client));
        assert_eq!(service.with(1).connected, 2, "who is stopped keeps its place");
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(pid) = copies {
            // Its slot belongs to its connection, which another process still has.
            assert_eq!(service.with(1).connected, 2);
            kill(pid, rustix::process::Signal::KILL);
        }
        assert_eq!((fork == 1), copies.is_some());
        service.until("all of it goes", |now| {
            now.connected == before.connected && now.mapped_bytes == 0 && now.runtime.under_way == 0
        });
    }
}

#[test]
#[ignore = "run by overlays_of_other_namespaces_are_not_trusted"]
fn child_with_an_overlay() {
    let (socket, _) = scene::told();
    let dir = Dir::new();
    for name in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(dir.0.join(name)).unwrap();
    }
    std::fs::write(dir.0.join("lower/file"), pattern(4096, 1)).unwrap();
    let at = |name: &str| dir.0.join(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    let mounted = Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay", &at("merged")]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return println!("no overlay");
    }
    let file = std::fs::File::open(dir.0.join("merged/file")).unwrap();
    let target = SharedMemory::create(4096).unwrap();
    let request = r#"{"ask":"connect","source":{"kind":"file","fd":0},"target":{"kind":"memory","fd":1}}"#;
    let outcome = Raw::hello(&socket).pipe(request, &[file.as_fd(), target.as_fd()]).map(|_| ());
    println!("outcome {outcome:?}");
    drop(file);
    Command::new("umount").arg(at("merged")).status().unwrap();
}

#[test]
fn overlays_of_other_namespaces_are_not_trusted() {
    let ask = |flags: &[&str]| {
        let service = Service::start(flags);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "child_with_an_overlay", "--nocapture"]);
        command.env("DPIPED_CHILD", &service.socket).env("DPIPED_SEED", "0");
        command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let said = ask(&[]);
    if !said.contains("outcome") {
        return println!("SKIPPED: overlays_of_other_namespaces_are_not_trusted: no mounts of overlays here: {said}");
    }
    assert!(said.contains("Unsupported") && said.contains("another namespace"), "{said}");
    assert!(ask(&["--any-filesystem"]).contains("outcome Ok"));
}
