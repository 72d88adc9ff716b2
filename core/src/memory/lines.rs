//! Lines of the processor's caches, written back to the medium behind them.

use std::ops::Range;

use super::region::MemoryRange;
use crate::error::Result;
#[cfg(target_arch = "x86_64")]
use crate::topology::CpuFeatures;

/// Bytes of a line. The processors with these instructions have no other.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// The instruction that writes a line back to memory: the best that this processor has, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    /// Writes back and keeps the line.
    Clwb,
    /// Writes back and drops the line; ordered by a fence alone.
    Clflushopt,
    /// Writes back and drops the line, one after the other: every x86-64 processor has it.
    Clflush,
}

impl WriteBack {
    /// By CPUID; None on a processor of another architecture.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of_this_processor() -> Option<WriteBack> {
        let found = CpuFeatures::of_this_processor();
        Some(match (found.clwb, found.clflushopt) {
            (true, _) => WriteBack::Clwb,
            (_, true) => WriteBack::Clflushopt,
            _ => WriteBack::Clflush,
        })
    }

    /// By CPUID; None on a processor of another architecture.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of_this_processor() -> Option<WriteBack> {
        None
    }
}

impl MemoryRange {
    /// Writes every line that holds a byte of `part` back to memory, and returns when that is ordered (`sfence`). No byte
    /// changes, so that it needs no lease. Nothing is done on a processor without such an instruction.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub(crate) fn write_back(&self, part: Range<usize>) -> Result<()> {
        let part = self.range(part.start, part.len())?;
        #[cfg(target_arch = "x86_64")]
        if let Some(instruction) = WriteBack::of_this_processor() {
            let (start, end) = (part.address().addr(), part.address().addr() + part.len());
            let first = part.address().wrapping_sub(start % LINE);
            let count = if part.len() == 0 { 0 } else { end.div_ceil(LINE) - start / LINE };
            macro_rules! each_line {
                ($instruction:literal) => {
                    for line in 0..count {
                        let address = first.wrapping_add(line * LINE);
                        // SAFETY: the line holds a byte of the range, which the region keeps mapped (a line never spans
                        // two pages); CPUID says that the instruction is there; it changes no byte.
                        unsafe {
                            std::arch::asm!(concat!($instruction, " [{}]"), in(reg) address, options(nostack, preserves_flags));
                        }
                    }
                };
            }
            // One loop an instruction: the choice is made outside.
            match instruction {
                WriteBack::Clwb => each_line!("clwb"),
                WriteBack::Clflushopt => each_line!("clflushopt"),
                WriteBack::Clflush => each_line!("clflush"),
            }
            // SAFETY: SSE is part of x86-64.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
        let _ = part;
        Ok(())
    }
}
