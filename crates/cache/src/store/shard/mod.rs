//! A shard: slabs, index and policy under one lock. Items never cross a page, and a page lies in
//! one shard.
//!
//! ```text
//! read:   index by the sector -> a header covers the range?  copy, notify the policy
//!         otherwise search the page's other sectors: an item may begin earlier, or several
//!         items may cover the range together
//! insert: remove the items that it covers; take a slot (free, unused, in a new slab, or the
//!         policy's victim); write header, bytes and index
//! ```

mod slabs;

use datapipes_core::Result;

use super::arena::bucket::Bucket;
use super::arena::{Arena, Memory};
use super::class::{CLASSES, class_of};
use super::header::{Header, PAGE, PERIODS, SECTOR, State};
use super::index::{Index, Key};
use super::memory::{NONE, Pinned, Slots};
use super::policy::{Admission, GhostLines, Policy};
use super::reassign::Lately;
use crate::sync::Arc;

/// The number of periods after which an item is too old.
const LIFE: u8 = 4;
/// The number of buckets of the smallest index.
const MIN_BUCKETS: usize = 64;

/// The slabs and slots of a class.
#[derive(Default)]
struct Class {
    slabs: Vec<u32>,
    /// The first of the free slots.
    free: Option<u32>,
    /// The first slot of the last slab that was never used, and all behind it.
    fresh: Option<(u32, usize)>,
    live: usize,
    counts: Counts,
    /// The counts at the last look.
    seen: Counts,
}

/// The counts of events in a class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) asked_bytes: u64,
    pub(crate) admitted: u64,
    pub(crate) bypassed: u64,
    pub(crate) evicted: u64,
    pub(crate) invalidated: u64,
    pub(crate) moved: u64,
    /// Ghost hits: misses that would have been hits with more memory.
    pub(crate) ghost_hits: u64,
}

/// The figures of a class for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClassState {
    pub(crate) slabs: usize,
    pub(crate) items: usize,
    pub(crate) counts: Counts,
}

/// What the search found for bytes that are not all cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The number of items that begin in the same sector. It may be one too many.
    pub(crate) neighbours: u32,
}

/// The result of a search in the sector of a range.
struct Look {
    /// An item that has all of the range.
    whole: Option<u32>,
    /// Whether an item has its first byte.
    first: bool,
    missing: Missing,
}

pub(crate) struct Shard<P> {
    slots: Slots,
    index: Index,
    policy: P,
    classes: [Class; CLASSES],
    /// Slabs without a class.
    free_slabs: Vec<u32>,
    /// Slots whose items were removed while their slab was pinned.
    dead: Vec<u32>,
    /// The number of slabs below the index.
    usable: usize,
    /// The numbers of items by how many sectors before their last one they begin: how far back a
    /// search must look.
    reach: [usize; 8],
    live_bytes: usize,
}

/// Whether an item is older than the time to live.
#[inline]
pub(crate) fn is_old(header: Header, period: Option<u8>) -> bool {
    period.is_some_and(|now| now.wrapping_sub(header.period()) % PERIODS >= LIFE)
}

impl<P: Policy> Shard<P> {
    pub(crate) fn new(memory: &Arc<Memory>, at: usize, share: usize) -> Result<Shard<P>> {
        let slots = Slots::over(memory, at, share, P::EXTRA)?;
        let policy = P::new(share, &slots);
        let index = Index::over(&slots, MIN_BUCKETS);
        let usable = slots.slabs_below(MIN_BUCKETS);
        Ok(Shard {
            slots,
            index,
            policy,
            classes: Default::default(),
            free_slabs: (0..usable as u32).rev().collect(),
            dead: Vec::new(),
            usable,
            reach: [0; 8],
            live_bytes: 0,
        })
    }

