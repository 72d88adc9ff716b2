//! Reads of a few bytes, by the caller's offset and length.
//!
//! ```text
//! read -> store: cached?  copy, done                              (lookup table, data area)
//!      -> detector, dispatcher: by bytes, sectors or blocks?
//!      -> constructor: aligned, merged requests
//!      -> info area: is another thread reading it?  wait for that
//!      -> engine: read; nothing changed meanwhile?  return it, offer it to the store;
//!         otherwise repeat
//! ```

use std::ops::Range;

use datapipes_core::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach, Reader};
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::bytes::{Bytes, Held, zeroed};
use crate::config::{CacheOptions, ExternalChanges, FileOptions};
use crate::device::engine::{ReadEngine, RejectedWay};
use crate::device::place::PlaceEngine;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::pool::file::{FileHandle, Source};
use crate::pool::space::Map;
use crate::store::PAGE;
use crate::sync::Arc;

/// The least budget of a cache over a place that is no file.
const MIN_PLACE_BUDGET: usize = 4 << 20;

/// Byte-granular reads of a file, with a cache (Pipette, DAC'22).
///
/// Cloning it makes another handle to the same cache; any number of threads may read at once.
///
/// ```
/// use datapipes::Ssd;
/// use datapipes::cache::{CacheOptions, ExternalChanges, FineGrained};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let path = std::env::temp_dir().join(format!("datapipes-cache-{}", std::process::id()));
///     std::fs::write(&path, (0..100_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>())?;
///
///     let machine = datapipes::discover();
///     let file = Ssd::open(&path)?;
///     let options = CacheOptions::new(&machine)
///         .budget(4 << 20)
///         .outside(ExternalChanges::Never); // nobody else writes there
///     let fine = FineGrained::over(&file, options)?;
///     let mut number = [0; 4];
///     fine.read(4 * 77_777, &mut number)?;
///     assert_eq!(u32::from_le_bytes(number), 77_777);
///     fine.read(4 * 77_777, &mut number)?;
///     assert_eq!(fine.metrics().hits, 1);
///     std::fs::remove_file(&path)?;
///     Ok(())
/// }
/// ```
///
/// Dropping a handle waits for nobody: a file whose file system may answer late, or never, is
/// closed by another thread.
///
/// It belongs to the process that opened it: in a child that was made by `fork` reading and writing
/// fail (`Forked`), and what cannot fail does nothing. A child opens a cache of its own.
#[derive(Clone)]
pub struct FineGrained(pub(crate) FileHandle);

impl FineGrained {
    /// Opens a cache over a file: a [`BufferPool`](crate::BufferPool) with this one file. A pool
    /// lets many files share a budget, a policy and a thread.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 2 MiB, for a file that is not open for reading or is
    /// larger than 16 TiB, for [`Events`](crate::ExternalChanges::Events) without the maintenance
    /// thread, and for a block device without [`Never`](crate::ExternalChanges::Never) or a time to
    /// live (see [`ExternalChanges`](crate::ExternalChanges)). `OutOfMemory` for a budget beyond
    /// the memory that this process may have. Errors of connecting.
    pub fn over(ssd: &Ssd, config: CacheOptions) -> Result<FineGrained> {
        let options = FileOptions::of(&config);
        Pool::over_files(config)?.open(ssd, options, |_| Ok(Map::whole())).map(FineGrained)
    }

