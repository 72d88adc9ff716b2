//! Counters and state of a cache: visible state (CIDR'23, section 6).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_metrics::{Label, Sample, vocabulary};
use serde::{Deserialize, Serialize};

use crate::latencies::Latencies;
use crate::store::StoreState;
use crate::store::class::{CAPACITIES, SLAB};

/// The bytes of a slab.
pub const SLAB_BYTES: usize = SLAB;

/// The counters of a size class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassMetrics {
    /// The most bytes that one of its items holds.
    pub capacity: usize,
    /// The number of its slabs.
    pub slabs: usize,
    /// The number of items in them.
    pub items: usize,
    /// Reads that found their bytes.
    pub hits: u64,
    /// Reads that did not find their bytes.
    pub misses: u64,
    /// Items that were admitted.
    pub admitted: u64,
    /// Items that were returned to the reader but not admitted.
    pub bypassed: u64,
    /// Items that were evicted for others.
    pub evicted: u64,
    /// Items that were removed because their bytes changed, or because of the time to live.
    pub invalidated: u64,
    /// Items that were moved when their slab changed its class.
    pub moved: u64,
    /// Ghost hits: misses that would have been hits with more memory.
    pub ghost_hits: u64,
}

impl ClassMetrics {
    fn samples(&self) -> Vec<Sample> {
        let reads = |n: u64, outcome| Sample::new(&vocabulary::CACHE_CLASS_READS, n).label(Label::Outcome, outcome);
        let all = [
            Sample::new(&vocabulary::CACHE_CLASS_SLABS, self.slabs),
            Sample::new(&vocabulary::CACHE_CLASS_ITEMS, self.items),
            reads(self.hits, "hit"),
            reads(self.misses, "miss"),
            Sample::new(&vocabulary::CACHE_CLASS_ADMITTED, self.admitted),
            Sample::new(&vocabulary::CACHE_CLASS_BYPASSED, self.bypassed),
            Sample::new(&vocabulary::CACHE_CLASS_EVICTED, self.evicted),
            Sample::new(&vocabulary::CACHE_CLASS_INVALIDATED, self.invalidated),
            Sample::new(&vocabulary::CACHE_CLASS_MOVED, self.moved),
            Sample::new(&vocabulary::CACHE_CLASS_GHOSTS, self.ghost_hits),
        ];
        all.map(|sample| sample.label(Label::Capacity, self.capacity.to_string())).into()
    }
}

/// All counters. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metrics {
    /// The policy's name.
    pub policy: String,
    /// Reads of pieces that lie in one page. A read across pages counts as several.
    pub reads: u64,
    /// Reads whose bytes were cached.
    pub hits: u64,
    /// Reads whose bytes were not cached.
    pub misses: u64,
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes that the device moved for these reads.
    pub device_bytes: u64,
    /// Requests to the device.
    pub device_reads: u64,
    /// Reads of extents that another thread was reading already.
    pub joined: u64,
    /// Reads that were repeated because their bytes changed during the read.
    pub repeated: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Changes of the file by pipes and places of this process.
    pub changes: u64,
    /// Changes of the file from outside this process.
    pub changes_outside: u64,
    /// How often all cached items of a file were dropped because others may have changed it in a
    /// way that cannot be seen (see [`ExternalChanges`](crate::ExternalChanges)).
    pub uncertain: u64,
    /// Reads by path: bytes, sectors, blocks.
    pub by_path: [u64; 3],
    /// The memory budget.
    pub budget: usize,
    /// The part of the budget in use: slabs, tables, buffers, detector, samples.
    pub memory_bytes: usize,
    /// The memory of the index, the ghosts and other tables.
    pub table_bytes: usize,
    /// The number of cached items.
    pub items: usize,
    /// The bytes of the cached items.
    pub item_bytes: usize,
    /// The present threshold, for the policy that has one.
    pub threshold: Option<f64>,
    /// Whether the policy prefers recency to frequency at present.
    pub recency: bool,
    /// The number of slabs that changed their class.
    pub reassigned: u64,
    /// Extents that are being read now.
    pub under_way: usize,
    /// The cost of reading a page, in reads of a sector.
    pub page_cost: f64,
    /// How long reads took from the call to its return, if
    /// [`FineGrained::measure_latencies`](crate::FineGrained::measure_latencies) is on. For a pool,
    /// those of all open files.
    pub latencies: Option<Latencies>,
    /// The size classes that were ever used.
    pub classes: Vec<ClassMetrics>,
}

