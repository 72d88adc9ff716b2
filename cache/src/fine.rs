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
use std::task::Waker;
use std::time::Instant;

use datapipes_core::locator::{
    Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach, Reader, WriteObserver,
};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::config::{CacheConfig, FileOptions};
use crate::dispatcher::{Dispatcher, Path};
use crate::engine::ReadEngine;
use crate::events::FileName;
use crate::histogram::{Latencies, Measuring};
use crate::info::InfoArea;
use crate::lanes::FileEngine;
use crate::marks::Closer;
use crate::metrics::{Metrics, Tally};
use crate::outside::{Found, Outside};
use crate::pool::Pool;
use crate::space::Map;
use crate::store::header::MAX_OFFSET;
use crate::store::memory::Pinned;
use crate::store::{Missing, PAGE, Store};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::writes::Writes;

/// Byte-granular reads of a file, with a cache (Pipette, DAC'22).
///
/// Cloning it makes another handle to the same cache; any number of threads may read at once.
///
/// ```
/// use datapipes_cache::{CacheConfig, FineGrained, ExternalChanges};
/// use datapipes_core::Ssd;
/// # fn main() -> datapipes_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("fine-doc-{}", std::process::id()));
/// # std::fs::write(&path, (0..100_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
/// let machine = datapipes::discover();
/// let ssd = Ssd::open(&path)?;
/// let mut config = CacheConfig::new(&machine).budget(4 << 20);
/// config.outside = ExternalChanges::Never; // Nobody else writes there.
/// let fine = FineGrained::over(&ssd, config)?;
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
/// Dropping a handle waits for nobody: a file whose file system may answer late, or never, is
/// closed by another thread.
///
/// It belongs to the process that opened it: in a child that was made by `fork` reading and writing
/// fail (`Forked`), and what cannot fail does nothing. A child opens a cache of its own.
pub struct FineGrained(pub(crate) Arc<Inner>);

impl Clone for FineGrained {
    fn clone(&self) -> FineGrained {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        FineGrained(self.0.clone())
    }
}

impl Drop for FineGrained {
    fn drop(&mut self) {
        // Counted by themselves: the pool and the watchers have the file for a moment now and then,
        // and keep nothing open by that. A child has no part in what its parent's pool does.
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.owner.is_here() {
            self.0.pool.close(&self.0);
        }
    }
}

/// What all handles share: one file of a pool.
pub(crate) struct Inner {
    pub(crate) pool: Arc<Pool>,
    /// The pool's.
    pub(crate) store: Arc<dyn Store>,
    /// Where its bytes lie in the pool's space.
    pub(crate) map: Map,
    pub(crate) engine: Arc<dyn ReadEngine>,
    pub(crate) writes: Writes,
    pub(crate) options: FileOptions,
    pub(crate) tally: Tally,
    pub(crate) ssd: Option<Ssd>,
    pub(crate) file: Option<Arc<FileEngine>>,
    pub(crate) info: InfoArea,
    pub(crate) dispatcher: Dispatcher,
    file_len: AtomicU64,
    pub(crate) outside: Outside,
    pub(crate) name: String,
    latencies: Measuring,
    /// Of [`FineGrained`].
    handles: AtomicUsize,
    /// Whether anything of it may be cached.
    kept: AtomicBool,
    /// Whether its length must be asked for before it is used: somebody changed the file.
    len_is_old: AtomicBool,
    pub(crate) owner: OwningProcess,
    /// The last field: everything else that has the file open is gone by then.
    pub(crate) closer: Closer,
}

/// What reads a file, and which file that is.
pub(crate) struct Source {
    pub(crate) engine: Arc<dyn ReadEngine>,
    pub(crate) file: Option<(Ssd, Arc<FileEngine>)>,
    pub(crate) name: String,
}

/// Bytes of a file, as they were at one moment between the call and its return.
pub struct Bytes(pub(crate) Held);

