//! The systems that are compared (section 4.1).

use datapipes_data::access::ReadRequest;
use serde::Serialize;

use super::device::SimulatedDevice;
use super::lru::LruSet;
use super::page_cache::{PAGE, PageCache};
use super::timing::Timing;
use crate::time::Time;

/// A system that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemKind {
    /// Block I/O: pages through the page cache.
    BlockIo,
    /// 2B-SSD: the processor loads bytes from the device's memory, 8 at a time.
    Mmio,
    /// 2B-SSD: the device's memory is mapped for each access and copied by DMA.
    Dma,
    /// Pipette's byte interface alone: the device puts the bytes into host memory that was mapped
    /// once.
    PipetteUncached,
    /// Pipette: the page cache first, then the fine-grained read cache, then the byte interface.
    Pipette,
}

impl SystemKind {
    /// All systems, in the order of the paper.
    pub const ALL: [SystemKind; 5] =
        [SystemKind::BlockIo, SystemKind::Mmio, SystemKind::Dma, SystemKind::PipetteUncached, SystemKind::Pipette];

    /// Returns the name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            SystemKind::BlockIo => "Block I/O",
            SystemKind::Mmio => "2B-SSD MMIO",
            SystemKind::Dma => "2B-SSD DMA",
            SystemKind::PipetteUncached => "Pipette w/o cache",
            SystemKind::Pipette => "Pipette",
        }
    }
}

/// The counters of many reads, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SystemCounters {
    /// The number of reads.
    pub reads: u64,
    /// The time of all reads.
    pub elapsed: Time,
    /// Bytes moved from the device to the host.
    pub host_bytes: u64,
    /// Reads that the page cache served.
    pub page_hits: u64,
    /// Reads that came to the fine-grained read cache.
    pub fine_reads: u64,
    /// Reads that the fine-grained read cache served.
    pub fine_hits: u64,
}

impl SystemCounters {
    /// Returns the I/O traffic in MiB, which the paper's tables call MB.
    pub fn traffic_mib(&self) -> f64 {
        self.host_bytes as f64 / f64::from(1 << 20)
    }

    /// Returns the mean time of a read, in us.
    pub fn latency_us(&self) -> f64 {
        self.elapsed.as_us() / self.reads.max(1) as f64
    }

    /// Returns the reads per second of a reader that waits for each.
    pub fn reads_per_s(&self) -> f64 {
        1e6 / self.latency_us()
    }

    /// Returns the percentage of all reads that either cache served.
    pub fn hit_percent(&self) -> f64 {
        (self.page_hits + self.fine_hits) as f64 / self.reads.max(1) as f64 * 100.0
    }

    /// Returns the percentage of reads that the cache served, of those that came to it (the
    /// fine-grained one, if there is one).
    pub fn cache_percent(&self) -> f64 {
        match self.fine_reads {
            0 => self.page_hits as f64 / self.reads.max(1) as f64 * 100.0,
            reads => self.fine_hits as f64 / reads as f64 * 100.0,
        }
    }

    /// Returns the difference from earlier counters.
    #[must_use]
    pub fn since(&self, before: &SystemCounters) -> SystemCounters {
        SystemCounters {
            reads: self.reads - before.reads,
            elapsed: self.elapsed - before.elapsed,
            host_bytes: self.host_bytes - before.host_bytes,
            page_hits: self.page_hits - before.page_hits,
            fine_reads: self.fine_reads - before.fine_reads,
            fine_hits: self.fine_hits - before.fine_hits,
        }
    }
}

/// A way to read, with its caches and its device.
#[derive(Debug)]
pub struct System {
    kind: SystemKind,
    device: SimulatedDevice,
    page_cache: PageCache,
    /// Fine-grained items in the cache, by their offset: as in the paper, an item is found by its
    /// exact start.
    fine: LruSet,
    /// Longer reads go through the block path, in bytes.
    large: u64,
    /// Whether fine-grained reads ask the page cache first.
    asks_pages: bool,
    account: SystemCounters,
}

