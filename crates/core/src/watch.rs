//! Observers of changes to a file's bytes, such as caches in front of the file.
//!
//! All places of one file, however often it was opened, share one [`WriteObservers`], and so does
//! the memory that maps it. Pipes notify it before and after they write. So does code that changes
//! a file's length, punches holes, or writes to memory that maps the file (a copy into it, or a
//! lease for writing while it lives). Changes by other processes are not noticed.
//!
//! An observer is foreign code. Its panic is caught and counted: the other observers are still
//! called, and the change goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::error::Result;
use crate::guard::{self, DeferredDrop, ForeignCode};
use crate::locks::{Condvar, Mutex, MutexGuard};
use crate::process::{OwningProcess, PerProcess};
use crate::threads::ThreadNumber;

/// An observer that is told of changes to a file.
///
/// Both functions are called on the thread that changes the file, and concurrently if several
/// threads change it. They must be short and must not wait: they delay the change, and every
/// transfer that ends by the same queue. A panic is caught and counted
/// ([`guard::panics`](crate::guard::panics)).
pub trait WriteObserver: Send + Sync {
    /// Bytes of the range are about to change. Until [`changed`](Self::changed) is called with the
    /// same range, reads may return the old bytes, the new ones, or a mixture.
    fn changing(&self, range: Range<u64>);

    /// The change of a range has ended, with success or without.
    fn changed(&self, range: Range<u64>);
}

/// How often a new observer is told of changes that began meanwhile. After that, other threads may
/// not begin one for a moment.
const TURNS: u32 = 64;

/// All observers of a file. Each change makes a new list, so that observers can be called without
/// the lock.
type Watches = Arc<[Weak<dyn WriteObserver>]>;

#[derive(Default)]
struct Known {
    watches: Watches,
    /// Changes in progress, by number. A new observer is told of them.
    under_way: BTreeMap<u64, Begun>,
    /// The thread that adds an observer and was overtaken too often. No other thread begins a
    /// change until that observer is added.
    comes: Option<ThreadNumber>,
}

/// A change in progress.
struct Begun {
    range: Range<u64>,
    /// Whether the change is made with the lock held, so that no other runs beside it. Until then
    /// it blocks no other.
    is_alone: bool,
}

impl Known {
    fn is_changed_by_others(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: &Begun| other.range.start < range.end && range.start < other.range.end;
        self.under_way.values().any(|other| !other.is_alone && overlaps(other))
    }
}

/// The observers of one file.
pub struct WriteObservers {
    known: Mutex<Known>,
    /// Signalled when the observer that was being added is in the list.
    came: Condvar,
    next: AtomicU64,
    owner: OwningProcess,
}

impl Default for WriteObservers {
    fn default() -> WriteObservers {
        WriteObservers {
            known: Mutex::default(),
            came: Condvar::new(),
            next: AtomicU64::new(0),
            owner: OwningProcess::here(),
        }
    }
}