pub(crate) enum Held {
    Cached(Pinned),
    Read(Box<[u8]>),
    /// Of a buffer that several have.
    Part {
        buffer: Arc<Vec<u8>>,
        at: usize,
        len: usize,
    },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Cached(pinned) => pinned,
            Held::Read(bytes) => bytes,
            Held::Part { buffer, at, len } => buffer.get(*at..*at + *len).unwrap_or_default(),
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
    /// A handle to a file that is still open: one that has no handle any more is closed, and gets
    /// none.
    pub(crate) fn again(inner: Arc<Inner>) -> Option<FineGrained> {
        let more = |n: usize| (n > 0).then_some(n + 1);
        inner.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(FineGrained(inner))
    }

    /// Opens a cache over a file: a [`BufferPool`](crate::BufferPool) with this one file. Many
    /// files share a budget, and more, in a pool.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 2 MiB, a file that is not open for reading or one beyond
    /// 16 TiB, and for
    /// [`Outside::Events`](crate::ExternalChanges::Events) without the maintenance thread; also for a block device without
    /// [`Outside::Never`](crate::ExternalChanges::Never) or a time to live ([`Outside`](crate::ExternalChanges)); `OutOfMemory` for a budget beyond the memory that
    /// this process may have; what connecting meets.
    pub fn over(ssd: &Ssd, config: CacheConfig) -> Result<FineGrained> {
        let options = FileOptions::of(&config);
        Pool::over_files(config)?.open(ssd, options, |_| Ok(Map::whole()))
    }

    /// Opens a cache over whatever an engine reads: a model of a device, or one that fails on
    /// purpose. Nothing tells it of changes of the bytes but [`invalidate`](Self::invalidate).
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn with_engine(engine: Arc<dyn ReadEngine>, config: CacheConfig, name: &str) -> Result<FineGrained> {
        let options = FileOptions::of(&config);
        let source = Source { engine: engine.clone(), file: None, name: format!("fine:{name}") };
        Pool::over_engine(config, engine)?.add(source, options, |_| Ok(Map::whole()))
    }

