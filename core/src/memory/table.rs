//! Who holds which bytes of a region.
//!
//! A spin lock around a short list. A short copy between memories takes the lock, looks, copies and lets go, which
//! costs one atomic exchange a region; a mutex would cost two and the target of 30 ns over memcpy would be out of reach.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a lease permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Many may read the same bytes.
    Read,
    /// One may write, and nobody else may hold the bytes.
    Write,
}

#[derive(Clone)]
struct Held {
    range: Range<usize>,
    access: Access,
}

/// The leases held on one region.
pub(super) struct Table {
    locked: AtomicBool,
    held: UnsafeCell<Vec<Held>>,
}

// SAFETY: `held` is reached only through `Locked`, and at most one `Locked` exists, because `lock` makes one only after
// it changed `locked` from false to true, and the drop of `Locked` is what changes it back.
unsafe impl Sync for Table {}
// SAFETY: the table owns plain integers.
unsafe impl Send for Table {}

impl Table {
    pub(super) fn new() -> Self {
        Table { locked: AtomicBool::new(false), held: UnsafeCell::new(Vec::with_capacity(16)) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        if self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        Locked { table: self }
    }

    #[cold]
    fn lock_contended(&self) {
        let mut turns = 0u32;
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            // The holder may have been preempted in the middle of a copy: give it the core.
            if turns < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// The table, locked.
pub(super) struct Locked<'a> {
    table: &'a Table,
}

impl Locked<'_> {
    #[inline]
    fn held(&self) -> &Vec<Held> {
        // SAFETY: `self` is the only `Locked` of this table (see `Sync for Table`), so nobody writes the list.
        unsafe { &*self.table.held.get() }
    }

    #[inline]
    fn held_mut(&mut self) -> &mut Vec<Held> {
        // SAFETY: `self` is the only `Locked` of this table, and it is borrowed mutably.
        unsafe { &mut *self.table.held.get() }
    }

    /// The first lease that stands in the way of `access` to `range`.
    #[inline]
    pub(super) fn conflict(&self, range: &Range<usize>, access: Access) -> Option<Range<usize>> {
        self.held()
            .iter()
            .find(|h| {
                // An empty range holds nothing, wherever it lies.
                (access == Access::Write || h.access == Access::Write)
                    && !h.range.is_empty()
                    && !range.is_empty()
                    && h.range.start < range.end
                    && range.start < h.range.end
            })
            .map(|h| h.range.clone())
    }

    #[inline]
    pub(super) fn add(&mut self, range: Range<usize>, access: Access) {
        self.held_mut().push(Held { range, access });
    }

    #[inline]
    pub(super) fn remove(&mut self, range: &Range<usize>, access: Access) {
        let held = self.held_mut();
        if let Some(at) = held.iter().position(|h| h.range == *range && h.access == access) {
            held.swap_remove(at);
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.locked.store(false, Ordering::Release);
    }
}
