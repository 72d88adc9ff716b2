//! Waiting for a change of a word in shared memory, and waking waiters (futexes, or in the model a
//! condition variable).
//!
//! There is no eventfd, so neither side can fill or drain one to harm the other. The other side may
//! fail to wake a waiter. So every wait is bounded, and looks at the word again when it ends.

use std::time::Duration;

use super::layout::StatePage;
use crate::sync::atomic::AtomicU32;

/// A word, and the value that was read last.
pub(crate) struct Watch<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) seen: u32,
}

/// Wakes all threads that sleep on the word. It costs a system call.
#[cfg(not(shuttle))]
pub(crate) fn wake(word: &AtomicU32, _state: &StatePage) {
    // It fails only for a bad address, and a reference has a valid one.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

/// The length of the first sleep, which is on the first word alone: the end of a channel is noticed
/// after it. It is long compared with a block, and short compared with events that end a channel.
#[cfg(not(shuttle))]
const BRIEF: Duration = Duration::from_millis(1);

/// Sleeps until one of the words has changed, a thread wakes it, or the time is over. The caller
/// looks again in any case.
///
/// The first word is what changes with each block. While blocks come, sleeping on it alone is
/// enough, and costs two calls of the kernel and two places in its tables less than sleeping on all
/// of them. False where the first word had changed already, so that nobody slept.
#[cfg(not(shuttle))]
pub(crate) fn wait(watches: &[Watch<'_>], state: &StatePage, limit: Duration) -> bool {
    use rustix::io::Errno;
    use rustix::thread::futex;

    let Some(first) = watches.first() else { return false };
    let brief = limit.min(BRIEF);
    let told = futex::wait(first.word, futex::Flags::empty(), first.seen, Some(&spec(brief)));
    if told == Err(Errno::TIMEDOUT) && limit > brief {
        wait_any(watches, state, limit - brief);
    }
    told != Err(Errno::AGAIN)
}

#[cfg(not(shuttle))]
fn spec(d: Duration) -> rustix::time::Timespec {
    rustix::time::Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}

/// As [`wait`], for words of which none is the most likely.
#[cfg(not(shuttle))]
pub(crate) fn wait_any(watches: &[Watch<'_>], _state: &StatePage, limit: Duration) {
    use rustix::io::Errno;
    use rustix::thread::futex::{Flags, Wait, WaitFlags, WaitPtr, WaitvFlags, waitv};
    use rustix::time::{ClockId, clock_gettime};

    let waiters: Vec<Wait> = watches
        .iter()
        .map(|w| {
            let mut wait = Wait::new();
            wait.val = w.seen.into();
            wait.uaddr = WaitPtr::new(w.word.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        })
        .collect();
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32);
    let answer = waitv(&waiters, WaitvFlags::empty(), Some(&spec(now + limit)), ClockId::Monotonic);
    if answer == Err(Errno::NOSYS) || answer == Err(Errno::PERM) {
        // On kernels before 5.16, or with a filter that does not know the call, it waits on one
        // word, and looks at the others soon.
        let limit = spec(limit.min(Duration::from_millis(10)));
        if let Some(first) = watches.first() {
            let _ = rustix::thread::futex::wait(first.word, Flags::empty(), first.seen, Some(&limit));
        }
    }
}

#[cfg(shuttle)]
pub(crate) fn wake(_word: &AtomicU32, state: &StatePage) {
    let _guard = state.model.0.lock();
    state.model.1.notify_all();
}

/// In the model no thread is woken by time, so that a lost wake-up shows as a deadlock.
#[cfg(shuttle)]
pub(crate) fn wait(watches: &[Watch<'_>], state: &StatePage, _limit: Duration) -> bool {
    use crate::sync::atomic::Ordering;
    let guard = state.model.0.lock();
    if watches.iter().all(|w| w.word.load(Ordering::SeqCst) == w.seen) {
        drop(state.model.1.wait(guard));
        return true;
    }
    false
}

#[cfg(shuttle)]
pub(crate) fn wait_any(watches: &[Watch<'_>], state: &StatePage, limit: Duration) {
    wait(watches, state, limit);
}
