//! The front: reads of a few bytes, by the caller's offset and length.
//!
//! ```text
//! read -> store: there?  copy, done                                       (lookup table, data area)
//!      -> detector, dispatcher: by bytes, sectors or blocks?
//!      -> constructor: aligned, merged requests
//!      -> info area: is another thread reading it?  wait for that
//!      -> engine: read;  nothing changed meanwhile?  give out, and offer to the store;  otherwise again
//! ```

use std::ops::{Deref, Range};

use datapipes_core::locator::{Endpoint, Facts, Handle, Locator, Persistence, Reach, Reader, Watch};
use datapipes_core::process::Owner;
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::config::{self, Config, Policy};
use crate::detector::Detector;
use crate::dispatcher::{Dispatcher, Path};
use crate::engine::ReadEngine;
use crate::info::InfoArea;
use crate::lanes::{self, FileEngine, Lanes};
use crate::maintenance::Maintenance;
use crate::metrics::{Metrics, Tally};
use crate::outside::Outside;
use crate::policy;
use crate::shadow::{Shadow, is_sampled};
use crate::store::header::MAX_OFFSET;
use crate::store::memory::Pinned;
use crate::store::{LEAST_BUDGET, Missing, PAGE, Sharded, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, lock};
use crate::writes::Writes;

/// The least budget, in bytes.
pub(crate) const LEAST: usize = 2 << 20;
/// Quarters of the time to live are periods.
const PERIODS_OF_TTL: u64 = 4;
/// Bytes of budget for a byte of the detector. It is to remember little: pages of which several parts are wanted at about the
/// same time. With 16 times as many entries, one small read in a hundred under zipf 0.8 brought a page that nobody needed, and the
/// device moved 2.3 bytes a byte asked instead of 1.9.
const DETECTOR_PART: usize = 8192;

/// Byte-granular reads of a file, with a cache (Pipette, DAC'22).
///
/// Cloning it makes another handle to the same cache; any number of threads may read at once.
///
/// ```
/// use datapipes_cache::{Config, FineGrained};
/// use datapipes_core::Ssd;
/// # fn main() -> datapipes_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("fine-doc-{}", std::process::id()));
/// # std::fs::write(&path, (0..100_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
/// let machine = datapipes::Machine::discover();
/// let ssd = Ssd::open(&path)?;
/// let fine = FineGrained::over(&ssd, Config::new(&machine).budget(4 << 20))?;
/// let mut number = [0; 4];
/// fine.read(4 * 77_777, &mut number)?;
/// assert_eq!(u32::from_le_bytes(number), 77_777);
/// fine.read(4 * 77_777, &mut number)?;
/// assert_eq!(fine.metrics().hits, 1);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
///
/// It belongs to the process that opened it: in a child that was made by `fork` reading and writing fail (`Forked`), and what
/// cannot fail does nothing. A child opens a cache of its own.
#[derive(Clone)]
pub struct FineGrained(pub(crate) Arc<Inner>);

/// What all handles share.
pub(crate) struct Inner {
    pub(crate) store: Box<dyn Store>,
    pub(crate) engine: Arc<dyn ReadEngine>,
    pub(crate) writes: Writes,
    pub(crate) config: Config,
    pub(crate) tally: Tally,
    pub(crate) ssd: Option<Ssd>,
    pub(crate) file: Option<Arc<FileEngine>>,
    pub(crate) lanes: Option<Arc<Lanes>>,
    pub(crate) info: InfoArea,
    detector: Detector,
    pub(crate) dispatcher: Dispatcher,
    shadow: Option<Mutex<Shadow>>,
    /// Items at the last look, for the samples' proportion.
    items: AtomicUsize,
    recency: AtomicBool,
    file_len: AtomicU64,
    pub(crate) outside: Outside,
    /// Until when periods of the time to live were ended, in nanoseconds of the engine's clock.
    turned: AtomicU64,
    pub(crate) name: String,
    maintenance: Mutex<Option<Maintenance>>,
    pub(crate) owner: Owner,
}

