//! Maps the bytes of each file of a pool to positions in one space of offsets, which the store uses
//! as keys.
//!
//! ```text
//! file A: [ first part ][ second, as long ][ third, twice as long ] ...
//! space:  ...[ part of B ][ first part of A ][ part of C ]...      a buddy system of 16 TiB
//! a part gets its position when bytes of it are cached for the first time
//! ```
//! A part keeps its position until its file is closed. So a lookup is an addition, and no reader
//! ever gets another file's bytes. A cache of one file has all of the space: positions are the
//! file's offsets.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::store::header::MAX_OFFSET;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The logarithm of the smallest part's length in bytes.
const MIN_ORDER: u32 = 20;
/// The logarithm of the space's length in bytes.
const MAX_ORDER: u32 = MAX_OFFSET.trailing_zeros();
/// The value for a part without a position.
const NOWHERE: u64 = u64::MAX;

/// The free parts of the space: a buddy system.
pub(crate) struct Space(Mutex<Vec<BTreeSet<u64>>>);

impl Default for Space {
    fn default() -> Space {
        let mut free = vec![BTreeSet::new(); (MAX_ORDER - MIN_ORDER) as usize + 1];
        if let Some(all) = free.last_mut() {
            all.insert(0);
        }
        Space(Mutex::new(free))
    }
}

/// The logarithm of the smallest part that has room for `len` bytes.
fn order(len: u64) -> u32 {
    len.max(1 << MIN_ORDER).checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros)
}

impl Space {
    /// Takes a part of 2^`order` bytes.
    fn take(&self, order: u32) -> Option<u64> {
        let mut free = self.0.lock();
        let (wanted, all) = ((order.checked_sub(MIN_ORDER)?) as usize, free.len());
        let mut at = (wanted..all).find(|&i| !free[i].is_empty())?;
        let start = free[at].pop_first()?;
        while at > wanted {
            at -= 1;
            free[at].insert(start + (1 << (at as u32 + MIN_ORDER)));
        }
        Some(start)
    }

    fn give(&self, start: u64, order: u32) {
        let mut free = self.0.lock();
        let (mut start, mut at) = (start, (order - MIN_ORDER) as usize);
        while at + 1 < free.len() && free[at].remove(&(start ^ 1 << (at as u32 + MIN_ORDER))) {
            start &= !(1 << (at as u32 + MIN_ORDER));
            at += 1;
        }
        free[at].insert(start);
    }

    #[cfg(test)]
    fn is_all_free(&self) -> bool {
        let free = self.0.lock();
        free.last().is_some_and(|all| all.contains(&0)) && free.iter().map(BTreeSet::len).sum::<usize>() == 1
    }
}

/// The positions of the parts of one file.
pub(crate) struct Map {
    /// The length of the first part in bytes.
    first_len: u64,
    first: u64,
    /// The positions of the other parts. Each is as long as all parts before it.
    rest: Box<[AtomicU64]>,
}

impl Map {
    /// Returns a map of the whole space, for one file.
    pub(crate) fn whole() -> Map {
        Map { first_len: MAX_OFFSET, first: 0, rest: Box::default() }
    }

    /// Returns a map for a file of `len` bytes, which may grow. Returns None where there is no
    /// room.
    pub(crate) fn of_file(len: u64, space: &Space) -> Option<Map> {
        let order = order(len);
        let first = space.take(order)?;
        let rest = (order..MAX_ORDER).map(|_| AtomicU64::new(NOWHERE)).collect();
        Some(Map { first_len: 1 << order, first, rest })
    }

    /// Whether positions are the file's own offsets, and no other file has a part.
    pub(crate) fn is_whole(&self) -> bool {
        self.first_len == MAX_OFFSET
    }

    /// The part that holds an offset behind the first part, and where the part begins in the file.
    fn part(&self, offset: u64) -> (usize, u64) {
        let part = offset.ilog2() - self.first_len.ilog2();
        (part as usize, self.first_len << part)
    }

    /// The position of a byte of the file, if its part has one.
    #[inline]
    pub(crate) fn of(&self, offset: u64) -> Option<u64> {
        if offset < self.first_len {
            return Some(self.first + offset);
        }
        let (part, begin) = self.part(offset);
        let place = self.rest.get(part)?.load(Ordering::Acquire);
        (place != NOWHERE).then(|| place + (offset - begin))
    }

