//! Copies that survive a missing page and report how far they came. Every access of safe code to
//! memory that maps a file goes through them.
//!
//! This module's unsafe code promises: a routine touches only the bytes it is given. A `SIGBUS`
//! that an access of a routine raises ends that routine with an error. Every other `SIGBUS` has the
//! effect that it would have without this library.
//!
//! ```text
//! routine:  start: loop with loads, stores or flushes,      a fault in here sets
//!                  rdx = bytes left                         rip = fixup, rax = address and cause
//!           end:   rax = 0, return
//!           fixup: fence, return (rax, rdx)
//! ```
//!
//! Rejected: asking the kernel to copy (`process_vm_readv`) costs a system call for each transfer
//! and flushes nothing. `setjmp` around a copy in Rust would skip frames that own values. Here no
//! frame is skipped: a routine just returns.
//!
//! Two faults are not handled. The kernel itself kills the process on a `SIGBUS` while the thread
//! blocks that signal. A handler that is installed after this one and does not pass faults on
//! disables it. On architectures other than x86-64 the copies are ordinary ones, and a missing page
//! ends the process.

mod fault;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod plain;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routines;
pub mod sigbus;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;

pub use fault::AccessFault;

use crate::error::Result;
use crate::topology::CpuFeatures;

/// A line of the processor's caches.
pub const LINE: usize = 64;

/// The instruction that writes a line back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Writes back and keeps the line.
    Clwb,
    /// Writes back and drops the line; ordered only by a fence.
    Clflushopt,
    /// Writes back and drops the line, one line after the other. Every x86-64 processor has it.
    Clflush,
}

impl Flush {
    /// Its name in the processor's manual.
    pub fn name(self) -> &'static str {
        match self {
            Flush::Clwb => "CLWB",
            Flush::Clflushopt => "CLFLUSHOPT",
            Flush::Clflush => "CLFLUSH",
        }
    }

    /// Returns the best instruction of this processor, by CPUID; `None` on other architectures.
    pub fn of_this_processor() -> Option<Flush> {
        cfg!(target_arch = "x86_64").then(|| Flush::best_of(CpuFeatures::of_this_processor()))
    }

    /// Returns the best instruction of an x86-64 processor with these features.
    pub fn best_of(features: &CpuFeatures) -> Flush {
        match (features.clwb, features.clflushopt) {
            (true, _) => Flush::Clwb,
            (_, true) => Flush::Clflushopt,
            _ => Flush::Clflush,
        }
    }
}

/// The width of stores that bypass the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bytes. Every x86-64 processor has it.
    Sse2,
    /// 32 bytes.
    Avx2,
    /// 64 bytes.
    Avx512,
}

impl Width {
    /// Its name in the processor's manual.
    pub fn name(self) -> &'static str {
        match self {
            Width::Sse2 => "SSE2",
            Width::Avx2 => "AVX2",
            Width::Avx512 => "AVX-512",
        }
    }
}

/// Installs the handler of `SIGBUS`, once in a process. Code that maps a file calls this first:
/// without it a missing page ends the process, in these routines as elsewhere.
///
/// # Errors
/// The kernel's error.
pub fn install() -> Result<()> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    sigbus::install()?;
    Ok(())
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod answered {
    use super::routines::{self, answer};
    use super::{AccessFault, Flush, LINE, Width};

    /// Copies by ordinary loads and stores. If the bytes change meanwhile, only the copied bytes
    /// are affected: the compiler assumes nothing about what is read or when.
    ///
    /// # Errors
    /// The address of the missing page, and the bytes copied before it.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `from` for reading and at `to` for writing, and must not
    /// overlap. Their pages may be missing.
    #[inline]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: the caller guarantees what this function demands.
        answer(len, unsafe { routines::datapipes_guarded_copy(to, from, len) })
    }

    /// Copies with stores that bypass the caches, after prefetching the loaded lines past the
    /// caches. It ends with a fence.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// As for [`copy`]; `to` and `len` are multiples of [`LINE`], and the processor has stores of
    /// this width.
    pub unsafe fn stream(width: Width, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        debug_assert!(len == 0 || to.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE));
        // SAFETY: the caller guarantees what this function demands.
        answer(len, unsafe {
            match width {
                Width::Sse2 => routines::datapipes_guarded_stream_sse2(to, from, len),
                Width::Avx2 => routines::datapipes_guarded_stream_avx2(to, from, len),
                Width::Avx512 => routines::datapipes_guarded_stream_avx512(to, from, len),
            }
        })
    }

    /// Writes back every line that holds one of the bytes, and ends with a fence. No byte changes.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// `len` bytes must be mapped at `start`, and the processor must have the instruction. Their
    /// pages may be gone.
    pub unsafe fn write_back(flush: Flush, start: *const u8, len: usize) -> Result<(), AccessFault> {
        each_line(start, len, |first, lines| {
            // SAFETY: a line that holds a mapped byte is mapped as a whole, since lines do not span
            // pages; flushing changes no byte; the caller promises the instruction.
            unsafe {
                match flush {
                    Flush::Clwb => routines::datapipes_guarded_clwb(first, lines),
                    Flush::Clflushopt => routines::datapipes_guarded_clflushopt(first, lines),
                    Flush::Clflush => routines::datapipes_guarded_clflush(first, lines),
                }
            }
        })
    }

    /// Loads every line that holds one of the bytes into the caches of the calling core, by reading
    /// it.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// `len` bytes must be mapped at `start`. Their pages may be missing.
    pub unsafe fn load(start: *const u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: a line that holds a mapped byte is mapped as a whole, and the bytes read are not
        // used.
        each_line(start, len, |first, lines| unsafe { routines::datapipes_guarded_load(first, lines) })
    }

    /// Runs a routine over whole lines, and counts the bytes done from the first byte of the piece.
    fn each_line(
        start: *const u8,
        len: usize,
        routine: impl FnOnce(*mut u8, usize) -> routines::Answer,
    ) -> Result<(), AccessFault> {
        let skip = start.addr() % LINE;
        let lines = if len == 0 { 0 } else { (len + skip).next_multiple_of(LINE) };
        let result = answer(lines, routine(start.wrapping_sub(skip).cast_mut(), lines));
        result.map_err(|gone| AccessFault { done: gone.done.saturating_sub(skip).min(len), ..gone })
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use answered::{copy, load, stream, write_back};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub use plain::{copy, load, stream, write_back};
