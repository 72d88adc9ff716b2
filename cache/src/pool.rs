//! One memory for the small reads of many files.
//!
//! ```text
//! BufferPool: budget, one store and policy, lanes, detector, one thread, one queue of events
//!   file A: engine, changes, flights, its places in the store's space (space.rs)      2 descriptors, those of its `Ssd`
//!   file B: ...
//! ```

use std::collections::BTreeSet;
use std::sync::Weak;
use std::task::Waker;
use std::time::Duration;

use datapipes_core::locator::WriteObserver;
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::ahead::Ahead;
use crate::config::{CacheConfig, CachePolicy, ExternalChanges, FileOptions};
use crate::detector::Detector;
use crate::engine::ReadEngine;
use crate::events::{Events, FileName, Of};
use crate::fine::{FineGrained, Inner, Source};
use crate::lanes::{self, FileEngine, Lanes, Shape};
use crate::lookers::{self, Lookers};
use crate::maintenance::{self, Maintenance};
use crate::marks::Marks;
use crate::metrics::{Metrics, Tally};
use crate::outside::{Look, is_steady};
use crate::policy;
use crate::shadow::{Shadow, is_sampled};
use crate::space::{Map, Space};
use crate::store::header::MAX_OFFSET;
use crate::store::{MIN_BUDGET, Sharded, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, lock, wake_all};
use crate::wakers::Wakers;

/// The least budget, in bytes.
const MIN_POOL_BYTES: usize = 2 << 20;
/// Quarters of the time to live are periods.
const PERIODS_OF_TTL: u64 = 4;
/// Bytes of budget for a byte of the detector. It is to remember little: pages of which several
/// parts are wanted at about the same time. With 16 times as many entries, one small read in a
/// hundred under zipf 0.8 brought a page that nobody needed, and the device moved 2.3 bytes a byte
/// asked instead of 1.9.
const DETECTOR_PART: usize = 8192;

/// A cache for many files: one budget of memory, in which one policy decides what of all of them
/// stays; one thread that looks after it, one set of rings to the device. Cloning it makes another
/// handle; the files keep it, too.
///
/// A file on a network file system, or on that of a program, may wait for an answer for ever. Its
/// own reads do then; other files are looked after as ever, and get `Busy` where each way to the
/// device waits for it ([`Config::lanes`](crate::CacheConfig)). Files of such systems are looked at
/// by one more thread a device, and closed by a thread of their own. While it waits, nothing of
/// other files is kept open, and no drop waits.
///
/// It costs its budget, and beside it about 8 KiB a file with its [`Ssd`] (the versions of the
/// file's parts, and the table of reads under way, which grows with those); no thread and no
/// descriptor a file beside those of the `Ssd`. The lengths of the files that are open at once,
/// each rounded up to a power of two and at least 1 MiB, have room in 16 TiB together; what a file
/// grows to beyond that is read, and not kept.
///
/// ```
/// use datapipes_cache::{BufferPool, CacheConfig, ExternalChanges};
/// use datapipes_core::Ssd;
/// # fn main() -> datapipes_core::Result<()> {
/// # let paths = ["a", "b"].map(|n| std::env::temp_dir().join(format!("pool-doc-{}-{n}", std::process::id())));
/// # paths.iter().for_each(|p| std::fs::write(p, [7; 100_000]).unwrap());
/// let machine = datapipes::discover();
/// let mut config = CacheConfig::new(&machine).budget(16 << 20);
/// config.outside = ExternalChanges::Never; // Nobody else writes there.
/// let pool = BufferPool::new(config)?;
/// let [users, posts] = [pool.open(&Ssd::open(&paths[0])?)?, pool.open(&Ssd::open(&paths[1])?)?];
/// let mut row = [0; 128];
/// users.read(4 * 128, &mut row)?;
/// posts.read(9 * 128, &mut row)?;
/// assert_eq!(pool.metrics().items, 2);
/// drop(users); // What is cached of it goes with its last handle.
/// assert_eq!(pool.metrics().items, 1);
/// # paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
/// # Ok(())
/// # }
/// ```
///
/// As a [`FineGrained`] it belongs to the process that made it.
#[derive(Clone)]
pub struct BufferPool(pub(crate) Arc<Pool>);

