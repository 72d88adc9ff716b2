//! Which pieces of a distant place are in memory: a table of slots, each with one unit.
//!
//! ```text
//! empty -> loading (pinned by its reader) -> ready -> empty, when it is the least recently used
//!                                         -> failed -> empty, when nobody looks at it any more
//! ```
//! The table decides and counts; the bytes and the requests are its user's (`place`).

use std::collections::HashMap;

use datapipes_core::ErrorKind;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum UnitState {
    #[default]
    Empty,
    Loading,
    Ready,
    /// The error, for all that wait for it.
    Failed(ErrorKind, String),
}

#[derive(Clone, Debug, Default)]
struct UnitSlot {
    unit: u64,
    state: UnitState,
    pins: u32,
    used: u64,
}

/// A slot that is pinned for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitClaim {
    pub(super) unit: u64,
    pub(super) slot: usize,
    /// Whether the reader that claimed it has to load it.
    pub(super) is_mine: bool,
}

/// The slots.
#[derive(Debug)]
pub(super) struct UnitTable {
    slots: Vec<UnitSlot>,
    /// Units that are loading or ready.
    by_unit: HashMap<u64, usize>,
    clock: u64,
}

impl UnitTable {
    pub(super) fn new(slots: usize) -> UnitTable {
        UnitTable { slots: vec![UnitSlot::default(); slots], by_unit: HashMap::new(), clock: 0 }
    }

    /// Pins a slot for each unit, or none where there are too few that nobody looks at.
    pub(super) fn claim(&mut self, units: &[u64]) -> Option<Vec<UnitClaim>> {
        let mut claims = Vec::with_capacity(units.len());
        for unit in units {
            self.clock += 1;
            let there = self.by_unit.get(unit).copied();
            let Some(slot) = there.or_else(|| self.victim()) else {
                claims.iter().rev().for_each(|claim| self.give_up(claim));
                return None;
            };
            let entry = &mut self.slots[slot];
            if there.is_none() {
                if entry.state == UnitState::Ready {
                    self.by_unit.remove(&entry.unit);
                }
                (entry.unit, entry.state) = (*unit, UnitState::Loading);
                self.by_unit.insert(*unit, slot);
            }
            (entry.pins, entry.used) = (entry.pins + 1, self.clock);
            claims.push(UnitClaim { unit: *unit, slot, is_mine: there.is_none() });
        }
        Some(claims)
    }

    /// The least recently used slot that nobody looks at.
    fn victim(&self) -> Option<usize> {
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.pins == 0);
        free.min_by_key(|(_, slot)| (slot.state != UnitState::Empty, slot.used)).map(|(at, _)| at)
    }

    /// Takes back a claim of which nothing was loaded.
    fn give_up(&mut self, claim: &UnitClaim) {
        if claim.is_mine {
            self.settle(claim.slot, Err((ErrorKind::Busy, String::new())));
        }
        self.release(claim);
    }

    /// Notes that a unit came, or why it did not.
    pub(super) fn settle(&mut self, slot: usize, outcome: Result<(), (ErrorKind, String)>) {
        let entry = &mut self.slots[slot];
        entry.state = match outcome {
            Ok(()) => UnitState::Ready,
            Err((kind, why)) => {
                if self.by_unit.get(&entry.unit) == Some(&slot) {
                    self.by_unit.remove(&entry.unit);
                }
                UnitState::Failed(kind, why)
            }
        };
    }

    pub(super) fn is_loading(&self, slot: usize) -> bool {
        self.slots[slot].state == UnitState::Loading
    }

    /// Why a unit did not come.
    pub(super) fn failure(&self, slot: usize) -> Option<(ErrorKind, String)> {
        match &self.slots[slot].state {
            UnitState::Failed(kind, why) => Some((*kind, why.clone())),
            _ => None,
        }
    }

    /// Lets go of a claim.
    pub(super) fn release(&mut self, claim: &UnitClaim) {
        let entry = &mut self.slots[claim.slot];
        entry.pins = entry.pins.saturating_sub(1);
        // What failed, or was forgotten meanwhile, is of no use to anybody.
        if entry.pins == 0 && self.by_unit.get(&entry.unit) != Some(&claim.slot) {
            entry.state = UnitState::Empty;
        }
    }

    /// Forgets all units: whoever claims one from now on loads it.
    pub(super) fn forget(&mut self) {
        self.by_unit.clear();
        for slot in &mut self.slots {
            if slot.pins == 0 {
                slot.state = UnitState::Empty;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mine(claims: &[UnitClaim]) -> Vec<u64> {
        claims.iter().filter(|claim| claim.is_mine).map(|claim| claim.unit).collect()
    }

    fn load(table: &mut UnitTable, units: &[u64]) -> Vec<u64> {
        let claims = table.claim(units).unwrap();
        let loaded = mine(&claims);
        for claim in claims {
            if claim.is_mine {
                table.settle(claim.slot, Ok(()));
            }
            table.release(&claim);
        }
        loaded
    }

    #[test]
    fn the_least_recently_used_unit_makes_room() {
        let mut table = UnitTable::new(3);
        assert_eq!(load(&mut table, &[1, 2, 3]), [1, 2, 3]);
        assert!(load(&mut table, &[1]).is_empty());
        assert_eq!(load(&mut table, &[4]), [4]);
        assert!(load(&mut table, &[1, 3]).is_empty());
        assert_eq!(load(&mut table, &[2]), [2]);
        table.forget();
        assert_eq!(load(&mut table, &[1, 2, 3]), [1, 2, 3]);
    }

    #[test]
    fn what_is_pinned_stays_and_claims_are_whole_or_none() {
        let mut table = UnitTable::new(3);
        let held = table.claim(&[1, 2]).unwrap();
        assert_eq!(table.claim(&[3, 4]), None);
        // The claim that failed holds nothing.
        assert_eq!(load(&mut table, &[5]), [5]);
        let joined = table.claim(&[1]).unwrap();
        assert!(!joined[0].is_mine && table.is_loading(joined[0].slot));
        table.settle(held[0].slot, Err((ErrorKind::Device, "gone".into())));
        assert_eq!(table.failure(joined[0].slot), Some((ErrorKind::Device, "gone".into())));
        joined.iter().chain(&held).for_each(|claim| table.release(claim));
        assert_eq!(load(&mut table, &[1]), [1]);
    }

    #[test]
    fn what_is_forgotten_while_it_loads_serves_its_reader_alone() {
        let mut table = UnitTable::new(2);
        let held = table.claim(&[7]).unwrap();
        table.forget();
        assert_eq!(load(&mut table, &[7]), [7]);
        table.settle(held[0].slot, Ok(()));
        table.release(&held[0]);
        assert!(load(&mut table, &[7]).is_empty());
    }
}
