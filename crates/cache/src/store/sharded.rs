//! The store over shards with one policy: memory divided among them by page.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use datapipes_core::{Error, ErrorKind, Result};

use super::arena::{Arena, Memory};
use super::class::{CLASSES, SLAB};
use super::guarded::Guarded;
use super::header::{Header, PAGE};
use super::hits::Hits;
use super::index::mix;
use super::memory::Pinned;
use super::optimistic::{self, Found};
use super::policy::{GhostLines, Policy};
use super::reassign::{Reassignment, Rebalanced};
use super::shard::{self, Missing, Shard};
use super::{MIN_BUDGET, Store, StoreState};

/// The memory of a shard, where there is enough. With less, classes compete for slabs, and rounding
/// losses matter.
const SHARD_BYTES: usize = 8 << 20;
/// More shards than this bring no benefit on machines we know.
const MAX_SHARDS: usize = 256;
/// A shard, on its own cache lines.
#[repr(align(128))]
struct PaddedShard<P> {
    shard: Guarded<Shard<P>>,
    /// The memory that optimistic reads access.
    arena: Arc<Arena>,
    /// The saturation of an item's read count: further reads change nothing. With [`EVERY`] every
    /// read changes something.
    saturation: AtomicU8,
    /// The lines in which its policy remembers evicted keys.
    ghost_lines: Option<GhostLines>,
}

/// The value for a policy where every read changes something.
const EVERY: u8 = u8::MAX;

impl<P: Policy> PaddedShard<P> {
    fn new(shard: Shard<P>) -> PaddedShard<P> {
        let (arena, saturation) = (shard.arena().clone(), AtomicU8::new(shard.saturation().unwrap_or(EVERY)));
        let ghost_lines = shard.ghost_lines();
        PaddedShard { shard: Guarded::new(shard), arena, saturation, ghost_lines }
    }

    /// Copies the bytes without the lock, where the policy need not see every read. None where only
    /// a search under the lock can tell.
    #[inline]
    fn read_optimistically(
        &self,
        offset: u64,
        out: &mut [u8],
        period: Option<u8>,
    ) -> Option<std::result::Result<(), Missing>> {
        let saturation = self.saturation.load(Ordering::Relaxed);
        if saturation == EVERY || out.len() > optimistic::MAX_OPTIMISTIC_BYTES {
            return None;
        }
        let version = self.shard.version()?;
        let seen = match optimistic::read(&self.arena, offset, out) {
            Found::All(seen) if !shard::is_old(seen.header, period) => Ok(seen),
            Found::Nothing(neighbours) => Err(Missing { neighbours }),
            _ => return None,
        };
        if !self.shard.unchanged(version) {
            return None;
        }
        let seen = match seen {
            Ok(seen) => seen,
            Err(missing) => return Some(Err(missing)),
        };
        // A busy shard is skipped: a count that is lost now and then does little harm.
        if seen.header.freq() < saturation
            && let Some(mut shard) = self.shard.mark(version)
        {
            shard.touched(seen.slot);
        }
        Some(Ok(()))
    }
}

/// The shards of one policy.
pub(crate) struct Sharded<P> {
    shards: Box<[PaddedShard<P>]>,
    /// The counters of reads without the lock.
    hits: Hits,
    /// Their hits and misses when slabs were last divided, by class.
    seen: [[AtomicU64; 2]; CLASSES],
    memory_bytes: usize,
    /// The present period. Items store theirs only if there is a time to live.
    period: AtomicU8,
    lives: bool,
    reassigned: AtomicU64,
}

impl<P: Policy> Sharded<P> {
    /// Makes a store with `budget` bytes.
    pub(crate) fn new(budget: usize, prefault: bool, lives: bool) -> Result<Sharded<P>> {
        if budget < MIN_BUDGET {
            return Err(Error::new(ErrorKind::InvalidInput, "make a cache", format!("a budget of {budget} bytes"))
                .with_advice("give at least 1 MiB"));
        }
        let count = (budget / SHARD_BYTES).clamp(1, MAX_SHARDS);
        let count = if count.is_power_of_two() { count } else { count.next_power_of_two() / 2 };
        let share = (budget - Hits::BYTES) / count / 4096 * 4096;
        debug_assert!(share >= 4 * SLAB);
        let memory = Memory::map(share * count, prefault)?;
        let shards = (0..count)
            .map(|i| Shard::new(&memory, i * share, share).map(PaddedShard::new))
            .collect::<Result<Box<[_]>>>()?;
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
    fn of(&self, offset: u64) -> &PaddedShard<P> {
        // These are other bits than those that the index uses for a sector.
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
        let (padded, period) = (self.of(offset), self.period());
        if let Some(read) = padded.read_optimistically(offset, out, period) {
            self.hits.add(out.len(), read.is_ok());
            return read;
        }
        padded.shard.change().read(offset, out, period)
    }

    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>> {
        self.of(offset).shard.change().pin(offset, len, self.period())
    }

    fn try_read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let (padded, period) = (self.of(offset), self.period());
        if let Some(read) = padded.read_optimistically(offset, out, period) {
            self.hits.add(out.len(), read.is_ok());
            return read.ok();
        }
        padded.shard.try_change()?.read(offset, out, period).ok()
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
        optimistic::index_soon(&self.of(offset).arena, offset);
    }

    fn item_soon(&self, offset: u64) {
        optimistic::item_soon(&self.of(offset).arena, offset);
    }

    fn insert_soon(&self, offset: u64) {
        let padded = self.of(offset);
        optimistic::entry_soon(&padded.arena, offset);
        if let Some(lines) = padded.ghost_lines {
            lines.prefetch(offset);
        }
    }

    fn invalidate(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let items: usize = self.shards.iter().map(|s| s.shard.look().items()).sum();
        if (pages.end - pages.start) * 8 > items as u64 {
            // It is cheaper to look at all items than at all pages of the range.
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
        // Reads without the lock are counted for all shards together, so each shard gets an equal
        // part.
        let (sums, count) = (self.hits.sums(), self.shards.len() as u64);
        let since = |now: u64, seen: &AtomicU64| now.wrapping_sub(seen.swap(now, Ordering::Relaxed)) / count;
        let unlocked = std::array::from_fn(|c| std::array::from_fn(|i| since(sums[c][i], &self.seen[c][i])));
        let (mut all, mut items) = (0, 0);
        for padded in &self.shards {
            let Rebalanced { moved, evicted } = padded.shard.change().rebalance(how, &unlocked);
            self.reassigned.fetch_add(moved, Ordering::Relaxed);
            all += moved;
            items += evicted;
        }
        // No shard is locked here.
        if items > 0 {
            datapipes_metrics::event!(Debug, "evictions", [items = items]);
        }
        if all > 0 {
            datapipes_metrics::event!(Debug, "slabs_reassigned", [slabs = all]);
        }
    }

    fn prefer_recency(&self, recency: bool) {
        for padded in &self.shards {
            let mut shard = padded.shard.change();
            shard.prefer_recency(recency);
            padded.saturation.store(shard.saturation().unwrap_or(EVERY), Ordering::Relaxed);
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
        for padded in &self.shards {
            let shard = padded.shard.look();
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
        for (sum, [hits, misses, bytes]) in state.classes.iter_mut().zip(self.hits.sums()) {
            sum.counts.hits += hits;
            sum.counts.misses += misses;
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