/// What the files of a pool share.
pub(crate) struct Pool {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: CacheConfig,
    pub(crate) space: Space,
    pub(crate) detector: Detector,
    /// None where an engine of the caller's reads.
    lanes: Option<Arc<Lanes>>,
    /// The clock of the time to live.
    clock: Clock,
    shadow: Option<Mutex<Shadow>>,
    /// Items at the last look, for the samples' proportion.
    items: AtomicUsize,
    recency: AtomicBool,
    /// How often the thread looks, in nanoseconds.
    tick: AtomicU64,
    /// Until when periods of the time to live were ended, in nanoseconds of the clock.
    turned: AtomicU64,
    files: Mutex<Vec<Weak<Inner>>>,
    /// Who looks at files whose file systems may not answer.
    lookers: Mutex<Lookers>,
    /// What files did that are closed.
    closed: Tally,
    /// Which files the kernel tells of.
    pub(crate) marks: Arc<Marks>,
    wakers: Arc<Wakers>,
    /// Held while events are taken and what they ask for is done: whoever has had it knows that no
    /// event is half dealt with.
    taking: Mutex<()>,
    maintenance: Mutex<Option<Maintenance>>,
    /// Reads to come.
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) owner: OwningProcess,
}

/// Nanoseconds since some moment.
type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

impl BufferPool {
    /// A pool without files.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 2 MiB; `OutOfMemory` for one beyond the memory that this
    /// process may have.
    pub fn new(config: CacheConfig) -> Result<BufferPool> {
        Pool::over_files(config).map(BufferPool)
    }

    /// Opens a file in it, with the pool's settings. Its reads, errors and changes are its own;
    /// hits, misses and items are of all files together in [`FineGrained::metrics`].
    ///
    /// # Errors
    /// `InvalidInput` for a file that is not open for reading or one beyond 16 TiB, and for
    /// [`Outside::Events`](crate::ExternalChanges::Events) without the maintenance thread; also for a block device, unless it is opened with
    /// [`Outside::Never`](crate::ExternalChanges::Never) or the pool has a time to live ([`Outside`](crate::ExternalChanges)); `NoSpace` where the files that are open leave no room
    /// in 16 TiB for so long a one; what connecting meets.
    pub fn open(&self, ssd: &Ssd) -> Result<FineGrained> {
        self.open_with(ssd, self.file_options())
    }

    /// The same, with settings of its own.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(&self, ssd: &Ssd, options: FileOptions) -> Result<FineGrained> {
        self.0.owner.check("open")?;
        self.0.open(ssd, options, |len| {
            Map::of_file(len, &self.0.space).ok_or_else(|| {
                let context = format!("{}: {len} bytes beside the files that are open", ssd.path().display());
                Error::new(ErrorKind::NoSpace, "open", context)
                    .advice("close others, or make a second pool: a pool's files have 16 TiB together")
            })
        })
    }

    /// A file's settings as the pool has them, to be changed.
    pub fn file_options(&self) -> FileOptions {
        FileOptions::of(&self.0.config)
    }

    /// What it did, of all files together, closed ones included, and how it stands.
    pub fn metrics(&self) -> Metrics {
        self.0.metrics()
    }

    /// Files that are open.
    pub fn files(&self) -> usize {
        if self.0.owner.is_here() { self.0.files().len() } else { 0 }
    }

    /// Does what the maintenance thread does. Where [`Config::maintenance`](crate::CacheConfig) is
    /// off, the caller calls it now and then; it then waits for file systems that answer late,
    /// those of programs and networks, after everything else is done.
    pub fn maintain(&self) {
        self.0.maintain();
    }

    /// Its settings.
    pub fn config(&self) -> &CacheConfig {
        &self.0.config
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} files, {:?})", self.files(), self.0.config)
    }
}

/// Depth and number of lanes, whose buffers take at most a sixteenth of the budget.
fn buffers(config: &CacheConfig) -> (usize, usize) {
    let most = (config.budget / 16 / lanes::lane_bytes(1)).max(8);
    let depth = config.depth.clamp(1, most.min(4096));
    (depth, config.lanes.clamp(1, (most / depth).max(1)))
}

impl Pool {
    /// For files.
    ///
    /// # Errors
    /// As [`BufferPool::new`].
    pub(crate) fn over_files(config: CacheConfig) -> Result<Arc<Pool>> {
        check_budget(&config)?;
        let (depth, lanes) = buffers(&config);
        let lanes = Arc::new(Lanes::new(
            &config.machine,
            Shape { depth, most: lanes, waiting: config.waiting, patience: config.patience },
        ));
        let clock = lanes.clone();
        Pool::start(config, Box::new(move || clock.now_ns()), Some(lanes))
    }

