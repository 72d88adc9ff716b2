//! Sleeping until a word in shared memory changes, and waking who sleeps (futexes; in the model a
//! condition variable).
//!
//! There is no eventfd: nothing that one side could fill or drain to hurt another. Who is waited
//! for can fail to wake; so every wait is bounded, and looks at the word again when it ends.

use std::time::Duration;

use super::layout::StatePage;
use crate::sync::atomic::AtomicU32;

/// A word, and what it held when it was looked at last.
pub(crate) struct Watch<'a> {
    pub(crate) word: &'a AtomicU32,
    pub(crate) seen: u32,
}

/// Wakes everybody who sleeps on the word. Costs a system call.
#[cfg(not(shuttle))]
pub(crate) fn wake(word: &AtomicU32, _state: &StatePage) {
    // It fails for a bad address only, and a reference has none.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

/// The first sleep is on the first word alone: an end of the channel is noticed when it is over.
/// Long beside a block, and short beside anything that ends a channel.
#[cfg(not(shuttle))]
const BRIEF: Duration = Duration::from_millis(1);

/// Sleeps until one of the words is not what was seen, somebody wakes it, or the time is over: look
/// again in any case.
///
/// The first word is what changes with each block. While blocks come, sleeping on it alone is
/// enough, and costs two calls of the kernel and two places in its tables less than sleeping on all
/// of them.
#[cfg(not(shuttle))]
pub(crate) fn wait(watches: &[Watch<'_>], state: &StatePage, limit: Duration) {
    use rustix::io::Errno;
    use rustix::thread::futex;

    let Some(first) = watches.first() else { return };
    let brief = limit.min(BRIEF);
    let told = futex::wait(first.word, futex::Flags::empty(), first.seen, Some(&spec(brief)));
    if told == Err(Errno::TIMEDOUT) && limit > brief {
        wait_any(watches, state, limit - brief);
    }
}

#[cfg(not(shuttle))]
fn spec(d: Duration) -> rustix::time::Timespec {
    rustix::time::Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() }
}

/// The same, where no word is the likeliest.
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
        // Kernels before 5.16, or a filter that does not know the call: one word at a time, and
        // look at the others soon.
        let limit = spec(limit.min(Duration::from_millis(10)));
        if let Some(first) = watches.first() {
            let _ = rustix::thread::futex::wait(first.word, Flags::empty(), first.seen, Some(&limit));
        }
    }
}

#[cfg(shuttle)]
pub(crate) fn wake(_word: &AtomicU32, state: &StatePage) {
    let _guard = crate::sync::lock(&state.model.0);
    state.model.1.notify_all();
}

/// In the model nobody is woken by time, so that a wake-up that was lost is found as a deadlock.
#[cfg(shuttle)]
pub(crate) fn wait(watches: &[Watch<'_>], state: &StatePage, _limit: Duration) {
    use crate::sync::{PoisonError, atomic::Ordering};
    let guard = crate::sync::lock(&state.model.0);
    if watches.iter().all(|w| w.word.load(Ordering::SeqCst) == w.seen) {
        drop(state.model.1.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(shuttle)]
pub(crate) fn wait_any(watches: &[Watch<'_>], state: &StatePage, limit: Duration) {
    wait(watches, state, limit);
}
