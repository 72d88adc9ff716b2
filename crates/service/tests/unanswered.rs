//! Clients pass files of a file system whose server never answers: each close of them may wait for
//! ever.
//!
//! This is a test program of its own, whose tests take turns: a process that is started closes its
//! copies of this one's files, and would wait too.
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

use datapipes::ErrorKind;
use datapipes_core::locks::Mutex;
use datapipes_service::Client;
use datapipes_testkit::{PendingRequests, UnresponsiveFs};
use rustix::io::Errno;
use scene::{
    Dir, FILE_TO_MEMORY, MEMORY_TO_MEMORY, PATIENCE, Raw, Service, disk, is_hung_up_on, memory_of, others_are_served,
};

/// Held by the test whose turn it is.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_file_whose_server_never_answers_costs_its_client_alone() {
    let test = "a_file_whose_server_never_answers_costs_its_client_alone";
    let _turn = TURN.lock();
    for never in [PendingRequests::StatFs, PendingRequests::Flush] {
        let served = match UnresponsiveFs::mount(disk(), never) {
            Ok(served) => served,
            Err(e) => return println!("SKIPPED: {test}: {e}"),
        };
        let service = Service::start(&["--hello-ms", "6000", "--clients-per-uid", "4"]);
        let file = served.open().unwrap();
        let memory = memory_of(&[0; 4096]);
        let raw = Raw::hello(&service.socket);
        raw.send(FILE_TO_MEMORY, &[file.as_fd(), memory.as_fd()]).unwrap();
        if never == PendingRequests::Flush {
            // Its file system can be seen, and it is refused for that; only closing it takes for
            // ever.
            let e = raw.answer().unwrap().into_result().unwrap_err();
            assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("file system"), "{e}");
            raw.send(MEMORY_TO_MEMORY, &[memory.as_fd(), memory.as_fd()]).unwrap();
        }
        let e = raw.answer().unwrap().into_result().unwrap_err();
        assert!(e.kind() == ErrorKind::Unavailable && e.to_string().contains("does not answer"), "{never:?}: {e}");
        assert!(is_hung_up_on(&raw), "{never:?}");
        drop(raw);
        others_are_served(&service);
        // The helper left behind keeps the slot: a user has no more of them than clients.
        assert_eq!(service.with(1).connected, 2);
        let leaves_one_behind = || {
            let raw = Raw::hello(&service.socket);
            raw.send(FILE_TO_MEMORY, &[file.as_fd(), memory.as_fd()]).unwrap();
            while raw
                .answer()
                .is_some_and(|answer| !answer.into_result().is_err_and(|e| e.to_string().contains("not answer")))
            {
                let _ = raw.send(MEMORY_TO_MEMORY, &[memory.as_fd(), memory.as_fd()]);
            }
        };
        (0..2).for_each(|_| leaves_one_behind());
        service.with(3);
        // It stops although they do not end.
        service.signal(15);
        let (status, log) = service.end_within(PATIENCE);
        assert!(status.success(), "{never:?}: {status}\n{log}");
        assert!(log.contains("everything under way was carried out"), "{log}");
    }
}

/// Sends requests with a file until no more fit, or the service closes the connection. Returns how
/// many. The service takes one per second: the others wait in the socket.
fn leave_unread(raw: &Raw, file: &impl AsFd) -> usize {
    let memory = memory_of(&[0; 4096]);
    let mut sent = 0;
    rustix::io::ioctl_fionbio(&raw.0, true).unwrap();
    while sent < 100 {
        match raw.send(FILE_TO_MEMORY, &[file.as_fd(), memory.as_fd()]) {
            Ok(()) => sent += 1,
            // As many descriptors are in flight as allowed, or the connection was closed, before or
            // after the socket was shut.
            Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::PIPE | Errno::CONNRESET | Errno::PERM) => break,
            Err(e) => panic!("{e}"),
        }
    }
    sent
}

#[test]
fn what_waits_in_a_connection_that_ends_is_not_closed_by_the_service() {
    let test = "what_waits_in_a_connection_that_ends_is_not_closed_by_the_service";
    let _turn = TURN.lock();
    let served = match UnresponsiveFs::mount(disk(), PendingRequests::Flush) {
        Ok(served) => served,
        Err(e) => return println!("SKIPPED: {test}: {e}"),
    };
    let service = Service::start(&["--hello-ms", "6000", "--requests", "1"]);
    let file = served.open().unwrap();
    let raw = Raw::hello(&service.socket);
    let sent = leave_unread(&raw, &file);
    assert!(sent > 2, "{sent}");
    drop(raw);
    others_are_served(&service);
    service.signal(15);
    let (status, log) = service.end_within(PATIENCE);
    assert!(status.success(), "{status}\n{log}");
}

#[test]
fn a_service_without_descriptors_does_not_close_unread_files_either() {
    let test = "a_service_without_descriptors_does_not_close_unread_files_either";
    let _turn = TURN.lock();
    // A session has four descriptors: the number that is left when no other session fits is among
    // these.
    for limit in 45..49 {
        let served = match UnresponsiveFs::mount(disk(), PendingRequests::Flush) {
            Ok(served) => served,
            Err(e) => return println!("SKIPPED: {test}: {e}"),
        };
        let dir = Dir::new();
        let socket = dir.0.join("s");
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {limit}; exec \"$0\" --socket \"$1\" --hello-ms 6000 --requests 1");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_dpiped")]).arg(&socket);
        let service = Service::of(command, socket, dir);
        let file = served.open().unwrap();
        let raw = Raw::hello(&service.socket);
        let mut others = Vec::new();
        while let Ok(other) = Client::connect(&service.socket) {
            others.push(other);
            assert!(others.len() < 48);
        }
        // The connection is closed at the first of them, which stays unread.
        let sent = leave_unread(&raw, &file);
        assert!(sent > 0);
        drop(raw);
        drop(others);
        let until = Instant::now() + PATIENCE;
        while Client::connect(&service.socket).is_err() {
            assert!(Instant::now() < until, "nobody is let in any more");
        }
        service.until("it is as before", |now| now.connected <= 2);
        others_are_served(&service);
        service.signal(15);
        let (status, log) = service.end_within(PATIENCE);
        assert!(status.success(), "{status}\n{log}");
    }
}