/// Bytes of a file, as they were at one moment between the call and its return.
pub struct Bytes(Held);

enum Held {
    Cached(Pinned),
    Read(Box<[u8]>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Cached(pinned) => pinned,
            Held::Read(bytes) => bytes,
        }
    }
}

impl Bytes {
    /// Whether they lie in the cache, rather than in memory of their own.
    pub fn is_cached(&self) -> bool {
        matches!(self.0, Held::Cached(_))
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({}, cached: {})", self.len(), self.is_cached())
    }
}

impl FineGrained {
    /// Opens a cache over a file.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 2 MiB, a file that is not open for reading or one beyond 16 TiB, and for
    /// [`Outside::Events`](crate::Outside::Events) without the maintenance thread; `OutOfMemory` for a budget beyond the memory that
    /// this process may have; what connecting meets.
    pub fn over(ssd: &Ssd, config: Config) -> Result<FineGrained> {
        let (depth, lanes) = buffers(&config);
        let lanes = Arc::new(Lanes::new(&config.machine, depth, lanes));
        let engine = Arc::new(FileEngine::open(ssd, &lanes)?);
        let name = format!("fine:{}", ssd.path().display());
        FineGrained::build(engine.clone(), config, name, Some((ssd.clone(), engine, lanes)))
    }

    /// Opens a cache over whatever an engine reads: a model of a device, or one that fails on purpose. Nothing tells it of
    /// changes of the bytes but [`invalidate`](Self::invalidate).
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn with_engine(engine: Arc<dyn ReadEngine>, config: Config, name: &str) -> Result<FineGrained> {
        FineGrained::build(engine, config, format!("fine:{name}"), None)
    }

