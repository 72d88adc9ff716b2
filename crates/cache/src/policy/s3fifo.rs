//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), on slots
//! instead of queues.
//!
//! ```text
//! miss: remembered as evicted?  -> main; otherwise -> probation (a FIFO, a tenth of the class)
//! leaving probation: read twice since?  -> main; otherwise evicted and remembered
//! main: a clock hand decrements counts; an item with count 0 is evicted and remembered
//! ```
//! There are three differences from the paper. First, main is a clock over slots in memory order,
//! not a queue, so that an item needs no links and no copy. A promoted item may lie just before the
//! hand, so it starts with a count of one. Second, items evicted from main are remembered, too, and
//! all ghosts are in a filter (`ghosts.rs`): where most items are read less than once during their
//! stay, forgotten ghosts cost hits (zipf 0.8 over nine times the memory: within half a point of
//! the best possible for a policy that learns from the reads, `tests/ratios.rs`). Third,
//! `prefer_recency` makes it a clock without probation, for loads whose hot set drifts. The caller
//! decides that by samples (`shadow.rs`).

use std::collections::VecDeque;

use super::clock::{Hand, Judgement};
use super::ghosts::Ghosts;
use crate::store::arena::Arena;
use crate::store::class::CLASSES;
use crate::store::header::{MAX_FREQ, State};
use crate::store::memory::Slots;
use crate::store::policy::{Admission, GhostLines, NextVictims, Policy};
use crate::sync::Arc;

/// Probation is one part in this many of a class.
const PROBATION_PART: usize = 10;
/// The number of reads in probation that promote an item. With one, zipf 0.8 has 0.2 points more,
/// but a scan that reads everything twice within a short time fills main, which costs three points.
const PROMOTED_AT: u8 = 2;

/// The least number of items in probation.
const MIN_PROBATION: usize = 64;

#[derive(Default)]
struct ByClass {
    /// Slots in probation in order of arrival. Some may have left.
    ring: VecDeque<u32>,
    /// The number of items in probation.
    probation: usize,
    main: usize,
    hand: Hand,
    ghost_hits: u64,
}

/// The state of the policy for a shard.
pub(crate) struct S3Fifo {
    classes: [ByClass; CLASSES],
    ghosts: Ghosts,
    /// The number of items of all classes.
    items: usize,
    recency: bool,
}

impl S3Fifo {
    /// The next item that leaves probation without two reads. Items with two reads go to main.
    fn next_of_probation(&mut self, slots: &mut Slots, class: u8) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        for _ in 0..of.ring.len() {
            let slot = of.ring.pop_front()?;
            // The item left meanwhile, and its slot may have been used again.
            if slots.class_of_slab(Slots::slab_of(slot)) != Some(class) {
                continue;
            }
            let header = slots.header(slot);
            if header.state() != State::Probation {
                continue;
            }
            if header.freq() >= PROMOTED_AT {
                slots.set_header(slot, header.with_state(State::Main).with_freq(1));
                of.probation -= 1;
                of.main += 1;
            } else if slots.is_pinned(Slots::slab_of(slot)) {
                of.ring.push_back(slot);
            } else {
                of.probation -= 1;
                self.evicted(header.offset());
                return Some(slot);
            }
        }
        None
    }

    /// Ends probation of the oldest items while nothing is evicted: its queue would hold
    /// everything.
    fn first_to_main(&mut self, slots: &mut Slots, class: u8) {
        let of = &mut self.classes[usize::from(class)];
        while let Some(slot) = of.ring.pop_front() {
            let here = slots.class_of_slab(Slots::slab_of(slot)) == Some(class);
            let header = if here { slots.header(slot) } else { continue };
            if header.state() == State::Probation {
                slots.set_header(slot, header.with_state(State::Main));
                of.probation -= 1;
                of.main += 1;
                return;
            }
        }
    }

    fn next_of_main(&mut self, slots: &mut Slots, class: u8, slabs: &[u32]) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        let slot = of.hand.sweep(slots, class, slabs, |header| match header.freq() {
            0 => Judgement::Goes,
            n => Judgement::Stays(header.with_freq(n - 1)),
        })?;
        of.main -= 1;
        self.evicted(slots.header(slot).offset());
        Some(slot)
    }

    fn evicted(&mut self, key: u64) {
        self.ghosts.insert(key, self.items);
        self.items -= 1;
    }
}

