//! Foreign code in the middle of an operation of the library: a mover, a reader, an observer. The
//! transfer that it is called for cannot end before it returns, so a wait for all transfers there
//! would wait for itself.
//!
//! ```text
//! enter_transfer(X) ... foreign code ... drop: postponed calls are made
//!     foreign code sleeps in the library:  X is marked as waiting
//!     it drains a runtime:                 until only waiting transfers are left
//!     it drops the last handle:            postponed until no operation is left
//! ```

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use super::{Call, CallDeferral, defer_calls, free_at_end, is_free, thread_end, with};
use crate::sync::{Arc, thread_local};

/// A piece of work that a thread carries out by foreign code.
pub(crate) trait BlockableWork: Send + Sync {
    /// The thread is about to sleep within the library.
    fn on_sleep(&self);

    /// The thread goes on.
    fn on_resume(&self);
}

struct Entry {
    /// The address of the transfer or queue that it is for.
    of: usize,
    /// `None` for a queue, of which it is not known whose parts it handles.
    carried: Option<Arc<dyn BlockableWork>>,
    /// Whether it is a queue with parts of a runtime's transfers.
    has_parts: bool,
}

thread_local! {
    /// Without a destructor, as the outbox.
    static CARRIED: ManuallyDrop<RefCell<Vec<Entry>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Frees the memory of the entries when the thread ends.
fn free_entries_at_end() {
    thread_end::call(|| {
        if is_free() {
            drop(entries(std::mem::take));
        }
    });
}

fn entries<R>(f: impl FnOnce(&mut Vec<Entry>) -> R) -> Option<R> {
    CARRIED.try_with(|entries| f(&mut entries.borrow_mut())).ok()
}

/// While this exists, the thread is in the middle of an operation. Postponed calls are made when it
/// is dropped, with no lock held.
#[must_use]
pub(crate) struct OperationScope(Option<CallDeferral>);

fn enter(entry: Entry, hold: Option<CallDeferral>) -> OperationScope {
    with(|outbox| outbox.middles += 1);
    let _ = entries(|entries| entries.push(entry));
    free_entries_at_end();
    OperationScope(hold)
}

/// Enters the transfer at this address: the thread carries out a part of it.
pub(crate) fn enter_transfer(of: usize, carried: Arc<dyn BlockableWork>) -> OperationScope {
    enter(Entry { of, carried: Some(carried), has_parts: false }, Some(defer_calls()))
}

/// As [`enter_transfer`], where the thread also completes jobs that others submitted. Their results
/// are reported without delay.
pub(crate) fn enter_shared_transfer(of: usize, carried: Arc<dyn BlockableWork>) -> OperationScope {
    enter(Entry { of, carried: Some(carried), has_parts: false }, None)
}

/// Enters the queue at this address: the thread calls its mover.
pub(crate) fn enter_queue(of: usize, has_parts: bool) -> OperationScope {
    enter(Entry { of, carried: None, has_parts }, Some(defer_calls()))
}

impl OperationScope {
    /// Whether dropping it calls no foreign code.
    pub(crate) fn is_quiet(&self) -> bool {
        with(|outbox| outbox.entries.is_empty() && outbox.put_off.is_empty()) != Some(false)
    }
}

impl Drop for OperationScope {
    fn drop(&mut self) {
        drop(entries(|entries| {
            let last = entries.pop();
            if entries.is_empty() && thread_end::is_over() {
                *entries = Vec::new();
            }
            last
        }));
        with(|outbox| {
            outbox.middles -= 1;
            if outbox.middles == 0 {
                let put_off = std::mem::take(&mut outbox.put_off);
                outbox.entries.extend(put_off);
            }
        });
        // The outermost scope makes the calls.
        drop(self.0.take().unwrap_or_else(defer_calls));
    }
}

/// Whether the thread is in the middle of any operation; [`is_within`] and [`is_in_queue`] tell
/// which.
pub(crate) fn is_in_operation() -> bool {
    with(|outbox| outbox.middles > 0) == Some(true)
}

/// Whether the thread is in the middle of the operation at this address.
pub(crate) fn is_within(of: usize) -> bool {
    is_in_operation() && entries(|entries| entries.iter().any(|e| e.of == of)) == Some(true)
}

/// Whether the thread is at a queue that holds transfers of some runtime. It is not known which, so
/// the thread must not wait for any of them.
pub(crate) fn is_in_queue() -> bool {
    is_in_operation() && entries(|entries| entries.iter().any(|e| e.has_parts)) == Some(true)
}

/// Makes a call when the thread is in the middle of no operation, and not earlier if it sleeps.
pub(crate) fn postpone(call: Call, counts: u32) {
    with(|outbox| outbox.put_off.push_back((call, counts)));
    free_at_end();
}

/// Marks the thread's operations as waiting until this is dropped.
#[must_use]
pub(crate) struct SleepScope(Vec<Arc<dyn BlockableWork>>);

/// Marks the thread's operations as waiting: it is about to sleep within the library.
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

/// How many entries the thread has memory for.
#[cfg(all(test, not(shuttle)))]
pub(super) fn capacity() -> usize {
    entries(|entries| entries.capacity()).unwrap_or(0)
}
