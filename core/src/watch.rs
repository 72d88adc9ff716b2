//! Who must know when a file's bytes change: caches in front of it.
//!
//! All places of one file, however often it was opened, share one [`WriteObservers`], and so does
//! the memory that maps it. Pipes tell it before they write and after; so does what changes a
//! file's length or punches holes, and what writes to memory that maps the file: a copy into it, a
//! lease for writing while it lives. What other processes do nobody tells.
//!
//! A watch is code of somebody else. The panic of one is caught and counted: the other watches hear
//! what they must hear, and the change goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use crate::error::Result;
use crate::guard::{self, DeferredDrop, ForeignCode};
use crate::process::{OwningProcess, PerProcess};

/// Wants to know of changes of a file.
///
/// Both calls are made by whoever changes the file, on its thread; several at once where several
/// change it. They are to be short, and not to wait: the change is held up meanwhile, and everybody
/// whose transfers end by the same queue. A panic is caught and counted
/// ([`guard::panics`](crate::guard::panics)).
pub trait WriteObserver: Send + Sync {
    /// Bytes of the range are about to change. Until [`changed`](Self::changed) with the same
    /// range, reads may return the old bytes, the new ones, or some of both.
    fn changing(&self, range: Range<u64>);

    /// The change of a range is over, whether it succeeded or not.
    fn changed(&self, range: Range<u64>);
}

/// How often a new watch is told of changes that began meanwhile, before no other thread may begin
/// one for a moment.
const TURNS: u32 = 64;

/// All watches of a file; another list with each change of it, so that one can be called without
/// the lock.
type Watches = Arc<[Weak<dyn WriteObserver>]>;

#[derive(Default)]
struct Known {
    watches: Watches,
    /// Changes under way, by number: who begins to watch hears of them.
    under_way: BTreeMap<u64, Begun>,
    /// The thread of a watch that did not get to its end: no other thread begins a change until it
    /// has.
    comes: Option<ThreadId>,
}

/// A change that is under way.
struct Begun {
    range: Range<u64>,
    /// It is made with the lock held, and so beside no other: it stands in nobody's way before.
    is_alone: bool,
}

impl Known {
    fn is_changed_by_others(&self, range: &Range<u64>) -> bool {
        let overlaps = |other: &Begun| other.range.start < range.end && range.start < other.range.end;
        self.under_way.values().any(|other| !other.is_alone && overlaps(other))
    }
}

/// The watches of one file.
pub struct WriteObservers {
    known: Mutex<Known>,
    /// The watch that came is among the others.
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
    /// Whether this is the process that opened the file. A child opens it anew: caches that the
    /// child has of it would not hear of what it does by places of its parent.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub fn check_process(&self, operation: &'static str) -> Result<()> {
        self.owner.check(operation)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // What is guarded is whole whenever foreign code runs.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`lock`](Self::lock), for who begins a change.
    fn lock_to_begin(&self) -> MutexGuard<'_, Known> {
        let me = std::thread::current().id();
        let waits = |known: &mut Known| known.comes.is_some_and(|other| other != me);
        self.came.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watch; it hears at once of changes that are under way. It ends with the last
    /// reference to it.
    pub fn add(&self, watch: &Arc<dyn WriteObserver>) {
        if !self.owner.is_here() {
            return;
        }
        let _hold = guard::defer_calls();
        // The process counts a panic, and the panic hook has printed it.
        let changing = |range: &Range<u64>| _ = guard::call(ForeignCode::Watch, || watch.changing(range.clone()));
        let mut told: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        let me = std::thread::current().id();
        for turn in 1.. {
            let mut known = self.lock();
            let news = known.under_way.iter().filter(|(number, _)| !told.contains_key(*number));
            let news: Vec<_> = news.map(|(number, begun)| (*number, begun.range.clone())).collect();
            if !news.is_empty() {
                if turn >= TURNS && known.comes.is_none() {
                    known.comes = Some(me);
                }
                // Without the lock: the watch may change the file itself.
                drop(known);
                news.iter().for_each(|(_, range)| changing(range));
                told.extend(news);
                continue;
            }
            if known.comes == Some(me) {
                known.comes = None;
                self.came.notify_all();
            }
            // It is none of them yet, so the end of these was not told to it.
            told.retain(|number, _| !known.under_way.contains_key(number));
            let others = known.watches.iter().filter(|w| w.strong_count() > 0).cloned();
            known.watches = others.chain([Arc::downgrade(watch)]).collect();
            drop(known);
            for range in told.into_values() {
                let _ = guard::call(ForeignCode::Watch, || watch.changed(range));
            }
            return;
        }
    }

    /// Tells that a range is about to change; the number is for [`end`](Self::end).
    pub fn begin(&self, range: Range<u64>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if !self.owner.is_here() {
            return number;
        }
        let _hold = guard::defer_calls();
        let mut known = self.lock_to_begin();
        // A watch that is added from here on hears of the change when it is added, and is not among
        // those that are called here.
        known.under_way.insert(number, Begun { range: range.clone(), is_alone: false });
        let watches = known.watches.clone();
        drop(known);
        each(&watches, |w| w.changing(range.clone()));
        number
    }

    /// Tells that the change is over.
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

    /// Runs what changes a range, and nothing else of this process that is told here changes it
    /// meanwhile. `None`, and nothing is run, where such a change is under way already. Who begins
    /// another change waits until this one is over; the watches were told before, so it is short.
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
        // Without the lock: a watch may change the file itself.
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

