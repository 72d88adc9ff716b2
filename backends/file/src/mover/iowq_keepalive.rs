//! Keeps the kernel's workers of a thread from being dismissed while the thread still submits.
//!
//! What a ring cannot do at once (a write through the page cache, say) is done by worker threads
//! that the kernel keeps for each thread that submits. When the last ring that the thread submitted
//! to is gone, newer kernels tell the workers to leave. Linux 6.18 was seen to lose the first write
//! to the thread's next ring: taken from the queue, never answered, and no worker of that thread
//! was left to do it. (Likely it arrives while a worker leaves, who still counts as one that runs,
//! so that no other is started; no small program has shown it yet.) Nobody hears of such a request,
//! and looking at the ring again does not help. A soak that opens and closes pipes met it once for
//! certain, and probably once before, in several million transfers.
//!
//! So there is one ring more, never closed, to which each thread belongs from its first request on:
//! its workers are never told to leave. It is the process's, as the workers are, not a mover's: it
//! must outlive them all. Nothing is ever submitted to it.
//!
//! Unsafe code: one `io_uring_enter` that passes no address and submits nothing.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::process::{OwningProcess, PerProcess};
use io_uring::IoUring;

/// Entries of the ring that nothing is submitted to.
const MIN_ENTRIES: u32 = 1;

/// None where the kernel gave none. A child has one of its own: its threads are not those that
/// belong to its parent's.
static ANCHOR: PerProcess<Option<IoUring>> = PerProcess::new();

thread_local! {
    /// The process in which this thread belongs to it.
    static HELD: Cell<Option<OwningProcess>> = const { Cell::new(None) };
}

/// Called after a thread's request went to a ring that is open, so that the workers' properties
/// (how many there may be) are that ring's. Costs a system call once a thread.
pub(super) fn hold_workers(calls: &AtomicU64) {
    if HELD.replace(Some(OwningProcess::here())).is_some_and(OwningProcess::is_here) {
        return;
    }
    let anchor = ANCHOR.get(|| {
        calls.fetch_add(1, Ordering::Relaxed);
        // Without it (no descriptor is left), all is as the kernel has it.
        IoUring::new(MIN_ENTRIES).ok()
    });
    let Some(anchor) = anchor else { return };
    calls.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no argument is passed by address, and the ring's queue is empty and stays so. One is
    // asked for, and none is there: the kernel only takes note of the thread.
    let outcome = unsafe { anchor.submitter().enter::<libc::sigset_t>(1, 0, 0, None) };
    // Refused for want of memory: again with the next request.
    HELD.set(outcome.is_ok().then(OwningProcess::here));
}
