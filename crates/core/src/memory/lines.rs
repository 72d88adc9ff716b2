//! Writing cache lines back to the memory behind them.

use std::ops::Range;

use super::guarded::{self, Flush};
use super::range::MemoryRange;
use crate::error::Result;

impl MemoryRange {
    /// Writes every line that holds a byte of `part` back to memory, and returns when that is
    /// ordered (`sfence`). No byte changes, so it needs no lease. Without such an instruction, it
    /// does nothing.
    ///
    /// # Errors
    /// `OutOfRange`; `Device` with the offset in the file where a page is gone.
    pub(crate) fn write_back(&self, part: Range<usize>) -> Result<()> {
        let part = self.range(part.start, part.len())?;
        let Some(flush) = Flush::of_this_processor() else { return Ok(()) };
        // SAFETY: the region keeps the range mapped; CPUID reports the instruction.
        let outcome = unsafe { guarded::write_back(flush, part.address(), part.len()) };
        outcome.map_err(|gone| gone.error("persist", part.region()))
    }
}