impl Policy for S3Fifo {
    const EXTRA: usize = 0;

    fn new(share: usize, arena: &Arc<Arena>) -> S3Fifo {
        let ghosts = Ghosts::over(arena.table(Ghosts::entries_for(share)));
        S3Fifo { classes: std::array::from_fn(|_| ByClass::default()), ghosts, items: 0, recency: false }
    }

    fn saturation(&self) -> Option<u8> {
        Some(if self.recency { 1 } else { MAX_FREQ })
    }

    #[inline]
    fn touched(&mut self, slots: &mut Slots, _class: u8, slot: u32, _key: u64) {
        let header = slots.header(slot);
        // The header is written only if it changes: a line that is only read stays clean.
        if self.saturation().is_some_and(|saturation| header.freq() < saturation) {
            slots.set_header(slot, header.with_freq(header.freq() + 1));
        }
    }

    fn admission(&mut self, class: u8, key: u64) -> Admission {
        let was_evicted = self.ghosts.remember(key);
        self.classes[usize::from(class)].ghost_hits += u64::from(was_evicted);
        if was_evicted || self.recency { Admission::Main } else { Admission::Probation }
    }

    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        self.items += 1;
        let of = &mut self.classes[usize::from(class)];
        if slots.header(slot).state() == State::Main {
            of.main += 1;
            return;
        }
        of.probation += 1;
        of.ring.push_back(slot);
        if of.probation * 8 > of.probation + of.main + 8 * MIN_PROBATION {
            self.first_to_main(slots, class);
        }
        let of = &mut self.classes[usize::from(class)];
        if of.ring.len() > 2 * of.probation + 64 {
            // Many items were removed by writes. Their places in the ring would only be skipped.
            let in_probation = |&s: &u32| {
                slots.class_of_slab(Slots::slab_of(s)) == Some(class) && slots.header(s).state() == State::Probation
            };
            of.ring.retain(in_probation);
        }
    }

    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let of = &mut self.classes[usize::from(class)];
        match slots.header(slot).state() {
            State::Probation => of.probation -= 1,
            State::Main => of.main -= 1,
            State::Free | State::Dead => return,
        }
        self.items -= 1;
    }

    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32) {
        if slots.header(to).state() == State::Probation {
            let of = &mut self.classes[usize::from(class)];
            if let Some(at) = of.ring.iter_mut().find(|s| **s == from) {
                *at = to;
            }
        }
    }

    fn victim(&mut self, slots: &mut Slots, class: u8, slabs: &[u32], _key: u64) -> Option<u32> {
        let of = &self.classes[usize::from(class)];
        let all = of.probation + of.main;
        if of.probation * PROBATION_PART > all || of.main == 0 {
            let slot = self.next_of_probation(slots, class);
            slot.or_else(|| self.next_of_main(slots, class, slabs))
        } else {
            let slot = self.next_of_main(slots, class, slabs);
            slot.or_else(|| self.next_of_probation(slots, class))
        }
    }

    fn next_victims(&self, slots: &Slots, class: u8, slabs: &[u32]) -> NextVictims {
        let ByClass { ring, hand, .. } = &self.classes[usize::from(class)];
        // Headers are adjacent, so those near the hand are in the cache before their items are.
        let of_main = hand.next(slots, slabs, |header| header.freq() == 0);
        NextVictims { next: [ring.front().copied(), of_main], later: [ring.get(3).copied(), of_main] }
    }

    fn ghost_lines(&self) -> Option<GhostLines> {
        Some(self.ghosts.ghost_lines())
    }

    fn take_ghost_hits(&mut self, class: u8) -> u64 {
        std::mem::take(&mut self.classes[usize::from(class)].ghost_hits)
    }

    fn prefer_recency(&mut self, recency: bool) {
        self.recency = recency;
    }

    fn allocated_bytes(&self) -> usize {
        self.classes.iter().map(|c| c.ring.capacity() * 4).sum()
    }
}
