//! One file of a pool: the state that all its handles share.

use std::ops::{Deref, Range};
use std::task::Waker;
use std::time::Instant;

use datapipes_core::locator::WriteObserver;
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use super::Pool;
use super::space::Map;
use crate::coherence::events::FileName;
use crate::coherence::marks::Closer;
use crate::coherence::outside::{Found, Outside};
use crate::coherence::writes::Writes;
use crate::config::FileOptions;
use crate::device::engine::ReadEngine;
use crate::device::lanes::FileEngine;
use crate::latencies::{Latencies, Measuring};
use crate::metrics::{Metrics, Tally};
use crate::miss::dispatcher::{Dispatcher, Path};
use crate::miss::info::InfoArea;
use crate::store::header::MAX_OFFSET;
use crate::store::memory::Pinned;
use crate::store::{Missing, PAGE, Store};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A handle of an open file. The file is closed with its last handle.
pub(crate) struct FileHandle(Arc<Inner>);

impl FileHandle {
    /// Makes the first handle of a file, which is already counted.
    pub(super) fn first(inner: Arc<Inner>) -> FileHandle {
        FileHandle(inner)
    }

    /// Returns a further handle if the file is still open. A file without handles is closed, and
    /// gets no new ones.
    pub(crate) fn again(inner: Arc<Inner>) -> Option<FileHandle> {
        let more = |n: usize| (n > 0).then_some(n + 1);
        inner.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(FileHandle(inner))
    }

    /// The file without a handle: it may be closed while this value exists.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Deref for FileHandle {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Clone for FileHandle {
    fn clone(&self) -> FileHandle {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        FileHandle(self.0.clone())
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        // Handles are counted separately: the pool and the observers refer to the file for moments,
        // which must not keep it open. A forked child does not take part in its parent's pool.
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.owner.is_here() {
            self.0.pool.close(&self.0);
        }
    }
}

/// The state that all handles share: one file of a pool.
pub(crate) struct Inner {
    pub(crate) pool: Arc<Pool>,
    /// The store of the pool.
    pub(crate) store: Arc<dyn Store>,
    /// The positions of the file's bytes in the pool's space.
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
    pub(crate) latencies: Measuring,
    /// The number of [`FileHandle`]s.
    handles: AtomicUsize,
    /// Whether any byte of the file may be cached.
    kept: AtomicBool,
    /// Whether the length must be looked up before use, because somebody changed the file.
    len_is_old: AtomicBool,
    pub(crate) owner: OwningProcess,
    /// The last field, so that everything else that has the file open is dropped before.
    pub(crate) closer: Closer,
}

/// A file, and the engine that reads it.
pub(crate) struct Source {
    pub(crate) engine: Arc<dyn ReadEngine>,
    pub(crate) file: Option<(Ssd, Arc<FileEngine>)>,
    pub(crate) name: String,
}

/// The range of a whole file.
const EVERYTHING: Range<u64> = 0..u64::MAX;

fn check_len(len: u64, name: &str) -> Result<()> {
    if len <= MAX_OFFSET {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("{name} has {len} bytes, more than 16 TiB")))
}

impl WriteObserver for Inner {
    fn changing(&self, range: Range<u64>) {
        self.engine.changed();
        Tally::add(&self.tally.changes, 1);
        self.notice_others();
        self.outside.own_begins();
        self.writes.begin(&range);
        self.forget(range);
    }

    fn changed(&self, range: Range<u64>) {
        // The new length and how the file looks from outside are taken before readers see the end
        // of the change.
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
            // The cached items went with the last handle. But positions that other files get must
            // be empty for certain.
            if !self.map.is_whole() {
                self.forget(EVERYTHING);
            }
            self.map.give_back(&self.pool.space);
        }
    }
}