    /// For what an engine of the caller's reads.
    ///
    /// # Errors
    /// As [`BufferPool::new`].
    pub(crate) fn over_engine(config: CacheConfig, engine: Arc<dyn ReadEngine>) -> Result<Arc<Pool>> {
        check_budget(&config)?;
        Pool::start(config, Box::new(move || engine.now_ns()), None)
    }

    fn start(config: CacheConfig, clock: Clock, lanes: Option<Arc<Lanes>>) -> Result<Arc<Pool>> {
        let detector_bytes = config.budget / DETECTOR_PART;
        let lane_bytes = if lanes.is_some() {
            let (depth, most) = buffers(&config);
            lanes::lane_bytes(depth) * most
        } else {
            0
        };
        let adaptive = config.policy == CachePolicy::Adaptive;
        let samples = if adaptive { config.budget / 256 } else { 0 };
        let ahead = Ahead::within(config.budget);
        let rest = config.budget - lane_bytes - detector_bytes - samples - ahead.most_bytes();
        let rest = rest.max(MIN_BUDGET);
        let (prefault, lives) = (config.prefault, config.ttl.is_some());
        let store: Arc<dyn Store> = match config.policy {
            CachePolicy::Adaptive | CachePolicy::S3Fifo => {
                Arc::new(Sharded::<policy::S3Fifo>::new(rest, prefault, lives)?)
            }
            CachePolicy::Sieve => Arc::new(Sharded::<policy::Sieve>::new(rest, prefault, lives)?),
            CachePolicy::WTinyLfu => Arc::new(Sharded::<policy::TinyLfu>::new(rest, prefault, lives)?),
            CachePolicy::Pipette => Arc::new(Sharded::<policy::Pipette>::new(rest, prefault, lives)?),
        };
        let threaded = config.maintenance;
        let pool = Arc::new(Pool {
            store,
            space: Space::default(),
            // After the store, which is refused where there is no memory for a budget.
            detector: Detector::new(detector_bytes),
            lanes,
            turned: AtomicU64::new(clock()),
            clock,
            shadow: adaptive.then(Mutex::default),
            items: AtomicUsize::new(0),
            recency: AtomicBool::new(false),
            tick: AtomicU64::new(nanoseconds(maintenance::tick_of(config.outside, config.ttl))),
            files: Mutex::default(),
            lookers: Mutex::default(),
            closed: Tally::default(),
            marks: Arc::default(),
            wakers: Arc::default(),
            taking: Mutex::new(()),
            maintenance: Mutex::new(None),
            ahead: Arc::new(ahead),
            owner: OwningProcess::here(),
            config,
        });
        if threaded {
            *lock(&pool.maintenance) = Some(Maintenance::start(&pool)?);
        }
        Ok(pool)
    }

    /// Opens a file, whose place in the space `map` gives by its length.
    pub(crate) fn open(
        self: &Arc<Pool>,
        ssd: &Ssd,
        options: FileOptions,
        map: impl FnOnce(u64) -> Result<Map>,
    ) -> Result<FineGrained> {
        let Some(lanes) = &self.lanes else {
            return Err(Error::new(ErrorKind::InvalidInput, "open", "the pool's engine is the caller's"));
        };
        let engine = Arc::new(FileEngine::open(ssd, lanes)?);
        let name = format!("fine:{}", ssd.path().display());
        let source = Source { engine: engine.clone(), file: Some((ssd.clone(), engine)), name };
        self.add(source, options, map)
    }