impl WriteObservers {
    /// Checks that this is the process that opened the file. A child must open it anew: caches in
    /// the child would not hear of changes made through its parent's places.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub fn check_process(&self, operation: &'static str) -> Result<()> {
        self.owner.check(operation)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // The data is consistent whenever foreign code runs.
        self.known.lock()
    }

    /// As [`lock`](Self::lock), for a thread that begins a change.
    fn lock_to_begin(&self) -> MutexGuard<'_, Known> {
        let me = ThreadNumber::here();
        let waits = |known: &mut Known| known.comes.is_some_and(|other| other != me);
        self.came.wait_while(self.lock(), waits)
    }

    /// Adds an observer, which is told at once of changes in progress. It is removed with the last
    /// reference to it.
    pub fn add(&self, watch: &Arc<dyn WriteObserver>) {
        if !self.owner.is_here() {
            return;
        }
        let _hold = guard::defer_calls();
        // The panic was printed by the panic hook and counted by the process.
        let changing =
            |range: &Range<u64>| _ = guard::call(ForeignCode::WriteObserver, || watch.changing(range.clone()));
        let mut told: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        let me = ThreadNumber::here();
        for turn in 1.. {
            let mut known = self.lock();
            let news = known.under_way.iter().filter(|(number, _)| !told.contains_key(*number));
            let news: Vec<_> = news.map(|(number, begun)| (*number, begun.range.clone())).collect();
            if !news.is_empty() {
                if turn >= TURNS && known.comes.is_none() {
                    known.comes = Some(me);
                }
                // The lock is not held here: the observer may change the file itself.
                drop(known);
                news.iter().for_each(|(_, range)| changing(range));
                told.extend(news);
                continue;
            }
            if known.comes == Some(me) {
                known.comes = None;
                self.came.notify_all();
            }
            // The observer is not in the list yet, so nobody told it that these changes ended.
            told.retain(|number, _| !known.under_way.contains_key(number));
            let others = known.watches.iter().filter(|w| w.strong_count() > 0).cloned();
            known.watches = others.chain([Arc::downgrade(watch)]).collect();
            drop(known);
            for range in told.into_values() {
                let _ = guard::call(ForeignCode::WriteObserver, || watch.changed(range));
            }
            return;
        }
    }

    /// Announces a change of a range. The number it returns is for [`end`](Self::end).
    pub fn begin(&self, range: Range<u64>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.owner.is_here() {
            return number;
        }
        let _hold = guard::defer_calls();
        let mut known = self.lock_to_begin();
        // An observer that is added from here on is told of the change by `add`, and is not among
        // those that are called here.
        known.under_way.insert(number, Begun { range: range.clone(), is_alone: false });
        let watches = known.watches.clone();
        drop(known);
        each(&watches, |w| w.changing(range.clone()));
        number
    }

    /// Announces that the change has ended.
    pub fn end(&self, number: u64) {
        if !self.owner.is_here() {
            return;
        }
        let _hold = guard::defer_calls();
        let mut known = self.lock();
        let Some(Begun { range, .. }) = known.under_way.remove(&number) else { return };
        let watches = known.watches.clone();
        drop(known);
        each(&watches, |w| w.changed(range.clone()));
    }

    /// Runs a change of a range while nothing else that announces its changes here can change it.
    /// Returns `None`, without running it, where such a change is in progress already. A thread
    /// that begins another change waits until this one is over. The observers were told before
    /// that, so the wait is short.
    pub(crate) fn write_exclusively<R>(&self, range: Range<u64>, change: impl FnOnce() -> R) -> Option<R> {
        if !self.owner.is_here() {
            return None;
        }
        let _hold = guard::defer_calls();
        let mut known = self.lock_to_begin();
        if known.is_changed_by_others(&range) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        known.under_way.insert(number, Begun { range: range.clone(), is_alone: true });
        let watches = known.watches.clone();
        drop(known);
        // The lock is not held here: an observer may change the file itself.
        each(&watches, |w| w.changing(range.clone()));
        let mut known = self.lock();
        let may = !known.is_changed_by_others(&range);
        let outcome = may.then(|| catch_unwind(AssertUnwindSafe(change)));
        known.under_way.remove(&number);
        let watches = known.watches.clone();
        drop(known);
        each(&watches, |w| w.changed(range.clone()));
        outcome.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Runs a change of a range. The change is over when the function returns or panics.
    pub(crate) fn write_observed<R>(&self, range: Range<u64>, change: impl FnOnce() -> R) -> R {
        let _change = Change::begin(self, range);
        change()
    }
}

/// A change that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Change<W: Deref<Target = WriteObservers>> {
    watchers: W,
    number: u64,
}

impl<W: Deref<Target = WriteObservers>> Change<W> {
    /// Announces that a range is about to change.
    pub(crate) fn begin(watchers: W, range: Range<u64>) -> Change<W> {
        let number = watchers.begin(range);
        Change { watchers, number }
    }
}

impl<W: Deref<Target = WriteObservers>> Drop for Change<W> {
    fn drop(&mut self) {
        self.watchers.end(self.number);
    }
}

/// Calls each observer. A panic of one does not keep the others from being called. If all other
/// references to an observer are dropped meanwhile, its destructor runs when this thread is in the
/// middle of no operation.
fn each(watches: &Watches, tell: impl Fn(&dyn WriteObserver)) {
    for watch in watches.iter().filter_map(Weak::upgrade) {
        // The panic was counted by the process and printed by the panic hook.
        let _ = guard::call(ForeignCode::WriteObserver, || tell(&*watch));
        drop(DeferredDrop::new(Box::new(watch)));
    }
}

impl fmt::Debug for WriteObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.lock();
        write!(f, "WriteObservers({}, {} changes in progress)", known.watches.len(), known.under_way.len())
    }
}

/// A file's device and inode numbers.
type Identity = (u64, u64);

