//! W-TinyLFU (Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM
//! TOS 2017): a small window in order of arrival, and a main part. An item from the window enters
//! main only if it was seen more often than the item that would be evicted for it.
//!
//! The main part is a clock instead of a segmented LRU (no links). The sketch counts hits and
//! misses.

use std::collections::VecDeque;

use super::clock::{Hand, Judgement};
use super::sketch::Sketch;
use crate::store::arena::Arena;
use crate::store::class::CLASSES;
use crate::store::header::State;
use crate::store::memory::Slots;
use crate::store::policy::{Admission, Policy};
use crate::sync::Arc;

/// The window is one part in this many of a class.
const WINDOW_PART: usize = 100;

#[derive(Default)]
struct ByClass {
    window: VecDeque<u32>,
    in_window: usize,
    main: usize,
    hand: Hand,
    ghost_hits: u64,
}

/// The state of the policy for a shard.
pub(crate) struct TinyLfu {
    classes: [ByClass; CLASSES],
    sketch: Sketch,
}

impl TinyLfu {
    /// The next item of the window that is still there.
    fn candidate(&mut self, slots: &mut Slots, class: u8) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        for _ in 0..of.window.len() {
            let slot = of.window.pop_front()?;
            if slots.class_of_slab(Slots::slab_of(slot)) != Some(class)
                || slots.header(slot).state() != State::Probation
            {
                continue;
            }
            if slots.is_pinned(Slots::slab_of(slot)) {
                of.window.push_back(slot);
                continue;
            }
            return Some(slot);
        }
        None
    }

    /// Moves an item from the window to main.
    fn promote(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let header = slots.header(slot);
        slots.set_header(slot, header.with_state(State::Main).with_freq(0));
        let of = &mut self.classes[usize::from(class)];
        of.in_window -= 1;
        of.main += 1;
    }

    fn next_of_main(&mut self, slots: &mut Slots, class: u8, slabs: &[u32]) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        of.hand.sweep(slots, class, slabs, |header| match header.freq() {
            0 => Judgement::Goes,
            n => Judgement::Stays(header.with_freq(n - 1)),
        })
    }
}

impl Policy for TinyLfu {
    const EXTRA: usize = 0;

    fn new(share: usize, arena: &Arc<Arena>) -> TinyLfu {
        // The limit is about ten additions for each item of 128 bytes that fits.
        let sketch = Sketch::over(arena.table((share / 64).next_multiple_of(64)), (share / 150 * 10) as u64);
        TinyLfu { classes: std::array::from_fn(|_| ByClass::default()), sketch }
    }

    fn saturation(&self) -> Option<u8> {
        // The sketch counts all reads.
        None
    }

    #[inline]
    fn touched(&mut self, slots: &mut Slots, _class: u8, slot: u32, key: u64) {
        let header = slots.header(slot);
        if header.freq() == 0 {
            slots.set_header(slot, header.with_freq(1));
        }
        self.sketch.add(key);
    }

    fn admission(&mut self, class: u8, key: u64) -> Admission {
        if self.sketch.estimate(key) > 1 {
            self.classes[usize::from(class)].ghost_hits += 1;
        }
        self.sketch.add(key);
        Admission::Probation
    }

    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let of = &mut self.classes[usize::from(class)];
        if slots.header(slot).state() == State::Main {
            of.main += 1;
            return;
        }
        of.in_window += 1;
        of.window.push_back(slot);
        if of.in_window * WINDOW_PART > 2 * (of.in_window + of.main) + 64 * WINDOW_PART {
            // While nothing is evicted, excess items of the window move to main.
            if let Some(first) = self.candidate(slots, class) {
                self.promote(slots, class, first);
            }
        }
        let of = &mut self.classes[usize::from(class)];
        if of.window.len() > 2 * of.in_window + 64 {
            let there = |&s: &u32| {
                slots.class_of_slab(Slots::slab_of(s)) == Some(class) && slots.header(s).state() == State::Probation
            };
            of.window.retain(there);
        }
    }

    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let of = &mut self.classes[usize::from(class)];
        match slots.header(slot).state() {
            State::Probation => of.in_window -= 1,
            State::Main => of.main -= 1,
            State::Free | State::Dead => {}
        }
    }

    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32) {
        if slots.header(to).state() == State::Probation {
            let of = &mut self.classes[usize::from(class)];
            if let Some(at) = of.window.iter_mut().find(|s| **s == from) {
                *at = to;
            }
        }
    }

    fn victim(&mut self, slots: &mut Slots, class: u8, slabs: &[u32], _key: u64) -> Option<u32> {
        // Main has room for the excess items of the window.
        loop {
            let of = &self.classes[usize::from(class)];
            if of.in_window <= (of.in_window + of.main) / WINDOW_PART + 1 {
                break;
            }
            let Some(slot) = self.candidate(slots, class) else { break };
            self.promote(slots, class, slot);
        }
        let Some(main) = self.next_of_main(slots, class, slabs) else {
            let slot = self.candidate(slots, class)?;
            self.classes[usize::from(class)].in_window -= 1;
            return Some(slot);
        };
        let Some(candidate) = self.candidate(slots, class) else {
            self.classes[usize::from(class)].main -= 1;
            return Some(main);
        };
        let seen = |slot: u32| self.sketch.estimate(slots.header(slot).offset());
        if seen(candidate) > seen(main) {
            self.promote(slots, class, candidate);
            self.classes[usize::from(class)].main -= 1;
            Some(main)
        } else {
            self.classes[usize::from(class)].in_window -= 1;
            Some(candidate)
        }
    }

    fn take_ghost_hits(&mut self, class: u8) -> u64 {
        std::mem::take(&mut self.classes[usize::from(class)].ghost_hits)
    }

    fn allocated_bytes(&self) -> usize {
        self.classes.iter().map(|c| c.window.capacity() * 4).sum()
    }
}
