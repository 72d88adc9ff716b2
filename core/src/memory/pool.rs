//! One region from which many places are cut: prefaulted, huge and registered once, then reused.

use std::sync::{Arc, Mutex, PoisonError};

use super::region::{MapOptions, MemoryRange, Region};
use crate::error::{Error, ErrorKind, Result};
use crate::process::OwningProcess;

/// Cuts are multiples of this, so that direct I/O takes every one of them.
const GRAIN: usize = 4096;

#[derive(Debug)]
struct Free {
    /// (offset, length), by offset, never adjacent.
    holes: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Shared {
    region: Region,
    free: Mutex<Free>,
    owner: OwningProcess,
}

/// A region from which ranges are taken and to which they return.
///
/// A first touch of fresh memory and a registration with the kernel are dear; a pool pays for both
/// once.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

/// Bytes that return to their pool when dropped. Every range, lease and pipe over them keeps it.
#[derive(Debug)]
pub(super) struct Cut {
    pool: Pool,
    at: usize,
    len: usize,
}

impl Pool {
    /// A pool of `len` bytes, rounded up to 4 KiB.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn new(len: usize, options: MapOptions) -> Result<Pool> {
        let whole = len.max(1).checked_next_multiple_of(GRAIN);
        let too_long = || Error::new(ErrorKind::InvalidInput, "map", format!("{len} bytes of memory"));
        let len = whole.ok_or_else(too_long)?;
        let region = Region::map(len, options)?;
        Ok(Pool(Arc::new(Shared {
            region,
            free: Mutex::new(Free { holes: vec![(0, len)] }),
            owner: OwningProcess::here(),
        })))
    }

    /// The region under the pool: all of its bytes, those that were taken too. Leases keep its
    /// users apart.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// Bytes not taken; in a child of the process that made the pool none are to be had.
    pub fn available(&self) -> usize {
        if !self.0.owner.is_here() {
            return 0;
        }
        self.0.free.lock().unwrap_or_else(PoisonError::into_inner).holes.iter().map(|h| h.1).sum()
    }

    /// The first hole of at least `len` bytes (rounded up to 4 KiB) becomes a range. It returns to
    /// the pool when nothing refers to it any more: no place, no pipe, no lease.
    pub(crate) fn take(&self, len: usize) -> Result<MemoryRange> {
        self.0.owner.check("take")?;
        let rounded = len.max(1).checked_next_multiple_of(GRAIN);
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = rounded.and_then(|rounded| Some((rounded, free.holes.iter().position(|h| h.1 >= rounded)?)));
        let Some((rounded, index)) = found else {
            let largest = free.holes.iter().map(|h| h.1).max().unwrap_or(0);
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                "take",
                format!("{len} bytes from a pool of {}, whose largest hole is {largest}", self.0.region.len()),
            )
            .advice("drop a place of this pool, and the pipes that are connected to it, or make a larger pool"));
        };
        let (at, hole) = free.holes[index];
        if hole == rounded {
            free.holes.remove(index);
        } else {
            free.holes[index] = (at + rounded, hole - rounded);
        }
        drop(free);
        let cut = Cut { pool: self.clone(), at, len: rounded };
        Ok(self.0.region.range(at, len)?.of_cut(cut))
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // A child takes nothing from the pool, whose lock a thread of the parent may have held.
        if !self.pool.0.owner.is_here() {
            return;
        }
        let mut free = self.pool.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let index = free.holes.partition_point(|h| h.0 < self.at);
        free.holes.insert(index, (self.at, self.len));
        if index + 1 < free.holes.len() && self.at + self.len == free.holes[index + 1].0 {
            free.holes[index].1 += free.holes[index + 1].1;
            free.holes.remove(index + 1);
        }
        if index > 0 && free.holes[index - 1].0 + free.holes[index - 1].1 == self.at {
            free.holes[index - 1].1 += free.holes[index].1;
            free.holes.remove(index);
        }
    }
}