impl Metrics {
    /// The percentage of reads that were hits.
    pub fn hit_percent(&self) -> f64 {
        if self.reads == 0 { 0.0 } else { self.hits as f64 * 100.0 / self.reads as f64 }
    }

    /// Bytes that the device moved for each byte that was asked for.
    pub fn amplification(&self) -> f64 {
        if self.asked_bytes == 0 { 0.0 } else { self.device_bytes as f64 / self.asked_bytes as f64 }
    }

    /// Bytes of the budget in use for each item.
    pub fn bytes_per_item(&self) -> f64 {
        if self.items == 0 { 0.0 } else { self.memory_bytes as f64 / self.items as f64 }
    }

    /// Returns them as samples.
    pub fn samples(&self) -> Vec<Sample> {
        let reads = |n: u64, outcome| Sample::new(&vocabulary::CACHE_READS, n).label(Label::Outcome, outcome);
        let changes = |n: u64, origin| Sample::new(&vocabulary::CACHE_CHANGES, n).label(Label::Origin, origin);
        let mut samples = vec![
            reads(self.hits, "hit"),
            reads(self.misses, "miss"),
            Sample::new(&vocabulary::CACHE_ASKED, self.asked_bytes),
            Sample::new(&vocabulary::CACHE_DEVICE_BYTES, self.device_bytes),
            Sample::new(&vocabulary::CACHE_DEVICE_READS, self.device_reads),
            Sample::new(&vocabulary::CACHE_JOINED, self.joined),
            Sample::new(&vocabulary::CACHE_REPEATED, self.repeated),
            Sample::new(&vocabulary::CACHE_FAILED, self.failed),
            changes(self.changes, "inside"),
            changes(self.changes_outside, "outside"),
            Sample::new(&vocabulary::CACHE_UNCERTAIN, self.uncertain),
            Sample::new(&vocabulary::CACHE_BUDGET, self.budget),
            Sample::new(&vocabulary::CACHE_MEMORY, self.memory_bytes),
            Sample::new(&vocabulary::CACHE_TABLES, self.table_bytes),
            Sample::new(&vocabulary::CACHE_ITEMS, self.items),
            Sample::new(&vocabulary::CACHE_ITEM_BYTES, self.item_bytes),
            Sample::new(&vocabulary::CACHE_UNDER_WAY, self.under_way),
            Sample::new(&vocabulary::CACHE_REASSIGNED, self.reassigned),
        ];
        for (n, path) in self.by_path.into_iter().zip(["bytes", "sectors", "blocks"]) {
            samples.push(Sample::new(&vocabulary::CACHE_PATHS, n).label(Label::Path, path));
        }
        for (outcome, of) in self.latencies.iter().flat_map(|l| [("hit", &l.hits), ("miss", &l.misses)]) {
            samples.push(Sample::new(&vocabulary::CACHE_READ_TIME, of.clone()).label(Label::Outcome, outcome));
        }
        samples.extend(self.classes.iter().flat_map(ClassMetrics::samples));
        samples
    }

