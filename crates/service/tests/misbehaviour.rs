//! Clients that die, lie, flood, or keep silent, and another client beside them, which must not
//! notice.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes::{ConnectFdOptions, ErrorKind, Pages, Span, Ssd};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use datapipes_testkit::child::in_child;
use datapipes_testkit::{PATIENCE, joined, poll_until};
use rustix::event::PollFlags;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, recvmsg};
use scene::{MIB, Raw, Service, file_of, memory_of, pattern};

/// A client that keeps working and checks every byte until it is told to stop.
struct Good {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Good {
    fn start(service: &Service) -> Good {
        let (client, stop) = (service.client(), Arc::new(AtomicBool::new(false)));
        let told = stop.clone();
        let (said, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let bytes = pattern(MIB as usize, 11);
            let (memory, file) = (memory_of(&bytes), file_of(&bytes));
            let target = SharedMemory::create(bytes.len()).unwrap();
            let to = ClientPlace::memory(&target);
            let mut pipes = [ClientPlace::memory(&memory), ClientPlace::file(&file)]
                .map(|from| client.connect_pipe(&from, &to, &ConnectFdOptions::default()).unwrap());
            let mut rounds = 0;
            while !told.load(Ordering::SeqCst) || rounds < 5 {
                target.write(0, &vec![0; target.len()]).unwrap();
                pipes[rounds as usize % 2].transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
                assert!(target.to_vec().unwrap()[..] == bytes[..], "round {rounds}");
                rounds += 1;
                let _ = said.send(());
            }
            rounds
        });
        ready.recv_timeout(PATIENCE).unwrap();
        ready.recv_timeout(PATIENCE).unwrap();
        Good { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        joined(self.thread)
    }
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    if len > 0 {
        fallocate(&fd, FallocateFlags::empty(), 0, len).unwrap();
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn opened(path: &std::path::Path, flags: OFlags) -> OwnedFd {
    open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).unwrap()
}

const MEMORY_TO_MEMORY: &[u8] =
    br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1}}"#;
const FILE_TO_MEMORY: &[u8] = br#"{"ask":"connect","source":{"kind":"file","fd":0},"target":{"kind":"memory","fd":1}}"#;
const MEMORY_TO_TWO: &[u8] = br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"file","fd":1,"direct":2,"access":"direct"}}"#;
const MEMORY_TO_FILE: &[u8] = br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"file","fd":1}}"#;

