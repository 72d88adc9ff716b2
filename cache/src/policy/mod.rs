//! Who is admitted, and who has to go: each policy in a file of its own, with its source.
//!
//! A policy works on one shard, under its lock. It keeps its order in the slots' headers, in links
//! beside them where it asks for that, and in what it allocates itself; the shard moves bytes and
//! keeps the index.

mod clock;
mod ghosts;
mod lru;
mod pipette;
mod s3fifo;
mod sieve;
mod sketch;
mod tinylfu;

pub(crate) use pipette::Pipette;
pub(crate) use s3fifo::S3Fifo;
pub(crate) use sieve::Sieve;
pub(crate) use tinylfu::TinyLfu;

use crate::store::ground::Ground;
use crate::store::memory::Slots;
use crate::sync::Arc;

/// What becomes of bytes that were read from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// They take the place of others.
    Main,
    /// They are kept for a while, to see whether they are read again.
    Probation,
}

/// What a shard asks its policy.
pub(crate) trait Policy: Send + Sized {
    /// Bytes beside each item for links: 0 or 8.
    const EXTRA: usize;

    /// For a shard of `share` bytes, of which it may take tables for what must be remembered of
    /// items that are not there any more.
    fn new(share: usize, ground: &Arc<Ground>) -> Self;

    /// From this count of an item's reads (in its header) on a further one changes nothing, and
    /// need not be told. None: every read is to be told.
    fn enough(&self) -> Option<u8>;

    /// An item was read.
    fn touched(&mut self, slots: &mut Slots, class: u8, slot: u32, key: u64);

    /// Bytes were asked for that were not there: what to do once they are. Asked once a miss.
    fn admission(&mut self, class: u8, key: u64) -> Admission;

    /// A slot holds a new item, of the state that was answered.
    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32);

    /// The item goes for another reason than its policy's (a write, a truncation, time).
    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32);

    /// The item, with its header, lies in another slot now; the old one still has its header.
    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32);

    /// Chooses an item of the class that goes for the sake of a new one with `key`, and forgets it.
    /// None where every one is in use.
    fn victim(&mut self, slots: &mut Slots, class: u8, slabs: &[u32], key: u64) -> Option<u32>;

    /// Slots that will probably go soon, the next one and one some way behind it: what lies there
    /// is brought nearer.
    fn next_victims(&self, _class: u8) -> [Option<u32>; 2] {
        [None; 2]
    }

    /// Misses of this class since the last call, of which the policy remembers that they were
    /// evicted not long ago: what more memory would have made hits.
    fn regrets(&mut self, class: u8) -> u64;

    /// Whether recency serves better than frequency at present (of policies that know both).
    fn prefer_recency(&mut self, _recency: bool) {}

    /// Its threshold, where it has one.
    fn threshold(&self) -> Option<f64> {
        None
    }

    /// Bytes that it allocated itself.
    fn allocated_bytes(&self) -> usize;
}
