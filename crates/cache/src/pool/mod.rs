//! The state that the files of a pool share, and the pool's threads.

pub(crate) mod ahead;
pub(crate) mod file;
mod files;
mod lookers;
mod maintenance;
mod opening;
pub(crate) mod space;
mod wakers;

use std::collections::BTreeSet;
use std::sync::Weak;
use std::task::Waker;
use std::time::Duration;

use datapipes_core::process::OwningProcess;

use ahead::Ahead;
use file::Inner;
use files::{Files, Looked};
use lookers::Lookers;
use maintenance::Maintenance;
use space::Space;
use wakers::Wakers;

use crate::coherence::events::{Events, FileName, Of};
use crate::coherence::marks::Marks;
use crate::coherence::outside::is_steady;
use crate::config::CacheOptions;
use crate::device::lanes::Lanes;
use crate::metrics::{Metrics, Tally};
use crate::miss::detector::Detector;
use crate::policy::shadow::{Shadow, is_sampled};
use crate::store::Store;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, wake_all};

/// The number of periods in a time to live.
const PERIODS_OF_TTL: u64 = 4;

/// The state that the files of a pool share.
pub(crate) struct Pool {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: CacheOptions,
    pub(crate) space: Space,
    pub(crate) detector: Detector,
    /// None where the caller's engine reads.
    lanes: Option<Arc<Lanes>>,
    /// The clock of the time to live.
    clock: Clock,
    shadow: Option<Mutex<Shadow>>,
    /// The number of items at the last look, for the proportion of samples.
    items: AtomicUsize,
    recency: AtomicBool,
    /// How often the maintenance thread looks, in nanoseconds.
    tick: AtomicU64,
    /// The time up to which periods of the time to live were ended, in nanoseconds of the clock.
    turned: AtomicU64,
    files: Mutex<Vec<Weak<Inner>>>,
    /// The threads for files whose file systems may not answer.
    lookers: Mutex<Lookers>,
    /// The counters of closed files.
    closed: Tally,
    /// The files about which the kernel sends events.
    pub(crate) marks: Arc<Marks>,
    wakers: Arc<Wakers>,
    /// Held while events are taken and handled: a thread that gets it knows that no event is half
    /// handled.
    taking: Mutex<()>,
    maintenance: Mutex<Option<Maintenance>>,
    /// The extents to prefetch.
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) owner: OwningProcess,
}

/// Nanoseconds since some fixed moment.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

impl Pool {
    /// How often the maintenance thread looks.
    pub(crate) fn tick(&self) -> Duration {
        Duration::from_nanos(self.tick.load(Ordering::Relaxed))
    }

    /// Returns the queue of events, if there is one.
    pub(crate) fn queue(&self) -> Option<Arc<Events>> {
        self.marks.queue()
    }

    /// Returns the open files.
    pub(crate) fn files(&self) -> Files {
        Files::open(self.files.lock().iter().filter_map(Weak::upgrade))
    }

    /// Takes the kernel's events, and drops the cached items of files that others changed. It does
    /// not access a file, which might never answer.
    pub(crate) fn take_events(&self) {
        let Some(queue) = self.queue() else { return };
        let taking = self.taking.lock();
        let gone = self.marks.gone();
        let (mut any, mut names) = (false, BTreeSet::new());
        queue.take(|of| match of {
            Of::Any => any = true,
            Of::File(name) => _ = names.insert(name),
        });
        if !any && names.is_empty() {
            return;
        }
        let files = self.files();
        let listening = || files.iter().filter(|f| f.outside.listens());
        // An unknown name may be another name of one of these files. Then any file may be meant.
        let is_known =
            |n: &FileName| gone.contains(n) || listening().any(|f| f.outside.name() == Some(n)) || self.marks.has(n);
        let any = any || !names.iter().all(is_known);
        let is_meant = |f: &&Arc<Inner>| any || f.outside.name().is_none_or(|n| names.contains(n));
        let meant: Vec<_> = listening().filter(is_meant).collect();
        for file in &meant {
            file.outside.tell();
            file.changed_by_event_begins();
        }
        drop(taking);
        // All changes are over before anybody is woken, and no lock is held: wakers are foreign
        // code.
        let wakers = meant.iter().flat_map(|f| f.changed_by_others_ends()).collect();
        drop(files);
        self.wake(wakers);
    }

    /// Drops the cached items of a file whose last handle was dropped.
    pub(crate) fn close(&self, file: &Inner) {
        {
            let mut files = self.files.lock();
            files.retain(|f| !std::ptr::eq(f.as_ptr(), file));
            self.closed.add_all(&file.tally);
        }
        // If the file has all of the space, its memory is released with the pool.
        if !file.map.is_whole() {
            file.map.places(0..u64::MAX).for_each(|place| self.store.invalidate(place));
        }
        if let Some(device) = file.ssd.as_ref().and_then(|ssd| self.looker_of(ssd, file.options.outside)) {
            lookers::fewer(self, device);
        }
        // A file that may block is listened to until it is closed.
        if let Some(ssd) = file.ssd.as_ref().filter(|_| !file.closer.waits()) {
            self.marks.listen_no_more(ssd, file.outside.name());
        }
    }

