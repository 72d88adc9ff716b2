//! How the memory of a job is divided.
//!
//! ```text
//! budget = overhead (the program, stacks, rings, heap) + pool
//! pool   = blocks on their way out | arena                                  (the input fits)
//!        = blocks on their way out | slot | slot                            (runs are formed)
//!        = blocks on their way out | two buffers a run and core             (runs are merged)
//! ```

use datapipes_core::{Error, ErrorKind, Result};

use crate::entry::MAX_SLOT;

/// Less than this is raised to it: the program itself needs most of it.
pub const MIN_MEMORY: u64 = 16 << 20;
const MAX_BLOCK: usize = 4 << 20;
const MIN_BLOCK: usize = 64 << 10;
/// Arenas start at multiples of this, so that huge pages and registrations do not straddle them.
const ARENA_GRAIN: usize = 64 << 10;

/// The division.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) pool: usize,
    pub(crate) block: usize,
    pub(crate) blocks: usize,
    /// Bytes of a read.
    pub(crate) chunk: usize,
    /// Where the blocks end and the arenas begin.
    pub(crate) arenas_at: usize,
}

impl Budget {
    /// Divides `memory` bytes among `threads`.
    pub(crate) fn new(memory: u64, threads: usize) -> Result<Budget> {
        let memory = usize::try_from(memory.max(MIN_MEMORY)).unwrap_or(usize::MAX);
        let overhead = (9 << 20) + threads * (256 << 10) + memory / 256;
        let pool = memory.saturating_sub(overhead) / 4096 * 4096;
        let block = prev_power_of_two(pool / 64).clamp(MIN_BLOCK, MAX_BLOCK);
        let blocks = 2 * threads + 4;
        let arenas_at = (block * blocks).next_multiple_of(ARENA_GRAIN);
        if pool < arenas_at + 16 * MIN_BLOCK {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                "sort",
                format!("{memory} bytes of memory for {threads} threads"),
            )
            .advice("give more memory with -S, or fewer threads with --parallel"));
        }
        Ok(Budget { pool, block, blocks, chunk: block, arenas_at })
    }

    /// Bytes for arenas.
    pub(crate) fn arenas(&self) -> usize {
        self.pool - self.arenas_at
    }

    /// The two slots: offset and length in the pool.
    pub(crate) fn slots(&self) -> [(usize, usize); 2] {
        let each = (self.arenas() / 2 / ARENA_GRAIN * ARENA_GRAIN).min(MAX_SLOT);
        [(self.arenas_at, each), (self.arenas_at + each, each)]
    }

    /// The one arena.
    pub(crate) fn whole(&self) -> (usize, usize) {
        (self.arenas_at, self.arenas().min(MAX_SLOT))
    }
}

fn prev_power_of_two(n: usize) -> usize {
    if n == 0 { 0 } else { 1 << n.ilog2() }
}
