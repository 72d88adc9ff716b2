//! The cache itself: memory divided among shards by page.

pub(crate) mod class;
mod glance;
pub(crate) mod ground;
pub(crate) mod guarded;
pub(crate) mod header;
mod hits;
pub(crate) mod index;
pub(crate) mod memory;
pub(crate) mod shard;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use datapipes_core::{Error, ErrorKind, Result};

use crate::policy::Policy;
use crate::reassign::Reassignment;
use class::{CLASSES, SLAB};
use ground::{Ground, Memory};
use guarded::Guarded;
use header::Header;
use hits::Hits;
use index::mix;
use memory::Pinned;
pub(crate) use shard::{ClassState, Missing, PAGE, SECTOR, Shard};

/// The memory of a shard, where there is enough: with less, classes fight for slabs, and what
/// rounding costs is felt.
const SHARD_BYTES: usize = 8 << 20;
/// More shards than this serve no purpose on machines we know.
const MAX_SHARDS: usize = 256;
/// The least budget of a cache.
pub(crate) const MIN_BUDGET: usize = 1 << 20;

/// What the front of the cache asks of its store, whatever the policy. Ranges do not cross a page.
pub(crate) trait Store: Send + Sync {
    /// Copies the bytes, if all are there.
    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing>;

    /// Keeps the bytes readable, if one item has them all. Nothing is missing where it has, and
    /// cannot be kept so: then they are to be copied.
    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>>;

    /// The same without waiting for anybody: None where another thread has the shard, or the bytes
    /// are not there.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> Option<()>;

    /// The same for [`pin`](Self::pin).
    fn try_pin(&self, offset: u64, len: usize) -> Option<Pinned>;

    /// Takes bytes that were read from the device, by a read that began at `asked`, if `valid`
    /// (asked under the lock that every invalidation of these bytes takes) and if the policy wants
    /// them.
    fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool;

    /// Whether one item has all the bytes. It counts as no read.
    fn holds(&self, offset: u64, len: usize) -> bool;

    /// Brings the index's line for an offset nearer.
    fn index_soon(&self, offset: u64);

    /// Brings nearer what the index has for an offset, once that has come.
    fn item_soon(&self, offset: u64);

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

    /// Calls with each item of a part: offset, bytes, and how much it is worth keeping. The part is
    /// locked meanwhile.
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

/// A shard, on lines of its own.
#[repr(align(128))]
struct Apart<P> {
    shard: Guarded<Shard<P>>,
    /// What is read of it without the lock.
    ground: Arc<Ground>,
    /// How often an item must have been read that a further read changes nothing; [`EVERY`]: every
    /// read does.
    enough: AtomicU8,
}

/// Every read of an item changes something.
const EVERY: u8 = u8::MAX;

impl<P: Policy> Apart<P> {
    fn new(shard: Shard<P>) -> Apart<P> {
        let (ground, enough) = (shard.ground().clone(), AtomicU8::new(shard.enough().unwrap_or(EVERY)));
        Apart { shard: Guarded::new(shard), ground, enough }
    }

    /// Copies the bytes without the lock, where the policy need not hear of every read.
    #[inline]
    fn glance(&self, offset: u64, out: &mut [u8], period: Option<u8>) -> bool {
        let enough = self.enough.load(Ordering::Relaxed);
        if enough == EVERY || out.len() > glance::MAX_OPTIMISTIC_BYTES {
            return false;
        }
        let Some(version) = self.shard.version() else { return false };
        let Some(seen) = glance::read(&self.ground, offset, out) else { return false };
        if shard::is_old(seen.header, period) || !self.shard.unchanged(version) {
            return false;
        }
        // Whoever finds the shard in use leaves: a count that is lost now and then changes little.
        if seen.header.freq() < enough
            && let Some(mut shard) = self.shard.mark(version)
        {
            shard.touched(seen.slot);
        }
        true
    }
}

/// Shards with one policy.
pub(crate) struct Sharded<P> {
    shards: Box<[Apart<P>]>,
    /// Those without the lock.
    hits: Hits,
    /// Hits of them that were reckoned with when slabs were last divided, by class.
    seen: [AtomicU64; CLASSES],
    memory_bytes: usize,
    /// Present period; items know theirs only where there is a time to live.
    period: AtomicU8,
    lives: bool,
    reassigned: AtomicU64,
}

impl<P: Policy> Sharded<P> {
    /// Over `budget` bytes.
    pub(crate) fn new(budget: usize, prefault: bool, lives: bool) -> Result<Sharded<P>> {
        if budget < MIN_BUDGET {
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("a budget of {budget} bytes"))
                .advice("give at least 1 MiB"));
        }
        let count = (budget / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let count = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
        let share = (budget - Hits::BYTES) / count / 4096 * 4096;
        debug_assert!(share >= 4 * SLAB);
        let memory = Memory::map(share * count, prefault)?;
        let shards =
            (0..count).map(|i| Shard::new(&memory, i * share, share).map(Apart::new)).collect::<Result<Box<[_]>>>()?;
        Ok(Sharded {
            shards,
            hits: Hits::default(),
            seen: Default::default(),
            memory_bytes: share * count + Hits::BYTES,
            period: AtomicU8::new(0),
            lives,
            reassigned: AtomicU64::new(0),
        })
    }