    /// The memory, for optimistic reads.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.slots
    }

    /// The lines in which the policy remembers evicted keys.
    pub(crate) fn ghost_lines(&self) -> Option<GhostLines> {
        self.policy.ghost_lines()
    }

    /// The saturation of an item's read count: further reads change nothing.
    pub(crate) fn saturation(&self) -> Option<u8> {
        self.policy.saturation()
    }

    /// Reports a hit of an optimistic read to the policy.
    pub(crate) fn touched(&mut self, slot: u32) {
        self.hit(slot);
    }

    /// The item under a key that covers the range.
    #[inline]
    fn covering(&self, key: Key, offset: u64, len: usize) -> Option<u32> {
        self.index.find(key, |slot| self.slots.header_and_data_soon(slot).covers(offset, len))
    }

    /// The item that covers the range and begins in an earlier sector of the page.
    fn reaching(&self, offset: u64, len: usize) -> Option<u32> {
        let sector = (offset % PAGE / SECTOR) as usize;
        (1..=sector)
            .filter(|&back| self.may_reach(sector, back))
            .find_map(|back| self.covering(Key::of_sector(offset - back as u64 * SECTOR), offset, len))
    }

    /// An item that holds the byte at `offset`, wherever in the page it begins.
    fn holding(&self, offset: u64) -> Option<u32> {
        self.covering(Key::of(offset), offset, 1).or_else(|| self.reaching(offset, 1))
    }

    #[inline]
    fn hit(&mut self, slot: u32) {
        let class = self.slots.class_of_slot(slot);
        let key = self.slots.header(slot).offset();
        self.policy.touched(&mut self.slots, class, slot, key);
    }

    /// Searches the sector of `offset` once.
    #[inline]
    fn look(&self, offset: u64, len: usize) -> Look {
        let mut first = false;
        let (whole, neighbours) = self.index.find_among(Key::of(offset), |slot| {
            let header = self.slots.header_and_data_soon(slot);
            first |= header.overlaps(offset, offset + 1);
            header.covers(offset, len)
        });
        Look { whole, first, missing: Missing { neighbours } }
    }

    /// Returns the slot of an item that covers the whole range. Otherwise returns whether several
    /// items may cover it, and what is missing.
    #[inline]
    fn whole(&mut self, offset: u64, len: usize, period: Option<u8>) -> std::result::Result<u32, (bool, Missing)> {
        let look = self.look(offset, len);
        // This is needed only if an item begins in an earlier sector than it ends in.
        let reaches = look.whole.is_none() && self.slots.has_spanning();
        let found = if reaches { self.reaching(offset, len) } else { look.whole };
        let Some(slot) = found else { return Err((look.first || reaches, look.missing)) };
        if is_old(self.slots.header(slot), period) {
            self.remove(slot);
            return Err((false, look.missing));
        }
        Ok(slot)
    }

    /// Copies the bytes at `offset`, which lie in one page, if they are cached.
    #[inline]
    pub(crate) fn read(&mut self, offset: u64, out: &mut [u8], period: Option<u8>) -> std::result::Result<(), Missing> {
        let class = class_of(out.len());
        self.classes[usize::from(class)].counts.asked_bytes += out.len() as u64;
        let (partly, missing) = match self.whole(offset, out.len(), period) {
            Ok(slot) => {
                let at = (offset - self.slots.header(slot).offset()) as usize;
                self.slots.copy_out(slot, at, out);
                self.hit(slot);
                self.classes[usize::from(class)].counts.hits += 1;
                return Ok(());
            }
            Err(not) => not,
        };
        if partly && self.assemble(offset, out, period) {
            self.classes[usize::from(class)].counts.hits += 1;
            return Ok(());
        }
        self.classes[usize::from(class)].counts.misses += 1;
        Err(missing)
    }

    /// Assembles the bytes from several items.
    fn assemble(&mut self, offset: u64, out: &mut [u8], period: Option<u8>) -> bool {
        let mut done = 0;
        // The first piece decides in nearly all cases, so nothing is written before it is found.
        while done < out.len() {
            let at = offset + done as u64;
            let Some(slot) = self.holding(at) else { return false };
            let header = self.slots.header(slot);
            if is_old(header, period) {
                self.remove(slot);
                return false;
            }
            let len = (out.len() - done).min((header.end() - at) as usize);
            self.slots.copy_out(slot, (at - header.offset()) as usize, &mut out[done..done + len]);
            self.hit(slot);
            done += len;
        }
        true
    }

    pub(crate) fn holds(&self, offset: u64, len: usize) -> bool {
        self.covering(Key::of(offset), offset, len).is_some()
    }

    /// Pins the bytes, if one item has them all. If they are cached but cannot be pinned, nothing
    /// is missing: the caller copies them, and that read is counted.
    pub(crate) fn pin(
        &mut self,
        offset: u64,
        len: usize,
        period: Option<u8>,
    ) -> std::result::Result<Pinned, Option<Missing>> {
        let class = usize::from(class_of(len));
        let slot = match self.whole(offset, len, period) {
            Ok(slot) => slot,
            Err((_, missing)) => {
                self.classes[class].counts.asked_bytes += len as u64;
                self.classes[class].counts.misses += 1;
                return Err(Some(missing));
            }
        };
        let at = (offset - self.slots.header(slot).offset()) as usize;
        let pinned = self.slots.pin(slot, at, len).ok_or(None)?;
        self.hit(slot);
        self.classes[class].counts.asked_bytes += len as u64;
        self.classes[class].counts.hits += 1;
        Ok(pinned)
    }

    /// Offers bytes that were read from the device to the policy. `asked` is where the read that
    /// brought them began. Returns false if they are not admitted.
    pub(crate) fn insert(&mut self, offset: u64, bytes: &[u8], period: u8, asked: u64) -> bool {
        let class = class_of(bytes.len());
        let look = self.look(offset, bytes.len());
        if look.whole.is_some() {
            return true;
        }
        let state = match self.policy.admission(class, asked) {
            Admission::Main => State::Main,
            Admission::Probation => State::Probation,
        };
        let one_sector = offset / SECTOR == (offset + bytes.len() as u64 - 1) / SECTOR;
        if !one_sector || look.missing.neighbours > 0 {
            self.replace_within(offset, bytes.len());
        }
        self.grow_index();
        let Some(slot) = self.take_slot(class, offset) else {
            self.classes[usize::from(class)].counts.bypassed += 1;
            return false;
        };
        self.slots.copy_in(slot, bytes);
        self.slots.set_header(slot, Header::item(offset, bytes.len(), period, state));
        if !self.index.insert(Key::of(offset), slot) {
            // The index could not grow, because a slab in its way is pinned.
            self.slots.set_header(slot, Header::free(NONE));
            self.give_slot(class, slot);
            self.classes[usize::from(class)].counts.bypassed += 1;
            return false;
        }
        self.count_in(slot);
        self.policy.placed(&mut self.slots, class, slot);
        self.classes[usize::from(class)].counts.admitted += 1;
        true
    }

    /// Removes items that lie within the bytes of the new one.
    fn replace_within(&mut self, offset: u64, len: usize) {
        let end = offset + len as u64;
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let within = |h: Header| offset <= h.offset() && h.end() <= end;
            let key = Key::of_sector(sector * SECTOR);
            while let Some(slot) = self.index.find(key, |s| within(self.slots.header(s))) {
                self.remove(slot);
            }
        }
    }

    /// Whether an item may begin `back` sectors before this one and reach it. No item crosses the
    /// end of its page.
    #[inline]
    fn may_reach(&self, sector: usize, back: usize) -> bool {
        self.reach[back..(8 - sector + back).min(8)].iter().any(|&n| n > 0)
    }

    fn reach_of(header: Header) -> usize {
        ((header.end() - 1) / SECTOR - header.offset() / SECTOR) as usize
    }

    fn reach_changes(&mut self, header: Header, by: isize) {
        let reach = Self::reach_of(header);
        self.reach[reach] = self.reach[reach].saturating_add_signed(by);
        if reach > 0 {
            self.slots.set_spanning(&self.reach);
        }
    }

    fn count_in(&mut self, slot: u32) {
        let header = self.slots.header(slot);
        self.reach_changes(header, 1);
        self.live_bytes += header.len();
        let class = usize::from(self.slots.class_of_slot(slot));
        self.classes[class].live += 1;
    }

    fn count_out(&mut self, slot: u32) {
        let header = self.slots.header(slot);
        self.reach_changes(header, -1);
        self.live_bytes -= header.len();
        let class = usize::from(self.slots.class_of_slot(slot));
        self.classes[class].live -= 1;
    }

    /// Removes an item and frees its slot.
    fn remove(&mut self, slot: u32) {
        let class = self.slots.class_of_slot(slot);
        let header = self.slots.header(slot);
        self.policy.gone(&mut self.slots, class, slot);
        self.index.remove(Key::of(header.offset()), slot);
        self.count_out(slot);
        self.classes[usize::from(class)].counts.invalidated += 1;
        self.give_slot(class, slot);
    }

    /// Removes all items that hold a byte of the range, which lies in one page.
    pub(crate) fn invalidate(&mut self, from: u64, to: u64) {
        let page = from / PAGE * PAGE;
        for sector in page / SECTOR..to.div_ceil(SECTOR) {
            let key = Key::of_sector(sector * SECTOR);
            while let Some(slot) = self.index.find(key, |s| self.slots.header(s).overlaps(from, to)) {
                self.remove(slot);
            }
        }
    }

    /// Removes all items for which `goes` is true, by looking at every item.
    pub(crate) fn sweep(&mut self, goes: impl Fn(Header) -> bool) {
        for class in 0..CLASSES {
            for at in 0..self.classes[class].slabs.len() {
                let slab = self.classes[class].slabs[at];
                for place in 0..self.slots.geometry(class as u8).items {
                    let slot = Slots::slot(slab, place);
                    let header = self.slots.header(slot);
                    if header.is_live() && goes(header) {
                        self.remove(slot);
                    }
                }
            }
        }
    }

    /// Removes items that are older than the time to live.
    pub(crate) fn expire(&mut self, period: u8) {
        self.sweep(|header| is_old(header, Some(period)));
    }

    /// Calls `call` with each item that was read again, and its bytes.
    pub(crate) fn each(&self, mut call: impl FnMut(u64, &[u8], u8)) {
        let mut bytes = [0u8; PAGE as usize];
        for class in 0..CLASSES {
            for &slab in &self.classes[class].slabs {
                for place in 0..self.slots.geometry(class as u8).items {
                    let slot = Slots::slot(slab, place);
                    let header = self.slots.header(slot);
                    if header.is_live() {
                        self.slots.copy_out(slot, 0, &mut bytes[..header.len()]);
                        let worth = header.freq() + u8::from(header.state() == State::Main);
                        call(header.offset(), &bytes[..header.len()], worth);
                    }
                }
            }
        }
    }

    pub(crate) fn items(&self) -> usize {
        self.index.entries()
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// The bytes of tables: index, ghosts, and the policy's own memory.
    pub(crate) fn table_bytes(&self) -> usize {
        self.slots.fixed() + self.index.buckets() * size_of::<Bucket>() + self.policy.allocated_bytes()
    }

    pub(crate) fn threshold(&self) -> Option<f64> {
        self.policy.threshold()
    }

    pub(crate) fn prefer_recency(&mut self, recency: bool) {
        self.policy.prefer_recency(recency);
    }

    pub(crate) fn classes(&self) -> [ClassState; CLASSES] {
        std::array::from_fn(|c| ClassState {
            slabs: self.classes[c].slabs.len(),
            items: self.classes[c].live,
            counts: self.classes[c].counts,
        })
    }

    /// The counts of the classes since the last call. `unlocked` has hits and misses that did not
    /// take the lock.
    pub(crate) fn lately(&mut self, unlocked: &[[u64; 2]; CLASSES]) -> [Lately; CLASSES] {
        std::array::from_fn(|c| {
            let ghost_hits = self.policy.take_ghost_hits(c as u8);
            let of = &mut self.classes[c];
            of.counts.ghost_hits += ghost_hits;
            let (now, before) = (of.counts, std::mem::replace(&mut of.seen, of.counts));
            Lately {
                slabs: of.slabs.len(),
                hits: now.hits - before.hits + unlocked[c][0],
                misses: now.misses - before.misses + unlocked[c][1],
                evicted: now.evicted - before.evicted,
                ghost_hits,
            }
        })
    }

    /// Checks the invariants between operations, for tests.
    #[cfg(test)]
    pub(crate) fn check(&mut self) {
        let (mut live, mut bytes, mut reach) = (0, 0, [0; 8]);
        for class in 0..CLASSES {
            let mut of_class = 0;
            for &slab in &self.classes[class].slabs {
                assert_eq!(self.slots.class_of_slab(slab), Some(class as u8));
                assert!((slab as usize) < self.usable);
                for place in 0..self.slots.geometry(class as u8).items {
                    let slot = Slots::slot(slab, place);
                    let header = self.slots.header(slot);
                    if header.is_live() {
                        of_class += 1;
                        bytes += header.len();
                        reach[Self::reach_of(header)] += 1;
                        assert!(header.len() <= super::class::CAPACITIES[class]);
                        assert_eq!(header.offset() / PAGE, (header.end() - 1) / PAGE, "an item crosses a page");
                        let found = self.index.find(Key::of(header.offset()), |s| s == slot);
                        assert_eq!(found, Some(slot), "an item is not in the index");
                    }
                }
            }
            assert_eq!(self.classes[class].live, of_class);
            live += of_class;
        }
        assert_eq!(
            (live, bytes, reach),
            (self.index.entries(), self.live_bytes, self.reach),
            "counts of items, bytes, reach"
        );
        let in_classes: usize = self.classes.iter().map(|c| c.slabs.len()).sum();
        assert_eq!(in_classes + self.free_slabs.len(), self.usable, "slabs");
    }
}
