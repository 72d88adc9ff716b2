//! A thread that writes through the page cache keeps its kernel workers when its pipe is closed.
//! Closing the last ring would dismiss them, and a request that arrives meanwhile may be lost
//! (`mover/iowq_keepalive.rs`).
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use std::time::Duration;

use common::{bytes, file, machine, memory_of, only};
use datapipes_core::{FileAccess, Span};
use datapipes_file::FileBackendOptions;
use io_uring::{IoUring, opcode, squeue};

/// The number of workers that the kernel keeps for this thread.
fn workers() -> usize {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)).count()
}

/// Whether a thread that closes its only ring loses its workers, as on kernels that dismiss them.
fn dismisses() -> Option<bool> {
    let mut ring = IoUring::new(2).ok()?;
    let nothing = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
    // SAFETY: the entry refers to no memory.
    #[allow(unsafe_code)]
    unsafe {
        ring.submission().push(&nothing).unwrap();
    }
    ring.submit_and_wait(1).ok()?;
    assert!(workers() > 0, "a worker did it");
    drop(ring);
    // The kernel removes a ring at its own time. If that takes longer than this, nothing is tested,
    // and a line says so.
    Some((0..400).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        workers() == 0
    }))
}

#[test]
fn the_workers_of_a_thread_outlive_its_pipes() {
    let source = bytes(1 << 20, 6);
    let Some(ssd) = file(&common::disk(), &[], FileAccess::Cached) else { return };
    let span = Span { source: 0, target: 0, len: source.len() as u64 };
    let pipe =
        match machine(FileBackendOptions::default()).connect_with(&memory_of(&source), &ssd, &only("uring-cached")) {
            Ok(pipe) => pipe,
            Err(e) => return println!("SKIPPED: the_workers_of_a_thread_outlive_its_pipes: {e}"),
        };
    pipe.transfer(span).unwrap();
    if workers() == 0 {
        return println!(
            "NOT APPLICABLE: the_workers_of_a_thread_outlive_its_pipes: this file system needs no workers"
        );
    }
    drop(pipe);
    // These are other threads, whose rings are closed after ours.
    for _ in 0..2 {
        if std::thread::spawn(dismisses).join().unwrap() != Some(true) {
            return println!("NOT APPLICABLE: the_workers_of_a_thread_outlive_its_pipes: this kernel dismisses none");
        }
    }
    assert!(workers() > 0, "they were dismissed");
}
