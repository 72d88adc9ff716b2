//! Moves bytes where a page may turn out to be gone, and says how far it came.
//!
//! This module's unsafe code promises: a routine touches only the bytes it is given; a `SIGBUS` that an access of a routine
//! raises ends that routine with an answer, and every other `SIGBUS` takes the course it would have taken without us.
//!
//! ```text
//! routine:  start: loop with loads, stores or flushes, rdx = bytes left        faults here are answered:
//!           end:   rax = 0, return                                             rip = fixup, rax = address and cause
//!           fixup: fence, return (rax, rdx)
//! ```
//!
//! The alternative, asking the kernel to copy (`process_vm_readv`), costs a system call for each transfer and flushes nothing.
//! `setjmp` around a copy in Rust would skip over frames that own things; here no frame is left, a routine merely returns.
//!
//! Not answered, because the kernel kills the process itself: a `SIGBUS` while the thread blocks that signal. And whoever
//! installs a handler after us and does not pass faults on takes ours out of work.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod handler;
#[cfg(target_arch = "x86_64")]
mod routines;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use datapipes_core::Result;

use crate::instructions::{Flush, Instructions, Width};

/// A line of the processor's caches.
pub(crate) const LINE: usize = 64;

/// A page was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    /// The address that was touched, or one on the same page.
    pub(crate) address: usize,
    /// Bytes of the piece that were moved before it.
    pub(crate) done: usize,
    /// The medium could not be read; otherwise the file has no such page (any more).
    pub(crate) bad_block: bool,
}

/// The routines for this processor. Having one is proof that the handler is installed and the instructions are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded {
    flush: Flush,
    width: Width,
}

impl Guarded {
    /// Installs the handler of `SIGBUS`, once in a process.
    ///
    /// # Errors
    /// `Unavailable` on another architecture; what the kernel says.
    pub(crate) fn new(instructions: &Instructions) -> Result<Guarded> {
        use datapipes_core::{Error, ErrorKind};
        let absent = |why| Error::new(ErrorKind::Unavailable, "open", format!("persistent memory: {why}"));
        let (flush, width) = (instructions.flush().map_err(absent)?, instructions.width().map_err(absent)?);
        #[cfg(target_arch = "x86_64")]
        handler::install()?;
        Ok(Guarded { flush, width })
    }
}

#[cfg(target_arch = "x86_64")]
impl Guarded {
    /// Ordinary loads and stores.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `from` for reading and at `to` for writing, held by nobody else, and must not overlap.
    /// Their pages may be gone.
    pub(crate) unsafe fn copy(self, from: *const u8, to: *mut u8, len: usize) -> Result<(), Gone> {
        // SAFETY: what this function demands.
        routines::answer(len, unsafe { routines::datapipes_dax_copy(to, from, len) })
    }

    /// Loads ahead of which lines are prefetched past the caches, stores past the caches. Fenced.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy); `to` and `len` are multiples of [`LINE`].
    pub(crate) unsafe fn stream(self, from: *const u8, to: *mut u8, len: usize) -> Result<(), Gone> {
        debug_assert!(len == 0 || to.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE));
        // SAFETY: what this function demands; `new` found the width by CPUID.
        routines::answer(len, unsafe {
            match self.width {
                Width::Sse2 => routines::datapipes_dax_stream_sse2(to, from, len),
                Width::Avx2 => routines::datapipes_dax_stream_avx2(to, from, len),
                Width::Avx512 => routines::datapipes_dax_stream_avx512(to, from, len),
            }
        })
    }

    /// Writes back every line that holds one of the bytes. Fenced.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `start`. Their pages may be gone.
    pub(crate) unsafe fn write_back(self, start: *const u8, len: usize) -> Result<(), Gone> {
        let skip = start.addr() % LINE;
        let first = start.wrapping_sub(skip).cast_mut();
        let lines = if len == 0 { 0 } else { (len + skip).next_multiple_of(LINE) };
        // SAFETY: a line that holds a mapped byte is mapped as a whole, since lines do not span pages; `new` found the
        // instruction by CPUID; flushing changes no byte.
        let result = routines::answer(lines, unsafe {
            match self.flush {
                Flush::Clwb => routines::datapipes_dax_clwb(first, lines),
                Flush::Clflushopt => routines::datapipes_dax_clflushopt(first, lines),
                Flush::Clflush => routines::datapipes_dax_clflush(first, lines),
            }
        });
        result.map_err(|gone| Gone { done: gone.done.saturating_sub(skip).min(len), ..gone })
    }
}

/// A `Guarded` cannot be made on other architectures: these are never called.
#[cfg(not(target_arch = "x86_64"))]
impl Guarded {
    pub(crate) unsafe fn copy(self, _: *const u8, _: *mut u8, _: usize) -> Result<(), Gone> {
        unreachable!("`new` refused")
    }

    pub(crate) unsafe fn stream(self, _: *const u8, _: *mut u8, _: usize) -> Result<(), Gone> {
        unreachable!("`new` refused")
    }

    pub(crate) unsafe fn write_back(self, _: *const u8, _: usize) -> Result<(), Gone> {
        unreachable!("`new` refused")
    }
}
