//! Slabs and slots of a shard: how they are assigned, and how items move when a slab changes its
//! class or makes room for the index.

use super::Shard;
use crate::store::class::CLASSES;
use crate::store::header::{Header, State};
use crate::store::index::{Index, Key};
use crate::store::memory::{NONE, Slots};
use crate::store::policy::{NextVictims, Policy};
use crate::store::reassign::{Reassignment, Rebalanced};

impl<P: Policy> Shard<P> {
    /// Moves at most a few slabs. `unlocked` has, for each class, the hits
    /// and misses that did not take the lock.
    pub(crate) fn rebalance(&mut self, how: Reassignment, unlocked: &[[u64; 2]; CLASSES]) -> Rebalanced {
        let mut lately = self.lately(unlocked);
        let evicted = lately.iter().map(|class| class.evicted).sum();
        if how == Reassignment::Never || self.has_free_slabs() {
            return Rebalanced { moved: 0, evicted };
        }
        let mut moved = 0;
        for _ in 0..self.slabs() / 32 + 1 {
            match how.choose(&lately) {
                Some((from, to)) if from != to && self.reassign(from as u8, to as u8) => {
                    lately[from].slabs -= 1;
                    lately[to].slabs += 1;
                    moved += 1;
                }
                _ => break,
            }
        }
        Rebalanced { moved, evicted }
    }

    /// Puts an empty slot on its class's free list, unless its slab is pinned.
    pub(super) fn give_slot(&mut self, class: u8, slot: u32) {
        if self.slots.is_pinned(Slots::slab_of(slot)) {
            let header = self.slots.header(slot);
            self.slots.set_header(slot, header.with_state(State::Dead));
            self.dead.push(slot);
            return;
        }
        let of = &mut self.classes[usize::from(class)];
        self.slots.set_header(slot, Header::free(of.free.unwrap_or(NONE)));
        of.free = Some(slot);
    }

    /// Frees dead slots whose slab is not pinned any more.
    fn bury(&mut self) {
        let mut at = 0;
        while at < self.dead.len() {
            let slot = self.dead[at];
            if self.slots.is_pinned(Slots::slab_of(slot)) {
                at += 1;
            } else {
                self.dead.swap_remove(at);
                self.give_slot(self.slots.class_of_slot(slot), slot);
            }
        }
    }

    /// Returns a slot for a new item of the class.
    pub(super) fn take_slot(&mut self, class: u8, key: u64) -> Option<u32> {
        if !self.dead.is_empty() {
            self.bury();
        }
        if let Some(slot) = self.take_unused(class) {
            return Some(slot);
        }
        if let Some(slab) = self.free_slabs.pop() {
            self.give_slab(class, slab);
            return self.take_unused(class);
        }
        let of = usize::from(class);
        if self.classes[of].slabs.is_empty() {
            // A class without any memory takes a slab from the class that has most.
            let richest = (0..CLASSES).max_by_key(|&c| self.classes[c].slabs.len())? as u8;
            let slab = self.take_slab(richest)?;
            self.give_slab(class, slab);
            return self.take_unused(class);
        }
        let slot = self.policy.victim(&mut self.slots, class, &self.classes[of].slabs, key)?;
        self.index.remove(Key::of(self.slots.header(slot).offset()), slot);
        self.count_out(slot);
        self.classes[of].counts.evicted += 1;
        self.fetch_ahead(class);
        self.slots.set_header(slot, Header::free(NONE));
        Some(slot)
    }

    /// Prefetches what the next evictions will access. Otherwise an eviction would wait for memory
    /// four times.
    fn fetch_ahead(&self, class: u8) {
        let slabs = &self.classes[usize::from(class)].slabs;
        let NextVictims { next, later } = self.policy.next_victims(&self.slots, class, slabs);
        let of_class = |&slot: &u32| self.slots.class_of_slab(Slots::slab_of(slot)) == Some(class);
        for slot in next.into_iter().flatten().filter(of_class) {
            // Its header was prefetched when it was the later one.
            let offset = self.slots.header(slot).offset();
            self.index.prefetch(Key::of(offset));
            if let Some(lines) = self.policy.ghost_lines() {
                lines.prefetch(offset);
            }
        }
        for slot in later.into_iter().flatten().filter(of_class) {
            self.slots.prefetch(slot);
        }
    }

    /// Returns a slot that is free, or was never used.
    fn take_unused(&mut self, class: u8) -> Option<u32> {
        let of = &mut self.classes[usize::from(class)];
        if let Some(slot) = of.free {
            let next = self.slots.header(slot).next_free();
            of.free = Some(next).filter(|&n| n != NONE);
            return Some(slot);
        }
        let (slab, place) = of.fresh?;
        of.fresh = Some((slab, place + 1)).filter(|_| place + 1 < self.slots.geometry(class).items);
        Some(Slots::slot(slab, place))
    }

