//! The service under a service manager: what it tells it, its watchdog, its journal.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use scene::{Dir, PATIENCE, Service};

/// The socket of a service manager, and a service that it starts with these variables.
fn managed(dir: &Dir, variables: &[(&str, &str)]) -> (UnixDatagram, Service) {
    let path = dir.0.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    let socket = dir.0.join("s");
    command.arg("--socket").arg(&socket).env("NOTIFY_SOCKET", &path).envs(variables.iter().copied());
    (manager, Service::of(command, socket, Dir::new()))
}

fn heard(manager: &UnixDatagram) -> String {
    let mut message = [0; 512];
    let len = manager.recv(&mut message).unwrap();
    String::from_utf8_lossy(&message[..len]).into_owned()
}

/// As [`heard`], without what a service says that a busy machine kept from answering for a second.
fn heard_served(manager: &UnixDatagram) -> String {
    loop {
        let message = heard(manager);
        if !message.starts_with("STATUS=Does not serve") {
            return message;
        }
    }
}

#[test]
fn the_watchdog_hears_of_a_service_that_serves() {
    let dir = Dir::new();
    let (manager, service) = managed(&dir, &[("WATCHDOG_USEC", "3000000")]);
    assert!(heard(&manager).starts_with("READY=1\nSTATUS=Serves at "));
    assert_eq!(heard_served(&manager), "WATCHDOG=1\nSTATUS=Serves 0 clients, 0 transfers under way");
    let _client = service.client();
    let told = (0..50).any(|_| heard(&manager) == "WATCHDOG=1\nSTATUS=Serves 1 clients, 0 transfers under way");
    assert!(told);
    service.signal(15);
    let until_stopping = (0..50).map(|_| heard_served(&manager)).find(|message| !message.starts_with("WATCHDOG=1"));
    assert_eq!(until_stopping.unwrap(), "STOPPING=1\nSTATUS=Carries out what is under way");
    assert_eq!(service.end().0.code(), Some(0));
}

/// The threads of a process by name.
fn thread(pid: u32, name: &str) -> Option<i32> {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().find_map(|task| {
        let task = task.unwrap();
        let is_it = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default().trim_end() == name;
        is_it.then(|| task.file_name().to_str().unwrap().parse().unwrap())
    })
}

#[test]
fn a_service_whose_accepting_thread_hangs_does_not_ping_its_watchdog() {
    let dir = Dir::new();
    let (manager, service) = managed(&dir, &[("WATCHDOG_USEC", "3000000")]);
    while !heard(&manager).starts_with("WATCHDOG=1") {}
    let tid = thread(service.child.id(), "dpiped-accept").unwrap();
    // A thread that is traced and stopped stands for one that hangs; all others go on.
    if let Err(e) = stop_thread(tid) {
        println!("SKIPPED: a_service_whose_accepting_thread_hangs_does_not_ping_its_watchdog: ptrace: {e}");
        return;
    }
    let hung = (0..20).map(|_| heard(&manager)).find(|message| !message.starts_with("WATCHDOG=1")).unwrap();
    assert!(hung.starts_with("STATUS=Does not serve: ") && hung.contains("did not answer"), "{hung}");
    assert!(!heard(&manager).contains("WATCHDOG=1"), "it does not ping again");
    service.until_says("does not serve");
    // Let go, it serves again.
    // SAFETY: the thread was attached by this thread, and is let go once.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0, 0) }, 0);
    assert!((0..20).any(|_| heard(&manager).starts_with("WATCHDOG=1")));
}

