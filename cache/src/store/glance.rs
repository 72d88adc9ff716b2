//! A look at a shard without its lock: how most hits are served.
//!
//! ```text
//! index by the sector the range begins in, or by its page -> a header covers the range?  copy;  nothing changed meanwhile?  a hit
//! everything else: the lock
//! ```
//! With a lock at every hit, threads took its line from each other. What is read here may be torn,
//! so every number is checked before it is used as a place, and nothing is given out unless the
//! shard's version says that nothing changed (`guarded.rs`). Fetching the index's next line as
//! well, where one search in four goes on, changed nothing that could be measured.

use std::sync::atomic::Ordering::Relaxed;

use super::ground::{self, Ground};
use super::header::Header;
use super::index::{self, Key};
use super::shard::{PAGE, SECTOR};

/// Buckets that are searched: an entry lies further from its first one only where the index is
/// unusually full.
const BUCKETS: usize = 4;
/// Longer reads are worth a lock, under which bytes are copied faster than word by word.
pub(crate) const MAX_OPTIMISTIC_BYTES: usize = 1024;

/// An item that seems to have been there.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) slot: u32,
    pub(crate) header: Header,
}

/// Copies the bytes at `offset` from an item that covers them and begins in the same sector, or
/// with the page. Valid only if nothing changed meanwhile.
#[inline]
pub(crate) fn read(ground: &Ground, offset: u64, out: &mut [u8]) -> Option<Seen> {
    let page = page_before(ground, offset);
    if let Some(page) = page {
        // Both lines are waited for together.
        index::bucket_soon(ground.index(), Key::of(page));
    }
    beginning_at(ground, offset, offset, out).or_else(|| beginning_at(ground, page?, offset, out))
}

/// Where the page begins, if an item that begins there may reach another sector.
#[inline]
fn page_before(ground: &Ground, offset: u64) -> Option<u64> {
    let page = offset / PAGE * PAGE;
    (ground.has_spanning() && page / SECTOR != offset / SECTOR).then_some(page)
}

/// The same from an item that begins at `from`, or before it in its sector.
#[inline]
fn beginning_at(ground: &Ground, from: u64, offset: u64, out: &mut [u8]) -> Option<Seen> {
    let mut found = None;
    let slot = index::find(ground.index(), Key::of(from), BUCKETS, |slot, begin| {
        let Some(place) = ground.place(slot) else { return false };
        // Header and data are waited for together.
        ground.data_soon(place, offset.saturating_sub(from / SECTOR * SECTOR + begin));
        let header = Header::of(ground.header_word(place).load(Relaxed));
        found = Some((place, header));
        header.is_live() && header.covers(offset, out.len())
    });
    let (slot, (place, header)) = (slot.0?, found?);
    let (at, words) = ((offset - header.offset()) as usize, ground.data(place));
    if at + out.len() > words.len() * ground::WORD {
        return None;
    }
    ground::copy_out(words, at, out);
    Some(Seen { slot, header })
}

/// Brings the index's lines for an offset nearer.
#[inline]
pub(crate) fn index_soon(ground: &Ground, offset: u64) {
    index::bucket_soon(ground.index(), Key::of(offset));
    if let Some(page) = page_before(ground, offset) {
        index::bucket_soon(ground.index(), Key::of(page));
    }
}

/// Brings nearer what probably holds the bytes at an offset.
#[inline]
pub(crate) fn item_soon(ground: &Ground, offset: u64) {
    let ask = |from: u64| {
        let soon = |slot, begin| {
            if let Some(place) = ground.place(slot) {
                ground.slot_soon(place, offset.saturating_sub(from / SECTOR * SECTOR + begin));
            }
            true
        };
        index::find(ground.index(), Key::of(from), 1, soon).0
    };
    if ask(offset).is_none()
        && let Some(page) = page_before(ground, offset)
    {
        ask(page);
    }
}
