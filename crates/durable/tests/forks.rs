//! A log in a child made by `fork`: the log stays the parent's.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::cell::RefCell;

use datapipes_core::ErrorKind;
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader};
use datapipes_testkit::child::{assert_forked_error, end_copy, fork_here, in_child};
use scene::{Scratch, machine};

#[test]
fn a_child_writes_nothing_into_its_parents_log() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let open = || Log::open(&machine, LogFolder::at(&machine, &dir), LogOptions::default());
    let log = open().unwrap();
    log.append_durable(b"one").unwrap();
    // This record is not durable yet: it is in the memory that the child has a copy of.
    let pending = log.append(b"two").unwrap().number();
    let log = RefCell::new(Some(log));
    in_child(&|| {
        let log = log.take().unwrap();
        assert_forked_error(log.append(b"theirs").map(|ticket| ticket.number()));
        assert_forked_error(log.try_append(b"theirs").map(|ticket| ticket.number()));
        assert_forked_error(log.append_durable(b"theirs"));
        assert_forked_error(log.sync());
        assert_forked_error(log.read_from(0).map(|_| ()));
        assert_forked_error(log.release_before(2));
        assert_eq!((log.stats().records, log.route().is_none()), (0, true));
        drop(log);
        // The right to write is still the parent's.
        assert_eq!(open().err().map(|e| e.kind()), Some(ErrorKind::Busy));
    });
    let log = log.into_inner().unwrap();
    assert_eq!(log.append_durable(b"three").unwrap(), pending + 1);
    log.close().unwrap();
    let records: Vec<_> = LogReader::open(&machine, &LogFolder::at(&machine, &dir), 0).unwrap().collect();
    let records: Vec<_> = records.into_iter().map(|record| record.unwrap().payload).collect();
    assert_eq!(records, [&b"one"[..], b"two", b"three"]);
}

#[test]
fn the_right_to_write_ends_with_the_log_though_a_child_lives_on() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let open = || Log::open(&machine, LogFolder::at(&machine, &dir), LogOptions::default());
    let log = open().unwrap();
    let (born, go) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
    std::thread::scope(|scope| {
        let child = scope.spawn(|| {
            in_child(&|| {
                rustix::io::write(&born.1, b"x").unwrap();
                rustix::io::read(&go.0, &mut [0u8; 1]).unwrap();
            });
        });
        rustix::io::read(&born.0, &mut [0u8; 1]).unwrap();
        let again = log.close().and_then(|()| open());
        rustix::io::write(&go.1, b"x").unwrap();
        child.join().unwrap();
        again.unwrap().append_durable(b"mine").unwrap();
    });
}

#[test]
fn an_orphan_that_has_the_lock_is_named() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let open = || Log::open(&machine, LogFolder::at(&machine, &dir), LogOptions::default());
    let (told, go) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
    in_child(&|| {
        let log = open().unwrap();
        let orphan = fork_here();
        if orphan == 0 {
            end_copy(orphan, &|| _ = rustix::io::read(&go.0, &mut [0u8; 1]).unwrap());
        }
        rustix::io::write(&told.1, &orphan.to_le_bytes()).unwrap();
        // The log is leaked, as if the process were killed here.
        std::mem::forget(log);
    });
    let mut pid = [0; 4];
    rustix::io::read(&told.0, &mut pid).unwrap();
    let refused = open().err().unwrap();
    rustix::io::write(&go.1, b"x").unwrap();
    let named = format!("(process {})", i32::from_le_bytes(pid));
    assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains(&named), "{refused}, {named}");
    // The child ends, and the lock with it.
    let begun = std::time::Instant::now();
    while let Err(e) = open() {
        assert!(e.kind() == ErrorKind::Busy && begun.elapsed().as_secs() < 100, "{e}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
