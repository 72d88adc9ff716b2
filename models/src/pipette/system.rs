//! The ways to read that are compared (section 4.1).

use datapipes_testkit::access::ReadRequest;
use serde::Serialize;

use super::device::SimulatedDevice;
use super::lru::LruSet;
use super::page_cache::{PAGE, PageCache};
use super::timing::Timing;
use crate::time::Time;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemKind {
    /// Pages through the page cache.
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
    /// All, in the order of the paper.
    pub const ALL: [SystemKind; 5] =
        [SystemKind::BlockIo, SystemKind::Mmio, SystemKind::Dma, SystemKind::PipetteUncached, SystemKind::Pipette];

    /// As the paper calls it.
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

/// What came of many reads, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SystemCounters {
    /// How many.
    pub reads: u64,
    /// Time of all of them.
    pub elapsed: Time,
    /// Bytes from the device to the host.
    pub host_bytes: u64,
    /// Reads that the page cache served.
    pub page_hits: u64,
    /// Reads that came to the fine-grained read cache, and that it served.
    pub fine_reads: u64,
    /// As said.
    pub fine_hits: u64,
}

impl SystemCounters {
    /// I/O traffic in MiB: the unit of the paper's tables, where it is called MB.
    pub fn traffic_mib(&self) -> f64 {
        self.host_bytes as f64 / f64::from(1 << 20)
    }

    /// Mean time of a read, in us.
    pub fn latency_us(&self) -> f64 {
        self.elapsed.as_us() / self.reads.max(1) as f64
    }

    /// Reads in a second, by a reader that waits for each.
    pub fn reads_per_s(&self) -> f64 {
        1e6 / self.latency_us()
    }

    /// Of all reads, those that either cache served, in percent.
    pub fn hit_percent(&self) -> f64 {
        (self.page_hits + self.fine_hits) as f64 / self.reads.max(1) as f64 * 100.0
    }

    /// Of the reads that came to the cache (the fine-grained one, where there is one), those that
    /// it served, in percent.
    pub fn cache_percent(&self) -> f64 {
        match self.fine_reads {
            0 => self.page_hits as f64 / self.reads.max(1) as f64 * 100.0,
            reads => self.fine_hits as f64 / reads as f64 * 100.0,
        }
    }

    /// The difference to what it was before.
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
    /// Fine-grained items that are cached, by their offset: as in the paper, an item is found by
    /// its exact start.
    fine: LruSet,
    /// Reads of more bytes go by the block path.
    large: u64,
    /// Whether fine-grained reads ask the page cache first.
    asks_pages: bool,
    account: SystemCounters,
}

/// Reads of up to so many bytes are fine-grained (of the workloads: 128 B are, 4096 B are not).
pub const LARGE: u64 = 2048;

impl System {
    /// A system; what has no cache ignores the two.
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

    /// The same, with all reads fine-grained: workload E of figure 8, up to 4 KiB.
    #[must_use]
    pub fn all_fine(self) -> System {
        System { large: u64::MAX, ..self }
    }

    /// The same, whose fine-grained reads ask the page cache first, or do not.
    #[must_use]
    pub fn asking_pages(self, asks_pages: bool) -> System {
        System { asks_pages, ..self }
    }

    /// Who it is.
    pub fn kind(&self) -> SystemKind {
        self.kind
    }

    /// What came of the reads so far.
    pub fn account(&self) -> SystemCounters {
        SystemCounters { host_bytes: self.device.host_bytes(), ..self.account }
    }

    /// Its page cache.
    pub fn page_cache(&self) -> &PageCache {
        &self.page_cache
    }

    /// Items that its fine-grained read cache holds.
    pub fn fine_items(&self) -> usize {
        self.fine.len()
    }

    /// Reads, after all before it.
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

    /// The block path: the page cache, and for what is missing whole pages.
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
        // What was missing is given out as what was there.
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