    fn build(
        engine: Arc<dyn ReadEngine>,
        config: Config,
        name: String,
        file: Option<(Ssd, Arc<FileEngine>, Arc<Lanes>)>,
    ) -> Result<FineGrained> {
        if config.budget < LEAST {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "make a cache",
                format!("a budget of {} bytes", config.budget),
            )
            .advice("give at least 2 MiB"));
        }
        let memory = &config.machine.topology().memory;
        let most = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min().unwrap_or(MAX_OFFSET);
        if config.budget as u64 > most {
            let context = format!("a budget of {} bytes, of {most} that this process may have", config.budget);
            return Err(Error::new(ErrorKind::OutOfMemory, "make a cache", context).advice("give less"));
        }
        let facts = engine.facts();
        if !facts.granularity.is_power_of_two()
            || u64::from(facts.granularity) > PAGE
            || u64::from(facts.longest) < PAGE
        {
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("an engine with {facts:?}"))
                .advice("granularity: a power of two up to 4096; longest: at least 4096"));
        }
        if config.outside == config::Outside::Events && (file.is_none() || !config.maintenance) {
            let context = match file {
                None => format!("changes by events of {name}, which is no file"),
                Some(_) => "changes by events, without the thread that takes them".to_owned(),
            };
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context)
                .advice("look at the file's times instead, or let it have its maintenance thread"));
        }
        let detector_bytes = config.budget / DETECTOR_PART;
        let (depth, most) = if file.is_some() { buffers(&config) } else { (0, 0) };
        let adaptive = config.policy == Policy::Adaptive;
        let samples = if adaptive { config.budget / 256 } else { 0 };
        let rest = config.budget - lanes::lane_bytes(depth) * most - detector_bytes - samples;
        let (prefault, lives) = (config.prefault, config.ttl.is_some());
        let rest = rest.max(LEAST_BUDGET);
        let store: Box<dyn Store> = match config.policy {
            Policy::Adaptive | Policy::S3Fifo => Box::new(Sharded::<policy::S3Fifo>::new(rest, prefault, lives)?),
            Policy::Sieve => Box::new(Sharded::<policy::Sieve>::new(rest, prefault, lives)?),
            Policy::WTinyLfu => Box::new(Sharded::<policy::TinyLfu>::new(rest, prefault, lives)?),
            Policy::Pipette => Box::new(Sharded::<policy::Pipette>::new(rest, prefault, lives)?),
        };
        // After the store, which is refused where there is no memory for a budget.
        let detector = Detector::new(detector_bytes);
        let (ssd, file, lanes) = match file {
            Some((ssd, file, lanes)) => (Some(ssd), Some(file), Some(lanes)),
            None => (None, None, None),
        };
        let file_len = engine.len_bytes()?;
        check_len(file_len, &name)?;
        let (threaded, now_ns) = (config.maintenance, engine.now_ns());
        let inner = Arc::new(Inner {
            store,
            engine,
            writes: Writes::default(),
            tally: Tally::default(),
            info: InfoArea::default(),
            detector,
            dispatcher: Dispatcher::new(config.large),
            shadow: adaptive.then(Mutex::default),
            items: AtomicUsize::new(0),
            recency: AtomicBool::new(false),
            file_len: AtomicU64::new(file_len),
            outside: Outside::new(ssd.as_ref()),
            turned: AtomicU64::new(now_ns),
            config,
            ssd,
            file,
            lanes,
            name,
            maintenance: Mutex::new(None),
            owner: Owner::here(),
        });
        if let Some(ssd) = &inner.ssd {
            let watch: Arc<dyn Watch> = inner.clone();
            ssd.watchers().add(&watch);
        }
        if threaded {
            *lock(&inner.maintenance) = Some(Maintenance::start(&inner)?);
        }
        Ok(FineGrained(inner))
    }

    /// Reads `out.len()` bytes at `offset`. They are as they were at one moment between the call and its return.
    ///
    /// # Errors
    /// `EndOfFile` where the file is shorter; `Busy` where a transfer into these bytes was started and does not end within
    /// [`Config::patience`](crate::Config::patience), or they changed again and again for so long; `Device` with errno and offset;
    /// `Corrupt` where [`Config::verify`](crate::Config::verify) finds them wrong.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        inner.sample(offset);
        let in_page = PAGE - offset % PAGE;
        let mut missed = None;
        if !out.is_empty() && out.len() as u64 <= in_page {
            match inner.store.read(offset, out) {
                // A hit is within the file: what is cached goes when the file is cut. Everything else is looked at closely.
                Ok(()) => return Ok(()),
                Err(missing) => missed = Some(missing),
            }
        }
        inner.read_slowly(offset, out, missed)
    }

    /// The bytes at `offset`, without copying them where one item of the cache has them all. While they are held, a slab of the
    /// cache stays as it is: for short use.
    ///
    /// # Errors
    /// As [`read`](Self::read); `OutOfMemory` where there is no memory for so many bytes.
    pub fn get(&self, offset: u64, len: usize) -> Result<Bytes> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        inner.sample(offset);
        let mut missed = None;
        if len > 0 && len as u64 <= PAGE - offset % PAGE {
            match inner.store.pin(offset, len) {
                Ok(pinned) => return Ok(Bytes(Held::Cached(pinned))),
                Err(missing) => missed = Some(missing),
            }
        }
        // Before there is memory for them: a length may be anything.
        inner.check_range(offset, len)?;
        let mut bytes = zeroed(len).map_err(|e| e.offset(offset))?.into_boxed_slice();
        inner.read_slowly(offset, &mut bytes, missed)?;
        Ok(Bytes(Held::Read(bytes)))
    }

    /// Removes what is cached of a range: the next read of it comes from the device.
    pub fn invalidate(&self, range: Range<u64>) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.changed_range(range);
    }

    /// Removes everything.
    pub fn clear(&self) {
        self.invalidate(0..u64::MAX);
    }

    /// Does what the maintenance thread does: moves slabs, ends the time to live, looks for changes from outside. Where
    /// [`Config::maintenance`](crate::Config) is off, the caller calls it now and then.
    pub fn maintain(&self) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.maintain();
    }

    /// Whether others changed the file since the last look; if so, nothing of it is cached any more.
    ///
    /// # Errors
    /// What looking meets.
    pub fn look_outside(&self) -> Result<bool> {
        self.0.owner.check("look")?;
        self.0.look_outside()
    }

    /// What it did, and how it stands; nothing of it is known in a child of the process that opened it.
    pub fn metrics(&self) -> Metrics {
        if !self.0.owner.is_here() {
            return Metrics::default();
        }
        self.0.metrics()
    }

    /// The length of the file as it is known, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.file_len.load(Ordering::Acquire)
    }

    /// How bytes are brought from the device, and why so.
    pub fn explain(&self) -> String {
        let facts = self.0.engine.facts();
        let route = self.0.file.as_ref().map(|file| file.explain());
        let route = route.unwrap_or_else(|| "an engine of the caller's".to_owned());
        format!("{route}\npieces of {} bytes, {} at a time", facts.granularity, facts.depth)
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.0.config
    }
}

