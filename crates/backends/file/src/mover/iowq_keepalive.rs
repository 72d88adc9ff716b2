//! Keeps the kernel from dismissing a thread's I/O workers while the thread still submits.
//!
//! Requests that a ring cannot complete at once (a write through the page cache, for example) are
//! carried out by worker threads, which the kernel keeps for each submitting thread. When the last
//! ring that the thread submitted to is closed, newer kernels tell the workers to exit. Linux 6.18
//! was seen to lose the first write to the thread's next ring: it was taken from the queue and
//! never answered, and no worker of that thread was left to do it. (Probably it arrives while an
//! exiting worker still counts as running, so no other is started; no small program has shown that
//! yet.) Nothing reports such a request, and looking at the ring again does not help. In several
//! million transfers, a long test that opens and closes pipes met it once for certain, and probably
//! once before.
//!
//! So there is one more ring, which is never closed, and each thread belongs to it from its first
//! request on. Its workers are therefore never told to exit. Like the workers, the ring belongs to
//! the process, not to a mover, because it must outlive all movers. Nothing is ever submitted to
//! it.
//!
//! Unsafe code: one `io_uring_enter` that passes no address and submits nothing.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::process::{OwningProcess, PerProcess};
use io_uring::IoUring;

/// The entries of the ring to which nothing is submitted.
const MIN_ENTRIES: u32 = 1;

/// `None` where the kernel refused the ring. A child has its own, because its threads do not belong
/// to that of its parent.
static ANCHOR: PerProcess<Option<IoUring>> = PerProcess::new();

thread_local! {
    /// The process in which this thread belongs to the ring.
    static HELD: Cell<Option<OwningProcess>> = const { Cell::new(None) };
}

/// Makes this thread belong to the ring. It is called after the thread's request went to an open
/// ring, so that the workers have the properties (such as their maximal number) of that ring. It
/// costs a system call once per thread.
pub(super) fn hold_workers(calls: &AtomicU64) {
    if HELD.replace(Some(OwningProcess::here())).is_some_and(OwningProcess::is_here) {
        return;
    }
    let anchor = ANCHOR.get(|| {
        calls.fetch_add(1, Ordering::Relaxed);
        // Without it (no descriptor is left), the kernel behaves as usual.
        IoUring::new(MIN_ENTRIES).ok()
    });
    let Some(anchor) = anchor else { return };
    calls.fetch_add(1, Ordering::Relaxed);
    // SAFETY: no argument is an address, and the ring's queue is and stays empty. One entry is
    // requested and none is there, so the kernel only registers the thread.
    let outcome = unsafe { anchor.submitter().enter::<libc::sigset_t>(1, 0, 0, None) };
    // If it was refused for want of memory, the next request tries again.
    HELD.set(outcome.is_ok().then(OwningProcess::here));
}