impl Inner {
    /// Opens a file of a pool. `listens` says that the kernel sends events of its changes, under
    /// this name if that is known.
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
                .with_advice("granularity: a power of two up to 4096; longest: at least 4096"));
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

    /// Reads `out.len()` bytes at `offset`, cached or not.
    #[inline]
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.latencies.are_measured() {
            return self.read_measured(offset, out);
        }
        match self.look_at(offset, out) {
            Ok(()) => Ok(()),
            Err(missed) => self.read_slowly(offset, out, missed),
        }
    }

    /// Copies the bytes if they lie in one page and are cached. Otherwise returns what is missing,
    /// if that was looked up.
    #[inline]
    fn look_at(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Option<Missing>> {
        self.sample(offset);
        if out.is_empty() || out.len() as u64 > PAGE - offset % PAGE {
            return Err(None);
        }
        // A hit is within the file, because truncation drops cached bytes. A miss is checked later.
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

    /// Copies the bytes, which lie in one page, if they are cached.
    #[inline]
    pub(crate) fn cached(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing> {
        self.store.read(self.map.of(offset).ok_or_else(Missing::default)?, out)
    }

    /// Pins the bytes, which lie in one page, if one item of the cache has them.
    pub(crate) fn pinned(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>> {
        self.store.pin(self.map.of(offset).ok_or_else(|| Some(Missing::default()))?, len)
    }

    /// Offers bytes of one page to the store. They were read by a read that began at `asked`, which
    /// may lie behind their beginning.
    pub(crate) fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool {
        // Without a position in the pool's space they are only returned.
        let Some(place) = self.map.of_or_make(offset, &self.pool.space) else { return false };
        // This is set before `valid` is asked: a change that misses it here makes `valid` refuse
        // there. If it is set already, a thread that clears it does so after this look, and removes
        // items cached until then.
        if !self.kept.load(Ordering::SeqCst) {
            self.kept.store(true, Ordering::SeqCst);
        }
        self.store.insert(place, bytes, place + asked.saturating_sub(offset), valid)
    }

    /// Prefetches what an insertion of bytes at an offset will access.
    pub(crate) fn insert_soon(&self, offset: u64) {
        if let Some(place) = self.map.of(offset) {
            self.store.insert_soon(place);
        }
    }

    /// Whether one item has all the bytes. This does not count as a read.
    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        self.map.of(offset).is_some_and(|place| self.store.holds(place, len))
    }

    /// Removes a range from the store.
    fn forget(&self, range: Range<u64>) {
        self.map.places(range).for_each(|place| self.store.invalidate(place));
    }

    /// Simulates a sampled read on both policies.
    #[inline]
    pub(crate) fn sample(&self, offset: u64) {
        self.pool.sample(self.map.of(offset).unwrap_or(offset));
    }

    /// Handles a change that was not announced: drops the cached bytes and makes reads in flight
    /// repeat.
    pub(crate) fn changed_range(&self, range: Range<u64>) {
        self.change_begins(&range);
        self.writes.end(&range);
    }

    fn change_begins(&self, range: &Range<u64>) {
        self.engine.changed();
        self.writes.begin(range);
        self.forget(range.clone());
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
    }

    /// Looks, before a change of our own hides it, whether others changed the file.
    pub(crate) fn notice_others(&self) {
        if self.outside.looks()
            && let Ok(Found::Changed) = self.outside.look(self.ssd.as_ref(), &|| !self.writes.any(), false)
        {
            self.changed_by_others();
        }
    }

    /// Looks at the file's times. Drops the cached bytes if others changed the file, or may have.
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

    /// Drops what a snapshot loaded, if its time has come and the file is not looked at. It does
    /// not access the file.
    pub(crate) fn end_loaded(&self) {
        if !self.outside.looks() && self.outside.is_loaded_due() {
            Tally::add(&self.tally.uncertain, 1);
            self.writes.begin(&EVERYTHING);
            self.forget(EVERYTHING);
            self.len_is_old.store(true, Ordering::Release);
            self.pool.wake(self.changed_by_others_ends());
        }
    }

    /// As [`look_outside`](Self::look_outside), but ignores errors: the next reader meets them
    /// again.
    pub(crate) fn look(&self) {
        if self.outside.looks() {
            let _ = self.look_outside();
        }
    }

    /// Drops cached bytes that may be old. Many files may be young at once, and most of them may
    /// have nothing cached.
    fn doubted(&self) {
        let had = self.kept.swap(false, Ordering::SeqCst);
        self.writes.begin(&EVERYTHING);
        // Items cached before this point are dropped. Items that others cache later were found
        // valid after the change began.
        if self.kept.load(Ordering::SeqCst) || had {
            self.forget(EVERYTHING);
        }
        if let Ok(len) = self.engine.len_bytes() {
            self.file_len.store(len, Ordering::Release);
        }
        self.pool.wake(self.changed_by_others_ends());
    }

    /// Handles a change by another process.
    pub(crate) fn changed_by_others(&self) {
        self.changed_by_others_begins();
        self.pool.wake(self.changed_by_others_ends());
    }

    /// The first step of [`changed_by_others`](Self::changed_by_others). It wakes no waiters.
    pub(crate) fn changed_by_others_begins(&self) {
        Tally::add(&self.tally.changes_outside, 1);
        self.change_begins(&EVERYTHING);
    }

    /// The first step for a change that the kernel reported. It does not access the file, which may
    /// block.
    pub(crate) fn changed_by_event_begins(&self) {
        Tally::add(&self.tally.changes_outside, 1);
        self.writes.begin(&EVERYTHING);
        self.forget(EVERYTHING);
        self.len_is_old.store(true, Ordering::Release);
    }

    /// The second step. Returns the wakers to wake.
    #[must_use]
    pub(crate) fn changed_by_others_ends(&self) -> Vec<Waker> {
        self.writes.end_silently(&EVERYTHING)
    }

    /// Starts or stops measuring how long reads take.
    pub(crate) fn measure_latencies(&self, on: bool) {
        self.latencies.measure(on);
    }

    /// The latencies of reads, if they were measured.
    pub(crate) fn latencies(&self) -> Option<Latencies> {
        self.latencies.now()
    }

    /// The number of changes by others that were noticed.
    pub(crate) fn changes_by_others(&self) -> u64 {
        self.tally.changes_outside.load(Ordering::SeqCst)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = self.tally.metrics();
        metrics.under_way = self.info.under_way();
        metrics.page_cost = self.dispatcher.page_cost();
        metrics.latencies = self.latencies();
        self.pool.add_metrics(&mut metrics);
        metrics
    }

    /// Whether the range lies beyond the known length of the file.
    pub(crate) fn is_beyond(&self, offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_none_or(|end| end > self.file_len())
    }

    /// Checks that the range lies in the file. Looks up the length again if it seems not to.
    pub(crate) fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64);
        let within = |file: u64| end.is_some_and(|end| end <= file);
        let old = self.len_is_old.load(Ordering::Acquire);
        if !old && within(self.file_len.load(Ordering::Acquire)) {
            return Ok(());
        }
        if old {
            // The flag is cleared before the length is read: a further change sets it again.
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
            .with_offset(offset)
            .with_bytes_done(0)
            .with_advice("read within the file, whose length is the last number"))
    }

    /// Looks up the present length of the file.
    pub(crate) fn look_at_len(&self) -> Result<()> {
        self.file_len.store(self.engine.len_bytes()?, Ordering::Release);
        Ok(())
    }

    /// Chooses the path for missing bytes of one page. While other bytes of the page change, only
    /// the requested bytes are cached. With a check, only checked bytes are cached.
    pub(crate) fn dispatch(&self, offset: u64, len: usize, missing: Missing) -> Path {
        let demanded = self.pool.detector.demand(self.map.of(offset).unwrap_or(offset), len);
        let page = offset / PAGE * PAGE;
        match self.dispatcher.path(len, missing, demanded) {
            _ if self.options.verify.is_some() => Path::Bytes,
            // A block that is not cached would be read again for each of its bytes.
            Path::Blocks if !self.options.keep_blocks && len <= self.options.large => Path::Bytes,
            Path::Sectors | Path::Blocks if self.writes.is_changing(&(page..page + PAGE)) => Path::Bytes,
            path => path,
        }
    }

    /// The known length of the file. It is looked up again after a change of the file.
    pub(crate) fn len_bytes(&self) -> u64 {
        if self.owner.is_here() && self.len_is_old.load(Ordering::Acquire) {
            // If the length cannot be looked up, the last known one is returned.
            let _ = self.check_range(0, 0);
        }
        self.file_len()
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.file_len.load(Ordering::Acquire)
    }
}
