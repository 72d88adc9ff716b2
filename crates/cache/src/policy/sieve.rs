//! SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024): a queue in order of arrival, a
//! mark for items that were read, and a hand that goes from old to new and evicts the first item
//! without a mark.

use super::lru::List;
use crate::store::arena::Arena;
use crate::store::class::CLASSES;
use crate::store::memory::{NONE, Slots};
use crate::store::policy::{Admission, Policy};
use crate::sync::Arc;

#[derive(Clone, Copy)]
struct ByClass {
    list: List,
    hand: u32,
}

/// The state of the policy for a shard.
pub(crate) struct Sieve {
    classes: [ByClass; CLASSES],
    evicted: [u64; CLASSES],
}

impl Sieve {
    fn leave(of: &mut ByClass, slots: &mut Slots, slot: u32) {
        if of.hand == slot {
            of.hand = of.list.newer(slots, slot).unwrap_or(NONE);
        }
        of.list.remove(slots, slot);
    }
}

impl Policy for Sieve {
    const EXTRA: usize = 8;

    fn new(_share: usize, _arena: &Arc<Arena>) -> Sieve {
        let class = ByClass { list: List::default(), hand: NONE };
        Sieve { classes: [class; CLASSES], evicted: [0; CLASSES] }
    }

    fn saturation(&self) -> Option<u8> {
        Some(1)
    }

    #[inline]
    fn touched(&mut self, slots: &mut Slots, _class: u8, slot: u32, _key: u64) {
        let header = slots.header(slot);
        if header.freq() == 0 {
            slots.set_header(slot, header.with_freq(1));
        }
    }

    fn admission(&mut self, _class: u8, _key: u64) -> Admission {
        Admission::Main
    }

    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        self.classes[usize::from(class)].list.push(slots, slot);
    }

    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        Sieve::leave(&mut self.classes[usize::from(class)], slots, slot);
    }

    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32) {
        let of = &mut self.classes[usize::from(class)];
        of.list.moved(slots, from, to);
        if of.hand == from {
            of.hand = to;
        }
    }

    fn victim(&mut self, slots: &mut Slots, class: u8, _slabs: &[u32], _key: u64) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        for _ in 0..2 * of.list.len() + 1 {
            let at = if of.hand == NONE { of.list.oldest()? } else { of.hand };
            of.hand = of.list.newer(slots, at).unwrap_or(NONE);
            let header = slots.header(at);
            if header.freq() > 0 {
                slots.set_header(at, header.with_freq(0));
            } else if !slots.is_pinned(Slots::slab_of(at)) {
                Sieve::leave(of, slots, at);
                self.evicted[usize::from(class)] += 1;
                return Some(at);
            }
        }
        None
    }

    fn take_ghost_hits(&mut self, class: u8) -> u64 {
        // It remembers no evicted keys, so it reports its evictions.
        std::mem::take(&mut self.evicted[usize::from(class)])
    }

    fn allocated_bytes(&self) -> usize {
        0
    }
}
