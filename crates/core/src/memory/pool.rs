//! Pools: one region, prefaulted and registered once, from which many places are allocated.

use std::sync::Arc;

use super::range::MemoryRange;
use super::region::{MapOptions, Region};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::Mutex;
use crate::process::OwningProcess;

/// Allocations are multiples of this, so that direct I/O accepts each of them.
const GRAIN: usize = 4096;

#[derive(Debug)]
struct Free {
    /// (offset, length), ordered by offset, never adjacent.
    holes: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct Shared {
    region: Region,
    free: Mutex<Free>,
    owner: OwningProcess,
}

/// A region from which ranges are allocated and to which they return.
///
/// The first touch of fresh memory and its registration with the kernel are expensive; a pool pays
/// for both once.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

/// Bytes that return to their pool when this is dropped. Every range, lease and pipe over them
/// holds it.
#[derive(Debug)]
struct Cut {
    pool: Pool,
    at: usize,
    len: usize,
}

impl Pool {
    /// Makes a pool of `len` bytes, rounded up to 4 KiB.
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

    /// The pool's region, with all of its bytes, also those that are allocated. Leases keep its
    /// users apart.
    pub fn region(&self) -> &Region {
        &self.0.region
    }

    /// The number of free bytes; 0 in a child of the process that made the pool.
    pub fn available(&self) -> usize {
        if !self.0.owner.is_here() {
            return 0;
        }
        self.0.free.lock().holes.iter().map(|h| h.1).sum()
    }

    /// Allocates a range in the first hole of at least `len` bytes (rounded up to 4 KiB). The range
    /// returns to the pool when no place, no pipe and no lease refers to it any more.
    pub(crate) fn take(&self, len: usize) -> Result<MemoryRange> {
        self.0.owner.check("take")?;
        let rounded = len.max(1).checked_next_multiple_of(GRAIN);
        let mut free = self.0.free.lock();
        let found = rounded.and_then(|rounded| Some((rounded, free.holes.iter().position(|h| h.1 >= rounded)?)));
        let Some((rounded, index)) = found else {
            let largest = free.holes.iter().map(|h| h.1).max().unwrap_or(0);
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                "take",
                format!("{len} bytes from a pool of {}, whose largest hole is {largest}", self.0.region.len()),
            )
            .with_advice("drop a place of this pool, and the pipes that are connected to it, or make a larger pool"));
        };
        let (at, hole) = free.holes[index];
        if hole == rounded {
            free.holes.remove(index);
        } else {
            free.holes[index] = (at + rounded, hole - rounded);
        }
        drop(free);
        let cut = Cut { pool: self.clone(), at, len: rounded };
        Ok(self.0.region.range(at, len)?.of_cut(Arc::new(cut)))
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        // A child returns nothing to the pool: a thread of the parent may have held its lock.
        if !self.pool.0.owner.is_here() {
            return;
        }
        let mut free = self.pool.0.free.lock();
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