/// Stops one thread of another process.
fn stop_thread(tid: i32) -> std::io::Result<()> {
    for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
        // SAFETY: neither request touches memory of this process.
        if unsafe { libc::ptrace(request, tid, 0, 0) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let waited = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    if waited == tid { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_watchdog_of_another_process_is_left_alone() {
    let dir = Dir::new();
    let (manager, service) = managed(&dir, &[("WATCHDOG_USEC", "300000"), ("WATCHDOG_PID", "1")]);
    assert!(heard(&manager).starts_with("READY=1"));
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(manager.recv(&mut [0; 512]).is_err(), "without a watchdog it tells every ten seconds");
    drop(service);
}

/// What a service that cannot start says on standard error, where `JOURNAL_STREAM` names that file
/// or another.
fn said(names_it: bool) -> String {
    let dir = Dir::new();
    let path = dir.0.join("journal");
    let file = std::fs::File::create(&path).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    assert!(file.as_raw_fd() > 2);
    let inode = stat.st_ino + u64::from(!names_it);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    command.args(["--socket", "/nonexistent/s"]).env("JOURNAL_STREAM", format!("{}:{inode}", stat.st_dev));
    command.env("DATAPIPES_JOURNAL", dir.0.join("absent"));
    let status = command.stderr(Stdio::from(file)).status().unwrap();
    assert_eq!(status.code(), Some(2));
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn lines_for_the_journal_begin_with_their_priority() {
    let (journal, file) = (said(true), said(false));
    assert!(journal.starts_with("<3>listen: ") && journal.contains("/nonexistent"), "{journal}");
    assert!(file.starts_with("dpiped: listen: ") && file.contains("/nonexistent"), "{file}");
}

/// What a service sends to a journal that listens.
fn entries(journal: &UnixDatagram) -> Vec<Vec<String>> {
    let mut entries = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(len) = journal.recv(&mut bytes) {
        entries.push(String::from_utf8_lossy(&bytes[..len]).lines().map(str::to_owned).collect());
    }
    entries
}

/// A connection to a service, if it is there.
fn seqpacket(path: &Path) -> Option<std::os::fd::OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok().map(|()| socket)
}

#[test]
fn the_journal_gets_fields_and_standard_error_nothing() {
    let dir = Dir::new();
    let journal = UnixDatagram::bind(dir.0.join("journal")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let file = std::fs::File::create(dir.0.join("stderr")).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
        command.env("JOURNAL_STREAM", format!("{}:{}", stat.st_dev, stat.st_ino));
        command.env("DATAPIPES_JOURNAL", dir.0.join("journal")).stderr(file.try_clone().unwrap());
        command.arg("--socket").arg(dir.0.join("s"));
        command
    };
    // One that cannot start, and one that serves a client who does not speak its protocol.
    assert_eq!(start().args(["--metrics", "/nonexistent/m"]).status().unwrap().code(), Some(2));
    let refused = entries(&journal);
    let has = |entry: &[String], field: &str| entry.iter().any(|line| line.starts_with(field));
    let cannot = refused.iter().find(|entry| has(entry, "DATAPIPES_EVENT=CannotStart")).unwrap();
    assert!(has(cannot, "PRIORITY=3") && has(cannot, "SYSLOG_IDENTIFIER=dpiped"), "{cannot:?}");
    let id = datapipes_service::server::LogEvent::CannotStart.message_id();
    assert!(has(cannot, &format!("MESSAGE_ID={id}")) && has(cannot, "MESSAGE="), "{cannot:?}");
    let mut service = start().spawn().unwrap();
    let mut client = None;
    datapipes_testkit::until("the service serves", || {
        client = seqpacket(&dir.0.join("s"));
        client.is_some()
    });
    rustix::io::write(client.as_ref().unwrap(), b"nonsense").unwrap();
    let mut found = None;
    datapipes_testkit::until("an entry about the client", || {
        found = entries(&journal).into_iter().find(|entry| has(entry, "DATAPIPES_CLIENT="));
        found.is_some()
    });
    let told = found.unwrap();
    let me = format!("DATAPIPES_CLIENT_PID={}", std::process::id());
    assert!(has(&told, "DATAPIPES_EVENT=ClientCutOff") && has(&told, "PRIORITY=4") && has(&told, &me), "{told:?}");
    service.kill().unwrap();
    service.wait().unwrap();
    assert_eq!(std::fs::read_to_string(dir.0.join("stderr")).unwrap(), "");
}

#[test]
fn a_manager_that_does_not_read_its_socket_holds_nothing_up() {
    let dir = Dir::new();
    // Every probe tells the manager something, and after a few messages its socket is full.
    let (manager, service) = managed(&dir, &[("WATCHDOG_USEC", "300000")]);
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    full.connect(dir.0.join("notify")).unwrap();
    while full.send(b"STATUS=full").is_ok() {}
    assert!(service.client().status().is_ok(), "it serves all the same");
    std::thread::sleep(Duration::from_millis(700));
    service.signal(15);
    let (status, log) = service.end();
    assert_eq!(status.code(), Some(0), "{log}");
    drop(manager);
}