    /// Runs what changes a range. The change is over when it returns, and when it panics.
    pub(crate) fn write_observed<R>(&self, range: Range<u64>, change: impl FnOnce() -> R) -> R {
        let _change = Change::begin(self, range);
        change()
    }
}

/// A change that is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Change<W: Deref<Target = WriteObservers>> {
    watchers: W,
    number: u64,
}

impl<W: Deref<Target = WriteObservers>> Change<W> {
    /// Tells that a range is about to change.
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

/// Tells each watch. One that panics was told, and the others are, too. Whoever drops a watch
/// meanwhile drops it here: its destructor is called when this thread is in the middle of nothing.
fn each(watches: &Watches, tell: impl Fn(&dyn WriteObserver)) {
    for watch in watches.iter().filter_map(Weak::upgrade) {
        // The process counts it, and the panic hook has printed it.
        let _ = guard::call(ForeignCode::Watch, || tell(&*watch));
        drop(DeferredDrop::new(Box::new(watch)));
    }
}

impl fmt::Debug for WriteObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.lock();
        write!(f, "Watchers({}, {} changes under way)", known.watches.len(), known.under_way.len())
    }
}

/// A file by what the kernel calls it.
type Identity = (u64, u64);

/// Which files are open as places. This is the library's only state that belongs to the process:
/// that two descriptors are of the same file is known to nobody else, and a cache that misses a
/// write because the writer opened the file by itself would give out wrong bytes. A child has its
/// own.
static FILES: PerProcess<Mutex<BTreeMap<Identity, Weak<WriteObservers>>>> = PerProcess::new();

/// The watchers of the file with this device and inode.
pub(crate) fn of(identity: Identity) -> Arc<WriteObservers> {
    let mut files = FILES.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
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
            self.0.lock().unwrap().push((true, range));
        }

        fn changed(&self, range: Range<u64>) {
            self.0.lock().unwrap().push((false, range));
        }
    }

    #[test]
    fn a_watch_hears_of_what_began_before_it_came() {
        let watchers = WriteObservers::default();
        let early = watchers.begin(0..10);
        let heard = Arc::new(Heard::default());
        let watch: Arc<dyn WriteObserver> = heard.clone();
        watchers.add(&watch);
        let late = watchers.begin(5..7);
        watchers.end(early);
        watchers.end(late);
        assert_eq!(*heard.0.lock().unwrap(), [(true, 0..10), (true, 5..7), (false, 0..10), (false, 5..7)]);
        drop((watch, heard));
        watchers.write_observed(1..2, || {});
    }

    /// It changes the file when it is told that somebody does.
    struct Answers(Heard, Arc<WriteObservers>);

    impl WriteObserver for Answers {
        fn changing(&self, range: Range<u64>) {
            self.0.changing(range.clone());
            if range.start == 0 {
                self.1.write_observed(100..101, || {});
                // A change of somebody else's ends, and another begins, before this one is among
                // those who are told.
                self.1.end(0);
                self.1.begin(200..201);
            }
        }

        fn changed(&self, range: Range<u64>) {
            self.0.changed(range);
        }
    }

    #[test]
    fn a_watch_that_comes_may_change_the_file_and_hears_of_each_end_after_its_beginning() {
        let watchers = Arc::new(WriteObservers::default());
        assert_eq!(watchers.begin(0..10), 0);
        let watch = Arc::new(Answers(Heard::default(), watchers.clone()));
        watchers.add(&(watch.clone() as Arc<dyn WriteObserver>));
        watchers.end(2);
        let heard = watch.0.0.lock().unwrap();
        assert_eq!(*heard, [(true, 0..10), (true, 200..201), (false, 0..10), (false, 200..201)]);
    }

    #[test]
    fn a_watch_may_change_the_file_while_it_is_made_longer() {
        /// It makes it longer, too, and writes what is at its end.
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
        assert!(format!("{watchers:?}").contains(" 0 changes under way"), "{watchers:?}");
        // Beside a change of somebody else's it is none.
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
    fn a_watch_or_a_change_that_panics_leaves_nothing_under_way() {
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
        assert!(format!("{watchers:?}").contains(" 0 changes under way"), "{watchers:?}");
        for heard in [&panics.0, &*heard] {
            let heard = heard.0.lock().unwrap();
            let of = |begins: bool| heard.iter().filter(|h| h.0 == begins).map(|h| h.1.clone()).collect::<Vec<_>>();
            assert_eq!(of(true), [1..5, 2..5, 3..5, 2..4, 1..4, 3..4, 4..5]);
            assert_eq!(of(true), of(false), "whoever hears of a beginning hears of its end");
        }
    }

    #[test]
    fn a_watch_that_panics_keeps_no_change_from_its_end_and_no_other_from_hearing_of_it() {
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
        assert_eq!(*heard.0.lock().unwrap(), all);
        assert!(format!("{watchers:?}").contains("0 changes under way"));
    }

    #[test]
    fn a_watch_whose_last_reference_is_dropped_by_who_tells_it_may_change_the_file_then() {
        /// It gives its own last reference up when it is told.
        struct Leaves(Mutex<Option<Arc<Leaves>>>, Arc<WriteObservers>);
        impl WriteObserver for Leaves {
            fn changing(&self, _: Range<u64>) {
                drop(self.0.lock().unwrap().take());
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
        *leaves.0.lock().unwrap() = Some(leaves.clone());
        drop(leaves);
        let (done, ended) = std::sync::mpsc::channel();
        let theirs = watchers.clone();
        std::thread::spawn(move || {
            theirs.write_observed(0..1, || {});
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for itself");
        assert!(format!("{watchers:?}").starts_with("Watchers(1, 0 "), "{watchers:?}");
    }
}