    fn give_slab(&mut self, class: u8, slab: u32) {
        self.slots.assign(slab, Some(class));
        let items = self.slots.geometry(class).items;
        for place in 0..items {
            self.slots.set_header(Slots::slot(slab, place), Header::free(NONE));
        }
        let of = &mut self.classes[usize::from(class)];
        of.slabs.push(slab);
        debug_assert!(of.fresh.is_none() && of.free.is_none(), "a class that has free slots needs no slab");
        of.fresh = Some((slab, 0));
    }

    /// Takes an unpinned slab from a class. Items that are read often move to free slots of the
    /// class, the others are removed.
    pub(crate) fn take_slab(&mut self, class: u8) -> Option<u32> {
        let slabs = &self.classes[usize::from(class)].slabs;
        // The last ones lie highest, and the index grows from above.
        let slab = *slabs.iter().rev().find(|&&s| !self.slots.is_pinned(s))?;
        self.empty_slab(slab).then_some(slab)
    }

    /// Removes everything from a slab and takes it from its class. Returns false if it is pinned.
    fn empty_slab(&mut self, slab: u32) -> bool {
        let Some(class) = self.slots.class_of_slab(slab) else { return true };
        if self.slots.is_pinned(slab) {
            return false;
        }
        self.bury();
        let items = self.slots.geometry(class).items;
        let of = &mut self.classes[usize::from(class)];
        of.slabs.retain(|&s| s != slab);
        of.fresh = of.fresh.filter(|&(s, _)| s != slab);
        self.drop_free_slots_of(class, slab);
        for place in 0..items {
            let slot = Slots::slot(slab, place);
            let header = self.slots.header(slot);
            if !header.is_live() {
                continue;
            }
            let spare = if header.freq() > 0 { self.take_unused(class) } else { None };
            let key = Key::of(header.offset());
            if let Some(to) = spare {
                self.slots.copy_within(slot, to, header.len());
                self.slots.set_header(to, header);
                self.policy.moved(&mut self.slots, class, slot, to);
                self.index.replace(key, slot, to);
                self.classes[usize::from(class)].counts.moved += 1;
            } else {
                self.policy.gone(&mut self.slots, class, slot);
                self.index.remove(key, slot);
                self.count_out(slot);
                self.classes[usize::from(class)].counts.evicted += 1;
            }
            self.slots.set_header(slot, Header::free(NONE));
        }
        self.slots.assign(slab, None);
        true
    }

    /// Removes the free slots of a slab from their class's list.
    fn drop_free_slots_of(&mut self, class: u8, slab: u32) {
        let mut kept: Option<u32> = None;
        let mut next = self.classes[usize::from(class)].free;
        while let Some(slot) = next {
            next = Some(self.slots.header(slot).next_free()).filter(|&n| n != NONE);
            if Slots::slab_of(slot) != slab {
                self.slots.set_header(slot, Header::free(kept.unwrap_or(NONE)));
                kept = Some(slot);
            }
        }
        self.classes[usize::from(class)].free = kept;
    }

    /// Enlarges the index when it is nearly full. It takes slabs from the top.
    pub(super) fn grow_index(&mut self) {
        if self.index.entries() < self.index.comfortable() {
            return;
        }
        let buckets = self.index.buckets() + (self.index.buckets() / 16).max(16);
        let usable = self.slots.slabs_below(buckets);
        if usable == 0 {
            return;
        }
        for slab in usable as u32..self.usable as u32 {
            let had_owner = self.slots.class_of_slab(slab).is_some();
            if !self.empty_slab(slab) {
                // The slab is pinned. The index grows with a later insertion.
                return;
            }
            if had_owner {
                self.free_slabs.push(slab);
            }
        }
        self.free_slabs.retain(|&s| (s as usize) < usable);
        self.usable = usable;
        self.index = Index::over(&self.slots, buckets);
        for class in 0..CLASSES {
            for slab in 0..self.classes[class].slabs.len() {
                let slab = self.classes[class].slabs[slab];
                for place in 0..self.slots.geometry(class as u8).items {
                    let slot = Slots::slot(slab, place);
                    let header = self.slots.header(slot);
                    if header.is_live() {
                        self.index.insert(Key::of(header.offset()), slot);
                    }
                }
            }
        }
    }

    pub(crate) fn slabs(&self) -> usize {
        self.usable
    }

    pub(crate) fn has_free_slabs(&self) -> bool {
        !self.free_slabs.is_empty()
    }

    /// Moves a slab from one class to another. Returns false if none can be taken.
    pub(crate) fn reassign(&mut self, from: u8, to: u8) -> bool {
        if self.classes[usize::from(from)].slabs.len() < 2 {
            return false;
        }
        let Some(slab) = self.take_slab(from) else { return false };
        let of = &self.classes[usize::from(to)];
        if of.free.is_some() || of.fresh.is_some() {
            self.free_slabs.push(slab);
        } else {
            self.give_slab(to, slab);
        }
        true
    }
}
