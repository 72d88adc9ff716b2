//! The library itself on the modelled device: the dispatcher, constructor, info area and cache that
//! read real files, over an engine in virtual time.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CacheConfig, CachePolicy, FineGrained, Metrics, Reassignment};
use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Machine, Result};
use datapipes_testkit::access::ReadRequest;

use super::device::{CHANNELS, SimulatedDevice, fill, is_content};
use super::page_cache::{PAGE, PageCache};
use super::system::SystemCounters;
use super::timing::Timing;
use crate::time::Time;

/// A device of byte granularity in virtual time, as the cache's read engine. Extents that are whole
/// pages go by the block interface, with its read-ahead; all others by the byte interface.
pub struct VirtualEngine {
    file_bytes: u64,
    /// In picoseconds.
    now: AtomicU64,
    requests: AtomicU64,
    state: Mutex<State>,
}

struct State {
    device: SimulatedDevice,
    /// Pages that came by the block interface, until somebody asks for them.
    pages: Vec<u64>,
    buffer: Vec<u8>,
}

impl VirtualEngine {
    /// Over a file of so many bytes.
    pub fn new(timing: Timing, file_bytes: u64) -> VirtualEngine {
        let state = State { device: SimulatedDevice::new(timing), pages: Vec::new(), buffer: Vec::new() };
        let (now, requests) = (AtomicU64::new(0), AtomicU64::new(0));
        VirtualEngine { file_bytes, now, requests, state: Mutex::new(state) }
    }

    /// A state left by a thread that panicked is whole: it is only ever added to.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass on the host.
    pub fn pass(&self, time: Time) {
        self.now.fetch_add(time.as_ps(), Ordering::Relaxed);
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        Time::ps(self.now.load(Ordering::Relaxed))
    }

    /// Extents that were read.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Takes the pages that came by the block interface since the last call.
    fn take_pages(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().pages)
    }

    /// Bytes that went to the host.
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
        // Not under the lock: who is told may ask for the time.
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

/// Reads after which slabs are looked at; the library itself does it by the clock.
const MAINTAIN_EACH: u64 = 50_000;

impl Library {
    /// Over a file of `file_bytes`, with a budget in bytes for all of the fine-grained read cache.
    /// What the block path brings is left to the page cache.
    ///
    /// # Errors
    /// What opening the cache meets: `InvalidInput` for a budget below 2 MiB.
    pub fn new(
        timing: Timing,
        file_bytes: u64,
        page_cache: PageCache,
        policy: CachePolicy,
        budget: usize,
    ) -> Result<Library> {
        let engine = Arc::new(VirtualEngine::new(timing, file_bytes));
        let mut config = CacheConfig::new(&nowhere()).budget(budget).policy(policy);
        config.keep_blocks = false;
        config.reassignment = Reassignment::EvictionCounts;
        // By the reader, at fixed counts of reads: a thread would make every run another.
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

    /// The same, whose fine-grained reads ask the page cache first, or do not.
    #[must_use]
    pub fn asking_pages(self, asks_pages: bool) -> Library {
        Library { asks_pages, ..self }
    }

    /// Reads, after all before it, and checks the bytes.
    ///
    /// # Errors
    /// What the library meets; `Corrupt` where the bytes are not those of the file.
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
            return Err(Error::new(ErrorKind::Corrupt, "read", context).offset(offset));
        }
        self.engine.pass(if is_fine { self.timing.fine_hit } else { self.timing.page_hit });
        if is_fine {
            self.account.fine_reads += 1;
            self.account.fine_hits += u64::from(self.engine.requests() == before);
        }
        if self.engine.requests() != before {
            // What the dispatcher had brought by blocks is the page cache's, whatever was asked
            // for.
            self.engine.take_pages().into_iter().for_each(|page| self.page_cache.insert(page));
        }
        if self.account.reads.is_multiple_of(MAINTAIN_EACH) {
            self.fine.maintain();
        }
        Ok(())
    }

    /// What came of the reads so far.
    pub fn account(&self) -> SystemCounters {
        SystemCounters { elapsed: self.engine.now(), host_bytes: self.engine.host_bytes(), ..self.account }
    }

    /// What the library counted.
    pub fn metrics(&self) -> Metrics {
        self.fine.metrics()
    }
}

/// A machine without anything: the cache needs one to connect to files, of which there are none
/// here.
fn nowhere() -> Machine {
    Machine::new(Topology::discover_under(Path::new("")), Vec::new())
}

/// The budget with which the library's cache holds so many items of a size, within a percent: found
/// by filling caches.
///
/// # Errors
/// As [`Library::new`].
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

/// How many different items a cache of this budget keeps.
fn held(items: usize, item_bytes: u32, policy: CachePolicy, budget: usize) -> Result<usize> {
    let more = items as u64 + items as u64 / 4;
    let timing = Timing::calibrated();
    let mut library = Library::new(timing, more * PAGE, PageCache::empty(), policy, budget)?;
    for item in 0..more {
        library.read(ReadRequest { offset: item * PAGE, len: item_bytes })?;
    }
    Ok(library.metrics().items)
}
