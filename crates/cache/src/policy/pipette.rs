//! Pipette's own policy (Bai et al., DAC 2022, section 3.2): least recently used in each class, a
//! threshold of references for admission, and a buffer for data below it (TempBuf).
//! ```text
//! access counter, reuse counter -> their ratio, once a window
//! ratio below the minimum: threshold + 1;  above the maximum: threshold - 1
//! references >= threshold: data area;  fewer: TempBuf
//! ```
//! References are counted in a sketch whose counters are halved now and then. In the original they
//! are in table entries that are never removed and never decay.

use std::collections::VecDeque;

use super::lru::List;
use super::sketch::Sketch;
use crate::store::arena::Arena;
use crate::store::class::CLASSES;
use crate::store::header::State;
use crate::store::memory::Slots;
use crate::store::policy::{Admission, Policy};
use crate::sync::Arc;

/// The threshold moves when the ratio of reuses to accesses is outside of these percentages (those
/// of the published code).
const MIN_PERCENT: u64 = 25;
const MAX_PERCENT: u64 = 75;
/// The limits of the threshold.
const MIN_THRESHOLD: u32 = 1;
const MAX_THRESHOLD: u32 = 8;
/// The number of accesses after which the ratio is evaluated.
const WINDOW: u64 = 4096;
/// TempBuf is one part in this many of a class.
const TEMP_PART: usize = 16;

#[derive(Default)]
struct ByClass {
    data: List,
    /// TempBuf, in order of arrival. Some items may have left.
    temp: VecDeque<u32>,
    in_temp: usize,
    evictions: u64,
}

/// The state of the policy for a shard.
pub(crate) struct Pipette {
    classes: [ByClass; CLASSES],
    references: Sketch,
    threshold: u32,
    accesses: u64,
    reuses: u64,
}

impl Pipette {
    fn count(&mut self, reuse: bool) {
        self.accesses += 1;
        self.reuses += u64::from(reuse);
        if self.accesses < WINDOW {
            return;
        }
        let percent = self.reuses * 100 / self.accesses;
        if percent < MIN_PERCENT {
            self.threshold = (self.threshold + 1).min(MAX_THRESHOLD);
        } else if percent > MAX_PERCENT {
            self.threshold = (self.threshold - 1).max(MIN_THRESHOLD);
        }
        (self.accesses, self.reuses) = (0, 0);
    }

    fn oldest_of_temp(&mut self, slots: &mut Slots, class: u8) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        for _ in 0..of.temp.len() {
            let slot = of.temp.pop_front()?;
            let here = slots.class_of_slab(Slots::slab_of(slot)) == Some(class);
            if !here || slots.header(slot).state() != State::Probation {
                continue;
            }
            if slots.is_pinned(Slots::slab_of(slot)) {
                of.temp.push_back(slot);
                continue;
            }
            of.in_temp -= 1;
            return Some(slot);
        }
        None
    }
}

impl Policy for Pipette {
    const EXTRA: usize = 8;

    fn new(share: usize, arena: &Arc<Arena>) -> Pipette {
        let bytes = (share / 64).next_multiple_of(64);
        let references = Sketch::over(arena.table(bytes), (share / 150 * 10) as u64);
        let classes = std::array::from_fn(|_| ByClass::default());
        Pipette { classes, references, threshold: MIN_THRESHOLD, accesses: 0, reuses: 0 }
    }

    fn saturation(&self) -> Option<u8> {
        // Each read moves an item in its list, and is counted.
        None
    }

    fn touched(&mut self, slots: &mut Slots, class: u8, slot: u32, key: u64) {
        self.count(true);
        self.references.add(key);
        let header = slots.header(slot);
        let of = &mut self.classes[usize::from(class)];
        if header.state() == State::Main {
            of.data.touch(slots, slot);
        } else if self.references.estimate(key) >= self.threshold {
            // It has enough references now, and moves from TempBuf to the data area.
            slots.set_header(slot, header.with_state(State::Main));
            of.in_temp -= 1;
            of.data.push(slots, slot);
        }
    }

    fn admission(&mut self, _class: u8, key: u64) -> Admission {
        let seen = self.references.estimate(key);
        self.count(seen > 0);
        self.references.add(key);
        if seen + 1 >= self.threshold { Admission::Main } else { Admission::Probation }
    }

    fn placed(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let of = &mut self.classes[usize::from(class)];
        if slots.header(slot).state() == State::Main {
            of.data.push(slots, slot);
            return;
        }
        of.in_temp += 1;
        of.temp.push_back(slot);
        if of.temp.len() > 2 * of.in_temp + 64 {
            let there = |&s: &u32| {
                slots.class_of_slab(Slots::slab_of(s)) == Some(class) && slots.header(s).state() == State::Probation
            };
            of.temp.retain(there);
        }
    }

    fn gone(&mut self, slots: &mut Slots, class: u8, slot: u32) {
        let of = &mut self.classes[usize::from(class)];
        match slots.header(slot).state() {
            State::Main => of.data.remove(slots, slot),
            State::Probation => of.in_temp -= 1,
            State::Free | State::Dead => {}
        }
    }

    fn moved(&mut self, slots: &mut Slots, class: u8, from: u32, to: u32) {
        let of = &mut self.classes[usize::from(class)];
        if slots.header(to).state() == State::Main {
            of.data.moved(slots, from, to);
        } else if let Some(at) = of.temp.iter_mut().find(|s| **s == from) {
            *at = to;
        }
    }

    fn victim(&mut self, slots: &mut Slots, class: u8, _slabs: &[u32], _key: u64) -> Option<u32> {
        let of = &self.classes[usize::from(class)];
        let temp_first = of.in_temp * TEMP_PART > of.in_temp + of.data.len() || of.data.len() == 0;
        let slot = match temp_first {
            true => self.oldest_of_temp(slots, class),
            false => None,
        };
        let slot = slot.or_else(|| self.classes[usize::from(class)].data.take_oldest(slots));
        let slot = slot.or_else(|| self.oldest_of_temp(slots, class));
        self.classes[usize::from(class)].evictions += u64::from(slot.is_some());
        slot
    }

    fn take_ghost_hits(&mut self, class: u8) -> u64 {
        // The paper's maintenance thread watches eviction counts (section 3.2.3).
        std::mem::take(&mut self.classes[usize::from(class)].evictions)
    }

    fn threshold(&self) -> Option<f64> {
        Some(f64::from(self.threshold))
    }

    fn allocated_bytes(&self) -> usize {
        self.classes.iter().map(|c| c.temp.capacity() * 4).sum()
    }
}
