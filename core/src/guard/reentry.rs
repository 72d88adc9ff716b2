//! Code that is not ours in the middle of our own work: a mover, a reader, a watch. The transfer
//! that it is called for cannot end before it returns, so whoever waits there for all transfers
//! would wait for itself.
//!
//! ```text
//! carry(X) ... user code: sleeps in the library?  X is marked as one that waits     drop: calls that were put off follow
//!                         drains?                 until all that is left waits, too
//!                         drops the last runtime? put off until nothing is carried
//! ```

use std::cell::RefCell;

use super::{Call, CallDeferral, defer_calls, with};
use crate::sync::{Arc, thread_local};

/// A piece of work that a thread carries out by code that is not ours.
pub(crate) trait BlockableWork: Send + Sync {
    /// The thread is about to sleep within the library.
    fn on_sleep(&self);

    /// It goes on.
    fn on_resume(&self);
}

struct Entry {
    /// What it is for: the address of a transfer, or of a queue.
    of: usize,
    /// None for a queue, of which nobody knows whose parts it is at.
    carried: Option<Arc<dyn BlockableWork>>,
    /// It is a queue with parts of a runtime's transfers.
    has_parts: bool,
}

thread_local! {
    static CARRIED: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

fn entries<R>(f: impl FnOnce(&mut Vec<Entry>) -> R) -> Option<R> {
    CARRIED.try_with(|entries| f(&mut entries.borrow_mut())).ok()
}

/// The thread is in the middle of something until this is dropped; what was put off is called then,
/// with no lock held.
#[must_use]
pub(crate) struct OperationScope(Option<CallDeferral>);

fn enter(entry: Entry, hold: Option<CallDeferral>) -> OperationScope {
    with(|outbox| outbox.middles += 1);
    let _ = entries(|entries| entries.push(entry));
    OperationScope(hold)
}

/// The thread carries out a part of the transfer at this address.
pub(crate) fn enter_transfer(of: usize, carried: Arc<dyn BlockableWork>) -> OperationScope {
    enter(Entry { of, carried: Some(carried), has_parts: false }, Some(defer_calls()))
}

/// As [`enter_transfer`], where the thread completes what others submitted meanwhile: what is to be
/// told of those does not wait.
pub(crate) fn enter_shared_transfer(of: usize, carried: Arc<dyn BlockableWork>) -> OperationScope {
    enter(Entry { of, carried: Some(carried), has_parts: false }, None)
}

/// The thread is at the mover of the queue at this address.
pub(crate) fn enter_queue(of: usize, has_parts: bool) -> OperationScope {
    enter(Entry { of, carried: None, has_parts }, Some(defer_calls()))
}

impl OperationScope {
    /// Whether dropping it calls nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        with(|outbox| outbox.entries.is_empty() && outbox.put_off.is_empty()) != Some(false)
    }
}

impl Drop for OperationScope {
    fn drop(&mut self) {
        drop(entries(Vec::pop));
        with(|outbox| {
            outbox.middles -= 1;
            if outbox.middles == 0 {
                let put_off = std::mem::take(&mut outbox.put_off);
                outbox.entries.extend(put_off);
            }
        });
        // The outermost of all makes the calls.
        drop(self.0.take().unwrap_or_else(defer_calls));
    }
}

/// Whether the thread is in the middle of something: neither [`enter_transfer`] nor [`is_in_queue`]
/// says of what.
pub(crate) fn is_in_operation() -> bool {
    with(|outbox| outbox.middles > 0) == Some(true)
}

/// Whether it is in the middle of what this address stands for.
pub(crate) fn is_within(of: usize) -> bool {
    is_in_operation() && entries(|entries| entries.iter().any(|e| e.of == of)) == Some(true)
}

/// Whether it is at a queue with transfers of a runtime, nobody knows which: it can wait for all of
/// them no more than it can for one.
pub(crate) fn is_in_queue() -> bool {
    is_in_operation() && entries(|entries| entries.iter().any(|e| e.has_parts)) == Some(true)
}

/// Calls foreign code when the thread is in the middle of nothing, also where it sleeps before.
pub(crate) fn postpone(call: Call, counts: u32) {
    with(|outbox| outbox.put_off.push_back((call, counts)));
}

/// What the thread carries waits until this is dropped.
#[must_use]
pub(crate) struct SleepScope(Vec<Arc<dyn BlockableWork>>);

/// The thread is about to sleep within the library.
pub(crate) fn mark_asleep() -> SleepScope {
    if !is_in_operation() {
        return SleepScope(Vec::new());
    }
    let carried = entries(|entries| entries.iter().filter_map(|e| e.carried.clone()).collect());
    let carried: Vec<Arc<dyn BlockableWork>> = carried.unwrap_or_default();
    carried.iter().for_each(|carried| carried.on_sleep());
    SleepScope(carried)
}

impl Drop for SleepScope {
    fn drop(&mut self) {
        self.0.iter().for_each(|carried| carried.on_resume());
    }
}