    /// Adds what an engine reads.
    pub(crate) fn add(
        self: &Arc<Pool>,
        source: Source,
        options: FileOptions,
        map: impl FnOnce(u64) -> Result<Map>,
    ) -> Result<FineGrained> {
        if options.outside == ExternalChanges::Events && (source.file.is_none() || !self.config.maintenance) {
            let context = match source.file {
                None => format!("changes by events of {}, which is no file", source.name),
                Some(_) => "changes by events, without the thread that takes them".to_owned(),
            };
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context)
                .advice("look at the file's times instead, or let it have its maintenance thread"));
        }
        self.check_device(&source, options.outside)?;
        let apart = source.file.as_ref().and_then(|(ssd, _)| self.looker_of(ssd, options.outside));
        if let Some(device) = apart {
            lookers::more(self, device)?;
        }
        let listens = match (&options.outside, &source.file) {
            (_, Some((ssd, _))) if ssd.file().is_block_device() => None,
            (ExternalChanges::Every(_), Some((ssd, _))) => self.marks.listen(ssd).ok(),
            (ExternalChanges::Events, Some((ssd, _))) => Some(self.marks.listen(ssd)?),
            _ => None,
        };
        let tick = maintenance::tick_of(options.outside, self.config.ttl);
        self.tick.fetch_min(nanoseconds(tick), Ordering::Relaxed);
        let ssd = source.file.as_ref().map(|(ssd, _)| ssd.clone());
        let name = listens.clone().flatten();
        let inner = Inner::over(self, source, options, listens, map).inspect_err(|_| {
            apart.into_iter().for_each(|device| lookers::fewer(self, device));
            ssd.iter().for_each(|ssd| self.marks.listen_no_more(ssd, name.as_ref()));
        })?;
        lock(&self.files).push(Arc::downgrade(&inner));
        if let Some(ssd) = &inner.ssd {
            let watch: Arc<dyn WriteObserver> = inner.clone();
            ssd.write_observers().add(&watch);
        }
        lock(&self.maintenance).iter().for_each(Maintenance::ring);
        Ok(FineGrained(inner))
    }

    /// Times and events of a block device are those of one of its names. Others write to it by
    /// other names, or through a file system that is mounted on it, and nothing tells of that.
    fn check_device(&self, source: &Source, outside: ExternalChanges) -> Result<()> {
        let is_block = source.file.as_ref().is_some_and(|(ssd, _)| ssd.file().is_block_device());
        let (lives, looks) =
            (self.config.ttl.is_some(), matches!(outside, ExternalChanges::Every(_) | ExternalChanges::Times(_)));
        if !is_block || outside == ExternalChanges::Never || lives && looks {
            return Ok(());
        }
        let context = format!("{} is a block device, of which changes by others are not found", source.name);
        Err(Error::new(ErrorKind::InvalidInput, "make a cache", context).advice(
            "say Outside::Never, if nobody but this process writes to it, through the library; or give a time to live, for which old \
             bytes may be given out",
        ))
    }

    /// The device whose files are looked at by a thread of their own, if this file is one of those.
    fn looker_of(&self, ssd: &Ssd, outside: ExternalChanges) -> Option<u64> {
        let looks = matches!(outside, ExternalChanges::Every(_) | ExternalChanges::Times(_));
        (self.config.maintenance && looks && !is_steady(ssd) && !ssd.file().is_block_device())
            .then(|| ssd.file().device())
    }

    /// How often its thread looks.
    pub(crate) fn tick(&self) -> Duration {
        Duration::from_nanos(self.tick.load(Ordering::Relaxed))
    }

    /// The queue of events, where there is one.
    pub(crate) fn queue(&self) -> Option<Arc<Events>> {
        self.marks.queue()
    }

    /// The files that are open.
    pub(crate) fn files(&self) -> Files {
        Files(lock(&self.files).iter().filter_map(Weak::upgrade).collect())
    }

    /// Takes the kernel's events: what is cached of files that others changed goes. It touches no
    /// file: one may never answer.
    pub(crate) fn take_events(&self) {
        let Some(queue) = self.queue() else { return };
        let taking = lock(&self.taking);
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
        // A name that is none of ours may be one that the kernel gives otherwise: then it is of
        // any.
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
        // It is over for all of them before anybody is woken, without a lock: wakers are code of
        // others.
        let wakers = meant.iter().flat_map(|f| f.changed_by_others_ends()).collect();
        drop(files);
        self.wake(wakers);
    }

    /// A file has no handle any more: what is cached of it goes.
    pub(crate) fn close(&self, file: &Inner) {
        {
            let mut files = lock(&self.files);
            files.retain(|f| !std::ptr::eq(f.as_ptr(), file));
            self.closed.add_all(&file.tally);
        }
        // Where it has all of the space, the memory goes as well.
        if !file.map.is_whole() {
            file.map.places(0..u64::MAX).for_each(|place| self.store.invalidate(place));
        }
        if let Some(device) = file.ssd.as_ref().and_then(|ssd| self.looker_of(ssd, file.options.outside)) {
            lookers::fewer(self, device);
        }
        // One that may wait is listened to until it is closed.
        if let Some(ssd) = file.ssd.as_ref().filter(|_| !file.closer.waits()) {
            self.marks.listen_no_more(ssd, file.outside.name());
        }
    }

    /// Plays a sampled read on both policies.
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
        // Whoever finds it taken leaves: a sample lost now and then changes nothing.
        let Ok(mut shadow) = shadow.try_lock() else { return };
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
        // Last what may wait for an answer; where there are threads, they do that.
        if !self.config.maintenance {
            self.ahead.read_all();
            let unsteady = self.of(|file| !file.ssd.as_ref().is_some_and(is_steady));
            unsteady.into_iter().for_each(Looked::look);
        }
    }

    /// Wakes them: by another thread, as this one may be that which all files need. Where a caller
    /// of [`BufferPool::maintain`] is in its place, that one does it.
    pub(crate) fn wake(&self, wakers: Vec<Waker>) {
        if self.config.maintenance {
            self.wakers.hand(wakers);
        } else {
            wake_all(wakers);
        }
    }

    /// The files of a device whose looks may wait; how often they are to be looked at.
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
        files.iter().filter(|f| f.outside.looks() && which(f)).map(|f| Looked(Arc::downgrade(f))).collect()
    }

    pub(crate) fn lookers(&self) -> MutexGuard<'_, Lookers> {
        lock(&self.lookers)
    }

    /// Ends periods of the time to live, by the engine's clock.
    fn turn(&self) {
        let Some(ttl) = self.config.ttl else { return };
        let period = (nanoseconds(ttl) / PERIODS_OF_TTL).max(1);
        let turned = self.turned.load(Ordering::Acquire);
        let passed = (self.clock)().saturating_sub(turned) / period;
        // One of those who come at once does it.
        if passed > 0
            && self
                .turned
                .compare_exchange(turned, turned + passed * period, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            // After so many, nothing is left.
            (0..passed.min(2 * PERIODS_OF_TTL)).for_each(|_| self.store.next_period());
        }
    }

    /// Of all files together.
    fn metrics(&self) -> Metrics {
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

    /// Adds the pool's part.
    pub(crate) fn add_metrics(&self, metrics: &mut Metrics) {
        metrics.memory_bytes = self.detector.bytes() + self.lanes.as_ref().map_or(0, |l| l.buffer_bytes());
        metrics.memory_bytes += self.ahead.bytes();
        metrics.memory_bytes += self.shadow.as_ref().map_or(0, |s| lock(s).bytes());
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

/// A file that is looked at, and may make wait for an answer.
pub(crate) struct Looked(Weak<Inner>);

impl Looked {
    /// Looks at it. While its file system does not answer, nothing is held but its descriptors: the
    /// first question is for them alone, and a file that answers it answers the next one as well,
    /// but for one that stops in between.
    pub(crate) fn look(self) {
        let open = || self.0.upgrade().map(|file| Files(vec![file]));
        let Some(ssd) = open().and_then(|files| files.first().and_then(|file| file.ssd.clone())) else { return };
        let answered = Look::at(&ssd);
        drop(ssd);
        if answered.is_ok()
            && let Some(files) = open()
        {
            files.iter().for_each(|file| file.look());
        }
    }
}

/// Files that are open, for a moment.
pub(crate) struct Files(Vec<Arc<Inner>>);

impl std::ops::Deref for Files {
    type Target = [Arc<Inner>];

    fn deref(&self) -> &[Arc<Inner>] {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for last in self.0.drain(..).filter_map(Arc::into_inner) {
            // Its last handle went meanwhile. To close its descriptors may wait for its file
            // system, and this thread may be the one that all files need. Without another thread it
            // is this one.
            let _ = std::thread::Builder::new().name("fine-close".into()).spawn(move || drop(last));
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn check_budget(config: &CacheConfig) -> Result<()> {
    if config.budget < MIN_POOL_BYTES {
        let context = format!("a budget of {} bytes", config.budget);
        return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context).advice("give at least 2 MiB"));
    }
    let memory = &config.machine.topology().memory;
    let most = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min().unwrap_or(MAX_OFFSET);
    if config.budget as u64 > most {
        let context = format!("a budget of {} bytes, of {most} that this process may have", config.budget);
        return Err(Error::new(ErrorKind::OutOfMemory, "make a cache", context).advice("give less"));
    }
    Ok(())
}
