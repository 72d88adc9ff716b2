//! The library itself on the modelled device: the code that reads real files (dispatcher,
//! constructor, info area and cache), over an engine in virtual time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained, Metrics, Reassignment};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Machine, Result};
use datapipes_data::access::ReadRequest;

use super::device::{CHANNELS, SimulatedDevice, fill, is_content};
use super::page_cache::{PAGE, PageCache};
use super::system::SystemCounters;
use super::timing::Timing;
use crate::time::Time;

/// A byte-granular device in virtual time, as the cache's read engine. Extents that are whole pages
/// go through the block interface with its read-ahead, all others through the byte interface.
pub struct VirtualEngine {
    file_bytes: u64,
    /// The time in picoseconds.
    now: AtomicU64,
    requests: AtomicU64,
    state: Mutex<State>,
}

struct State {
    device: SimulatedDevice,
    /// Pages that were read by the block interface, until they are taken.
    pages: Vec<u64>,
    buffer: Vec<u8>,
}

impl VirtualEngine {
    /// Makes an engine over a file of `file_bytes` bytes.
    pub fn new(timing: Timing, file_bytes: u64) -> VirtualEngine {
        let state = State { device: SimulatedDevice::new(timing), pages: Vec::new(), buffer: Vec::new() };
        let (now, requests) = (AtomicU64::new(0), AtomicU64::new(0));
        VirtualEngine { file_bytes, now, requests, state: Mutex::new(state) }
    }

    /// The state is consistent even after a thread panicked, because it is only added to.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Advances the time by work of the host.
    pub fn pass(&self, time: Time) {
        self.now.fetch_add(time.as_ps(), Ordering::Relaxed);
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        Time::ps(self.now.load(Ordering::Relaxed))
    }

    /// Returns the number of extents that were read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Takes the pages that were read by the block interface since the last call.
    fn take_pages(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().pages)
    }

    /// Returns the bytes moved to the host.
    pub fn host_bytes(&self) -> u64 {
        self.state().device.host_bytes()
    }
}

impl ReadEngine for VirtualEngine {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 1, depth: CHANNELS as u32, longest: 128 << 10 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.file_bytes)
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let mut buffer = {
            let mut guard = self.state();
            let state = &mut *guard;
            let timing = *state.device.timing();
            let (now, mut until) = (self.now(), self.now());
            for extent in extents {
                let (offset, len) = (extent.offset, u64::from(extent.len));
                let is_block = offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
                until = until.max(match is_block {
                    true => state.device.fetch_with_read_ahead(now + timing.block_command, offset, len),
                    false => state.device.fetch(now + timing.byte_command, offset, len),
                });
                if is_block {
                    state.pages.extend(offset / PAGE..(offset + len) / PAGE);
                }
            }
            self.now.fetch_max(until.as_ps(), Ordering::Relaxed);
            self.requests.fetch_add(extents.len() as u64, Ordering::Relaxed);
            std::mem::take(&mut state.buffer)
        };
        // This is not under the lock, because the callback may ask for the time.
        for (at, extent) in extents.iter().enumerate() {
            buffer.resize(extent.len as usize, 0);
            fill(extent.offset, &mut buffer);
            done(at, Ok(&buffer));
        }
        self.state().buffer = buffer;
    }

    fn now_ns(&self) -> u64 {
        self.now().as_ps() / 1000
    }
}

/// A reader through the library, with a page cache before it as in Pipette.
pub struct Library {
    fine: FineGrained,
    engine: Arc<VirtualEngine>,
    page_cache: PageCache,
    asks_pages: bool,
    timing: Timing,
    account: SystemCounters,
    buffer: Vec<u8>,
}

/// The number of reads after which slabs are maintained; the library itself does it by the clock.
const MAINTAIN_EACH: u64 = 50_000;