/// The most bytes of a fine-grained read (128 B of the workloads is one, 4096 B is not).
pub const LARGE: u64 = 2048;

impl System {
    /// Makes a system. A system without a cache ignores the caches.
    pub fn new(kind: SystemKind, timing: Timing, page_cache: PageCache, fine_items: usize) -> System {
        let fine = LruSet::new(fine_items);
        System {
            kind,
            device: SimulatedDevice::new(timing),
            page_cache,
            fine,
            large: LARGE,
            asks_pages: true,
            account: SystemCounters::default(),
        }
    }

    /// Makes all reads fine-grained: workload E of figure 8, up to 4 KiB.
    #[must_use]
    pub fn all_fine(self) -> System {
        System { large: u64::MAX, ..self }
    }

    /// Sets whether fine-grained reads look into the page cache first.
    #[must_use]
    pub fn asking_pages(self, asks_pages: bool) -> System {
        System { asks_pages, ..self }
    }

    /// Returns the kind of system.
    pub fn kind(&self) -> SystemKind {
        self.kind
    }

    /// Returns the counters of the reads so far.
    pub fn account(&self) -> SystemCounters {
        SystemCounters { host_bytes: self.device.host_bytes(), ..self.account }
    }

    /// Returns its page cache.
    pub fn page_cache(&self) -> &PageCache {
        &self.page_cache
    }

    /// Returns the number of items in its fine-grained read cache.
    pub fn fine_items(&self) -> usize {
        self.fine.len()
    }

    /// Does one read after all earlier ones.
    pub fn read(&mut self, read: ReadRequest) {
        let now = self.account.elapsed;
        let (offset, len) = (read.offset, u64::from(read.len));
        let timing = *self.device.timing();
        let done = match self.kind {
            SystemKind::BlockIo => self.by_pages(now, offset, len),
            SystemKind::Mmio => {
                let buffered = self.device.expose(now + timing.mmio_command, offset, len);
                buffered + timing.mmio_word * len.div_ceil(8)
            }
            SystemKind::Dma => self.device.fetch(now + timing.byte_command + timing.dma_mapping, offset, len),
            SystemKind::PipetteUncached => self.device.fetch(now + timing.byte_command, offset, len),
            SystemKind::Pipette if len > self.large => self.by_pages(now, offset, len),
            SystemKind::Pipette => self.fine_grained(now, offset, len),
        };
        self.account.reads += 1;
        self.account.elapsed = done;
    }

    /// The block path: the page cache, and whole pages for what is missing.
    fn by_pages(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let timing = *self.device.timing();
        let (first, last) = (offset / PAGE, (offset + len.max(1) - 1) / PAGE);
        let (mut until, mut is_hit) = (now, true);
        for page in first..=last {
            if !self.page_cache.has(page) {
                is_hit = false;
                until = self.device.fetch_with_read_ahead(until + timing.block_command, page * PAGE, PAGE);
                self.page_cache.insert(page);
            }
        }
        self.account.page_hits += u64::from(is_hit);
        // After a miss the page is handed out as after a hit.
        until + timing.page_hit
    }

    fn fine_grained(&mut self, now: Time, offset: u64, len: u64) -> Time {
        let timing = *self.device.timing();
        let last = (offset + len.max(1) - 1) / PAGE;
        if self.asks_pages && (offset / PAGE..=last).all(|page| self.page_cache.has(page)) {
            self.account.page_hits += 1;
            return now + timing.page_hit;
        }
        self.account.fine_reads += 1;
        if self.fine.touch(offset) {
            self.account.fine_hits += 1;
            return now + timing.fine_hit;
        }
        self.fine.insert(offset);
        self.device.fetch(now + timing.byte_command, offset, len) + timing.fine_hit
    }
}