/// Depth and number of lanes, whose buffers take at most a sixteenth of the budget.
fn buffers(config: &Config) -> (usize, usize) {
    let most = (config.budget / 16 / lanes::lane_bytes(1)).max(8);
    let depth = config.depth.clamp(1, most.min(4096));
    (depth, config.lanes.clamp(1, (most / depth).max(1)))
}

/// Zeros, if there is memory for them.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Error::new(ErrorKind::OutOfMemory, "read", format!("no memory for {len} bytes")))?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn check_len(len: u64, name: &str) -> Result<()> {
    if len <= MAX_OFFSET {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("{name} has {len} bytes, more than 16 TiB")))
}

impl Locator for FineGrained {
    fn endpoint(&self) -> Endpoint {
        let facts = Facts {
            kind: "fine-grained",
            name: self.0.name.clone(),
            reach: Reach::Reader,
            granularity: 1,
            alignment: 1,
            persistence: Persistence::AfterSync,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: Handle::Reader(Arc::new(self.clone())) }
    }
}

impl Reader for FineGrained {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read(offset, into)
    }
}

impl Watch for Inner {
    fn changing(&self, range: Range<u64>) {
        Tally::add(&self.tally.changes, 1);
        self.notice_others();
        self.writes.begin(&range);
        self.store.invalidate(range);
    }

    fn changed(&self, range: Range<u64>) {
        // Before the change is over for readers: the new length, and how the file looks now from outside.
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
        self.outside.forget(self.ssd.as_ref());
        self.writes.end(&range);
    }
}

impl Inner {
    /// Plays a sampled read on both policies.
    #[inline]
    pub(crate) fn sample(&self, offset: u64) {
        if is_sampled(offset)
            && let Some(shadow) = &self.shadow
        {
            self.play(shadow, offset);
        }
    }

    #[cold]
    fn play(&self, shadow: &Mutex<Shadow>, offset: u64) {
        // Whoever finds it taken leaves: a sample lost now and then changes nothing.
        let Ok(mut shadow) = shadow.try_lock() else { return };
        if let Some(recency) = shadow.read(offset, self.items.load(Ordering::Relaxed)) {
            self.recency.store(recency, Ordering::Relaxed);
            self.store.prefer_recency(recency);
        }
    }

    /// A change that nobody announced: what is cached goes, and reads under way are repeated.
    fn changed_range(&self, range: Range<u64>) {
        self.writes.begin(&range);
        self.store.invalidate(range.clone());
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
        self.writes.end(&range);
    }

    pub(crate) fn maintain(&self) {
        self.turn();
        self.store.rebalance(self.config.reassignment);
        self.items.store(self.store.state().items, Ordering::Relaxed);
        if matches!(self.config.outside, config::Outside::Every(_)) {
            // An error here is met again by whoever reads.
            let _ = self.look_outside();
        }
    }