impl Library {
    /// Makes a library over a file of `file_bytes`, with a budget in bytes for the whole
    /// fine-grained read cache. Blocks of the block path go to the page cache.
    ///
    /// # Errors
    /// Errors of opening the cache: `InvalidInput` for a budget below 2 MiB.
    pub fn new(
        timing: Timing,
        file_bytes: u64,
        page_cache: PageCache,
        policy: CachePolicy,
        budget: usize,
    ) -> Result<Library> {
        let engine = Arc::new(VirtualEngine::new(timing, file_bytes));
        let mut config = CacheOptions::new(&nowhere()).budget(budget).policy(policy);
        config.keep_blocks = false;
        config.reassignment = Reassignment::EvictionCounts;
        // The reader does the maintenance, at fixed counts of reads: a thread would make runs
        // differ.
        config.maintenance = false;
        config.prefault = false;
        let fine = FineGrained::with_engine(engine.clone(), config, "model")?;
        Ok(Library {
            fine,
            engine,
            page_cache,
            asks_pages: true,
            timing,
            account: SystemCounters::default(),
            buffer: Vec::new(),
        })
    }

    /// Sets whether fine-grained reads look into the page cache first.
    #[must_use]
    pub fn asking_pages(self, asks_pages: bool) -> Library {
        Library { asks_pages, ..self }
    }

    /// Does one read after all earlier ones, and checks the bytes.
    ///
    /// # Errors
    /// Errors of the library; `Corrupt` if the bytes are not those of the file.
    pub fn read(&mut self, read: ReadRequest) -> Result<()> {
        let ReadRequest { offset, len } = read;
        let mut pages = offset / PAGE..=(offset + u64::from(len.max(1)) - 1) / PAGE;
        self.account.reads += 1;
        let is_fine = len as usize <= self.fine.config().large;
        if (self.asks_pages || !is_fine) && pages.all(|page| self.page_cache.has(page)) {
            self.account.page_hits += 1;
            self.engine.pass(self.timing.page_hit);
            return Ok(());
        }
        let before = self.engine.requests();
        self.buffer.resize(len as usize, 0);
        self.fine.read(offset, &mut self.buffer)?;
        if !is_content(offset, &self.buffer) {
            let context = format!("{len} bytes through the cache are not those of the file");
            return Err(Error::new(ErrorKind::Corrupt, "read", context).with_offset(offset));
        }
        self.engine.pass(if is_fine { self.timing.fine_hit } else { self.timing.page_hit });
        if is_fine {
            self.account.fine_reads += 1;
            self.account.fine_hits += u64::from(self.engine.requests() == before);
        }
        if self.engine.requests() != before {
            // Blocks that the dispatcher read go to the page cache, whatever was asked for.
            self.engine.take_pages().into_iter().for_each(|page| self.page_cache.insert(page));
        }
        if self.account.reads.is_multiple_of(MAINTAIN_EACH) {
            self.fine.maintain();
        }
        Ok(())
    }

    /// Returns the counters of the reads so far.
    pub fn account(&self) -> SystemCounters {
        SystemCounters { elapsed: self.engine.now(), host_bytes: self.engine.host_bytes(), ..self.account }
    }

    /// Returns the metrics of the library.
    pub fn metrics(&self) -> Metrics {
        self.fine.metrics()
    }
}

/// A machine without any device: the cache needs one to connect files, and there are no files here.
fn nowhere() -> Machine {
    Machine::new(Topology::discover_under(Path::new("")), Vec::new())
}

/// Returns the budget with which the library's cache holds this many items of a size, within a
/// percent. It is found by filling caches.
///
/// # Errors
/// The same as for [`Library::new`].
pub fn budget_for(items: usize, item_bytes: u32, policy: CachePolicy) -> Result<usize> {
    let mut budget = (items * (item_bytes as usize + 24)).max(4 << 20);
    for _ in 0..4 {
        let held = held(items, item_bytes, policy, budget)?.max(1);
        if held.abs_diff(items) * 200 <= items {
            break;
        }
        budget = (budget as f64 * items as f64 / held as f64) as usize;
    }
    Ok(budget)
}

/// Returns how many different items a cache with this budget keeps.
fn held(items: usize, item_bytes: u32, policy: CachePolicy, budget: usize) -> Result<usize> {
    let more = items as u64 + items as u64 / 4;
    let timing = Timing::calibrated();
    let mut library = Library::new(timing, more * PAGE, PageCache::empty(), policy, budget)?;
    for item in 0..more {
        library.read(ReadRequest { offset: item * PAGE, len: item_bytes })?;
    }
    Ok(library.metrics().items)
}
