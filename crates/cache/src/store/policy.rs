//! The decisions that a shard asks of its policy: which items to admit and to evict. The policies
//! are in the folder `policy`.

use super::arena::{Arena, prefetch};
use super::index::mix;
use super::memory::Slots;
use crate::sync::Arc;

/// The address of a policy's lines of evicted keys, for prefetching without the shard's lock. The
/// lines never move while the policy lives.
#[derive(Clone, Copy)]
pub(crate) struct GhostLines {
    start: usize,
    count: usize,
    line_bytes: usize,
}

impl GhostLines {
    pub(crate) fn new(start: usize, count: usize, line_bytes: usize) -> GhostLines {
        GhostLines { start, count, line_bytes }
    }

    /// Prefetches the line of a key.
    #[inline]
    pub(crate) fn prefetch(self, key: u64) {
        let (line, _) = ghost_line_of(key, self.count);
        prefetch(std::ptr::without_provenance::<u8>(self.start + line * self.line_bytes));
    }
}

/// The number of a key's line among `lines`, and the hash of the key.
pub(crate) fn ghost_line_of(key: u64, lines: usize) -> (usize, u64) {
    let h = mix(key ^ 0x9e37_79b9_7f4a_7c15);
    ((((h >> 32) * lines as u64) >> 32) as usize, h)
}

/// Where bytes that were read from the device are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// In the main part, in the place of other items.
    Main,
    /// In probation, to see whether they are read again.
    Probation,
}

/// The slots that will probably be evicted soon.
#[derive(Clone, Copy, Default)]
pub(crate) struct NextVictims {
    /// The next one of each queue. Its header is in the cache already.
    pub(crate) next: [Option<u32>; 2],
    /// Slots of which nothing was prefetched yet.
    pub(crate) later: [Option<u32>; 2],
}

/// The decisions that a shard asks of its policy.
pub(crate) trait Policy: Send + Sized {
    /// Bytes of links for each item: 0 or 8.
    const EXTRA: usize;

    /// Makes a policy for a shard of `share` bytes. It may take tables from there for evicted
    /// items.
    fn new(share: usize, arena: &Arc<Arena>) -> Self;

    /// The saturation of an item's read count (in its header): further reads change nothing and
    /// need not be reported. None: every read must be reported.
    fn saturation(&self) -> Option<u8>;

    /// Notes that an item was read.
    fn touched(&mut self, slots: &mut Slots, class: u8, slot: u32, key: u64);

    /// Decides where missing bytes are placed once they are read. It is called once a miss.
    fn admission(&mut self, class: u8, key: u64) -> Admission;

    /// Notes that a slot holds a new item, with the state that was decided.
    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32);

    /// Notes that an item is removed for a reason other than eviction (a write, a truncation,
    /// time).
    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32);

    /// Notes that the item and its header were copied to another slot. The old slot still has its
    /// header.
    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32);

    /// Chooses an item of the class to evict for a new one with `key`, and forgets it. Returns None
    /// if all are pinned.
    fn victim(&mut self, slots: &mut Slots, class: u8, slabs: &[u32], key: u64) -> Option<u32>;

    /// The slots that will probably be evicted soon. They are prefetched.
    fn next_victims(&self, _slots: &Slots, _class: u8, _slabs: &[u32]) -> NextVictims {
        NextVictims::default()
    }

    /// The lines in which it looks up and notes evicted keys, for prefetching.
    fn ghost_lines(&self) -> Option<GhostLines> {
        None
    }

    /// Ghost hits of this class since the last call: misses that the policy remembers as evicted
    /// recently, which more memory would have made hits.
    fn take_ghost_hits(&mut self, class: u8) -> u64;

    /// Sets whether recency serves better than frequency at present (for policies that have both).
    fn prefer_recency(&mut self, _recency: bool) {}

    /// The threshold, for policies that have one.
    fn threshold(&self) -> Option<f64> {
        None
    }

    /// The bytes that the policy allocated itself.
    fn allocated_bytes(&self) -> usize;
}