    #[inline]
    fn of(&self, offset: u64) -> &Apart<P> {
        // Other bits than those by which the index places a sector.
        let at = mix((offset / PAGE) ^ 0xa5a5_5a5a_0f0f_f0f0) as usize & (self.shards.len() - 1);
        &self.shards[at]
    }

    #[inline]
    fn period(&self) -> Option<u8> {
        self.lives.then(|| self.period.load(Ordering::Relaxed))
    }
}

impl<P: Policy> Store for Sharded<P> {
    #[inline]
    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing> {
        let (apart, period) = (self.of(offset), self.period());
        if apart.glance(offset, out, period) {
            self.hits.add(out.len());
            return Ok(());
        }
        apart.shard.change().read(offset, out, period)
    }

    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>> {
        self.of(offset).shard.change().pin(offset, len, self.period())
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let (apart, period) = (self.of(offset), self.period());
        if apart.glance(offset, out, period) {
            self.hits.add(out.len());
            return Some(());
        }
        apart.shard.try_change()?.read(offset, out, period).ok()
    }

    fn try_pin(&self, offset: u64, len: usize) -> Option<Pinned> {
        self.of(offset).shard.try_change()?.pin(offset, len, self.period()).ok()
    }

    fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool {
        let mut shard = self.of(offset).shard.change();
        valid() && shard.insert(offset, bytes, self.period().unwrap_or(0), asked)
    }

    fn holds(&self, offset: u64, len: usize) -> bool {
        self.of(offset).shard.look().holds(offset, len)
    }

    fn index_soon(&self, offset: u64) {
        glance::index_soon(&self.of(offset).ground, offset);
    }

    fn item_soon(&self, offset: u64) {
        glance::item_soon(&self.of(offset).ground, offset);
    }

    fn invalidate(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let items: usize = self.shards.iter().map(|s| s.shard.look().items()).sum();
        if (pages.end - pages.start) * 8 > items as u64 {
            // Cheaper to look at all that is there than for all that may be.
            let goes = |h: Header| h.overlaps(range.start, range.end);
            self.shards.iter().for_each(|s| s.shard.change().sweep(goes));
            return;
        }
        for page in pages {
            let (from, to) = ((page * PAGE).max(range.start), ((page + 1) * PAGE).min(range.end));
            self.of(from).shard.change().invalidate(from, to);
        }
    }

    fn next_period(&self) {
        let now = self.period.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.shards.iter().for_each(|s| s.shard.change().expire(now));
    }

    fn rebalance(&self, how: Reassignment) {
        // Without the lock hits are counted for all shards together: each has its share.
        let (sums, count) = (self.hits.sums(), self.shards.len() as u64);
        let hits =
            std::array::from_fn(|c| sums[c][0].wrapping_sub(self.seen[c].swap(sums[c][0], Ordering::Relaxed)) / count);
        for apart in &self.shards {
            let moved = how.apply(&mut apart.shard.change(), &hits);
            self.reassigned.fetch_add(moved, Ordering::Relaxed);
        }
    }

    fn prefer_recency(&self, recency: bool) {
        for apart in &self.shards {
            let mut shard = apart.shard.change();
            shard.prefer_recency(recency);
            apart.enough.store(shard.enough().unwrap_or(EVERY), Ordering::Relaxed);
        }
    }

    fn shards(&self) -> usize {
        self.shards.len()
    }

    fn each(&self, shard: usize, call: &mut dyn FnMut(u64, &[u8], u8)) {
        if let Some(shard) = self.shards.get(shard) {
            shard.shard.look().each(call);
        }
    }

    fn state(&self) -> StoreState {
        let mut state = StoreState { memory_bytes: self.memory_bytes, ..StoreState::default() };
        let (mut thresholds, mut having) = (0.0, 0);
        for apart in &self.shards {
            let shard = apart.shard.look();
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
        for (sum, [hits, bytes]) in state.classes.iter_mut().zip(self.hits.sums()) {
            sum.counts.hits += hits;
            sum.counts.asked_bytes += bytes;
        }
        state.threshold = (having > 0).then(|| thresholds / f64::from(having));
        state.reassigned = self.reassigned.load(Ordering::Relaxed);
        state
    }

    #[cfg(test)]
    fn check(&self) {
        self.shards.iter().for_each(|s| s.shard.change().check());
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