    /// Adds the counters of the store.
    pub(crate) fn of_store(&mut self, state: &StoreState) {
        for (c, of) in state.classes.iter().enumerate() {
            let counts = of.counts;
            self.hits += counts.hits;
            self.misses += counts.misses;
            if of.slabs == 0 && counts.misses == 0 && counts.hits == 0 {
                continue;
            }
            self.classes.push(ClassMetrics {
                capacity: CAPACITIES[c],
                slabs: of.slabs,
                items: of.items,
                hits: counts.hits,
                misses: counts.misses,
                admitted: counts.admitted,
                bypassed: counts.bypassed,
                evicted: counts.evicted,
                invalidated: counts.invalidated,
                moved: counts.moved,
                ghost_hits: counts.ghost_hits,
            });
        }
        self.reads = self.hits + self.misses;
        self.asked_bytes = state.classes.iter().map(|c| c.counts.asked_bytes).sum();
        self.items = state.items;
        self.item_bytes = state.live_bytes;
        self.table_bytes = state.table_bytes;
        self.memory_bytes += state.memory_bytes;
        self.threshold = state.threshold;
        self.reassigned = state.reassigned;
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} reads, {:.1}% hits; {} device reads, {:.2} bytes moved a byte asked",
            self.reads,
            self.hit_percent(),
            self.device_reads,
            self.amplification()
        )?;
        writeln!(
            f,
            "{} items of {} bytes in {} of memory ({:.0} bytes an item); policy {}{}",
            self.items,
            self.item_bytes.checked_div(self.items).unwrap_or(0),
            self.memory_bytes,
            self.bytes_per_item(),
            self.policy,
            if self.recency { ", by recency now" } else { "" }
        )?;
        if let Some(threshold) = self.threshold {
            writeln!(f, "threshold {threshold:.2}")?;
        }
        writeln!(
            f,
            "paths: {} bytes, {} sectors, {} blocks; joined {}, repeated {}, failed {}; changes {}, from outside {}, uncertain {}; slabs reassigned {}",
            self.by_path[0],
            self.by_path[1],
            self.by_path[2],
            self.joined,
            self.repeated,
            self.failed,
            self.changes,
            self.changes_outside,
            self.uncertain,
            self.reassigned
        )?;
        for (what, of) in self.latencies.iter().flat_map(|l| [("hits", &l.hits), ("misses", &l.misses)]) {
            let at = |percent| of.percentile_ns(percent);
            if of.count() == 0 {
                writeln!(f, "{what}: none was timed")?;
                continue;
            }
            writeln!(
                f,
                "{what}: {} timed, p50 {} ns, p99 {} ns, p99.9 {} ns, most {} ns",
                of.count(),
                at(50.0),
                at(99.0),
                at(99.9),
                of.max_ns()
            )?;
        }
        writeln!(
            f,
            "{:>8} {:>7} {:>9} {:>11} {:>11} {:>10} {:>10}",
            "class", "slabs", "items", "hits", "misses", "admitted", "evicted"
        )?;
        for c in &self.classes {
            writeln!(
                f,
                "{:>8} {:>7} {:>9} {:>11} {:>11} {:>10} {:>10}",
                c.capacity, c.slabs, c.items, c.hits, c.misses, c.admitted, c.evicted
            )?;
        }
        write!(f, "a slab is {} KiB", SLAB >> 10)
    }
}

/// The counters outside the store.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) device_bytes: AtomicU64,
    pub(crate) device_reads: AtomicU64,
    pub(crate) joined: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) changes_outside: AtomicU64,
    pub(crate) uncertain: AtomicU64,
    pub(crate) by_path: [AtomicU64; 3],
}

impl Tally {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    fn all(&self) -> [&AtomicU64; 11] {
        let [bytes, sectors, blocks] = &self.by_path;
        let device = [&self.device_bytes, &self.device_reads];
        let reads = [&self.joined, &self.repeated, &self.failed];
        let changes = [&self.changes, &self.changes_outside, &self.uncertain];
        let ([a, b], [c, d, e], [f, g, h]) = (device, reads, changes);
        [a, b, c, d, e, f, g, h, bytes, sectors, blocks]
    }

    /// Adds the counts of another one.
    pub(crate) fn add_all(&self, other: &Tally) {
        for (to, from) in self.all().into_iter().zip(other.all()) {
            Tally::add(to, from.load(Ordering::Relaxed));
        }
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let of = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Metrics {
            device_bytes: of(&self.device_bytes),
            device_reads: of(&self.device_reads),
            joined: of(&self.joined),
            repeated: of(&self.repeated),
            failed: of(&self.failed),
            changes: of(&self.changes),
            changes_outside: of(&self.changes_outside),
            uncertain: of(&self.uncertain),
            by_path: std::array::from_fn(|i| of(&self.by_path[i])),
            ..Metrics::default()
        }
    }
}
