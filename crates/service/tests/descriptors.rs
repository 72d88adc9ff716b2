//! Descriptors that clients pass, and what they do with them afterwards: closing them may take for
//! ever, and pages may be removed.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use datapipes::descriptor::wire;
use datapipes::{ConnectFdOptions, ErrorKind, Span, Ssd};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use datapipes_testkit::{ControlGroup, Mounted, RefusedCall, poll_until, without_calls};
use rustix::event::PollFlags;
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, kill_process};
use scene::{
    FILE_TO_MEMORY, MEMORY_TO_MEMORY, MIB, PATIENCE, Raw, Service, file_of, is_hung_up_on, memory_of,
    others_are_served, pattern, whole,
};

/// A TCP connection with unsent bytes that lingers: closing it takes until the other end reads, or
/// a minute.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &socket, &[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    (socket.into(), other)
}

#[test]
fn sockets_that_linger_hold_nobody_up_on_kernels_that_let_them_pass() {
    let test = "sockets_that_linger_hold_nobody_up_on_kernels_that_let_them_pass";
    /// `SO_PASSRIGHTS`.
    const OPTION: u32 = 83;
    let refused = RefusedCall { number: libc::SYS_setsockopt, errno: libc::ENOPROTOOPT }.with_bits(2, OPTION);
    let service = match without_calls(&[refused], || Service::start(&["--hello-ms", "6000", "--clients-per-uid", "12"]))
    {
        Ok(service) => service,
        Err(why) => return println!("SKIPPED: {test}: {why}"),
    };
    let mut others = Vec::new();
    let mut passed = |raw: &Raw, bytes: &[u8]| {
        let (socket, other) = lingering();
        // The copy in flight must be the last one, because closing the last one here would block.
        service.signal(19);
        // It is refused if the connection was ended for something sent before.
        let _ = raw.send(bytes, &[socket.as_fd()]);
        others.push(other);
        std::thread::spawn(move || drop(socket));
        std::thread::sleep(Duration::from_millis(20));
        service.signal(18);
    };
    // Pass it with the hello, with a request, over a pipe, and leave it in each connection.
    let early = Raw::connect(&service.socket);
    passed(&early, br#"{"ask":"hello","version":1,"name":"raw"}"#);
    assert!(early.answer().unwrap().into_result().is_err());
    let memory = memory_of(&[0; 4096]);
    let raw = Raw::hello(&service.socket);
    passed(&raw, br#"{"ask":"status"}"#);
    assert!(raw.answer().unwrap().into_result().is_err());
    others_are_served(&service);
    let raw = Raw::hello(&service.socket);
    let request = std::str::from_utf8(MEMORY_TO_MEMORY).unwrap();
    let pipe = Raw(raw.pipe(request, &[memory.as_fd(), memory.as_fd()]).unwrap());
    for _ in 0..3 {
        passed(&pipe, &[7; 32]);
    }
    others_are_served(&service);
    passed(&raw, b"");
    passed(&raw, b"left");
    drop((raw, pipe));
    others_are_served(&service);
    // One client too many is refused; it sent a packet before.
    let clients: Vec<Raw> = (0..12).map(|_| Raw::connect(&service.socket)).collect();
    let last = Raw::connect(&service.socket);
    passed(&last, br#"{"ask":"hello","version":1,"name":"raw"}"#);
    drop((clients, last));
    // Clients whose sockets linger keep their slots.
    let until = Instant::now() + PATIENCE;
    while !Client::connect(&service.socket).and_then(|client| client.status()).is_ok_and(|now| now.connected <= 6) {
        assert!(Instant::now() < until, "they do not leave");
        std::thread::sleep(Duration::from_millis(5));
    }
    others_are_served(&service);
    service.signal(15);
    let (status, log) = service.end_within(PATIENCE);
    // It did not wait for a lingering one, or its own time to stop would have ended.
    assert!(status.success(), "{status}\n{log}");
    drop(others);
}

#[test]
fn a_packet_without_bytes_is_not_closed_by_the_service_either() {
    let service = Service::start(&["--hello-ms", "6000"]);
    let raw = Raw::hello(&service.socket);
    let (socket, other) = lingering();
    service.signal(19);
    raw.send(b"", &[socket.as_fd()]).unwrap();
    // It may have closed the connection because of the first packet.
    let _ = raw.send(b"", &[socket.as_fd()]);
    std::thread::spawn(move || drop(socket));
    std::thread::sleep(Duration::from_millis(20));
    service.signal(18);
    others_are_served(&service);
    service.signal(15);
    let (status, log) = service.end_within(PATIENCE);
    assert!(status.success(), "{status}\n{log}");
    drop(other);
}

#[test]
fn pages_that_a_client_takes_away_do_not_become_the_service_s() {
    let there = |memory: &SharedMemory| fstat(memory).unwrap().st_blocks as u64 * 512;
    for target_is_punched in [false, true] {
        let service = Service::start(&[]);
        if service.log().contains("userfaultfd") {
            return println!(
                "SKIPPED: pages_that_a_client_takes_away_do_not_become_the_service_s: no userfaultfd here"
            );
        }
        let client = service.client();
        let bytes = pattern(MIB as usize, 7);
        let (source, target) = (memory_of(&bytes), memory_of(&vec![0; MIB as usize]));
        assert_eq!((there(&source), there(&target)), (MIB, MIB));
        let mut pipe = client
            .connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
            .unwrap();
        pipe.transfer(whole(MIB)).unwrap();
        assert!(target.to_vec().unwrap() == bytes);
        let punched = if target_is_punched { &target } else { &source };
        fallocate(punched, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, MIB - 8192).unwrap();
        // The pipe may end before the session does.
        let _ = pipe.transfer(whole(MIB));
        service.until("it is cut off", |now| now.turned_away == 1);
        assert_eq!(there(punched), 8192, "pages were added by the service");
        others_are_served(&service);
        service.until("its memory goes", |now| now.mapped_bytes == 0);
    }
}

#[test]
fn a_session_that_waits_for_something_else_ends_what_lost_its_memory() {
    let service = Service::start(&[]);
    if service.log().contains("userfaultfd") {
        return println!(
            "SKIPPED: a_session_that_waits_for_something_else_ends_what_lost_its_memory: no userfaultfd here"
        );
    }
    let (source, target) = (memory_of(&pattern(MIB as usize, 7)), memory_of(&vec![0; MIB as usize]));
    let raw = Raw::hello(&service.socket);
    let request = std::str::from_utf8(MEMORY_TO_MEMORY).unwrap();
    let pipe = Raw(raw.pipe(request, &[source.as_fd(), target.as_fd()]).unwrap());
    // The session waits until this socket is closed, which takes five seconds.
    let (socket, other) = lingering();
    raw.send(FILE_TO_MEMORY, &[socket.as_fd(), target.as_fd()]).unwrap();
    assert!(raw.answer().unwrap().into_result().is_err());
    drop(std::thread::spawn(move || drop(socket)));
    raw.send(MEMORY_TO_MEMORY, &[source.as_fd(), target.as_fd()]).unwrap();
    fallocate(&target, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    let ask = wire::TransferRequest { token: 1, span: whole(MIB) }.to_bytes();
    let _ = pipe.send(&ask, &[]);
    service.until("it is cut off", |now| now.turned_away == 1);
    service.until_says("SIGBUS");
    assert_eq!(fstat(&target).unwrap().st_blocks, 0, "pages were added by the service");
    others_are_served(&service);
    drop((other, raw, pipe));
}

#[test]
fn what_a_pipe_between_files_has_of_its_own_is_charged() {
    let service = Service::start(&["--mapped-bytes", "20M"]);
    let client = service.client();
    let (from, to) = (file_of(&pattern(MIB as usize, 3)), file_of(&[0]));
    let connect =
        || client.connect_pipe(&ClientPlace::file(&from), &ClientPlace::file(&to), &ConnectFdOptions::default());
    let pipes = [connect().unwrap(), connect().unwrap()];
    let e = connect().unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("--mapped-bytes"), "{e}");
    drop(pipes);
    service.until("their charge goes", |now| now.mapped_bytes == 0);
    connect().unwrap().transfer(whole(MIB)).unwrap();
}

/// A user can mount any number of file systems in a namespace of their own, each with a device
/// number.
#[test]
fn devices_that_nobody_uses_any_more_are_forgotten() {
    const MOUNTS: usize = 200;
    let dir = scene::Dir::new();
    let mounted: Result<Vec<Mounted>, String> = (0..MOUNTS).map(|_| Mounted::small(dir.0.at(), MIB)).collect();
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: devices_that_nobody_uses_any_more_are_forgotten: {why}"),
    };
    let service = Service::start(&[]);
    let client = service.client();
    let (bytes, target) = (pattern(4096, 9), memory_of(&[0; 4096]));
    let connect = |on: &Mounted| {
        let path = on.path("file");
        std::fs::write(&path, &bytes).unwrap();
        let (source, target) = (Ssd::open(&path).unwrap(), ClientPlace::memory(&target));
        client.connect_pipe(&ClientPlace::file(&source), &target, &ConnectFdOptions::default()).unwrap()
    };
    // The first transfer opens a ring, which stays.
    connect(&mounted[0]).transfer(whole(4096)).unwrap();
    let before = service.until("the first pipe goes", |now| now.mapped_bytes == 0);
    // What is in use is not forgotten.
    let mut used = connect(&mounted[0]);
    for on in &mounted {
        connect(on).transfer(whole(4096)).unwrap();
        assert_eq!(target.to_vec().unwrap(), bytes);
    }
    let known = |now: &datapipes_service::ServiceStatus| now.runtime.resources.len();
    let after = service.until("devices stay", |now| known(now) < MOUNTS / 2);
    assert!(known(&after) > known(&before), "those of the last clients are still there");
    used.transfer(whole(4096)).unwrap();
    drop(used);
    service.until_as(&before);
}

#[test]
fn without_processes_a_client_is_told_and_nobody_waits() {
    let test = "without_processes_a_client_is_told_and_nobody_waits";
    let group = match ControlGroup::of_threads() {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED: {test}: {why}"),
    };
    let dir = scene::Dir::new();
    let socket = dir.0.join("s");
    let mut command = group.command(env!("CARGO_BIN_EXE_dpiped"));
    command.arg("--socket").arg(&socket).args(["--hello-ms", "6000"]);
    let service = Service::of(command, socket, dir);
    let memory = memory_of(&[0; 4096]);
    let raw = Raw::hello(&service.socket);
    group.refuse_threads(true).unwrap();
    let (socket, other) = lingering();
    service.signal(19);
    raw.send(FILE_TO_MEMORY, &[socket.as_fd(), memory.as_fd()]).unwrap();
    std::thread::spawn(move || drop(socket));
    std::thread::sleep(Duration::from_millis(20));
    service.signal(18);
    let e = raw.answer().unwrap().into_result().unwrap_err();
    assert!(e.to_string().contains("helper process"), "{e}");
    assert!(is_hung_up_on(&raw));
    group.refuse_threads(false).unwrap();
    others_are_served(&service);
    service.signal(15);
    let (status, log) = service.end_within(PATIENCE);
    assert!(status.success(), "{status}\n{log}");
    drop((other, raw));
}

#[test]
fn pages_that_are_missed_by_the_kernel_are_an_error() {
    let service = Service::start(&[]);
    if service.log().contains("userfaultfd") {
        return println!("SKIPPED: pages_that_are_missed_by_the_kernel_are_an_error: no userfaultfd here");
    }
    let client = service.client();
    let file = file_of(&pattern(MIB as usize, 9));
    let memory = memory_of(&vec![0; MIB as usize]);
    let mut pipe = client
        .connect_pipe(&ClientPlace::file(&file), &ClientPlace::memory(&memory), &ConnectFdOptions::default())
        .unwrap();
    fallocate(&memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, MIB).unwrap();
    assert!(pipe.transfer(whole(MIB)).is_err());
    assert_eq!(fstat(&memory).unwrap().st_blocks, 0, "pages were added by the service");
    others_are_served(&service);
}

#[test]
fn the_process_that_takes_descriptors_in_may_be_killed() {
    let dir = scene::Dir::new();
    let socket = dir.0.join("s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    let mark = format!("DPIPED_MARK={}", socket.display());
    command.arg("--socket").arg(&socket).env("DPIPED_MARK", &socket);
    let service = Service::of(command, socket, dir);
    others_are_served(&service);
    let killed = kill_those_called("dpiped-intake", &mark);
    assert!(killed >= 1, "it is not there");
    others_are_served(&service);
}

/// Kills processes of a name that have `mark` in their environment. Returns how many.
fn kill_those_called(name: &str, mark: &str) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        if read("comm") == format!("{name}\n").as_bytes()
            && read("environ").split(|b| *b == 0).any(|word| word == mark.as_bytes())
        {
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw).unwrap();
            kill_process(pid, Signal::KILL).unwrap();
            killed += 1;
        }
    }
    killed
}

