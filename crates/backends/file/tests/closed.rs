//! A program closes descriptors that it did not open, as daemons do: transfers end, with an error
//! or done, their bytes are free again, and pipes and runtimes can be dropped.
//!
//! Each case is a process of its own, a copy of this test.
//!
//! Unsafe code: descriptors are closed.
#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::process::Command;

use common::{bytes, disk, file, machine, memory, only};
use datapipes_core::{ConnectOptions, FileAccess, Runtime, Span};
use datapipes_file::FileBackendOptions;
use datapipes_testkit::bounded;

const LEN: usize = 8 << 20;
const CASE: &str = "DATAPIPES_TEST_CLOSED";

/// Below this number are all descriptors that such a process opens.
const MOST: i32 = 200;

fn close_all() {
    // SAFETY: this process reads and writes nothing more by other descriptors than the first three.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
}

/// Gives the numbers to other files, as it happens where a program goes on: a drop then closes one
/// of them. (In a build with debug assertions Rust ends a process that closes a number of no file.)
fn open_others() {
    // SAFETY: it opens a file, whose descriptor nobody owns.
    while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } < MOST {}
}

fn transfers(case: &str) {
    let Some(ssd) = file(&disk(), &bytes(LEN, 1), FileAccess::Direct) else { return };
    let (machine, memory) = (machine(FileBackendOptions::default().request_bytes(64 << 10)), memory(LEN));
    let whole = Span { source: 0, target: 0, len: LEN as u64 };
    let right = || *memory.lease().unwrap() == bytes(LEN, 1)[..];
    if case == "runtime" {
        let runtime = Runtime::start(&machine).unwrap();
        let options = ConnectOptions::default().constraints(only("uring-direct"));
        let pipe = runtime.connect_with(&ssd, &memory, &options).unwrap();
        pipe.transfer(whole).unwrap().wait().unwrap();
        assert!(right());
        let started = pipe.transfer(whole).unwrap();
        close_all();
        // Which of them are done is a matter of time.
        let _ = started.wait();
        let _ = pipe.transfer(whole).and_then(|transfer| transfer.wait());
        drop(memory.lease_mut().unwrap());
        open_others();
        drop(pipe);
        drop(runtime);
        return;
    }
    let pipe = machine.connect_with(&ssd, &memory, &only("uring-direct")).unwrap();
    pipe.transfer(whole).unwrap();
    let started = (case == "under way").then(|| pipe.start(whole).unwrap());
    close_all();
    if let Some(started) = started {
        assert!(started.wait().is_err() || right());
        drop(memory.lease_mut().unwrap());
    }
    for _ in 0..2 {
        let error = pipe.transfer(whole).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBADF), "{error}");
        drop(memory.lease_mut().unwrap());
        open_others();
    }
    drop(pipe);
}

#[test]
fn descriptors_that_are_closed_under_the_library() {
    if let Ok(case) = std::env::var(CASE) {
        return transfers(&case);
    }
    for case in ["before", "under way", "runtime"] {
        let mut copy = Command::new(std::env::current_exe().unwrap());
        copy.args(["--exact", "descriptors_that_are_closed_under_the_library", "--nocapture"]).env(CASE, case);
        let ended = bounded(case, move || copy.output().unwrap());
        assert!(ended.status.success(), "{case}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}
