//! Moves bytes where a page may turn out to be gone, and says how far it came: what every access of
//! safe code to memory that maps a file goes through.
//!
//! This module's unsafe code promises: a routine touches only the bytes it is given; a `SIGBUS`
//! that an access of a routine raises ends that routine with an answer, and every other `SIGBUS`
//! takes the course it would have taken without us.
//!
//! ```text
//! routine:  start: loop with loads, stores or flushes, rdx = bytes left        faults here are answered:
//!           end:   rax = 0, return                                             rip = fixup, rax = address and cause
//!           fixup: fence, return (rax, rdx)
//! ```
//!
//! The alternative, asking the kernel to copy (`process_vm_readv`), costs a system call for each
//! transfer and flushes nothing. `setjmp` around a copy in Rust would skip over frames that own
//! things; here no frame is left, a routine merely returns.
//!
//! Not answered, because the kernel kills the process itself: a `SIGBUS` while the thread blocks
//! that signal. And whoever installs a handler after us and does not pass faults on takes ours out
//! of work. On another architecture than x86-64 nothing is answered: the copies are ordinary ones,
//! and a page that is gone ends the process.

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod plain;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routines;
#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;

use super::region::Region;
use crate::error::{Error, ErrorKind, Result};

/// A line of the processor's caches.
pub const LINE: usize = 64;

/// A page was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault {
    /// The address that was touched, or one on the same page.
    pub address: usize,
    /// Bytes of the piece that were moved before it.
    pub done: usize,
    /// The medium could not be read; otherwise the file has no such page (any more).
    pub bad_block: bool,
}

impl AccessFault {
    /// What is wrong, and what to do about it.
    pub fn reason(&self) -> (&'static str, &'static str) {
        match self.bad_block {
            true => (
                "the medium cannot read it",
                "restore it from a copy; writing whole pages of zeros may clear the block",
            ),
            false => (
                "the file has no such page (SIGBUS)",
                "see whether somebody truncated the file, or the file system is full",
            ),
        }
    }

    /// The error of kind `Device`, with the offset in the region and the bytes that were done.
    #[cold]
    pub fn error(self, operation: &'static str, region: &Region) -> Error {
        let (why, advice) = self.reason();
        let offset = self.address.saturating_sub(region.address().addr()) as u64;
        let context = format!("a page of {} is gone: {why}", region.name());
        Error::new(ErrorKind::Device, operation, context).offset(offset).bytes_done(self.done as u64).advice(advice)
    }
}

/// The instruction that writes a line back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Writes back and keeps the line.
    Clwb,
    /// Writes back and drops the line; ordered by a fence alone.
    Clflushopt,
    /// Writes back and drops the line, one after the other: every x86-64 processor has it.
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

    /// The best that this processor has, by CPUID; None on a processor of another architecture.
    #[cfg(target_arch = "x86_64")]
    pub fn of_this_processor() -> Option<Flush> {
        let found = crate::topology::CpuFeatures::of_this_processor();
        Some(match (found.clwb, found.clflushopt) {
            (true, _) => Flush::Clwb,
            (_, true) => Flush::Clflushopt,
            _ => Flush::Clflush,
        })
    }

    /// The best that this processor has, by CPUID; None on a processor of another architecture.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn of_this_processor() -> Option<Flush> {
        None
    }
}

/// The width of stores past the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bytes: every x86-64 processor has them.
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

/// Installs the handler of `SIGBUS`, once in a process. Whoever maps a file has that done: without
/// it a page that is gone ends the process, in these routines as elsewhere.
///
/// # Errors
/// What the kernel says.
pub fn install() -> Result<()> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    super::sigbus::install()?;
    Ok(())
}

/// Ends the routine in which a thread was interrupted by a fault, and says why there; false where
/// it was in none.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn answer_in_routine(context: &mut libc::ucontext_t, address: usize, bad_block: bool) -> bool {
    let registers = &mut context.uc_mcontext.gregs;
    let Some(fixup) = routines::fixup(registers[libc::REG_RIP as usize] as usize) else { return false };
    registers[libc::REG_RAX as usize] = routines::fault_word(address, bad_block) as i64;
    registers[libc::REG_RIP as usize] = fixup as i64;
    true
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod answered {
    use super::routines::{self, answer};
    use super::{AccessFault, Flush, LINE, Width};

    /// Copies by ordinary loads and stores. Who changes the bytes meanwhile changes what is copied,
    /// and nothing else: the compiler knows neither what is read nor when.
    ///
    /// # Errors
    /// Where a page is gone, and how far it came.
    ///
    /// # Safety
    /// `len` bytes must be mapped at `from` for reading and at `to` for writing, and must not
    /// overlap. Their pages may be gone.
    #[inline]
    pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: what this function demands.
        answer(len, unsafe { routines::datapipes_guarded_copy(to, from, len) })
    }

    /// Loads ahead of which lines are prefetched past the caches, stores past the caches. Fenced.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// As for [`copy`]; `to` and `len` are multiples of [`LINE`], and the processor has stores of
    /// this width.
    pub unsafe fn stream(width: Width, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
        debug_assert!(len == 0 || to.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE));
        // SAFETY: what this function demands.
        answer(len, unsafe {
            match width {
                Width::Sse2 => routines::datapipes_guarded_stream_sse2(to, from, len),
                Width::Avx2 => routines::datapipes_guarded_stream_avx2(to, from, len),
                Width::Avx512 => routines::datapipes_guarded_stream_avx512(to, from, len),
            }
        })
    }

    /// Writes back every line that holds one of the bytes. Fenced. No byte changes.
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

    /// Brings every line that holds one of the bytes into the caches of the core that runs this, by
    /// reading it.
    ///
    /// # Errors
    /// As [`copy`].
    ///
    /// # Safety
    /// `len` bytes must be mapped at `start`. Their pages may be gone.
    pub unsafe fn load(start: *const u8, len: usize) -> Result<(), AccessFault> {
        // SAFETY: a line that holds a mapped byte is mapped as a whole; nothing is done with what
        // is read.
        each_line(start, len, |first, lines| unsafe { routines::datapipes_guarded_load(first, lines) })
    }

    /// Runs a routine over whole lines. What is done counts from the first byte of the piece.
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