#[test]
fn without_the_first_process_the_service_stops() {
    let dir = scene::Dir::new();
    let socket = dir.0.join("s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    let mark = format!("DPIPED_MARK={}", socket.display());
    command.arg("--socket").arg(&socket).env("DPIPED_MARK", &socket);
    let service = Service::of(command, socket, dir);
    others_are_served(&service);
    assert_eq!(kill_those_called("dpiped-first", &mark), 1);
    let (status, log) = service.end_within(PATIENCE);
    assert!(status.code() == Some(1) && log.contains("dpiped-first was killed"), "{status}\n{log}");
}

#[test]
fn one_descriptor_at_most_is_on_its_way_to_a_client() {
    let service = Service::start(&["--hello-ms", "6000"]);
    let memory = memory_of(&[0; 4096]);
    // A client that reads its answers may send the next request before.
    let raw = Raw::hello(&service.socket);
    for _ in 0..3 {
        raw.send(MEMORY_TO_MEMORY, &[memory.as_fd(), memory.as_fd()]).unwrap();
    }
    let answered = |raw: &Raw| raw.answer().unwrap().into_result();
    assert!((0..3).all(|_| answered(&raw).is_ok()));
    drop(raw);
    let raw = Raw::hello(&service.socket);
    for _ in 0..3 {
        raw.send(MEMORY_TO_MEMORY, &[memory.as_fd(), memory.as_fd()]).unwrap();
    }
    service.until("it is cut off", |now| now.turned_away == 1);
    // One unread answer with a descriptor keeps its slot.
    assert_eq!(service.with(1).connected, 2);
    assert!(answered(&raw).is_ok());
    assert!(answered(&raw).unwrap_err().to_string().contains("does not read"));
    service.until("it is gone", |now| now.connected == 1);
    // So does a client that shut down its side.
    let raw = Raw::hello(&service.socket);
    raw.send(MEMORY_TO_MEMORY, &[memory.as_fd(), memory.as_fd()]).unwrap();
    rustix::net::shutdown(&raw.0, rustix::net::Shutdown::Write).unwrap();
    poll_until(&raw.0, PollFlags::IN);
    others_are_served(&service);
    assert_eq!(service.with(1).connected, 2);
    drop(raw);
    service.until("it is gone", |now| now.connected == 1);
}

#[test]
fn completions_that_nobody_takes_keep_their_client_s_place() {
    let service = Service::start(&[]);
    let memory = memory_of(&[0; 4096]);
    let raw = Raw::hello(&service.socket);
    let request = std::str::from_utf8(MEMORY_TO_MEMORY).unwrap();
    let pipes: Vec<Raw> = (0..2).map(|_| Raw(raw.pipe(request, &[memory.as_fd(), memory.as_fd()]).unwrap())).collect();
    for pipe in &pipes {
        let ask = wire::TransferRequest { token: 1, span: Span { source: 0, target: 2048, len: 2048 } }.to_bytes();
        pipe.send(&ask, &[]).unwrap();
    }
    pipes.iter().for_each(|pipe| _ = poll_until(&pipe.0, PollFlags::IN));
    drop(raw);
    others_are_served(&service);
    assert_eq!(service.with(1).connected, 2);
    let [first, second] = <[Raw; 2]>::try_from(pipes).ok().unwrap();
    // It is read by one and closed by the other.
    let mut message = [0; 256];
    assert!(matches!(rustix::net::recv(&first.0, &mut message, RecvFlags::empty()), Ok((_, 1..))));
    assert_eq!(service.with(1).connected, 2);
    drop(second);
    service.until("it is gone", |now| now.connected == 1);
    assert_eq!(rustix::net::recv(&first.0, &mut message, RecvFlags::empty()).map(|got| got.1), Ok(0), "the end");
}
