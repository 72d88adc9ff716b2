//! The store: the memory of the cache, divided among shards by page.

pub(crate) mod arena;
pub(crate) mod guarded;
mod hits;
mod optimistic;
pub(crate) mod policy;
pub(crate) mod reassign;
pub(crate) mod shard;
mod sharded;
#[cfg(test)]
mod tests;

use std::ops::Range;

use arena::class::CLASSES;
pub(crate) use arena::header::{PAGE, SECTOR};
use arena::memory::Pinned;
pub(crate) use arena::{class, header, index, memory};
use reassign::Reassignment;
use shard::ClassState;
pub(crate) use shard::Missing;
pub(crate) use sharded::Sharded;

/// The least budget of a cache.
pub(crate) const MIN_BUDGET: usize = 1 << 20;

/// The operations of the store, for any policy. Ranges do not cross a page.
pub(crate) trait Store: Send + Sync {
    /// Copies the bytes, if all are cached.
    fn read(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), Missing>;

    /// Pins the bytes, if one item has them all. If it has them but cannot be pinned, nothing is
    /// missing and they must be copied.
    fn pin(&self, offset: u64, len: usize) -> std::result::Result<Pinned, Option<Missing>>;

    /// As [`read`](Self::read), without waiting: None where another thread has the shard, or the
    /// bytes are not cached.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> Option<()>;

    /// As [`pin`](Self::pin), without waiting.
    fn try_pin(&self, offset: u64, len: usize) -> Option<Pinned>;

    /// Takes bytes that a read beginning at `asked` brought from the device, if the policy wants
    /// them and `valid` is true. `valid` is called under the lock that every invalidation of these
    /// bytes takes.
    fn insert(&self, offset: u64, bytes: &[u8], asked: u64, valid: &dyn Fn() -> bool) -> bool;

    /// Whether one item has all the bytes. This does not count as a read.
    fn holds(&self, offset: u64, len: usize) -> bool;

    /// Prefetches the index's line for an offset.
    fn index_soon(&self, offset: u64);

    /// Prefetches the item that the index has for an offset, once the index line is there.
    fn item_soon(&self, offset: u64);

    /// Prefetches what an insertion for a read at an offset will access.
    fn insert_soon(&self, offset: u64);

    /// Removes all items that hold a byte of the range.
    fn invalidate(&self, range: Range<u64>);

    /// Begins a new period of the time to live, and removes items that are too old.
    fn next_period(&self);

    /// Checks whether slabs should change their class.
    fn rebalance(&self, how: Reassignment);

    /// Sets whether recency serves better than frequency.
    fn prefer_recency(&self, recency: bool);

    /// The number of parts for [`each`](Self::each).
    fn shards(&self) -> usize;

    /// Calls `call` with each item of a part: offset, bytes, and how much it is worth keeping. The
    /// part is locked meanwhile.
    fn each(&self, shard: usize, call: &mut dyn FnMut(u64, &[u8], u8));

    /// Returns the present figures.
    fn state(&self) -> StoreState;

    /// Checks the invariants between operations.
    #[cfg(test)]
    fn check(&self);
}

/// The figures of a store.
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
        a.ghost_hits += b.ghost_hits;
    }
}
