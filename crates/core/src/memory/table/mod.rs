//! The table of leases on a region.
//!
//! It is a spin lock around a short list. A short copy between memories takes the lock, checks,
//! copies and releases it, which costs one atomic exchange a region. A mutex would cost two, and
//! the target of 30 ns over memcpy would be out of reach. Leases for which the list has no room go
//! to a tree (`intervals.rs`), which costs nothing while there are few.
//!
//! A child made by `fork` has a copy of the table. If a thread of the parent had it locked at that
//! moment, the copy stays locked for ever, because that thread does not exist in the child. A
//! waiter there gets an error, and the path of a short copy pays nothing for it.

pub(super) mod access;
mod intervals;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::OwningProcess;
use access::Access;
use intervals::Intervals;

#[derive(Clone)]
struct Held {
    range: Range<usize>,
    access: Access,
}

/// How long a child waits for a parent's table before it assumes that the holder does not exist in
/// the child.
const CHILD_LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of leases that are searched one by one; the tree is about as quick for so many.
const FEW: usize = 16;

struct Leases {
    /// The number of all leases.
    count: usize,
    few: Vec<Held>,
    many: Intervals,
}

/// The leases held on one region.
pub(in crate::memory) struct Table {
    locked: AtomicBool,
    owner: OwningProcess,
    leases: UnsafeCell<Leases>,
}

// SAFETY: `leases` is reached only through `Locked`, and at most one `Locked` exists, because
// `lock` makes one only after it changed `locked` from false to true, and the drop of `Locked` is
// what changes it back.
unsafe impl Sync for Table {}
// SAFETY: the table owns plain integers.
unsafe impl Send for Table {}

impl Table {
    pub(in crate::memory) fn new() -> Self {
        let leases = Leases { count: 0, few: Vec::with_capacity(FEW), many: Intervals::default() };
        Table { locked: AtomicBool::new(false), owner: OwningProcess::here(), leases: UnsafeCell::new(leases) }
    }

    /// Locks the table. Returns `None` in a child of the process that made it, where no thread is
    /// left to unlock it.
    #[inline]
    pub(in crate::memory) fn lock(&self) -> Option<Locked<'_>> {
        if self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
            && !self.lock_contended()
        {
            return None;
        }
        Some(Locked { table: self })
    }

    #[cold]
    fn lock_contended(&self) -> bool {
        // Threads of a child may hold the lock too, for as long as a short copy takes while its
        // thread waits for a core.
        let patience = (!self.owner.is_here()).then(|| Instant::now() + CHILD_LOCK_TIMEOUT);
        let mut turns = 0u32;
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            // The holder may have been preempted in the middle of a copy: yield the core to it.
            if turns < 64 {
                std::hint::spin_loop()
            } else {
                std::thread::yield_now()
            }
            if patience.is_some_and(|end| Instant::now() > end) {
                return false;
            }
        }
        true
    }
}

/// The table, locked.
pub(in crate::memory) struct Locked<'a> {
    table: &'a Table,
}

impl Locked<'_> {
    #[inline]
    fn leases(&self) -> &Leases {
        // SAFETY: `self` is the only `Locked` of this table (see `Sync for Table`), so nobody
        // writes the leases.
        unsafe { &*self.table.leases.get() }
    }

    #[inline]
    fn leases_mut(&mut self) -> &mut Leases {
        // SAFETY: `self` is the only `Locked` of this table, and it is borrowed mutably.
        unsafe { &mut *self.table.leases.get() }
    }

    /// Returns a lease that conflicts with `access` to `range`. An empty range conflicts with
    /// nothing.
    #[inline]
    pub(in crate::memory) fn conflict(&self, range: &Range<usize>, access: Access) -> Option<Range<usize>> {
        // The fast path of a short copy: no lease is held.
        if self.leases().count == 0 { None } else { self.conflict_among(range, access) }
    }

    #[inline(never)]
    fn conflict_among(&self, range: &Range<usize>, access: Access) -> Option<Range<usize>> {
        let writing = access == Access::Write;
        let leases = self.leases();
        let overlaps = |h: &&Held| {
            (writing || h.access == Access::Write)
                && h.range.start < range.end
                && range.start < h.range.end
                && !range.is_empty()
        };
        match leases.few.iter().find(overlaps) {
            Some(held) => Some(held.range.clone()),
            None if leases.many.is_empty() || range.is_empty() => None,
            None => leases.many.overlap(range, !writing),
        }
    }

    #[inline]
    pub(in crate::memory) fn add(&mut self, range: Range<usize>, access: Access) {
        if range.is_empty() {
            return;
        }
        let leases = self.leases_mut();
        leases.count += 1;
        if leases.few.len() < FEW {
            leases.few.push(Held { range, access });
        } else {
            leases.many.add(range, access);
        }
    }

    #[inline]
    pub(in crate::memory) fn remove(&mut self, range: &Range<usize>, access: Access) {
        if range.is_empty() {
            return;
        }
        let leases = self.leases_mut();
        leases.count -= 1;
        if let Some(at) = leases.few.iter().position(|h| h.range == *range && h.access == access) {
            leases.few.swap_remove(at);
        } else {
            let there = leases.many.remove(range, access);
            debug_assert!(there, "a lease on {range:?} that is not held");
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.locked.store(false, Ordering::Release);
    }
}
