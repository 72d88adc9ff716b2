//! How a service starts, idles and ends.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use datapipes::descriptor::passing::has_unread;
use datapipes::{ConnectFdOptions, ErrorKind, Span, Ssd};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use scene::{Dir, MIB, Service, content, memory_of, pattern};

#[test]
fn a_client_without_a_service_is_told_what_to_start() {
    let dir = Dir::new();
    let e = Client::connect(dir.0.join("none")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.to_string().contains("none is running") && e.to_string().contains("start dpiped"), "{e}");
    // A socket file that no process serves is the same to a client.
    let path = dir.0.join("stale");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(socket);
    assert_eq!(Client::connect(&path).unwrap_err().kind(), ErrorKind::Unavailable);
    let output = Command::new(env!("CARGO_BIN_EXE_dpiped")).args(["--status", "--socket"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none is running"));
}

#[test]
fn a_service_that_hangs_is_given_up_by_clients_with_a_limit() {
    let service = Service::start(&[]);
    let limit = Duration::from_secs(3);
    let client = Client::connect_within(&service.socket, limit).unwrap();
    assert_eq!(client.status().unwrap().connected, 1);
    service.signal(libc::SIGSTOP);
    // It is told when all of its threads have stopped.
    let pid = rustix::process::Pid::from_child(&service.child);
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
    let late = client.status().unwrap_err();
    assert!(late.kind() == ErrorKind::Busy && late.to_string().contains("did not answer within"), "{late}");
    // Its answer may still come, so the connection has ended.
    assert_eq!(client.status().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(Client::connect_within(&service.socket, limit).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(Client::connect_within(&service.socket, Duration::ZERO).unwrap_err().kind(), ErrorKind::Busy);
    service.signal(libc::SIGCONT);
    datapipes_testkit::until("it serves again", || {
        Client::connect_within(&service.socket, limit).is_ok_and(|client| client.status().is_ok())
    });
}

#[test]
fn asked_to_stop_it_carries_out_what_is_under_way() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(32 * MIB as usize, 1);
    let (source, file) = (memory_of(&bytes), Ssd::unlinked_in(scene::disk()).unwrap());
    let target = SharedMemory::create(bytes.len()).unwrap();
    let ask = ConnectFdOptions::default().depth(64);
    let slow = {
        let mut ask = ask.clone();
        ask.connect.service.at_most = Some(8e6);
        ask
    };
    let to_file = client.connect_pipe(&ClientPlace::memory(&source), &ClientPlace::file(&file), &ask).unwrap();
    let to_memory = client.connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &slow).unwrap();
    let span = |i: u64| Span { source: i * MIB, target: i * MIB, len: MIB };
    for pipe in [&to_file, &to_memory] {
        for i in 0..32 {
            while pipe.submit(span(i)).is_err_and(|e| e.kind() == ErrorKind::Busy) {
                std::thread::yield_now();
            }
        }
    }
    // Requests that are still in a socket when the service stops are not begun.
    while has_unread(&to_file) || has_unread(&to_memory) {
        std::thread::yield_now();
    }
    let mut done = [0, 0];
    for (pipe, done) in [&to_file, &to_memory].into_iter().zip(&mut done) {
        pipe.complete_wait().unwrap().result.unwrap();
        *done += 1;
    }
    let under_way = client.status().unwrap().runtime.under_way;
    assert!(under_way > 0, "the slow pipe takes four seconds");
    service.signal(15);
    for (pipe, done) in [&to_file, &to_memory].into_iter().zip(&mut done) {
        while *done < 32 {
            pipe.complete_wait().unwrap().result.unwrap();
            *done += 1;
        }
        assert_eq!(pipe.complete_wait().unwrap_err().kind(), ErrorKind::Unavailable, "then it is over");
        assert_eq!(pipe.submit(span(0)).unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(target.to_vec().unwrap()[..] == bytes[..] && content(&file, bytes.len()) == bytes);
    assert_eq!(client.status().unwrap_err().kind(), ErrorKind::Unavailable);
    let socket = service.socket.clone();
    let (status, log) = service.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGTERM: stops") && log.contains("was carried out"), "{log}");
    assert!(!socket.exists(), "its socket is removed");
    assert_eq!(Client::connect(&socket).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn one_service_a_socket_and_a_stale_one_is_replaced() {
    let service = Service::start(&[]);
    let second =
        |socket: &Path| Command::new(env!("CARGO_BIN_EXE_dpiped")).arg("--socket").arg(socket).output().unwrap();
    let output = second(&service.socket);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another service is there"));
    assert!(service.client().status().is_ok(), "the first one goes on");
    let dir = Dir::new();
    // A killed service leaves its socket file behind.
    let path = dir.0.join("s");
    let again = |dir| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
        command.arg("--socket").arg(&path);
        Service::of(command, path.clone(), dir)
    };
    let mut killed = again(Dir::new());
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert!(path.exists());
    let replaced = again(Dir::new());
    assert!(replaced.client().status().is_ok());
    drop(replaced);
    // A file that is not a socket is left alone, and so is a socket that another program serves.
    let file = dir.0.join("file");
    std::fs::write(&file, "precious").unwrap();
    let output = second(&file);
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("not a socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let other = listener(&dir.0.join("other"));
    assert_eq!(second(&dir.0.join("other")).status.code(), Some(2));
    drop(other);
}

fn listener(path: &Path) -> std::os::fd::OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    socket
}

/// Starts it as systemd does: the socket is descriptor 3, and the variables name the process.
fn activated(passed: impl Into<Stdio>) -> Command {
    let mut command = Command::new("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" 3<&0 </dev/null";
    command.args(["-c", script, env!("CARGO_BIN_EXE_dpiped")]).stdin(passed);
    command
}

#[test]
fn started_with_a_socket_it_serves_that_one_and_tells_its_manager() {
    let dir = Dir::new();
    let (path, manager) = (dir.0.join("s"), dir.0.join("notify"));
    let notified = std::os::unix::net::UnixDatagram::bind(&manager).unwrap();
    let socket = listener(&path);
    // A client may come before the service is there: it waits.
    let waiting = {
        let path = path.clone();
        std::thread::spawn(move || Client::connect(path).unwrap().status().unwrap())
    };
    let mut command = activated(socket.as_fd().try_clone_to_owned().unwrap());
    command.env("NOTIFY_SOCKET", &manager);
    let service = Service::of(command, path.clone(), Dir::new());
    assert_eq!(datapipes_testkit::joined(waiting).pid, service.child.id());
    let heard = || {
        let mut message = [0; 64];
        let len = notified.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    assert!(heard().starts_with("READY=1\nSTATUS="));
    service.signal(15);
    assert!(heard().starts_with("STOPPING=1\nSTATUS="));
    let (status, log) = service.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(path.exists(), "the socket is its manager's");
    // A descriptor that is not such a socket is refused.
    let wrong = activated(Stdio::from(std::fs::File::open("/dev/null").unwrap())).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("LISTEN_FDS"));
}

/// How often threads of a process went to sleep voluntarily, and the ticks that it ran.
fn activity(pid: u32) -> (u64, u64) {
    let mut sleeps = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap();
        sleeps += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (sleeps, fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

#[test]
fn idle_it_does_nothing_at_all() {
    let service = Service::start(&[]);
    let client = service.client();
    let (source, target) = (memory_of(&pattern(MIB as usize, 1)), SharedMemory::create(MIB as usize).unwrap());
    let file = scene::file_of(&pattern(MIB as usize, 1));
    let to = ClientPlace::memory(&target);
    let mut pipes = [ClientPlace::memory(&source), ClientPlace::file(&file)]
        .map(|from| client.connect_pipe(&from, &to, &ConnectFdOptions::default()).unwrap());
    for pipe in &mut pipes {
        pipe.transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
    }
    // The rest of the work above ends first.
    datapipes_testkit::until("nobody wakes up for half a second", || {
        let before = activity(service.child.id());
        std::thread::sleep(Duration::from_millis(500));
        activity(service.child.id()) == before
    });
}

#[test]
fn the_units_are_understood_by_systemd() {
    let names = ["dpiped.service", "dpiped.socket", "dpiped-metrics.socket"];
    let units = names.map(|unit| Path::new(env!("CARGO_MANIFEST_DIR")).join(unit));
    // The units are verified with a program that exists.
    let dir = Dir::new();
    for unit in &units {
        let text = std::fs::read_to_string(unit).unwrap().replace("/usr/bin/dpiped", env!("CARGO_BIN_EXE_dpiped"));
        std::fs::write(dir.0.join(unit.file_name().unwrap()), text).unwrap();
    }
    let copies = names.map(|unit| dir.0.join(unit));
    match Command::new("systemd-analyze").arg("verify").args(&copies).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("dpiped"), "{said}");
        }
        Err(e) => println!("SKIPPED: the_units_are_understood_by_systemd: systemd-analyze: {e}"),
    }
}
