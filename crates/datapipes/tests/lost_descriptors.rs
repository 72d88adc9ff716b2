//! A program that closes descriptors which it did not open, as daemons do that close all: the
//! runtime cannot work any more, and ends all the same.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::os::fd::RawFd;

use datapipes::{Runtime, discover};

/// The open descriptors of this process that are of this kind.
fn open(kind: &str) -> BTreeSet<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_of_it = |path: &std::path::PathBuf| std::fs::read_link(path).is_ok_and(|to| to.ends_with(kind));
    entries.filter(is_of_it).map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

/// One test, so that nobody else opens or closes descriptors meanwhile.
#[test]
fn a_runtime_without_its_descriptors_can_be_dropped() {
    let machine = discover();
    let kinds = ["anon_inode:[eventfd]", "anon_inode:[eventpoll]"];
    let before: BTreeSet<RawFd> = kinds.iter().flat_map(|kind| open(kind)).collect();
    let runtime = Runtime::start(&machine).unwrap();
    let own: Vec<RawFd> = kinds.iter().flat_map(|kind| open(kind)).filter(|fd| !before.contains(fd)).collect();
    assert_eq!(own.len(), 2, "{own:?}");
    // Its thread sleeps on them now; with work it would be awake.
    datapipes_testkit::until("the runtime's thread sleeps", || {
        let stats = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("stat"));
        stats.into_iter().any(|stat| std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains("(dp-coord) S")))
    });
    for fd in own {
        // SAFETY: the descriptor is open. Its owner is never dropped: the thread that cannot be
        // told to end keeps it.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    datapipes_testkit::bounded("the end of a runtime without descriptors", || drop(runtime));
}