    /// Opens a cache over any engine, such as a model of a device, or one that fails on purpose.
    /// Only [`invalidate`](Self::invalidate) tells it about changes of the bytes.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn with_engine(engine: Arc<dyn ReadEngine>, config: CacheOptions, name: &str) -> Result<FineGrained> {
        let options = FileOptions::of(&config);
        let source = Source { engine: engine.clone(), file: None, name: format!("fine:{name}") };
        Pool::over_engine(config, engine)?.add(source, options, |_| Ok(Map::whole())).map(FineGrained)
    }

    /// Opens a cache over a place that states its length and does not change while it is open, such
    /// as an object in a bucket, which is read at one version. A request to such a place costs far
    /// more than its bytes. So the place is read in units, whose length follows from what requests
    /// take: that is measured by a few reads. A quarter of the budget holds units, and
    /// [`explain`](Self::explain) tells their length.
    ///
    /// # Errors
    /// `InvalidInput` for a budget below 4 MiB, and where the place does not state its length;
    /// errors of connecting and of the reads that are measured.
    pub fn over_place(place: &dyn Locator, config: CacheOptions) -> Result<FineGrained> {
        let mut config = config.outside(ExternalChanges::Never);
        if config.budget < MIN_PLACE_BUDGET {
            let context = format!("a budget of {} bytes", config.budget);
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context).with_advice("give at least 4 MiB"));
        }
        let unit_bytes = config.budget / 4;
        config.budget -= unit_bytes;
        let name = place.endpoint().facts.name.clone();
        let engine = PlaceEngine::open(&config.machine, place, unit_bytes)?;
        FineGrained::with_engine(Arc::new(engine), config, &name)
    }

    /// Reads `out.len()` bytes at `offset`. They are as they were at one moment between the call
    /// and its return.
    ///
    /// # Errors
    /// `EndOfFile` where the file is shorter. `Busy` where a transfer into these bytes was started
    /// and does not end within [`patience`](crate::CacheOptions::patience), or where they kept
    /// changing for that long. `Device` with errno and offset. `Corrupt` where
    /// [`verify`](crate::CacheOptions::verify) rejects them.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        inner.read(offset, out)
    }

    /// Starts or stops measuring how long each [`read`](Self::read), [`gather`](Self::gather) and
    /// [`gather_ranges`](Self::gather_ranges) takes, for [`Metrics::latencies`](crate::Metrics).
    /// All reads of one call took as long as the call. When off, a call checks one flag. When on,
    /// it reads the clock twice and updates 16 KiB of counters, which are allocated then and stay
    /// while the file is open.
    pub fn measure_latencies(&self, on: bool) {
        if self.0.owner.is_here() {
            self.0.measure_latencies(on);
        }
    }

    /// Returns the bytes at `offset`, without a copy where one item of the cache has them all.
    /// While the result is held, it pins a slab of the cache, so hold it for a short time only. A
    /// result that is forgotten (`std::mem::forget`) pins the slab for ever. A slab that is pinned
    /// 2^31 times returns copies.
    ///
    /// # Errors
    /// As [`read`](Self::read), and `OutOfMemory` where there is no memory for so many bytes.
    pub fn get(&self, offset: u64, len: usize) -> Result<Bytes> {
        let inner = &*self.0;
        inner.owner.check("read")?;
        inner.sample(offset);
        let mut missed = None;
        if len > 0 && len as u64 <= PAGE - offset % PAGE {
            match inner.pinned(offset, len) {
                Ok(pinned) => return Ok(Bytes(Held::Cached(pinned))),
                // They are cached but cannot be pinned, so nothing is missing and they are copied.
                Err(missing) => missed = missing,
            }
        }
        // The range is checked before memory is allocated: a length may be anything.
        inner.check_range(offset, len)?;
        let mut bytes = zeroed(len).map_err(|e| e.with_offset(offset))?.into_boxed_slice();
        inner.read_slowly(offset, &mut bytes, missed)?;
        Ok(Bytes(Held::Read(bytes)))
    }

    /// Removes a range from the cache: the next read of it comes from the device.
    pub fn invalidate(&self, range: Range<u64>) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.changed_range(range);
    }

    /// Removes the whole file from the cache.
    pub fn clear(&self) {
        self.invalidate(0..u64::MAX);
    }

    /// Does what the maintenance thread does, for all files of the pool: moves slabs, applies the
    /// time to live, looks for changes from outside. The caller calls it now and then where
    /// [`maintenance`](crate::CacheOptions::maintenance) is off.
    pub fn maintain(&self) {
        self.0.pool.maintain();
    }

    /// Whether others changed the file since the last look, or may have changed it in a way that
    /// cannot be seen (see [`ExternalChanges`](crate::ExternalChanges)). If so, nothing of it is
    /// cached any more.
    ///
    /// # Errors
    /// Errors of looking at the file.
    pub fn look_outside(&self) -> Result<bool> {
        self.0.owner.check("look")?;
        self.0.pool.take_events();
        let told = self.0.outside.was_told();
        Ok(self.0.look_outside()? || told)
    }

    /// Returns counters and the present state. They are empty in a child of the process that opened
    /// the cache. For a file of a pool, the counts of device requests, joined, repeated and failed
    /// reads, and changes are those of this file; the rest describes the pool.
    pub fn metrics(&self) -> Metrics {
        if !self.0.owner.is_here() {
            return Metrics::default();
        }
        self.0.metrics()
    }

    /// The known length of the file, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    /// Describes how bytes are read from the device, and why in this way.
    pub fn explain(&self) -> String {
        let facts = self.0.engine.facts();
        let route = self.0.file.as_ref().map(|file| file.explain());
        let route = route.or_else(|| self.0.engine.explain());
        let route = route.unwrap_or_else(|| "an engine of the caller's".to_owned());
        let outside = self.0.outside.explain();
        format!("{route}\npieces of {} bytes, {} at a time\n{outside}", facts.granularity, facts.depth)
    }

    /// Ways in which bytes are not read from the device, and why. They are empty for an engine that
    /// knows of none.
    pub fn rejected_ways(&self) -> Vec<RejectedWay> {
        match &self.0.file {
            Some(file) => file.rejected(),
            None => self.0.engine.rejected(),
        }
    }

    /// The settings of its pool.
    pub fn config(&self) -> &CacheOptions {
        &self.0.pool.config
    }

    /// The settings of this file.
    pub fn options(&self) -> &FileOptions {
        &self.0.options
    }
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