#[test]
fn descriptors_that_do_not_fit_their_role_are_refused_and_closed() {
    let service = Service::start(&[]);
    let good = Good::start(&service);
    let raw = Raw::hello(&service.socket);
    let before = service.with(2);
    let sealed = memfd(MIB, SealFlags::SHRINK);
    let dir = scene::Dir::new();
    let path = dir.0.join("f");
    std::fs::write(&path, b"bytes").unwrap();
    let say = |request: &[u8], fds: &[&OwnedFd]| {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        raw.refused(request, &fds)
    };
    use ErrorKind::{InvalidInput, OutOfRange, PermissionDenied, Unsupported};
    let file = |flags| opened(&path, flags);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let folder = opened(&dir.0, OFlags::RDONLY);
    let holes = memfd_create("holes", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&holes, MIB).unwrap();
    fcntl_add_seals(&holes, SealFlags::SHRINK).unwrap();
    let null = opened("/dev/null".as_ref(), OFlags::RDWR);
    let cases: Vec<(&str, (ErrorKind, String), ErrorKind, &str)> = vec![
        ("unsealed", say(MEMORY_TO_MEMORY, &[&memfd(MIB, SealFlags::empty()), &sealed]), InvalidInput, "F_SEAL_SHRINK"),
        ("file as memory", say(MEMORY_TO_MEMORY, &[&file(OFlags::RDWR), &sealed]), InvalidInput, "memfd"),
        ("sealed target", say(MEMORY_TO_MEMORY, &[&sealed, &memfd(MIB, SealFlags::SHRINK | SealFlags::WRITE)]), PermissionDenied, "sealed against writing"),
        ("memory of no length", say(MEMORY_TO_MEMORY, &[&sealed, &memfd(0, SealFlags::SHRINK)]), InvalidInput, "0 bytes"),
        ("a pipe", say(FILE_TO_MEMORY, &[&reader, &sealed]), Unsupported, "file system"),
        ("a pipe to write", say(MEMORY_TO_FILE, &[&sealed, &writer]), Unsupported, "file system"),
        ("a folder", say(FILE_TO_MEMORY, &[&folder, &sealed]), InvalidInput, "a folder"),
        ("a device", say(FILE_TO_MEMORY, &[&null, &sealed]), InvalidInput, "a character device"),
        ("a name", say(FILE_TO_MEMORY, &[&file(OFlags::PATH), &sealed]), InvalidInput, "O_PATH"),
        ("only to write", say(FILE_TO_MEMORY, &[&file(OFlags::WRONLY), &sealed]), PermissionDenied, "may not be read"),
        ("only to read", say(MEMORY_TO_FILE, &[&sealed, &file(OFlags::RDONLY)]), PermissionDenied, "may not be written"),
        ("appending", say(MEMORY_TO_FILE, &[&sealed, &file(OFlags::WRONLY | OFlags::APPEND)]), PermissionDenied, "O_APPEND"),
        ("appending past the page cache", say(MEMORY_TO_TWO, &[&sealed, &file(OFlags::WRONLY), &file(OFlags::WRONLY | OFlags::APPEND | OFlags::DIRECT)]), InvalidInput, "not the same"),
        ("of the kernel", say(FILE_TO_MEMORY, &[&opened("/proc/self/maps".as_ref(), OFlags::RDONLY), &sealed]), Unsupported, "--any-filesystem"),
        ("a socket as memory", say(MEMORY_TO_MEMORY, &[&raw.0, &sealed]), InvalidInput, "memfd"),
        ("one missing", say(MEMORY_TO_MEMORY, &[&sealed]), InvalidInput, "descriptor 1 is named"),
        ("one too many", say(MEMORY_TO_MEMORY, &[&sealed, &sealed, &sealed]), InvalidInput, "descriptor 2 came"),
        ("nine", say(MEMORY_TO_MEMORY, &[&sealed, &sealed, &null, &null, &null, &null, &null, &null, &null]), InvalidInput, "more than 4 descriptors"),
        ("with garbage", say(b"garbage", &[&sealed, &null]), InvalidInput, "no request"),
        ("with a status", say(br#"{"ask":"status"}"#, &[&sealed]), InvalidInput, "no descriptors"),
        ("memory that is not there", say(MEMORY_TO_MEMORY, &[&sealed, &holes]), InvalidInput, "fallocate"),
        ("a file in memory to write", say(MEMORY_TO_FILE, &[&sealed, &sealed]), InvalidInput, "tmpfs"),
        ("beyond", say(br#"{"ask":"connect","source":{"kind":"memory","fd":0,"offset":1048576,"len":1},"target":{"kind":"memory","fd":1}}"#, &[&sealed, &sealed]), OutOfRange, "1 bytes at 1048576"),
        ("beyond numbers", say(br#"{"ask":"connect","source":{"kind":"memory","fd":0,"offset":18446744073709551615,"len":2},"target":{"kind":"memory","fd":1}}"#, &[&sealed, &sealed]), OutOfRange, "bytes of memory"),
        ("two files as one", say(br#"{"ask":"connect","source":{"kind":"file","fd":0,"direct":1},"target":{"kind":"memory","fd":2}}"#, &[&file(OFlags::RDONLY), &file(OFlags::RDONLY), &sealed]), InvalidInput, "O_DIRECT"),
        ("no rate", say(br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1},"service":{"class":"bulk","at_most":-5.0}}"#, &[&sealed, &sealed]), InvalidInput, "bytes per second"),
        ("no depth", say(br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1},"depth":0}"#, &[&sealed, &sealed]), InvalidInput, "depth"),
        ("a huge queue", say(br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1},"constraints":{"queue_depth":4000000000}}"#, &[&sealed, &sealed]), InvalidInput, "queue_depth"),
    ];
    for (what, (kind, text), wanted, said) in cases {
        assert_eq!(kind, wanted, "{what}: {text}");
        assert!(text.contains(said), "{what}: {text}");
    }
    // The session was not cut off for it, and no passed descriptor stayed open.
    service.until("descriptors leak", |now| {
        now.descriptors <= before.descriptors && now.mapped_bytes <= before.mapped_bytes
    });
    raw.send(MEMORY_TO_MEMORY, &[sealed.as_fd(), sealed.as_fd()]).unwrap();
    assert!(raw.answer().unwrap().into_result().is_ok());
    good.stop();
}

#[test]
fn numbers_that_make_no_sense_are_refused_before_anything_is_done() {
    let service = Service::start(&[]);
    let good = Good::start(&service);
    let raw = Raw::hello(&service.socket);
    let before = service.with(2);
    let bytes = pattern(MIB as usize, 3);
    let (file, copy) = (file_of(&bytes), Ssd::unlinked_in(scene::disk()).unwrap());
    let fds = [file.file().cached_fd(), copy.file().cached_fd()];
    let request = |more: &str| {
        format!(
            r#"{{"ask":"connect","source":{{"kind":"file","fd":0}},"target":{{"kind":"file","fd":1}}{}{more}}}"#,
            if more.is_empty() { "" } else { "," }
        )
    };
    let constraints = |knob: &str| format!(r#""constraints":{{{knob}}}"#);
    let service_of = |knob: &str| format!(r#""service":{{"class":"normal",{knob}}}"#);
    let mut bad = Vec::new();
    for rate in ["0", "-0.0", "-1", "1e999", "-1e999", "NaN", "null0", "\"1\"", "[]"] {
        bad.push(constraints(&format!(r#""at_least":{rate}"#)));
        bad.push(service_of(&format!(r#""at_least":{rate},"at_most":null"#)));
        bad.push(service_of(&format!(r#""at_least":null,"at_most":{rate}"#)));
    }
    for count in ["0", "-1", "0.5", "4294967295", "4294967296", "18446744073709551616"] {
        bad.push(constraints(&format!(r#""request_bytes":{count}"#)));
        bad.push(constraints(&format!(r#""queue_depth":{count}"#)));
    }
    for depth in ["0", "-1", "1.5", "18446744073709551615", "18446744073709551616"] {
        bad.push(format!(r#""depth":{depth}"#));
    }
    bad.push(constraints(r#""typical_len":-1"#));
    bad.push(service_of(r#""at_least":2e6,"at_most":1e6"#));
    bad.push(r#""place":-1"#.into());
    for more in &bad {
        let (kind, text) = raw.refused(request(more).as_bytes(), &fds);
        // A valid number that is too large for this client exceeds a limit.
        let limit = kind == ErrorKind::Busy && text.contains("--transfers");
        assert!(kind == ErrorKind::InvalidInput || limit || kind == ErrorKind::Unsupported, "{more}: {text}");
    }
    service.until("refused requests leave nothing", |now| now.descriptors <= before.descriptors);
    // Odd but valid requests are carried out beside others. Each of these moves everything, on the
    // files' own threads.
    for more in [
        constraints(r#""request_bytes":1,"queue_depth":1"#),
        constraints(r#""typical_len":0"#),
        constraints(r#""typical_len":18446744073709551615"#),
        service_of(r#""at_least":null,"at_most":1e308"#),
        r#""place":18446744073709551615"#.into(),
        String::new(),
    ] {
        let pipe = raw.pipe(&request(&more), &fds).unwrap();
        for token in 0..2 {
            let span = Span { source: 4096 * token, target: 4 * token, len: 4 };
            rustix::net::send(&pipe, &TransferRequest { token, span }.to_bytes(), SendFlags::NOSIGNAL).unwrap();
        }
        for _ in 0..2 {
            poll_until(&pipe, PollFlags::IN);
            let mut message = [0; MESSAGE_BYTES];
            let (len, _) = rustix::net::recv(&pipe, &mut message, RecvFlags::empty()).unwrap();
            Completion::from_bytes(&message[..len]).unwrap().result.unwrap();
        }
        assert_eq!(scene::content(&copy, 8), [&bytes[..4], &bytes[4096..4100]].concat(), "{more}");
    }
    // A rate at which nothing ever moves delays no other client, and ends with its own.
    let never = raw.pipe(&request(&service_of(r#""at_least":null,"at_most":1e-300"#)), &fds).unwrap();
    let span = Span { source: 0, target: 0, len: MIB };
    rustix::net::send(&never, &TransferRequest { token: 0, span }.to_bytes(), SendFlags::NOSIGNAL).unwrap();
    service.until("it is under way", |now| now.runtime.under_way > 0);
    drop(raw);
    service.until("it goes with its client", |now| now.connected == before.connected - 1);
    assert!(good.stop() > 4);
}

#[test]
fn who_does_not_speak_the_protocol_is_told_and_cut_off() {
    let service = Service::start(&["--hello-ms", "5000"]);
    let good = Good::start(&service);
    let before = service.with(1);
    for first in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], br#"{"ask":"status"}"#, br#"{"ask":"hello","version":2}"#, br#"{"ask":"hel"#]
    {
        let raw = Raw::connect(&service.socket);
        raw.send(first, &[]).unwrap();
        assert!(raw.answer().unwrap().into_result().is_err());
        assert!(raw.answer().is_none(), "it hangs up after {:?}", String::from_utf8_lossy(first));
    }
    let silent = Raw::connect(&service.socket);
    let said = silent.answer().unwrap().into_result().unwrap_err();
    assert!(said.to_string().contains("said nothing for 5000 ms") && silent.answer().is_none(), "{said}");
    // Later, half a message and one that is too long are errors of that request only.
    let raw = Raw::hello(&service.socket);
    assert_eq!(raw.refused(&MEMORY_TO_MEMORY[..40], &[]).0, ErrorKind::InvalidInput);
    assert!(raw.refused(&[b' '; 20 << 10], &[]).1.contains("more than"));
    assert_eq!(raw.refused(br#"{"ask":"hello","version":1}"#, &[]).0, ErrorKind::InvalidInput);
    raw.send(br#"{"ask":"status"}"#, &[]).unwrap();
    assert!(raw.answer().unwrap().into_result().is_ok());
    drop(raw);
    good.stop();
    // The dropped connections are counted first and closed after: what they held goes a moment
    // later.
    service.until("they are counted and hold nothing", |now| {
        now.turned_away == before.turned_away + 5 && now.descriptors <= before.descriptors
    });
    service.until_says("said nothing for 5000 ms");
}

#[test]
fn who_asks_without_end_and_reads_no_answer_is_cut_off() {
    let service = Service::start(&[]);
    let good = Good::start(&service);
    let before = service.with(1);
    let raw = Raw::hello(&service.socket);
    let mut asked = 0u64;
    while raw.send(br#"{"ask":"status"}"#, &[]).is_ok() {
        asked += 1;
    }
    assert!(asked > 1);
    assert!(service.until("it is cut off", |now| now.turned_away > before.turned_away).connected >= 2);
    drop(raw);
    service.until("descriptors leak", |now| now.descriptors <= before.descriptors);
    good.stop();
}

/// A pipe's descriptor of a client that follows no rules.
fn pipe_of(client: &Client, memory: &SharedMemory, depth: usize) -> datapipes_service::ClientPipe {
    let ask = ConnectFdOptions::default().depth(depth);
    client.connect_pipe(&ClientPlace::memory(memory), &ClientPlace::memory(memory), &ask).unwrap()
}

#[test]
fn floods_and_garbage_on_a_pipe_hold_nobody_up() {
    let service = Service::start(&[]);
    let good = Good::start(&service);
    let before = service.with(1);
    let client = service.client();
    let memory = memory_of(&pattern(MIB as usize, 1));
    // This client never reads a completion, and sends until nothing fits any more.
    let deaf = pipe_of(&client, &memory, 4096 - 64 - 64);
    // This client sends garbage, descriptors, and requests as fast as it can, and discards all
    // answers.
    let noisy = pipe_of(&client, &memory, 64);
    let request = |token| TransferRequest { token, span: Span { source: 0, target: MIB / 2, len: 64 } }.to_bytes();
    let (mut refusals, mut turn) = (0, 0_u64);
    let begun = std::time::Instant::now();
    // A busy service may answer late.
    while turn < 20_000 || refusals == 0 && begun.elapsed() < PATIENCE {
        turn += 1;
        let message: &[u8] = match turn % 4 {
            0 => b"garbage",
            1 => &[0xff; 600],
            2 => &[0],
            _ => &request(turn),
        };
        let _ = rustix::net::send(&noisy, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let mut answer = [0; 1024];
        while rustix::net::recv(&noisy, &mut answer, RecvFlags::DONTWAIT).is_ok_and(|(len, _)| len > 0) {
            refusals += 1;
        }
        let _ = rustix::net::send(&deaf, &request(turn), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    assert!(refusals > 0);
    // Descriptors with a request are refused; an older kernel closes them, because the receiver
    // gives no room for them.
    let passing = Raw(noisy.as_fd().try_clone_to_owned().unwrap());
    let mut passed = 0;
    while passed < 20 {
        let events = poll_until(&noisy, PollFlags::OUT | PollFlags::IN);
        assert!(!events.contains(PollFlags::HUP), "the pipe was ended");
        let sent = passing.send(&request(1), &[memory.as_fd(); 3]);
        passed += usize::from(matches!(sent, Ok(()) | Err(rustix::io::Errno::PERM)));
        let mut answer = [0; 1024];
        while rustix::net::recv(&noisy, &mut answer, RecvFlags::DONTWAIT).is_ok_and(|(len, _)| len > 0) {}
    }
    // A packet without bytes cannot be told from the end of the connection, and ends the pipe.
    while rustix::net::send(&noisy, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {}
    while rustix::net::recv(&noisy, &mut [0; 1024], RecvFlags::DONTWAIT).map_or(true, |(len, _)| len > 0) {}
    drop((passing, deaf, noisy, client, memory));
    service.until_as(&before);
    assert!(good.stop() > 4);
}

#[test]
fn a_pipe_whose_client_hung_up_ends_though_others_have_its_descriptor() {
    let service = Service::start(&[]);
    let before = service.with(0);
    let client = service.client();
    let memory = memory_of(&pattern(MIB as usize, 1));
    let pipe = pipe_of(&client, &memory, 8);
    let copy = pipe.as_fd().try_clone_to_owned().unwrap();
    drop(pipe);
    drop(client);
    service.until_as(&before);
    let request = TransferRequest { token: 1, span: Span { source: 0, target: MIB / 2, len: 64 } };
    assert!(rustix::net::send(&copy, &request.to_bytes(), SendFlags::NOSIGNAL).is_err());
}

#[test]
#[ignore = "run by a_client_killed_in_the_middle_is_cleaned_up_after"]
fn child_that_is_killed() {
    let (socket, seed) = scene::told();
    let client = Client::connect(socket).unwrap();
    let bytes = pattern(32 * MIB as usize, seed);
    let (memory, file) = (memory_of(&bytes), file_of(&bytes));
    let targets = [SharedMemory::create(bytes.len()).unwrap(), SharedMemory::create(bytes.len()).unwrap()];
    let to_file = Ssd::unlinked_in(scene::disk()).unwrap();
    let ask = ConnectFdOptions::default().depth(16);
    let pairs = [
        (ClientPlace::memory(&memory), ClientPlace::memory(&targets[0])),
        (ClientPlace::file(&file), ClientPlace::memory(&targets[1])),
        (ClientPlace::memory(&memory), ClientPlace::file(&to_file)),
    ];
    let pipes = pairs.map(|(from, to)| client.connect_pipe(&from, &to, &ask).unwrap());
    println!("begins");
    for round in 0u64.. {
        for pipe in &pipes {
            let at = round % 32 * MIB;
            while pipe.complete().unwrap().is_some() {}
            let _ = pipe.submit(Span { source: at, target: at, len: MIB });
        }
    }
}

fn killed_after(mut child: Child, us: u64) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("begins")));
    std::thread::sleep(std::time::Duration::from_micros(us));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it ended: {status}");
}

#[test]
fn a_client_killed_in_the_middle_is_cleaned_up_after() {
    let service = Service::start(&[]);
    let good = Good::start(&service);
    // The first one warms up: threads of the runtime are started with the first work of their kind,
    // and stay.
    killed_after(scene::child("child_that_is_killed", &service.socket, 0), 3000);
    let base = service.until("its memory goes", |now| now.connected == 2 && now.mapped_bytes == 2 * MIB);
    for seed in 1..6 {
        killed_after(scene::child("child_that_is_killed", &service.socket, seed), seed * 1777);
        service.until_as(&base);
    }
    assert_eq!(service.with(1).pid, base.pid, "the service lives");
    assert!(good.stop() > 4);
}

#[test]
fn limits_are_kept_and_named() {
    let flags = [
        "--pipes",
        "2",
        "--transfers",
        "100",
        "--mapped-bytes",
        "3M",
        "--all-mapped-bytes",
        "4M",
        "--clients",
        "3",
        "--clients-per-uid",
        "2",
        "--promised",
        "1M",
    ];
    let service = Service::start(&flags);
    let client = service.client();
    assert_eq!((client.limits().pipes, client.limits().mapped_bytes), (2, 3 * MIB));
    let memories: Vec<_> = (0..4).map(|i| memory_of(&pattern(MIB as usize, i))).collect();
    let connect = |client: &Client, from: usize, to: usize, ask: ConnectFdOptions| {
        client.connect_pipe(&ClientPlace::memory(&memories[from]), &ClientPlace::memory(&memories[to]), &ask)
    };
    let deep = |depth| ConnectFdOptions::default().depth(depth);
    let busy = |outcome: datapipes::Result<datapipes_service::ClientPipe>, said: &str| {
        let e = outcome.map(|_| ()).unwrap_err();
        assert!(e.kind() == ErrorKind::Busy && e.to_string().contains(said), "{e}");
    };
    busy(connect(&client, 0, 1, deep(101)), "--transfers");
    let mut rate = deep(10);
    rate.connect.service.at_least = Some(2e6);
    busy(connect(&client, 0, 1, rate), "--promised");
    let one = connect(&client, 0, 1, deep(60)).unwrap();
    busy(connect(&client, 2, 3, deep(10)), "--mapped-bytes");
    busy(connect(&client, 0, 1, deep(60)), "in addition to 60");
    let two = connect(&client, 0, 2, deep(10)).unwrap();
    busy(connect(&client, 0, 1, deep(10)), "--pipes");
    // Beside the 3 MiB of this client, another one gets 1 MiB, and a third is refused.
    let other = service.client();
    busy(connect(&other, 0, 1, deep(1)), "--all-mapped-bytes");
    let e = Client::connect(&service.socket).unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("2 clients of user"), "{e}");
    drop((one, two));
    // What was given up can be had again. The end of the pipes is known here before it is in the
    // service, so the request is repeated.
    let again = (0..30_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        connect(&client, 2, 3, deep(10)).ok()
    });
    assert!(again.is_some(), "{}", service.log());
}

#[test]
fn descriptors_that_are_kept_are_limited() {
    let service = Service::start(&["--descriptors", "10"]);
    let client = service.client();
    // Each such pipe keeps 3 + 2 or 3 + 4 descriptors: two files, each with or without O_DIRECT.
    let files = [file_of(b"1"), file_of(b"2")];
    if files[0].file().direct_fd().is_err() {
        return println!("SKIPPED: descriptors_that_are_kept_are_limited: the file system does no direct I/O");
    }
    let connect = || {
        client.connect_pipe(&ClientPlace::file(&files[0]), &ClientPlace::file(&files[1]), &ConnectFdOptions::default())
    };
    let one = connect().unwrap();
    let e = connect().unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("--descriptors"), "{e}");
    drop(one);
}

/// A reader of a packet closes the descriptors that it does not receive, and a lingering socket
/// makes that last as long as its owner likes.
#[test]
fn descriptors_come_only_where_one_thread_is_its_own_client_s() {
    let (probe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    if !datapipes::descriptor::passing::let_pass(&probe, true) {
        return println!(
            "SKIPPED: descriptors_come_only_where_one_thread_is_its_own_client_s: SO_PASSRIGHTS is not known here"
        );
    }
    let service = Service::start(&[]);
    let (client, memory) = (service.client(), memory_of(&pattern(MIB as usize, 1)));
    let pipe = client
        .connect_pipe(&ClientPlace::memory(&memory), &ClientPlace::memory(&memory), &ConnectFdOptions::default())
        .unwrap();
    let null = opened("/dev/null".as_ref(), OFlags::RDWR);
    let pipe = Raw(pipe.as_fd().try_clone_to_owned().unwrap());
    let request = TransferRequest { token: 1, span: Span { source: 0, target: 4096, len: 4096 } }.to_bytes();
    assert_eq!(pipe.send(&request, &[null.as_fd()]), Err(rustix::io::Errno::PERM));
    let stranger = Raw::connect(&service.socket);
    let hello = br#"{"ask":"hello","version":1,"name":"raw"}"#;
    assert_eq!(stranger.send(hello, &[null.as_fd()]), Err(rustix::io::Errno::PERM));
    // Without descriptors both are served.
    stranger.send(hello, &[]).unwrap();
    assert!(stranger.answer().unwrap().into_result().is_ok());
    pipe.send(&request, &[]).unwrap();
    poll_until(&pipe.0, PollFlags::IN);
}

#[test]
fn a_status_names_no_pipes_of_other_users_and_keeps_no_memory_of_the_service() {
    if !rustix::process::getuid().is_root() {
        return println!(
            "SKIPPED: a_status_names_no_pipes_of_other_users_and_keeps_no_memory_of_the_service: needs two users"
        );
    }
    let service = Service::start(&["--mode", "666"]);
    let (client, source) = (service.client(), memory_of(&pattern(MIB as usize, 1)));
    let mut ask = ConnectFdOptions::default();
    ask.connect.service.at_most = Some(12_345_678.0);
    let _pipe = client.connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&source), &ask).unwrap();
    assert!(format!("{:?}", client.status().unwrap().runtime).contains("12345678"));
    let folder = service.socket.parent().unwrap();
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    in_child(&|| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_uid(nobody).unwrap();
        let status = Client::connect(&service.socket).unwrap().status().unwrap();
        assert_eq!((status.connected, status.clients.len()), (2, 1));
        assert!(!format!("{:?}", status.runtime).contains("12345678"), "{:?}", status.runtime);
    });
    let raw = Raw::hello(&service.socket);
    raw.send(br#"{"ask":"status"}"#, &[]).unwrap();
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..2 {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&raw.0, &mut [std::io::IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(control.drain().count(), 0, "a descriptor of the service's memory");
    }
}

#[test]
fn a_user_who_is_not_allowed_is_turned_away() {
    let me = rustix::process::getuid().as_raw();
    let service = Service::start(&["--allow-uid", &me.to_string()]);
    assert!(Client::connect(&service.socket).is_ok());
    let closed = Service::start(&["--allow-uid", &(me + 1).to_string()]);
    let e = Client::connect(&closed.socket).unwrap_err();
    assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("--allow-uid"), "{e}");
}

#[test]
fn huge_pages_that_are_not_there_end_their_client_and_nobody_else() {
    let page = 2 << 20;
    let source = memory_of(&pattern(page, 2));
    let (Ok(one), Ok(target)) =
        (SharedMemory::create_on(Pages::Huge, page), SharedMemory::create_on(Pages::Huge, page))
    else {
        return println!(
            "SKIPPED: huge_pages_that_are_not_there_end_their_client_and_nobody_else: fewer than 2 huge pages of 2 MiB are free"
        );
    };
    drop(one);
    let service = Service::start(&[]);
    let good = Good::start(&service);
    let client = service.client();
    let mut pipe = client
        .connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
        .unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: page as u64 }).unwrap();
    assert!(target.to_vec().unwrap()[..] == source.to_vec().unwrap()[..]);
    // The page is punched out, and every free one is taken: there is none for the service when it
    // writes.
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&target, flags, 0, page as u64).unwrap();
    let mut taken = Vec::new();
    while let Ok(memory) = SharedMemory::create_on(Pages::Huge, page) {
        memory.write(0, &[1]).unwrap();
        taken.push(memory);
    }
    // The transfer is done or cut off, whichever is first; the bytes are lost in both cases.
    let _ = pipe.transfer(Span { source: 0, target: 0, len: page as u64 });
    service.until("it is cut off", |now| now.turned_away == 1);
    service.until_says("SIGBUS");
    assert!(good.stop() > 4);
    drop((pipe, client, taken));
}