    /// Simulates a sampled read on both policies.
    #[inline]
    pub(crate) fn sample(&self, place: u64) {
        if is_sampled(place)
            && let Some(shadow) = &self.shadow
        {
            self.play(shadow, place);
        }
    }

    #[cold]
    fn play(&self, shadow: &Mutex<Shadow>, place: u64) {
        // A busy lock is skipped: a sample lost now and then does no harm.
        let Some(mut shadow) = shadow.try_lock() else { return };
        if let Some(recency) = shadow.read(place, self.items.load(Ordering::Relaxed)) {
            self.recency.store(recency, Ordering::Relaxed);
            self.store.prefer_recency(recency);
        }
    }

    pub(crate) fn maintain(&self) {
        if !self.owner.is_here() {
            return;
        }
        self.turn();
        self.store.rebalance(self.config.reassignment);
        self.items.store(self.store.state().items, Ordering::Relaxed);
        self.take_events();
        let mut overdue = Vec::new();
        {
            let files = self.files();
            for file in files.iter() {
                overdue.extend(file.writes.overdue(file.options.patience));
                file.end_loaded();
            }
            for file in files.iter().filter(|f| f.ssd.as_ref().is_some_and(is_steady)) {
                file.look();
            }
        }
        self.wakers.look_after();
        self.wake(overdue);
        // Work that may block comes last. Where there are threads, they do it.
        if !self.config.maintenance {
            self.ahead.read_all();
            let unsteady = self.of(|file| !file.ssd.as_ref().is_some_and(is_steady));
            unsteady.into_iter().for_each(Looked::look);
        }
    }

    /// Wakes them on another thread, because all files may need this one. Without a maintenance
    /// thread the caller of [`BufferPool::maintain`] wakes them.
    pub(crate) fn wake(&self, wakers: Vec<Waker>) {
        if self.config.maintenance {
            self.wakers.hand(wakers);
        } else {
            wake_all(wakers);
        }
    }

    /// Returns the files of a device whose looks may block, and how often to look at them.
    pub(crate) fn of_device(&self, device: u64) -> (Vec<Looked>, Duration) {
        let mut tick = None;
        let files = self.of(|file| {
            let of = file.ssd.as_ref().and_then(|ssd| self.looker_of(ssd, file.options.outside));
            if of == Some(device) {
                let mine = maintenance::tick_of(file.options.outside, None);
                tick = Some(tick.map_or(mine, |tick: Duration| tick.min(mine)));
            }
            of == Some(device)
        });
        (files, tick.unwrap_or(self.tick()))
    }

    fn of(&self, mut which: impl FnMut(&Inner) -> bool) -> Vec<Looked> {
        let files = self.files();
        files.iter().filter(|f| f.outside.looks() && which(f)).map(Looked::at).collect()
    }

    pub(crate) fn lookers(&self) -> MutexGuard<'_, Lookers> {
        self.lookers.lock()
    }

    /// Ends periods of the time to live, by the engine's clock.
    fn turn(&self) {
        let Some(ttl) = self.config.ttl else { return };
        let period = (nanoseconds(ttl) / PERIODS_OF_TTL).max(1);
        let turned = self.turned.load(Ordering::Acquire);
        let passed = (self.clock)().saturating_sub(turned) / period;
        // Only one of several concurrent callers does it.
        if passed > 0
            && self
                .turned
                .compare_exchange(turned, turned + passed * period, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            // After this many periods no item is left.
            (0..passed.min(2 * PERIODS_OF_TTL)).for_each(|_| self.store.next_period());
        }
    }

    /// Returns the counters of all files together.
    pub(crate) fn metrics(&self) -> Metrics {
        if !self.owner.is_here() {
            return Metrics::default();
        }
        let sum = Tally::default();
        sum.add_all(&self.closed);
        let files = self.files();
        files.iter().for_each(|f| sum.add_all(&f.tally));
        let mut metrics = sum.metrics();
        metrics.under_way = files.iter().map(|f| f.info.under_way()).sum();
        for of in files.iter().filter_map(|f| f.latencies()) {
            metrics.latencies.get_or_insert_default().add(&of);
        }
        self.add_metrics(&mut metrics);
        metrics
    }

    /// Adds the counters of the pool.
    pub(crate) fn add_metrics(&self, metrics: &mut Metrics) {
        metrics.memory_bytes = self.detector.bytes() + self.lanes.as_ref().map_or(0, |l| l.buffer_bytes());
        metrics.memory_bytes += self.ahead.bytes();
        metrics.memory_bytes += self.shadow.as_ref().map_or(0, |s| s.lock().bytes());
        metrics.of_store(&self.store.state());
        metrics.policy = self.config.policy.name().to_owned();
        metrics.recency = self.recency.load(Ordering::Relaxed);
        metrics.budget = self.config.budget;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.ahead.end();
            self.lookers().end();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
