//! Clients that leave in the middle of anything, or are refused, and what they cost the others.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes::descriptor::wire::TransferRequest;
use datapipes::{ConnectFdOptions, ErrorKind, Span, Ssd};
use datapipes_service::protocol::{MAX_ANSWER_BYTES, ServiceAnswer};
use datapipes_service::{Client, ClientPlace};
use datapipes_testkit::PATIENCE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use scene::{MIB, Raw, Service, file_of, memory_of, pattern};

fn rated(at_most: f64) -> ConnectFdOptions {
    let mut ask = ConnectFdOptions::default().depth(4);
    ask.connect.service.at_most = Some(at_most);
    ask
}

/// Makes a request for a pipe from descriptor 0 to 1, with a rate.
fn request(source: &str, target: &str, at_most: f64) -> String {
    format!(
        r#"{{"ask":"connect","source":{{"kind":"{source}","fd":0}},"target":{{"kind":"{target}","fd":1}},
        "service":{{"class":"normal","at_most":{at_most:e}}},"depth":4}}"#
    )
}

/// Sends a request as a client does that checks nothing.
fn ask(pipe: &impl AsFd, span: Span) {
    let message = TransferRequest { token: 1, span }.to_bytes();
    rustix::net::send(pipe, &message, SendFlags::NOSIGNAL).unwrap();
}

/// A file in memory. With a seal it keeps its length.
fn file_in_memory(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("file", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn as_file(fd: &OwnedFd) -> Ssd {
    Ssd::from_fds(fd.try_clone().unwrap(), None, "a memfd").unwrap()
}

#[test]
fn what_a_client_left_behind_at_a_slow_rate_keeps_no_place() {
    let service = Service::start(&["--clients", "17"]);
    let before = service.with(0);
    let bytes = pattern(MIB as usize, 1);
    let (memory, file) = (memory_of(&bytes), file_of(&bytes));
    let copy = Ssd::unlinked_in(scene::disk()).unwrap();
    let mut base: Option<datapipes_service::ServiceStatus> = None;
    for _ in 0..3 {
        let clients: Vec<_> = (0..8)
            .map(|i| {
                let raw = Raw::hello(&service.socket);
                let target = memory_of(&bytes);
                let (kinds, fds) = match i % 3 {
                    0 => (("memory", "memory"), [memory.as_fd(), target.as_fd()]),
                    1 => (("file", "memory"), [file.file().cached_fd(), target.as_fd()]),
                    _ => (("file", "file"), [file.file().cached_fd(), copy.file().cached_fd()]),
                };
                // At a byte per second this takes 12 days.
                let pipe = raw.pipe(&request(kinds.0, kinds.1, 1.0), &fds).unwrap();
                ask(&pipe, Span { source: 0, target: 0, len: MIB });
                (raw, pipe)
            })
            .collect();
        service.until("all are at it", |now| now.runtime.under_way == 8);
        // Half of the clients leave with their pipes' descriptors, half of them without.
        let (raws, mut pipes): (Vec<_>, Vec<_>) = clients.into_iter().unzip();
        pipes.truncate(4);
        drop(raws);
        let now = service.until("their places come back", |now| {
            now.connected == before.connected && now.mapped_bytes == 0 && now.runtime.under_way == 0
        });
        // What the first work of a kind brings with it stays: descriptors of the runtime.
        match &base {
            Some(base) => service.until_as(base),
            None => base = Some(now),
        }
    }
    // Nor do they keep the service from stopping.
    service.signal(15);
    let (status, log) = service.end_within(PATIENCE);
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Sends requests with a descriptor until no more fit. The service takes one request per second:
/// the others stay in the connection.
fn leave_in(raw: &Raw, fd: &OwnedFd) {
    rustix::io::ioctl_fionbio(&raw.0, true).unwrap();
    let sent = (0..100).take_while(|_| raw.send(scene::FILE_TO_MEMORY, &[fd.as_fd(), fd.as_fd()]).is_ok()).count();
    assert!(sent > 2, "{sent} requests");
}

#[test]
fn a_pipe_that_lies_in_a_connection_keeps_no_place() {
    let service = Service::start(&["--requests", "1"]);
    let bytes = pattern(4096, 1);
    let (memory, target) = (memory_of(&bytes), memory_of(&bytes));
    // In turn a client sends its pipe back over its own connection, and two over each other's.
    for clients in [1, 2] {
        let start = |_| {
            let raw = Raw::hello(&service.socket);
            let pipe = raw.pipe(&request("memory", "memory", 1e9), &[memory.as_fd(), target.as_fd()]).unwrap();
            (0..4).for_each(|_| ask(&pipe, Span { source: 0, target: 0, len: 4096 }));
            // The completions stay unread.
            let bound = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&bound)), Ok(1));
            (raw, pipe)
        };
        let (raws, mut pipes): (Vec<_>, Vec<_>) = (0..clients).map(start).unzip();
        pipes.rotate_left(1);
        raws.iter().zip(&pipes).for_each(|(raw, pipe)| leave_in(raw, pipe));
        drop(pipes);
        drop(raws);
        service.with(0);
    }
}

