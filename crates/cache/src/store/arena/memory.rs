//! Slots of a shard, for the holder of its lock, and pins, which keep bytes readable after the lock
//! was released.
//!
//! A slot is named by its slab and its position there, in 32 bits. Slots return bytes only as
//! copies, except to a [`Pinned`], whose slab is neither reused nor reassigned until it is dropped.
//! The number of pins of a slab is limited, so that its count never wraps. Beyond the limit bytes
//! are copied.
//!
//! The unsafe code makes slices over pinned bytes, and copies under the lock. Nobody writes to a
//! slot of a pinned slab that held an item when it was pinned. Nobody writes bytes while they are
//! copied under the lock.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use datapipes_core::Result;

use super::header::{Header, State};
use super::{Arena, Memory, Place, WORD, copy_in};
use crate::sync::Arc;

/// The value for no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The most pins of one slab. Forgotten pins (`std::mem::forget`) keep a slab for ever. If the
/// count wrapped to zero, the slab would be reused while it is read. The limit is far from the end
/// of the number, so that no count ever comes near that.
pub(crate) const MAX_PINS: u32 = u32::MAX / 2;

/// The numbers of readers that use each slab without the lock.
pub(crate) struct Pins {
    counts: Box<[AtomicU32]>,
    /// Keeps the bytes alive.
    _ground: Arc<Arena>,
}

/// Bytes of an item that stay unchanged until this is dropped, whatever happens to the item.
pub(crate) struct Pinned {
    pins: Arc<Pins>,
    slab: u32,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are not written while the slab is pinned, and the count is atomic.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start and length are of one slot, checked when it was pinned. `pins` keeps the
        // memory alive, and nobody writes to a slot of a pinned slab that ever held an item since.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
impl Pinned {
    /// Sets the number of its slab's pins.
    pub(crate) fn pretend(&self, count: u32) {
        self.pins.counts[self.slab as usize].store(count, Ordering::SeqCst);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(count) = self.pins.counts.get(self.slab as usize) {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The slabs of a shard, for the holder of its lock.
pub(crate) struct Slots {
    arena: Arc<Arena>,
    pins: Arc<Pins>,
}

impl Deref for Slots {
    type Target = Arc<Arena>;

    fn deref(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl Slots {
    /// Uses `len` bytes at `at` of the memory. The policy keeps `extra` bytes for each item there.
    pub(crate) fn over(memory: &Arc<Memory>, at: usize, len: usize, extra: usize) -> Result<Slots> {
        let arena = Arc::new(Arena::over(memory, at, len, extra)?);
        let counts = (0..arena.slabs()).map(|_| AtomicU32::new(0)).collect();
        Ok(Slots { pins: Arc::new(Pins { counts, _ground: arena.clone() }), arena })
    }

    pub(crate) fn slot(slab: u32, place: usize) -> u32 {
        Arena::slot(slab, place)
    }

    pub(crate) fn slab_of(slot: u32) -> u32 {
        Arena::slab_of(slot)
    }

    /// The position of a slot. It panics (a bug in this crate) for an invalid slot.
    #[inline]
    fn locate(&self, slot: u32) -> Place<'_> {
        self.arena.place(slot).unwrap_or_else(|| unreachable!("slot {slot} is not in its slab"))
    }

    /// The class of a slot's slab. The slot must be in use.
    pub(crate) fn class_of_slot(&self, slot: u32) -> u8 {
        let class = self.arena.class_of_slab(Self::slab_of(slot));
        debug_assert!(class.is_some(), "slot {slot} is in a slab without a class");
        class.unwrap_or(0)
    }

    /// Assigns a slab to a class, or to none.
    pub(crate) fn assign(&mut self, slab: u32, class: Option<u8>) {
        debug_assert!(!self.is_pinned(slab), "a slab changes its class while somebody reads from it");
        self.arena.assign(slab, class);
    }

    pub(crate) fn is_pinned(&self, slab: u32) -> bool {
        // Acquire: a reader's accesses before it dropped the pin happen before the slot is written
        // again.
        self.pins.counts[slab as usize].load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn header(&self, slot: u32) -> Header {
        Header::of(self.arena.header_word(self.locate(slot)).load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_header(&mut self, slot: u32, header: Header) {
        self.arena.header_word(self.locate(slot)).store(header.bits(), Ordering::Relaxed);
    }

    /// Two numbers that the policy keeps with a slot. They exist only if it asked for 8 extra
    /// bytes.
    pub(crate) fn links(&self, slot: u32) -> [u32; 2] {
        let both = self.arena.extra_word(self.locate(slot)).load(Ordering::Relaxed);
        [both as u32, (both >> 32) as u32]
    }

    pub(crate) fn set_links(&mut self, slot: u32, [low, high]: [u32; 2]) {
        let both = u64::from(high) << 32 | u64::from(low);
        self.arena.extra_word(self.locate(slot)).store(both, Ordering::Relaxed);
    }

    /// Returns the header, and prefetches the first bytes of the data: one wait for memory instead
    /// of two.
    #[inline]
    pub(crate) fn header_and_data_soon(&self, slot: u32) -> Header {
        let place = self.locate(slot);
        self.arena.data_soon(place, 0);
        Header::of(self.arena.header_word(place).load(Ordering::Relaxed))
    }

    /// Prefetches a slot's header and first bytes.
    pub(crate) fn prefetch(&self, slot: u32) {
        self.arena.slot_soon(self.locate(slot), 0);
    }

    /// Copies bytes of an item, from `at` on.
    #[inline]
    pub(crate) fn copy_out(&self, slot: u32, at: usize, out: &mut [u8]) {
        let from = self.arena.bytes(self.locate(slot), at, out.len());
        // SAFETY: `bytes` checked the length. Only the owner of the shard, which is borrowed,
        // writes items. `out` is not part of the cache's memory, of which nobody has a mutable
        // slice.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Writes an item's bytes. The slot must be free, or in a slab without pins.
    pub(crate) fn copy_in(&mut self, slot: u32, bytes: &[u8]) {
        // A free slot is never pinned: a slot that dies while its slab is pinned becomes free only
        // when the slab is not pinned any more.
        debug_assert!(self.header(slot).state() == State::Free || !self.is_pinned(Self::slab_of(slot)));
        copy_in(self.arena.data(self.locate(slot)), bytes);
    }

    /// Moves an item's bytes to another slot of the same class.
    pub(crate) fn copy_within(&mut self, from: u32, to: u32, len: usize) {
        let (source, target) = (self.arena.data(self.locate(from)), self.arena.data(self.locate(to)));
        for (to, from) in target.iter().zip(source).take(len.div_ceil(WORD)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Keeps bytes of an item readable without the lock. None where the slab has [too many
    /// pins](MAX_PINS).
    pub(crate) fn pin(&mut self, slot: u32, at: usize, len: usize) -> Option<Pinned> {
        let slab = Self::slab_of(slot);
        let start = self.arena.bytes(self.locate(slot), at, len);
        let count = self.pins.counts.get(slab as usize)?;
        // Pinning needs the shard, which is borrowed. Other threads only remove pins, so the count
        // cannot grow between these two.
        if count.load(Ordering::Relaxed) >= MAX_PINS {
            return None;
        }
        count.fetch_add(1, Ordering::Relaxed);
        Some(Pinned { pins: self.pins.clone(), slab, start, len })
    }
}
