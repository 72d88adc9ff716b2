//! Making a pool, and opening a file in it.

use datapipes_core::locator::WriteObserver;
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Ssd};

use super::ahead::Ahead;
use super::file::{FileHandle, Inner, Source};
use super::lookers;
use super::maintenance::{self, Maintenance};
use super::space::{Map, Space};
use super::{Clock, Pool, nanoseconds};
use crate::coherence::outside::is_steady;
use crate::config::{CacheOptions, CachePolicy, ExternalChanges, FileOptions};
use crate::device::engine::ReadEngine;
use crate::device::lanes::{self, FileEngine, Lanes, Shape};
use crate::metrics::Tally;
use crate::miss::detector::Detector;
use crate::policy;
use crate::store::header::MAX_OFFSET;
use crate::store::{MIN_BUDGET, Sharded, Store};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// The least budget, in bytes.
const MIN_POOL_BYTES: usize = 2 << 20;
/// Bytes of budget for each byte of the detector. The detector shall remember little: pages of
/// which several parts are read at about the same time. With 16 times as many entries, one small
/// read in a hundred under zipf 0.8 read a page that was not needed, and the device moved 2.3 bytes
/// for each byte asked instead of 1.9.
const DETECTOR_PART: usize = 8192;

/// The depth and the number of lanes. Their buffers use at most a sixteenth of the budget.
fn buffers(config: &CacheOptions) -> (usize, usize) {
    let most = (config.budget / 16 / lanes::lane_bytes(1)).max(8);
    let depth = config.depth.clamp(1, most.min(4096));
    (depth, config.lanes.clamp(1, (most / depth).max(1)))
}

impl Pool {
    /// Makes a pool for files.
    ///
    /// # Errors
    /// As `BufferPool::new`.
    pub(crate) fn over_files(config: CacheOptions) -> Result<Arc<Pool>> {
        check_budget(&config)?;
        let (depth, lanes) = buffers(&config);
        let lanes = Arc::new(Lanes::new(
            &config.machine,
            Shape { depth, most: lanes, waiting: config.waiting, patience: config.patience },
        ));
        let clock = lanes.clone();
        Pool::start(config, Box::new(move || clock.now_ns()), Some(lanes))
    }

    /// Makes a pool for a caller's engine.
    ///
    /// # Errors
    /// As `BufferPool::new`.
    pub(crate) fn over_engine(config: CacheOptions, engine: Arc<dyn ReadEngine>) -> Result<Arc<Pool>> {
        check_budget(&config)?;
        Pool::start(config, Box::new(move || engine.now_ns()), None)
    }

    fn start(config: CacheOptions, clock: Clock, lanes: Option<Arc<Lanes>>) -> Result<Arc<Pool>> {
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
            // This comes after the store, which fails where there is no memory for the budget.
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
            *pool.maintenance.lock() = Some(Maintenance::start(&pool)?);
        }
        Ok(pool)
    }

    /// Opens a file. `map` assigns its position in the space by its length.
    pub(crate) fn open(
        self: &Arc<Pool>,
        ssd: &Ssd,
        options: FileOptions,
        map: impl FnOnce(u64) -> Result<Map>,
    ) -> Result<FileHandle> {
        let Some(lanes) = &self.lanes else {
            return Err(Error::new(ErrorKind::InvalidInput, "open", "the pool's engine is the caller's"));
        };
        let engine = Arc::new(FileEngine::open(ssd, lanes)?);
        let name = format!("fine:{}", ssd.path().display());
        let source = Source { engine: engine.clone(), file: Some((ssd.clone(), engine)), name };
        self.add(source, options, map)
    }

    /// Adds the file of an engine.
    pub(crate) fn add(
        self: &Arc<Pool>,
        source: Source,
        options: FileOptions,
        map: impl FnOnce(u64) -> Result<Map>,
    ) -> Result<FileHandle> {
        if options.outside == ExternalChanges::Events && (source.file.is_none() || !self.config.maintenance) {
            let context = match source.file {
                None => format!("changes by events of {}, which is not a file", source.name),
                Some(_) => "changes by events, without the thread that takes them".to_owned(),
            };
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context)
                .with_advice("look at the file's times instead, or enable the maintenance thread"));
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
        self.files.lock().push(Arc::downgrade(&inner));
        if let Some(ssd) = &inner.ssd {
            let watch: Arc<dyn WriteObserver> = inner.clone();
            ssd.write_observers().add(&watch);
        }
        self.maintenance.lock().iter().for_each(Maintenance::ring);
        Ok(FileHandle::first(inner))
    }

    /// Checks a block device. Its times and events belong to one of its names. Writes by other
    /// names, or through a mounted file system, cannot be noticed.
    fn check_device(&self, source: &Source, outside: ExternalChanges) -> Result<()> {
        let is_block = source.file.as_ref().is_some_and(|(ssd, _)| ssd.file().is_block_device());
        let (lives, looks) =
            (self.config.ttl.is_some(), matches!(outside, ExternalChanges::Every(_) | ExternalChanges::Times(_)));
        if !is_block || outside == ExternalChanges::Never || lives && looks {
            return Ok(());
        }
        let context = format!("{} is a block device, of which changes by others are not found", source.name);
        Err(Error::new(ErrorKind::InvalidInput, "make a cache", context).with_advice(
            "use ExternalChanges::Never if nobody but this process writes to it, through the library; or give a time to live, for which old \
             bytes may be given out",
        ))
    }

    /// The device whose files need a thread of their own for looks, if this file is one of them.
    pub(super) fn looker_of(&self, ssd: &Ssd, outside: ExternalChanges) -> Option<u64> {
        let looks = matches!(outside, ExternalChanges::Every(_) | ExternalChanges::Times(_));
        (self.config.maintenance && looks && !is_steady(ssd) && !ssd.file().is_block_device())
            .then(|| ssd.file().device())
    }
}

fn check_budget(config: &CacheOptions) -> Result<()> {
    if config.budget < MIN_POOL_BYTES {
        let context = format!("a budget of {} bytes", config.budget);
        return Err(Error::new(ErrorKind::InvalidInput, "make a cache", context).with_advice("give at least 2 MiB"));
    }
    let memory = &config.machine.topology().memory;
    let most = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min().unwrap_or(MAX_OFFSET);
    if config.budget as u64 > most {
        let context = format!("a budget of {} bytes, of {most} that this process may have", config.budget);
        return Err(Error::new(ErrorKind::OutOfMemory, "make a cache", context).with_advice("give less"));
    }
    Ok(())
}
