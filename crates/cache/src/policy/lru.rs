//! A linked list of the items of a class, with eight bytes of links for each item.

use crate::store::memory::{NONE, Slots};

/// A list, newest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Default for List {
    fn default() -> List {
        List { newest: NONE, oldest: NONE, len: 0 }
    }
}

/// The indexes of the two links: to the newer and to the older item.
const NEWER: usize = 0;
const OLDER: usize = 1;

impl List {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn oldest(&self) -> Option<u32> {
        Some(self.oldest).filter(|&s| s != NONE)
    }

    /// The next newer item.
    pub(crate) fn newer(&self, slots: &Slots, slot: u32) -> Option<u32> {
        Some(slots.links(slot)[NEWER]).filter(|&s| s != NONE)
    }

    pub(crate) fn push(&mut self, slots: &mut Slots, slot: u32) {
        slots.set_links(slot, [NONE, self.newest]);
        if self.newest != NONE {
            set(slots, self.newest, NEWER, slot);
        } else {
            self.oldest = slot;
        }
        self.newest = slot;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, slots: &mut Slots, slot: u32) {
        let [newer, older] = slots.links(slot);
        match newer {
            NONE => self.newest = older,
            n => set(slots, n, OLDER, older),
        }
        match older {
            NONE => self.oldest = newer,
            o => set(slots, o, NEWER, newer),
        }
        self.len -= 1;
    }

    pub(crate) fn touch(&mut self, slots: &mut Slots, slot: u32) {
        if self.newest != slot {
            self.remove(slots, slot);
            self.push(slots, slot);
        }
    }

    /// Notes that the item of one slot was moved to another.
    pub(crate) fn moved(&mut self, slots: &mut Slots, from: u32, to: u32) {
        let [newer, older] = slots.links(from);
        slots.set_links(to, [newer, older]);
        match newer {
            NONE => self.newest = to,
            n => set(slots, n, OLDER, to),
        }
        match older {
            NONE => self.oldest = to,
            o => set(slots, o, NEWER, to),
        }
    }

    /// Removes and returns the oldest unpinned item. It looks at a few items only.
    pub(crate) fn take_oldest(&mut self, slots: &mut Slots) -> Option<u32> {
        let mut at = self.oldest()?;
        for _ in 0..self.len {
            if !slots.is_pinned(Slots::slab_of(at)) {
                self.remove(slots, at);
                return Some(at);
            }
            at = self.newer(slots, at)?;
        }
        None
    }
}

fn set(slots: &mut Slots, slot: u32, side: usize, to: u32) {
    let mut links = slots.links(slot);
    links[side] = to;
    slots.set_links(slot, links);
}