#[test]
fn a_connection_that_lies_in_itself_keeps_no_place() {
    let service = Service::start(&["--hello-ms", "6000"]);
    for _ in 0..4 {
        let raw = Raw::hello(&service.socket);
        // The answers stay unread, so the service cuts the connection off with the rest in it.
        rustix::io::ioctl_fionbio(&raw.0, true).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "the service answers for ever");
            match raw.send(br#"{"ask":"status"}"#, &[raw.0.as_fd()]) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => std::thread::sleep(Duration::from_millis(1)),
                // The service has ended the connection.
                Err(_) => break,
            }
        }
        drop(raw);
    }
    service.with(0);
}

#[test]
fn an_endless_copy_ends_with_its_client() {
    let service = Service::start(&[]);
    let before = service.with(0);
    // The source ends only after years; the rate protects the disk under this test.
    let (endless, copy) = (Ssd::unlinked_in(scene::disk()).unwrap(), Ssd::unlinked_in(scene::disk()).unwrap());
    endless.set_len(1 << 43).unwrap();
    let raw = Raw::hello(&service.socket);
    let fds = [endless.file().cached_fd(), copy.file().cached_fd()];
    let pipe = raw.pipe(&request("file", "file", 64e6), &fds).unwrap();
    ask(&pipe, Span { source: 0, target: 0, len: 1 << 43 });
    service.until("it is at it", |_| copy.len().unwrap() >= 8 * MIB);
    drop(raw);
    service.until("it ends", |now| now.connected == before.connected && now.runtime.under_way == 0);
    let len = copy.len().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(copy.len().unwrap(), len, "nobody writes any more");
}

#[test]
fn files_in_memory_are_no_targets_and_are_sources_like_others() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(MIB as usize, 1);
    let memory = memory_of(&bytes);
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let file = as_file(&file_in_memory(MIB, seals));
        for from in [ClientPlace::memory(&memory), ClientPlace::file(&file)] {
            let e = client
                .connect_pipe(&from, &ClientPlace::file(&file), &ConnectFdOptions::default())
                .map(|_| ())
                .unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("as memory"), "{seals:?}: {e}");
        }
        let target = memory_of(&bytes);
        let mut pipe = client
            .connect_pipe(&ClientPlace::file(&file), &ClientPlace::memory(&target), &ConnectFdOptions::default())
            .unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
        assert!(target.to_vec().unwrap().iter().all(|b| *b == 0));
    }
    service.until("their memory goes", |now| now.mapped_bytes == 0);
}

#[test]
fn a_file_is_not_copied_over_itself() {
    let service = Service::start(&[]);
    let client = service.client();
    let file = file_of(&pattern(MIB as usize, 1));
    let same = Ssd::from_fds(file.file().cached_fd().try_clone_to_owned().unwrap(), None, "again").unwrap();
    let mut pipe = client
        .connect_pipe(&ClientPlace::file(&file), &ClientPlace::file(&same), &ConnectFdOptions::default())
        .unwrap();
    for span in [
        Span { source: 0, target: 0, len: MIB },
        Span { source: 0, target: 1, len: MIB },
        Span { source: 0, target: 4096, len: 1 << 40 },
        Span { source: 4096, target: 0, len: 4097 },
    ] {
        let e = pipe.transfer(span).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{span:?}: {e}");
    }
    pipe.transfer(Span { source: 0, target: MIB / 2, len: MIB / 2 }).unwrap();
    let bytes = scene::content(&file, MIB as usize);
    assert!(bytes[..MIB as usize / 2] == bytes[MIB as usize / 2..] && file.len().unwrap() == MIB);
}

