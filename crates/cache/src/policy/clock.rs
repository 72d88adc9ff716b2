//! A clock hand over the slots of a class, in the order of memory, without links or a queue.

use crate::store::header::{Header, State};
use crate::store::memory::Slots;

/// The position of a class's hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    slab: usize,
    place: usize,
}

/// The decision about the item under the hand.
pub(crate) enum Judgement {
    /// The item stays, perhaps with a changed header.
    Stays(Header),
    /// The item is evicted.
    Goes,
}

/// The number of headers behind the hand that are searched for the next victim: half a line of
/// them.
const NEAR: usize = 4;

impl Hand {
    /// The item that will probably be evicted next, by `goes`, among the next few.
    pub(crate) fn next(&self, slots: &Slots, slabs: &[u32], goes: impl Fn(Header) -> bool) -> Option<u32> {
        let slab = *slabs.get(self.slab)?;
        let items = slots.geometry(slots.class_of_slab(slab)?).items;
        let mut near = (self.place..items).take(NEAR).map(|place| Slots::slot(slab, place));
        near.find(|&slot| {
            let header = slots.header(slot);
            header.state() == State::Main && goes(header)
        })
    }

    /// Moves on until an unpinned item is to be evicted. It stops after a few rounds.
    pub(crate) fn sweep(
        &mut self,
        slots: &mut Slots,
        class: u8,
        slabs: &[u32],
        mut judge: impl FnMut(Header) -> Judgement,
    ) -> Option<u32> {
        let items = slots.geometry(class).items;
        // Each item is passed at most once for each step of its count, and then evicted.
        let most = 5 * slabs.len() + 1;
        let mut seen = 0;
        while seen < most {
            if self.slab >= slabs.len() {
                (self.slab, self.place) = (0, 0);
                if slabs.is_empty() {
                    return None;
                }
            }
            let slab = slabs[self.slab];
            if self.place >= items || slots.is_pinned(slab) {
                (self.slab, self.place) = (self.slab + 1, 0);
                seen += 1;
                continue;
            }
            let slot = Slots::slot(slab, self.place);
            self.place += 1;
            let header = slots.header(slot);
            if header.state() != State::Main {
                continue;
            }
            match judge(header) {
                Judgement::Goes => return Some(slot),
                Judgement::Stays(new) if new != header => slots.set_header(slot, new),
                Judgement::Stays(_) => {}
            }
        }
        None
    }
}
