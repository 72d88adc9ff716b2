//! The core's routines that return an error where a page is missing, for this processor.
#![allow(unsafe_code)]

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use datapipes_core::Result;
use datapipes_core::memory::guarded;
pub(crate) use datapipes_core::memory::guarded::{AccessFault, LINE};

use crate::instructions::{Flush, FlushInstructions, Width};

/// The routines for this processor. A value proves that the handler is installed and that the
/// processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded {
    flush: Flush,
    width: Width,
}

impl Guarded {
    /// Installs the handler of `SIGBUS`, once in a process.
    ///
    /// # Errors
    /// `Unavailable` on another architecture; the kernel's error.
    pub(crate) fn new(instructions: &FlushInstructions) -> Result<Guarded> {
        use datapipes_core::{Error, ErrorKind};
        let absent = |why| Error::new(ErrorKind::Unavailable, "open", format!("persistent memory: {why}"));
        let (flush, width) = (instructions.flush().map_err(absent)?, instructions.width().map_err(absent)?);
        guarded::install()?;
        Ok(Guarded { flush, width })
    }

    /// Copies by ordinary loads and stores.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `from` for reading and at `to` for writing, held by nobody
    /// else, and must not overlap. Their pages may be missing.
    pub(crate) unsafe fn copy(self, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: the caller guarantees what this function demands.
        unsafe { guarded::copy(from, to, len) }
    }

    /// Copies with stores that bypass the caches, after prefetching the loaded lines past the
    /// caches. It ends with a fence.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy); `to` and `len` are multiples of [`LINE`].
    pub(crate) unsafe fn stream(self, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: the caller guarantees what this function demands; `new` found the width by CPUID.
        unsafe { guarded::stream(self.width, from, to, len) }
    }

    /// Writes back every line that holds one of the bytes, and ends with a fence.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `start`. Their pages may be missing.
    pub(crate) unsafe fn write_back(self, start: *const u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: the caller guarantees what this function demands; `new` found the instruction by
        // CPUID.
        unsafe { guarded::write_back(self.flush, start, len) }
    }
}
