//! The cache itself: memory divided among shards by page.

pub(crate) mod class;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod memory;
pub(crate) mod shard;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use datapipes_core::{Error, ErrorKind, Result};

use crate::policy::Policy;
use crate::reassign::Reassignment;
use crate::sync::{Mutex, lock};
use class::{CLASSES, SLAB};
use header::Header;
use index::mix;
use memory::{Memory, Pinned};
pub(crate) use shard::{ClassState, Missing, PAGE, SECTOR, Shard};

/// The memory of a shard, where there is enough: with less, classes fight for slabs, and what rounding costs is felt.
const SHARD_BYTES: usize = 8 << 20;
/// More shards than this serve no purpose on machines we know.
const MOST_SHARDS: usize = 256;
/// The least budget of a cache.
pub(crate) const LEAST_BUDGET: usize = 1 << 20;

/// What the front of the cache asks of its store, whatever the policy. Ranges do not cross a page.
pub(crate) trait Store: Send + Sync {
    /// Copies the bytes, if all are there.
    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing>;

    /// Keeps the bytes readable, if one item has them all.
    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Missing>;

    /// Takes bytes that were read from the device, by a read that began at `asked`, if `valid` (asked under the lock that
    /// every invalidation of these bytes takes) and if the policy wants them.
    fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool;

    /// Whether one item has all the bytes. It counts as no read.
    fn holds(&self, offset: u64, len: usize) -> bool;

    /// Brings the index's line for an offset nearer.
    fn prefetch(&self, offset: u64);

    /// Removes everything that holds a byte of the range.
    fn invalidate(&self, range: Range<u64>);

    /// Begins a new period of the time to live, and removes what is older than that.
    fn next_period(&self);

    /// Looks whether slabs should change their class.
    fn rebalance(&self, how: Reassignment);

    /// Whether recency serves better than frequency.
    fn prefer_recency(&self, recency: bool);

    /// How many parts [`each`](Self::each) goes through.
    fn shards(&self) -> usize;

    /// Calls with each item of a part: offset, bytes, and how much it is worth keeping. The part is locked meanwhile.
    fn each(&self, shard: usize, call: &mut dyn FnMut(u64, &[u8], u8));

    /// How it stands.
    fn state(&self) -> StoreState;

    /// Checks what must hold between operations.
    #[cfg(test)]
    fn check(&self);
}

/// A store's figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreState {
    pub(crate) classes: [ClassState; CLASSES],
    pub(crate) items: usize,
    pub(crate) live_bytes: usize,
    pub(crate) table_bytes: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) threshold: Option<f64>,
    pub(crate) reassigned: u64,
}

/// A line of its own for each lock.
#[repr(align(128))]
struct Apart<T> {
    it: T,
    /// Where the index lies, as it was last seen: only to bring lines nearer.
    index_at: AtomicUsize,
    buckets: AtomicUsize,
}

impl<P: Policy> Apart<Mutex<Shard<P>>> {
    fn note_index(&self, shard: &Shard<P>) {
        let (at, buckets) = shard.index_place();
        self.index_at.store(at, Ordering::Relaxed);
        self.buckets.store(buckets, Ordering::Relaxed);
    }
}

/// Shards with one policy.
pub(crate) struct Sharded<P> {
    shards: Box<[Apart<Mutex<Shard<P>>>]>,
    memory_bytes: usize,
    /// Present period; items know theirs only where there is a time to live.
    period: AtomicU8,
    lives: bool,
    reassigned: AtomicU64,
}

impl<P: Policy> Sharded<P> {
    /// Over `budget` bytes.
    pub(crate) fn new(budget: usize, prefault: bool, lives: bool) -> Result<Sharded<P>> {
        if budget < LEAST_BUDGET {
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("a budget of {budget} bytes"))
                .advice("give at least 1 MiB"));
        }
        let count = (budget / SHARD_BYTES).clamp(1, MOST_SHARDS);
        let count = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
        let share = budget / count / 4096 * 4096;
        debug_assert!(share >= 4 * SLAB);
        let memory = Memory::map(share * count, prefault)?;
        let shards = (0..count)
            .map(|i| {
                let it = Mutex::new(Shard::new(&memory, i * share, share)?);
                Ok(Apart { it, index_at: AtomicUsize::new(0), buckets: AtomicUsize::new(0) })
            })
            .collect::<Result<Box<[_]>>>()?;
        let period = AtomicU8::new(0);
        Ok(Sharded { shards, memory_bytes: share * count, period, lives, reassigned: AtomicU64::new(0) })
    }

    #[inline]
    fn apart(&self, offset: u64) -> &Apart<Mutex<Shard<P>>> {
        // Other bits than those by which the index places a sector.
        let at = mix((offset / PAGE) ^ 0xa5a5_5a5a_0f0f_f0f0) as usize & (self.shards.len() - 1);
        &self.shards[at]
    }

    #[inline]
    fn of(&self, offset: u64) -> &Mutex<Shard<P>> {
        &self.apart(offset).it
    }

    #[inline]
    fn period(&self) -> Option<u8> {
        self.lives.then(|| self.period.load(Ordering::Relaxed))
    }
}

