//! A hand that goes round over the slots of a class, in the order in which they lie in memory: no
//! links, no queue.

use crate::store::header::{Header, State};
use crate::store::memory::Slots;

/// Where the hand of a class stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    slab: usize,
    place: usize,
}

/// What is to become of the item under the hand.
pub(crate) enum Judgement {
    /// It stays, perhaps with a changed header.
    Stays(Header),
    /// It goes.
    Goes,
}

impl Hand {
    /// Goes round until an item that nobody reads is judged to go; at most a few rounds.
    pub(crate) fn sweep(
        &mut self,
        slots: &mut Slots,
        class: u8,
        slabs: &[u32],
        mut judge: impl FnMut(Header) -> Judgement,
    ) -> Option<u32> {
        let items = slots.geometry(class).items;
        // Each item is passed at most once for each step of its count, then goes.
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