    /// As [`of`](Self::of), but assigns a position to a part without one. Returns None where there
    /// is no room: such bytes are not cached.
    pub(crate) fn of_or_make(&self, offset: u64, space: &Space) -> Option<u64> {
        if let Some(place) = self.of(offset) {
            return Some(place);
        }
        if offset < self.first_len {
            return None;
        }
        let (part, begin) = self.part(offset);
        let (of, order) = (self.rest.get(part)?, begin.ilog2());
        let place = space.take(order)?;
        match of.compare_exchange(NOWHERE, place, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(place + (offset - begin)),
            Err(theirs) => {
                // Another thread was faster.
                space.give(place, order);
                Some(theirs + (offset - begin))
            }
        }
    }

    /// The parts with a position: the begin in the file, the length, and the position of each.
    fn parts(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let rest = self.rest.iter().enumerate().map(|(part, place)| {
            let begin = self.first_len << part;
            (begin, begin, place.load(Ordering::Acquire))
        });
        std::iter::once((0, self.first_len, self.first)).chain(rest.filter(|&(_, _, place)| place != NOWHERE))
    }

    /// The positions of a range of the file.
    pub(crate) fn places(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        self.parts().filter_map(move |(begin, len, place)| {
            let (from, to) = (range.start.max(begin), range.end.min(begin + len));
            (from < to).then(|| place + (from - begin)..place + (to - begin))
        })
    }

    /// The offset in the file of a position, if it belongs to the file.
    pub(crate) fn offset_at(&self, place: u64) -> Option<u64> {
        let holds = |&(_, len, at): &(u64, u64, u64)| place.checked_sub(at).is_some_and(|n| n < len);
        self.parts().find(holds).map(|(begin, _, at)| begin + (place - at))
    }

    /// Gives all parts back. Nothing may be cached at their positions any more.
    pub(crate) fn give_back(&mut self, space: &Space) {
        if !self.is_whole() {
            self.parts().for_each(|(_, len, place)| space.give(place, len.ilog2()));
            self.rest = Box::default();
        }
    }

    /// The bytes that it allocated.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.rest.len() * 8
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn files_never_share_a_place_and_all_is_free_again() {
        let space = Space::default();
        let mut random = 5u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut maps: Vec<Map> = Vec::new();
        for _ in 0..2000 {
            if !maps.is_empty() && next(3) == 0 {
                let at = next(maps.len() as u64) as usize;
                maps.swap_remove(at).give_back(&space);
            } else {
                let map = Map::of_file(next(64 * MIB), &space).unwrap();
                for _ in 0..3 {
                    let bits = 20 + next(12);
                    let offset = next(1 << bits);
                    let place = map.of_or_make(offset, &space).unwrap();
                    assert_eq!((map.of(offset), map.offset_at(place)), (Some(place), Some(offset)));
                    assert!(map.places(offset..offset + 1).eq(std::iter::once(place..place + 1)));
                }
                assert!(map.bytes() <= 192);
                maps.push(map);
            }
            let mut all: Vec<_> = maps.iter().flat_map(|m| m.places(0..u64::MAX)).collect();
            all.sort_by_key(|r| r.start);
            assert!(all.windows(2).all(|w| w[0].end <= w[1].start) && all.iter().all(|r| r.end <= MAX_OFFSET));
        }
        maps.iter_mut().for_each(|m| m.give_back(&space));
        assert!(space.is_all_free());
    }

    #[test]
    fn a_file_grows_into_parts_and_there_is_an_end() {
        let space = Space::default();
        let map = Map::of_file(3 * MIB, &space).unwrap();
        assert_eq!(
            (map.of(4 * MIB - 1), map.of(4 * MIB), map.of(u64::MAX)),
            (Some(map.first + 4 * MIB - 1), None, None)
        );
        for at in [4 * MIB, 8 * MIB - 1, 8 * MIB, 1 << 40] {
            let place = map.of_or_make(at, &space).unwrap();
            assert_eq!(map.offset_at(place), Some(at));
        }
        // The range goes from the last byte of one part to the first byte of the next.
        assert_eq!(map.places(4 * MIB - 1..4 * MIB + 1).map(|r| r.end - r.start).collect::<Vec<_>>(), [1, 1]);
        assert!(map.of_or_make(MAX_OFFSET, &space).is_none());
        assert!(Map::of_file(MAX_OFFSET, &space).is_none(), "what is taken is taken");
        assert!(Map::of_file(u64::MAX, &space).is_none());
        let whole = Map::whole();
        assert_eq!((whole.of(5), whole.of(MAX_OFFSET), whole.offset_at(7)), (Some(5), None, Some(7)));
        assert!(whole.places(9..u64::MAX).eq(std::iter::once(9..MAX_OFFSET)));
    }
}