impl<P: Policy> Store for Sharded<P> {
    #[inline]
    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing> {
        lock(self.of(offset)).read(offset, out, self.period())
    }

    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Missing> {
        lock(self.of(offset)).pin(offset, len, self.period())
    }

    fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool {
        let apart = self.apart(offset);
        let mut shard = lock(&apart.it);
        let kept = valid() && shard.insert(offset, bytes, self.period().unwrap_or(0), asked);
        apart.note_index(&shard);
        kept
    }

    fn holds(&self, offset: u64, len: usize) -> bool {
        lock(self.of(offset)).holds(offset, len)
    }

    fn prefetch(&self, offset: u64) {
        let apart = self.apart(offset);
        let place = (apart.index_at.load(Ordering::Relaxed), apart.buckets.load(Ordering::Relaxed));
        index::prefetch_bucket(place, Shard::<P>::hash(offset));
    }

    fn invalidate(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let items: usize = self.shards.iter().map(|s| lock(&s.it).items()).sum();
        if (pages.end - pages.start) * 8 > items as u64 {
            // Cheaper to look at all that is there than for all that may be.
            let goes = |h: Header| h.overlaps(range.start, range.end);
            self.shards.iter().for_each(|s| lock(&s.it).sweep(goes));
            return;
        }
        for page in pages {
            let (from, to) = ((page * PAGE).max(range.start), ((page + 1) * PAGE).min(range.end));
            lock(self.of(from)).invalidate(from, to);
        }
    }

    fn next_period(&self) {
        let now = self.period.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.shards.iter().for_each(|s| lock(&s.it).expire(now));
    }

    fn rebalance(&self, how: Reassignment) {
        for shard in &self.shards {
            let moved = how.apply(&mut lock(&shard.it));
            self.reassigned.fetch_add(moved, Ordering::Relaxed);
        }
    }

    fn prefer_recency(&self, recency: bool) {
        self.shards.iter().for_each(|s| lock(&s.it).prefer_recency(recency));
    }

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn each(&self, shard: usize, call: &mut dyn FnMut(u64, &[u8], u8)) {
        if let Some(shard) = self.shards.get(shard) {
            lock(&shard.it).each(call);
        }
    }

    fn state(&self) -> StoreState {
        let mut state = StoreState { memory_bytes: self.memory_bytes, ..StoreState::default() };
        let (mut thresholds, mut having) = (0.0, 0);
        for shard in &self.shards {
            let shard = lock(&shard.it);
            state.items += shard.items();
            state.live_bytes += shard.live_bytes();
            state.table_bytes += shard.table_bytes();
            if let Some(threshold) = shard.threshold() {
                thresholds += threshold;
                having += 1;
            }
            for (sum, of) in state.classes.iter_mut().zip(shard.classes()) {
                sum.add(&of);
            }
        }
        state.threshold = (having > 0).then(|| thresholds / f64::from(having));
        state.reassigned = self.reassigned.load(Ordering::Relaxed);
        state
    }

    #[cfg(test)]
    fn check(&self) {
        self.shards.iter().for_each(|s| lock(&s.it).check());
    }
}

impl ClassState {
    fn add(&mut self, other: &ClassState) {
        self.slabs += other.slabs;
        self.items += other.items;
        let (a, b) = (&mut self.counts, &other.counts);
        a.hits += b.hits;
        a.misses += b.misses;
        a.asked_bytes += b.asked_bytes;
        a.admitted += b.admitted;
        a.bypassed += b.bypassed;
        a.evicted += b.evicted;
        a.invalidated += b.invalidated;
        a.moved += b.moved;
        a.regrets += b.regrets;
    }
}