    /// Reads `out.len()` bytes at `offset`. They are as they were at one moment between the call
    /// and its return.
    ///
    /// # Errors
    /// `EndOfFile` where the file is shorter; `Busy` where a transfer into these bytes was started
    /// and does not end within
    /// [`Config::patience`](crate::CacheConfig::patience), or they changed again and again for so long; `Device` with errno and offset;
    /// `Corrupt` where [`Config::verify`](crate::CacheConfig::verify) finds them wrong.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        if inner.latencies.are_measured() {
            return inner.read_measured(offset, out);
        }
        match inner.look_at(offset, out) {
            Ok(()) => Ok(()),
            Err(missed) => inner.read_slowly(offset, out, missed),
        }
    }

    /// Begins or ends to measure how long each [`read`](Self::read) takes, for
    /// [`Metrics::latencies`](crate::Metrics). Off, a read looks at one flag; on, at the clock
    /// twice, and counts into 16 KiB that the file gets then, for as long as it is open.
    pub fn measure_latencies(&self, on: bool) {
        if self.0.owner.is_here() {
            self.0.latencies.measure(on);
        }
    }

    /// The bytes at `offset`, without copying them where one item of the cache has them all. While
    /// they are held, a slab of the cache stays as it is: for short use. One that is forgotten
    /// (`std::mem::forget`) is held for ever; a slab that is held 2^31 times over gives out copies.
    ///
    /// # Errors
    /// As [`read`](Self::read); `OutOfMemory` where there is no memory for so many bytes.
    pub fn get(&self, offset: u64, len: usize) -> Result<Bytes> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        inner.sample(offset);
        let mut missed = None;
        if len > 0 && len as u64 <= PAGE - offset % PAGE {
            match inner.pinned(offset, len) {
                Ok(pinned) => return Ok(Bytes(Held::Cached(pinned))),
                // Nothing of them, where they are there: then they are copied.
                Err(missing) => missed = missing,
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

    /// Does what the maintenance thread does: moves slabs, ends the time to live, looks for changes
    /// from outside. Where
    /// [`Config::maintenance`](crate::CacheConfig) is off, the caller calls it now and then. It does so for all files of its pool.
    pub fn maintain(&self) {
        self.0.pool.maintain();
    }

    /// Whether others changed the file since the last look, or may have where that cannot be seen
    /// ([`Outside`](crate::ExternalChanges)); if so, nothing of it is cached any more.
    ///
    /// # Errors
    /// What looking meets.
    pub fn look_outside(&self) -> Result<bool> {
        self.0.owner.check("look")?;
        self.0.pool.take_events();
        let told = self.0.outside.was_told();
        Ok(self.0.look_outside()? || told)
    }

    /// What it did, and how it stands; nothing of it is known in a child of the process that opened
    /// it. Of a file of a pool: what is asked of the device, joined, repeated, failed or changed is
    /// this file's; the rest is of the pool.
    pub fn metrics(&self) -> Metrics {
        if !self.0.owner.is_here() {
            return Metrics::default();
        }
        self.0.metrics()
    }

    /// The length of the file as it is known, in bytes.
    pub fn len_bytes(&self) -> u64 {
        if self.0.owner.is_here() && self.0.len_is_old.load(Ordering::Acquire) {
            // What it was, where that cannot be known.
            let _ = self.0.check_range(0, 0);
        }
        self.0.file_len.load(Ordering::Acquire)
    }

    /// How bytes are brought from the device, and why so.
    pub fn explain(&self) -> String {
        let facts = self.0.engine.facts();
        let route = self.0.file.as_ref().map(|file| file.explain());
        let route = route.unwrap_or_else(|| "an engine of the caller's".to_owned());
        let outside = self.0.outside.explain();
        format!("{route}\npieces of {} bytes, {} at a time\n{outside}", facts.granularity, facts.depth)
    }

    /// The settings of its pool.
    pub fn config(&self) -> &CacheConfig {
        &self.0.pool.config
    }

    /// Its own settings.
    pub fn options(&self) -> &FileOptions {
        &self.0.options
    }
}

/// All of a file.
const EVERYTHING: Range<u64> = 0..u64::MAX;

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
        let facts = PlaceFacts {
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
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Reader(Arc::new(self.clone())) }
    }
}

impl Reader for FineGrained {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read(offset, into)
    }
}

impl WriteObserver for Inner {
    fn changing(&self, range: Range<u64>) {
        Tally::add(&self.tally.changes, 1);
        self.notice_others();
        self.outside.own_begins();
        self.writes.begin(&range);
        self.forget(range);
    }

    fn changed(&self, range: Range<u64>) {
        // Before the change is over for readers: the new length, and how the file looks now from
        // outside.
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
        self.outside.own_ends(self.ssd.as_ref());
        self.writes.end(&range);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // What is cached went with the last handle; places that others get must be empty for
            // certain.
            if !self.map.is_whole() {
                self.forget(EVERYTHING);
            }
            self.map.give_back(&self.pool.space);
        }
    }
}

