//! Optimistic reads: most hits are served without the shard's lock.
//!
//! ```text
//! index by the range's sector, or by its page
//!   -> a header covers the range?  copy; nothing changed meanwhile?  a hit
//!   -> no header has its first byte, no item that begins elsewhere can reach it, and nothing
//!      changed meanwhile?  a miss
//!   -> otherwise: take the lock
//! ```
//! A miss under the lock would search everything twice, and wait for memory at each of four atomic
//! exchanges.
//! With a lock at every hit, threads contend for its cache line. Bytes that are read here may be
//! torn. So every number is checked before it is used as a position, and nothing is returned unless
//! the shard's version shows that nothing changed (`guarded.rs`). Prefetching the index's next line
//! as well, where one search in four goes on, made no measurable difference.

use std::sync::atomic::Ordering::Relaxed;

use super::arena::{self, Arena};
use super::header::{Header, PAGE, SECTOR};
use super::index::{self, Key};

/// The most buckets that are searched. An entry lies further from its first bucket only where the
/// index is unusually full.
const BUCKETS: usize = 4;
/// Longer reads take the lock, under which bytes are copied faster than word by word.
pub(crate) const MAX_OPTIMISTIC_BYTES: usize = 1024;

/// An item that seems to have been there.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) slot: u32,
    pub(crate) header: Header,
}

/// The result of an optimistic read.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// All of the bytes were found and copied.
    All(Seen),
    /// Not even the first byte was found. The number is that of items that begin in its sector.
    Nothing(u32),
    /// Some of the bytes may be cached: only a search under the lock can tell.
    Unsure,
}

/// Copies the bytes at `offset` from an item that covers them and begins in the same sector, or at
/// the start of the page. The result is valid only if nothing changed meanwhile.
#[inline]
pub(crate) fn read(arena: &Arena, offset: u64, out: &mut [u8]) -> Found {
    let page = page_before(arena, offset);
    if let Some(page) = page {
        // Both lines are fetched at the same time.
        index::bucket_soon(arena.index(), Key::of(page));
    }
    let mut found = beginning_at(arena, offset, offset, out);
    if let (Found::Nothing(neighbours), Some(page)) = (found, page) {
        found = match beginning_at(arena, page, offset, out) {
            // Items that begin in a third sector were not searched.
            Found::Nothing(_) if arena.has_others_spanning() => Found::Unsure,
            Found::Nothing(_) => Found::Nothing(neighbours),
            found => found,
        };
    }
    found
}

/// The start of the page, if an item that begins there may reach another sector.
#[inline]
fn page_before(arena: &Arena, offset: u64) -> Option<u64> {
    let page = offset / PAGE * PAGE;
    (arena.has_spanning() && page / SECTOR != offset / SECTOR).then_some(page)
}

/// Reads from an item that begins at `from`, or before it in its sector.
#[inline]
fn beginning_at(arena: &Arena, from: u64, offset: u64, out: &mut [u8]) -> Found {
    let (mut found, mut partly) = (None, false);
    let search = index::find(arena.index(), Key::of(from), BUCKETS, |slot, begin| {
        let Some(place) = arena.place(slot) else { return false };
        // Header and data are fetched at the same time.
        arena.data_soon(place, offset.saturating_sub(from / SECTOR * SECTOR + begin));
        let header = Header::of(arena.header_word(place).load(Relaxed));
        found = Some((place, header));
        partly |= header.overlaps(offset, offset + 1);
        header.is_live() && header.covers(offset, out.len())
    });
    let (slot, place, header) = match (search.slot, found) {
        (Some(slot), Some((place, header))) => (slot, place, header),
        _ if partly || search.is_cut => return Found::Unsure,
        _ => return Found::Nothing(search.met),
    };
    let (at, words) = ((offset - header.offset()) as usize, arena.data(place));
    if at + out.len() > words.len() * arena::WORD {
        return Found::Unsure;
    }
    arena::copy_out(words, at, out);
    Found::All(Seen { slot, header })
}

/// Prefetches the index's lines for an offset.
#[inline]
pub(crate) fn index_soon(arena: &Arena, offset: u64) {
    index::bucket_soon(arena.index(), Key::of(offset));
    if let Some(page) = page_before(arena, offset) {
        index::bucket_soon(arena.index(), Key::of(page));
    }
}

/// Prefetches the index's lines that an insertion at an offset changes.
#[inline]
pub(crate) fn entry_soon(arena: &Arena, offset: u64) {
    index::buckets_soon(arena.index(), Key::of(offset));
}

/// Prefetches the item that probably holds the bytes at an offset.
#[inline]
pub(crate) fn item_soon(arena: &Arena, offset: u64) {
    let ask = |from: u64| {
        let soon = |slot, begin| {
            if let Some(place) = arena.place(slot) {
                arena.slot_soon(place, offset.saturating_sub(from / SECTOR * SECTOR + begin));
            }
            true
        };
        index::find(arena.index(), Key::of(from), 1, soon).slot
    };
    if ask(offset).is_none()
        && let Some(page) = page_before(arena, offset)
    {
        ask(page);
    }
}