    /// Ends periods of the time to live, by the engine's clock.
    fn turn(&self) {
        let Some(ttl) = self.config.ttl else { return };
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let period = (ttl / PERIODS_OF_TTL).max(1);
        let turned = self.turned.load(Ordering::Acquire);
        let passed = self.engine.now_ns().saturating_sub(turned) / period;
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

    /// Before a change of our own, after which the file looks otherwise in any case: whether others changed it before that.
    /// What others change while we do is not found.
    pub(crate) fn notice_others(&self) {
        if matches!(self.config.outside, config::Outside::Every(_))
            && !self.writes.any()
            && self.outside.look(self.ssd.as_ref()).unwrap_or(false)
        {
            self.changed_by_others();
        }
    }

    fn look_outside(&self) -> Result<bool> {
        if self.writes.any() {
            return Ok(false);
        }
        let changed = self.outside.look(self.ssd.as_ref())?;
        // What began meanwhile may be what was seen.
        let changed = changed && !self.writes.any();
        if changed {
            self.changed_by_others();
        }
        Ok(changed)
    }

    /// Somebody else changed the file.
    pub(crate) fn changed_by_others(&self) {
        Tally::add(&self.tally.changes_outside, 1);
        self.changed_range(0..u64::MAX);
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.tally.metrics();
        metrics.memory_bytes = self.detector.bytes() + self.lanes.as_ref().map_or(0, |l| l.buffer_bytes());
        metrics.memory_bytes += self.shadow.as_ref().map_or(0, |s| lock(s).bytes());
        metrics.of_store(&self.store.state());
        metrics.policy = self.config.policy.name().to_owned();
        metrics.recency = self.recency.load(Ordering::Relaxed);
        metrics.budget = self.config.budget;
        metrics.under_way = self.info.under_way();
        metrics.page_cost = self.dispatcher.page_cost();
        metrics
    }

    /// Whether the range seems to lie beyond the file, as far as its length is known.
    pub(crate) fn is_beyond(&self, offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_none_or(|end| end > self.file_len())
    }

    /// Whether the range lies in the file, whose length is looked up again if it seems not to.
    pub(crate) fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64);
        let within = |file: u64| end.is_some_and(|end| end <= file);
        if within(self.file_len.load(Ordering::Acquire)) {
            return Ok(());
        }
        let file = self.engine.len_bytes()?;
        check_len(file, &self.name)?;
        if !self.writes.any() {
            self.file_len.store(file, Ordering::Release);
        }
        if within(file) {
            return Ok(());
        }
        Tally::add(&self.tally.failed, 1);
        let context = format!("{}: {len} bytes at {offset} of {file}", self.name);
        Err(Error::new(ErrorKind::EndOfFile, "read", context)
            .offset(offset)
            .bytes_done(0)
            .advice("read within the file, whose length is the last number"))
    }

    /// Looks up how long the file is now.
    pub(crate) fn look_at_len(&self) -> Result<()> {
        self.file_len.store(self.engine.len_bytes()?, Ordering::Release);
        Ok(())
    }

    /// The way for bytes of one page that are missing. While other bytes of the page change, only those that were asked for
    /// are kept; where bytes are checked, only what was checked is.
    pub(crate) fn dispatch(&self, offset: u64, len: usize, missing: Missing) -> Path {
        let demanded = self.detector.demand(offset, len);
        let page = offset / PAGE * PAGE;
        match self.dispatcher.path(len, missing, demanded) {
            _ if self.config.verify.is_some() => Path::Bytes,
            // A block that is not kept would be read again and again for its bytes.
            Path::Blocks if !self.config.keep_blocks && len <= self.config.large => Path::Bytes,
            Path::Sectors | Path::Blocks if self.writes.is_changing(&(page..page + PAGE)) => Path::Bytes,
            path => path,
        }
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.file_len.load(Ordering::Acquire)
    }
}