impl Inner {
    /// A file of a pool. `listens`: the kernel tells of its changes, under this name if that is
    /// known.
    pub(crate) fn over(
        pool: &Arc<Pool>,
        source: Source,
        options: FileOptions,
        listens: Option<Option<FileName>>,
        map: impl FnOnce(u64) -> Result<Map>,
    ) -> Result<Arc<Inner>> {
        let Source { engine, file, name } = source;
        let (ssd, file) = file.unzip();
        let outside = Outside::new(ssd.as_ref(), options.outside, listens);
        let facts = engine.facts();
        if !facts.granularity.is_power_of_two()
            || u64::from(facts.granularity) > PAGE
            || u64::from(facts.longest) < PAGE
        {
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("an engine with {facts:?}"))
                .advice("granularity: a power of two up to 4096; longest: at least 4096"));
        }
        let file_len = engine.len_bytes()?;
        check_len(file_len, &name)?;
        Ok(Arc::new(Inner {
            store: pool.store.clone(),
            map: map(file_len)?,
            engine,
            writes: Writes::default(),
            tally: Tally::default(),
            info: InfoArea::default(),
            dispatcher: Dispatcher::new(options.large),
            options,
            file_len: AtomicU64::new(file_len),
            closer: Closer::of(ssd.as_ref(), outside.name(), &pool.marks),
            outside,
            ssd,
            file,
            name,
            latencies: Measuring::default(),
            handles: AtomicUsize::new(1),
            kept: AtomicBool::new(false),
            len_is_old: AtomicBool::new(false),
            owner: OwningProcess::here(),
            pool: pool.clone(),
        }))
    }

    /// Copies what is asked for, if it lies in one page and is cached; otherwise what is missing,
    /// if that was asked.
    #[inline]
    fn look_at(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Option<Missing>> {
        self.sample(offset);
        if out.is_empty() || out.len() as u64 > PAGE - offset % PAGE {
            return Err(None);
        }
        // A hit is within the file: what is cached goes when the file is cut. Everything else is
        // looked at closely.
        self.cached(offset, out).map_err(Some)
    }

    #[cold]
    fn read_measured(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let started = Instant::now();
        let found = self.look_at(offset, out);
        let hit = found.is_ok();
        let read = found.or_else(|missed| self.read_slowly(offset, out, missed));
        self.latencies.add(hit, started.elapsed());
        read
    }

    /// Copies the bytes, all of one page, if they are cached.
    #[inline]
    pub(crate) fn cached(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing> {
        self.store.read(self.map.of(offset).ok_or_else(Missing::default)?, out)
    }

    /// Keeps the bytes readable, all of one page, if one item of the cache has them.
    pub(crate) fn pinned(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>> {
        self.store.pin(self.map.of(offset).ok_or_else(|| Some(Missing::default()))?, len)
    }

    /// Offers bytes of one page to the store, which were read by a read that began at `asked`,
    /// behind their beginning.
    pub(crate) fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool {
        // Without a place in the pool's space they are given out only.
        let Some(place) = self.map.of_or_make(offset, &self.pool.space) else { return false };
        // Before it is asked whether they are valid: a change that does not see this here refuses
        // them there.
        self.kept.store(true, Ordering::SeqCst);
        self.store.insert(place, bytes, place + asked.saturating_sub(offset), valid)
    }

    /// Whether one item has all the bytes. It counts as no read.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        self.map.of(offset).is_some_and(|place| self.store.holds(place, len))
    }

    /// Removes what is cached of a range.
    fn forget(&self, range: Range<u64>) {
        self.map.places(range).for_each(|place| self.store.invalidate(place));
    }

    /// Plays a sampled read on both policies.
    #[inline]
    pub(crate) fn sample(&self, offset: u64) {
        self.pool.sample(self.map.of(offset).unwrap_or(offset));
    }

    /// A change that nobody announced: what is cached goes, and reads under way are repeated.
    fn changed_range(&self, range: Range<u64>) {
        self.change_begins(&range);
        self.writes.end(&range);
    }

    fn change_begins(&self, range: &Range<u64>) {
        self.writes.begin(range);
        self.forget(range.clone());
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
    }

    /// Before a change of our own, after which the file looks otherwise in any case: whether others
    /// changed it before that.
    pub(crate) fn notice_others(&self) {
        if self.outside.looks()
            && let Ok(Found::Changed) = self.outside.look(self.ssd.as_ref(), &|| !self.writes.any(), false)
        {
            self.changed_by_others();
        }
    }

    /// Looks at the file's times. What is cached goes if others changed it, or may have.
    pub(crate) fn look_outside(&self) -> Result<bool> {
        match self.outside.look(self.ssd.as_ref(), &|| !self.writes.any(), true)? {
            Found::Same => return Ok(false),
            Found::Changed => self.changed_by_others(),
            Found::Uncertain => {
                Tally::add(&self.tally.uncertain, 1);
                self.doubted();
            }
        }
        Ok(true)
    }

    /// What a snapshot brought goes where nothing is looked at, if its time has come. It touches no
    /// file.
    pub(crate) fn end_loaded(&self) {
        if !self.outside.looks() && self.outside.is_loaded_due() {
            Tally::add(&self.tally.uncertain, 1);
            self.writes.begin(&EVERYTHING);
            self.forget(EVERYTHING);
            self.len_is_old.store(true, Ordering::Release);
            self.pool.wake(self.changed_by_others_ends());
        }
    }

    /// The same, where nobody hears of an error: whoever reads meets it again.
    pub(crate) fn look(&self) {
        if self.outside.looks() {
            let _ = self.look_outside();
        }
    }

    /// What is cached may be old. Many files may be young at once, and nothing may be cached of
    /// most of them.
    fn doubted(&self) {
        let had = self.kept.swap(false, Ordering::SeqCst);
        self.writes.begin(&EVERYTHING);
        // What was kept until here goes, and what others keep from here on was found valid after
        // this began.
        if self.kept.load(Ordering::SeqCst) || had {
            self.forget(EVERYTHING);
        }
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
        self.pool.wake(self.changed_by_others_ends());
    }

    /// Somebody else changed the file.
    pub(crate) fn changed_by_others(&self) {
        self.changed_by_others_begins();
        self.pool.wake(self.changed_by_others_ends());
    }

    /// The same in two steps: nobody who waits is woken in the first one.
    pub(crate) fn changed_by_others_begins(&self) {
        Tally::add(&self.tally.changes_outside, 1);
        self.change_begins(&EVERYTHING);
    }

    /// The same, by the word of the kernel: it touches no file, for which one may wait.
    pub(crate) fn changed_by_event_begins(&self) {
        Tally::add(&self.tally.changes_outside, 1);
        self.writes.begin(&EVERYTHING);
        self.forget(EVERYTHING);
        self.len_is_old.store(true, Ordering::Release);
    }

    /// Who is to be woken for it.
    #[must_use]
    pub(crate) fn changed_by_others_ends(&self) -> Vec<Waker> {
        self.writes.end_silently(&EVERYTHING)
    }

    /// How long reads took, where that was measured.
    pub(crate) fn latencies(&self) -> Option<Latencies> {
        self.latencies.now()
    }

    /// How often others changed the file, as far as that was noticed.
    pub(crate) fn changes_by_others(&self) -> u64 {
        self.tally.changes_outside.load(Ordering::SeqCst)
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.tally.metrics();
        metrics.under_way = self.info.under_way();
        metrics.page_cost = self.dispatcher.page_cost();
        metrics.latencies = self.latencies();
        self.pool.add_metrics(&mut metrics);
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
        let old = self.len_is_old.load(Ordering::Acquire);
        if !old && within(self.file_len.load(Ordering::Acquire)) {
            return Ok(());
        }
        if old {
            // Before it is asked for: who changes it once more says so once more.
            self.len_is_old.store(false, Ordering::SeqCst);
        }
        let file = self.engine.len_bytes().inspect_err(|_| self.len_is_old.store(true, Ordering::SeqCst))?;
        check_len(file, &self.name)?;
        if old || !self.writes.any() {
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

    /// The way for bytes of one page that are missing. While other bytes of the page change, only
    /// those that were asked for are kept; where bytes are checked, only what was checked is.
    pub(crate) fn dispatch(&self, offset: u64, len: usize, missing: Missing) -> Path {
        let demanded = self.pool.detector.demand(self.map.of(offset).unwrap_or(offset), len);
        let page = offset / PAGE * PAGE;
        match self.dispatcher.path(len, missing, demanded) {
            _ if self.options.verify.is_some() => Path::Bytes,
            // A block that is not kept would be read again and again for its bytes.
            Path::Blocks if !self.options.keep_blocks && len <= self.options.large => Path::Bytes,
            Path::Sectors | Path::Blocks if self.writes.is_changing(&(page..page + PAGE)) => Path::Bytes,
            path => path,
        }
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.file_len.load(Ordering::Acquire)
    }
}