#[test]
fn asked_to_stop_it_ends_in_its_time_whatever_clients_asked_for() {
    // 18446744073709551615 seconds are more than a clock holds: it waits as long as it can, which
    // here is no time.
    for (patience, code) in [("1", 1), ("18446744073709551615", 0)] {
        let service = Service::start(&["--patience", patience]);
        let client = service.client();
        let memory = memory_of(&pattern(MIB as usize, 1));
        let target = memory_of(&pattern(MIB as usize, 2));
        let pipe =
            client.connect_pipe(&ClientPlace::memory(&memory), &ClientPlace::memory(&target), &rated(1.0)).unwrap();
        if code == 1 {
            ask(&pipe, Span { source: 0, target: 0, len: MIB });
            service.until("it is at it", |now| now.runtime.under_way == 1);
        }
        service.signal(15);
        let (status, log) = service.end_within(PATIENCE);
        assert_eq!(status.code(), Some(code), "{log}");
        std::mem::forget(pipe);
    }
}

/// The first packet that a simple client reads, which does not handle resets.
fn first_word(raw: &Raw) -> Result<ServiceAnswer, String> {
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&raw.0, PollFlags::IN)], Some(&patience)), Ok(1), "no word within a minute");
    let mut buffer = vec![0; MAX_ANSWER_BYTES];
    let (len, _) = rustix::net::recv(&raw.0, &mut buffer, RecvFlags::empty()).map_err(|e| e.to_string())?;
    serde_json::from_slice(&buffer[..len]).map_err(|e| format!("{len} bytes: {e}"))
}

const HELLO: &[u8] = br#"{"ask":"hello","version":1,"name":"raw"}"#;

#[test]
fn who_is_turned_away_hears_why_and_is_not_reset() {
    let full = Service::start(&["--clients", "2", "--hello-ms", "20000"]);
    let _others = (full.client(), full.client());
    let me = rustix::process::getuid().as_raw();
    let closed = Service::start(&["--allow-uid", &(me + 1).to_string(), "--hello-ms", "20000"]);
    for (socket, said) in [(&full.socket, "2 clients are connected"), (&closed.socket, "--allow-uid")] {
        for turn in 0..100u64 {
            let raw = Raw::connect(socket);
            // The hello comes at once, or after the refusal.
            std::thread::sleep(Duration::from_micros(turn % 4 * 300));
            raw.send(HELLO, &[]).unwrap_or_else(|e| panic!("turn {turn}: saying hello: {e}"));
            match first_word(&raw) {
                Ok(ServiceAnswer::Error { text, .. }) => assert!(text.contains(said), "{text}"),
                other => panic!("turn {turn}: {other:?}"),
            }
            // The connection ends after the answer and not before, without another packet.
            assert!(first_word(&raw).is_err_and(|e| e.starts_with("0 bytes")));
        }
    }
    // Any number of clients may wait to be told, and send nothing.
    let silent: Vec<_> = (0..300).map(|_| Raw::connect(&full.socket)).collect();
    for raw in &silent {
        assert!(matches!(first_word(raw), Ok(ServiceAnswer::Error { .. })));
    }
    assert!(Client::connect(&full.socket).is_err_and(|e| e.kind() == ErrorKind::Busy));
}

#[test]
fn who_is_cut_off_hears_why_and_is_not_reset() {
    let service = Service::start(&["--hello-ms", "6000"]);
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], br#"{"ask":"hello","version":2}"#] {
        let raw = Raw::connect(&service.socket);
        // This is more than it will read.
        for _ in 0..8 {
            if raw.send(first, &[]).is_err() {
                break;
            }
        }
        assert!(matches!(first_word(&raw), Ok(ServiceAnswer::Error { .. })));
        assert!(first_word(&raw).is_err_and(|e| e.starts_with("0 bytes")));
    }
    let raw = Raw::connect(&service.socket);
    let word = first_word(&raw);
    assert!(matches!(&word, Ok(ServiceAnswer::Error { text, .. }) if text.contains("6000 ms")), "{word:?}");
}

#[test]
fn clients_that_wait_to_be_accepted_hear_that_the_service_stops() {
    let service = Service::start(&["--patience", "2"]);
    let pid = rustix::process::Pid::from_child(&service.child);
    // The service cannot accept a client before it is told to stop.
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let waiting: Vec<_> = (0..5).map(|_| Raw::connect(&service.socket)).collect();
    for raw in &waiting {
        raw.send(HELLO, &[]).unwrap();
    }
    service.signal(15);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    for raw in &waiting {
        // Each was accepted just before, or is told that the service stops; no connection is reset.
        match first_word(raw) {
            Ok(ServiceAnswer::Hello { .. }) => {}
            Ok(ServiceAnswer::Error { text, .. }) => assert!(text.contains("stops"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    drop(waiting);
    let since = Instant::now();
    let (status, log) = service.end_within(PATIENCE);
    assert_eq!(status.code(), Some(0), "after {:?}: {log}", since.elapsed());
}