/// The observers of all files that are open as places. It must be global: no other part of the
/// process knows that two descriptors refer to one file, and a cache that missed a write through
/// the other would return wrong bytes. A child has its own.
static FILES: PerProcess<Mutex<BTreeMap<Identity, Weak<WriteObservers>>>> = PerProcess::new();

/// The observers of the file with this device and inode.
pub(crate) fn of(identity: Identity) -> Arc<WriteObservers> {
    let mut files = FILES.get(Mutex::default).lock();
    if let Some(watchers) = files.get(&identity).and_then(Weak::upgrade) {
        return watchers;
    }
    files.retain(|_, w| w.strong_count() > 0);
    let watchers = Arc::new(WriteObservers::default());
    files.insert(identity, Arc::downgrade(&watchers));
    watchers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(bool, Range<u64>)>>);

    impl WriteObserver for Heard {
        fn changing(&self, range: Range<u64>) {
            self.0.lock().push((true, range));
        }

        fn changed(&self, range: Range<u64>) {
            self.0.lock().push((false, range));
        }
    }

    #[test]
    fn a_new_observer_is_told_of_changes_in_progress() {
        let watchers = WriteObservers::default();
        let early = watchers.begin(0..10);
        let heard = Arc::new(Heard::default());
        let watch: Arc<dyn WriteObserver> = heard.clone();
        watchers.add(&watch);
        let late = watchers.begin(5..7);
        watchers.end(early);
        watchers.end(late);
        assert_eq!(*heard.0.lock(), [(true, 0..10), (true, 5..7), (false, 0..10), (false, 5..7)]);
        drop((watch, heard));
        watchers.write_observed(1..2, || {});
    }

    /// An observer that changes the file when it is told of a change.
    struct Answers(Heard, Arc<WriteObservers>);

    impl WriteObserver for Answers {
        fn changing(&self, range: Range<u64>) {
            self.0.changing(range.clone());
            if range.start == 0 {
                self.1.write_observed(100..101, || {});
                // Another thread's change ends, and another begins, before this observer is in the
                // list.
                self.1.end(0);
                self.1.begin(200..201);
            }
        }

        fn changed(&self, range: Range<u64>) {
            self.0.changed(range);
        }
    }

    #[test]
    fn a_new_observer_may_change_the_file_and_is_told_of_each_end_after_its_beginning() {
        let watchers = Arc::new(WriteObservers::default());
        assert_eq!(watchers.begin(0..10), 0);
        let watch = Arc::new(Answers(Heard::default(), watchers.clone()));
        watchers.add(&(watch.clone() as Arc<dyn WriteObserver>));
        watchers.end(2);
        let heard = watch.0.0.lock();
        assert_eq!(*heard, [(true, 0..10), (true, 200..201), (false, 0..10), (false, 200..201)]);
    }

    #[test]
    fn an_observer_may_change_the_file_while_it_is_extended() {
        /// An observer that makes the file longer too, and writes at its end.
        struct Writes(Arc<WriteObservers>, [AtomicU64; 2]);
        impl WriteObserver for Writes {
            fn changing(&self, range: Range<u64>) {
                if self.1[0].fetch_add(1, Ordering::SeqCst) == 0 {
                    assert_eq!(self.0.write_exclusively(range.clone(), || 1), Some(1));
                    self.0.write_observed(range, || {});
                }
            }

            fn changed(&self, range: Range<u64>) {
                if self.1[1].fetch_add(1, Ordering::SeqCst) == 0 {
                    assert_eq!(self.0.write_exclusively(range, || 2), Some(2));
                }
            }
        }
        let watchers = Arc::new(WriteObservers::default());
        let writes = Arc::new(Writes(watchers.clone(), Default::default()));
        watchers.add(&(writes.clone() as Arc<dyn WriteObserver>));
        let (done, ended) = std::sync::mpsc::channel();
        let theirs = watchers.clone();
        std::thread::spawn(move || done.send(theirs.write_exclusively(0..1, || 3)).unwrap());
        assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(60)), Ok(Some(3)), "it waits for itself");
        assert!(format!("{watchers:?}").contains(" 0 changes in progress"), "{watchers:?}");
        // While another change overlaps, `write_exclusively` refuses.
        let number = watchers.begin(5..9);
        assert_eq!((watchers.write_exclusively(8..10, || 4), watchers.write_exclusively(9..10, || 5)), (None, Some(5)));
        watchers.end(number);
    }

    struct Panics(Heard);

    impl WriteObserver for Panics {
        fn changing(&self, range: Range<u64>) {
            self.0.changing(range.clone());
            assert!(range.start != 1, "a watch that panics at a beginning");
        }

        fn changed(&self, range: Range<u64>) {
            self.0.changed(range.clone());
            assert!(range.start != 2, "a watch that panics at an end");
        }
    }

    #[test]
    fn a_panic_of_an_observer_or_a_change_leaves_no_change_in_progress() {
        let watchers = WriteObservers::default();
        let (panics, heard) = (Arc::new(Panics(Heard::default())), Arc::new(Heard::default()));
        let watches: [Arc<dyn WriteObserver>; 2] = [panics.clone(), heard.clone()];
        watches.iter().for_each(|w| watchers.add(w));
        let panicked = |work: &dyn Fn()| catch_unwind(AssertUnwindSafe(work)).is_err();
        assert!(!panicked(&|| watchers.end(watchers.begin(1..5))));
        assert!(!panicked(&|| watchers.end(watchers.begin(2..5))));
        assert!(panicked(&|| watchers.write_observed(3..5, || panic!("a change that panics"))));
        assert!(panicked(&|| watchers.write_observed(2..4, || panic!("and a watch beside it"))));
        assert!(!panicked(&|| _ = watchers.write_exclusively(1..4, || {})));
        assert!(panicked(&|| _ = watchers.write_exclusively(3..4, || panic!("a change that panics"))));
        assert_eq!(watchers.write_exclusively(4..5, || 7), Some(7));
        assert!(format!("{watchers:?}").contains(" 0 changes in progress"), "{watchers:?}");
        for heard in [&panics.0, &*heard] {
            let heard = heard.0.lock();
            let of = |begins: bool| heard.iter().filter(|h| h.0 == begins).map(|h| h.1.clone()).collect::<Vec<_>>();
            assert_eq!(of(true), [1..5, 2..5, 3..5, 2..4, 1..4, 3..4, 4..5]);
            assert_eq!(of(true), of(false), "an observer that is told of a beginning is told of its end");
        }
    }

    #[test]
    fn a_panicking_observer_keeps_no_change_from_ending_and_no_other_observer_from_being_told() {
        struct Loud;
        impl WriteObserver for Loud {
            fn changing(&self, _: Range<u64>) {
                panic!("it does not like changes");
            }

            fn changed(&self, _: Range<u64>) {
                panic!("nor their ends");
            }
        }
        let watchers = Arc::new(WriteObservers::default());
        let (loud, heard) = (Arc::new(Loud), Arc::new(Heard::default()));
        watchers.add(&(loud.clone() as Arc<dyn WriteObserver>));
        watchers.add(&(heard.clone() as Arc<dyn WriteObserver>));
        watchers.write_observed(0..1, || {});
        let fails = std::panic::AssertUnwindSafe(|| watchers.write_observed(1..2, || panic!("a mover")));
        assert!(std::panic::catch_unwind(fails).is_err());
        let all = [(true, 0..1), (false, 0..1), (true, 1..2), (false, 1..2)];
        assert_eq!(*heard.0.lock(), all);
        assert!(format!("{watchers:?}").contains("0 changes in progress"));
    }

    #[test]
    fn an_observer_that_is_dropped_by_its_caller_may_change_the_file_then() {
        /// An observer that drops the last reference to itself when it is told.
        struct Leaves(Mutex<Option<Arc<Leaves>>>, Arc<WriteObservers>);
        impl WriteObserver for Leaves {
            fn changing(&self, _: Range<u64>) {
                drop(self.0.lock().take());
            }

            fn changed(&self, _: Range<u64>) {}
        }
        impl Drop for Leaves {
            fn drop(&mut self) {
                self.1.write_observed(7..8, || {});
            }
        }
        let watchers = Arc::new(WriteObservers::default());
        let leaves = Arc::new(Leaves(Mutex::new(None), watchers.clone()));
        watchers.add(&(leaves.clone() as Arc<dyn WriteObserver>));
        *leaves.0.lock() = Some(leaves.clone());
        drop(leaves);
        let (done, ended) = std::sync::mpsc::channel();
        let theirs = watchers.clone();
        std::thread::spawn(move || {
            theirs.write_observed(0..1, || {});
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for itself");
        assert!(format!("{watchers:?}").starts_with("WriteObservers(1, 0 "), "{watchers:?}");
    }
}
