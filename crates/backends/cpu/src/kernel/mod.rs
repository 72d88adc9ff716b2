//! The kernels, the crate's unsafe code. It promises:
//! * A kernel runs only on a processor that has its instructions: a [`Copier`] and a
//!   [`LineInstruction`] are made from [`CopyInstructions`], which prove a detection.
//! * Bytes are accessed only under leases, which `datapipes_core::memory` grants ([`Copier::copy`],
//!   [`LineInstruction::apply`]).
//! * When a kernel returns, its stores are ordered before every later store (non-temporal ones by
//!   `sfence`).
#![allow(unsafe_code)]
// On other architectures only the C library's copy is left, and the choice among kernels is unused.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

mod lines;
mod short;
#[cfg(target_arch = "x86_64")]
mod stream;

pub use lines::{LineInstruction, LineOp};
pub(crate) use lines::{load, read};

use datapipes_core::backend::Job;
use datapipes_core::memory::{Access, MemoryRange, copy_pair};
use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::instructions::CopyInstructions;

/// The number of classes into which lengths are sorted by their highest bit.
pub(crate) const CLASSES: usize = 64;
/// Copies by size up to this length are made inline, without a call. For longer ones the C library
/// is as fast or faster.
pub(crate) const MAX_INLINE_BYTES: usize = 64;

/// A way to copy bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernel {
    /// The C library's copy.
    Memcpy,
    /// `rep movsb`.
    RepMovsb,
    /// 32-byte loads, and stores that bypass the caches.
    NtAvx2,
    /// 64-byte loads, and stores that bypass the caches.
    NtAvx512,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Kernel; 4] = [Kernel::Memcpy, Kernel::RepMovsb, Kernel::NtAvx2, Kernel::NtAvx512];

    /// Its name as a primitive.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Memcpy => "memcpy",
            Kernel::RepMovsb => "rep-movsb",
            Kernel::NtAvx2 => "nt-avx2",
            Kernel::NtAvx512 => "nt-avx512",
        }
    }

    /// Returns the kernel with this name.
    pub fn from_name(name: &str) -> Option<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.name() == name)
    }

    /// Whether its stores bypass the caches.
    pub fn non_temporal(self) -> bool {
        matches!(self, Kernel::NtAvx2 | Kernel::NtAvx512)
    }

    /// How it was found on this machine, or why it is absent.
    pub fn available(self, instructions: &CopyInstructions) -> std::result::Result<String, String> {
        match self {
            Kernel::Memcpy => Ok("the C library".into()),
            Kernel::RepMovsb => instructions.rep_movsb(),
            Kernel::NtAvx2 => instructions.avx2(),
            Kernel::NtAvx512 => instructions.avx512(),
        }
    }
}

/// A copy between leased bytes. For each class of lengths it has a kernel that this processor can
/// run.
#[derive(Clone, Debug)]
pub struct Copier {
    kernels: [Kernel; CLASSES],
    /// Lengths up to this are copied inline.
    short_max: usize,
    /// Lengths above `short_max` and below this are copied by `memcpy`, without a look at the
    /// table.
    memcpy_below: usize,
    /// How far ahead of the loads the non-temporal kernels prefetch, in bytes; 0 means not at all.
    prefetch_bytes: usize,
}

impl Copier {
    /// Makes a copier that always uses `kernel`. Returns `None` where the processor lacks it.
    pub fn fixed(kernel: Kernel, prefetch_bytes: usize, instructions: &CopyInstructions) -> Option<Copier> {
        kernel.available(instructions).ok()?;
        // SAFETY: `available` found the kernel's instructions, by the CPUID of this processor.
        Some(unsafe { Copier::unchecked([kernel; CLASSES], 0, prefetch_bytes) })
    }

    /// Makes a copier that picks by the highest bit of the length. A kernel that the processor
    /// lacks is replaced by `memcpy`.
    pub(crate) fn by_size(
        mut kernels: [Kernel; CLASSES],
        prefetch_bytes: usize,
        instructions: &CopyInstructions,
    ) -> Copier {
        for kernel in &mut kernels {
            if kernel.available(instructions).is_err() {
                *kernel = Kernel::Memcpy;
            }
        }
        // SAFETY: the loop above left only kernels whose instructions this processor has.
        unsafe { Copier::unchecked(kernels, MAX_INLINE_BYTES, prefetch_bytes) }
    }

    /// # Safety
    /// The processor must have the instructions of every kernel in the table.
    unsafe fn unchecked(kernels: [Kernel; CLASSES], short_max: usize, prefetch_bytes: usize) -> Copier {
        let first_other = kernels.iter().position(|kernel| *kernel != Kernel::Memcpy);
        let memcpy_below = first_other.map_or(usize::MAX, |bits| 1 << bits);
        Copier { kernels, short_max, memcpy_below, prefetch_bytes }
    }

    /// The kernel for a length; `None` for lengths that are copied inline.
    pub fn kernel(&self, len: usize) -> Option<Kernel> {
        (len > self.short_max).then(|| self.kernels[class(len)])
    }

    /// Copies `len` bytes from `at` of the source to `at` of the target, under leases.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`; `InvalidInput` where the two overlap.
    #[inline]
    pub fn copy(&self, source: (&MemoryRange, usize), target: (&MemoryRange, usize), len: usize) -> Result<()> {
        // SAFETY: `copy_pair` calls the closure with `len` bytes leased for reading at `from` and
        // for writing at `to`, and refuses overlapping ranges.
        copy_pair(source, target, len, |from, to| unsafe { self.run(from, to, len, len) })
    }

    /// Copies a part of a longer copy by the kernel for `whole` bytes, under the leases of the job.
    /// The job is borrowed mutably, so that no two threads copy under its leases.
    ///
    /// # Errors
    /// `InvalidInput` where a lease is missing, has another length or does not permit writing, or
    /// where the two overlap.
    pub fn copy_part(&self, part: &mut Job, whole: usize) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, "transfer", format!("a part {why}")));
        let (Some(source), Some(target)) = (&part.source, &part.target) else { return refuse("without its leases") };
        let len = source.len();
        if target.len() != len || len as u64 != part.span.len || target.access() != Access::Write {
            return refuse("whose leases do not fit its span");
        }
        let (from, to) = (source.address().cast_const(), target.address());
        if from.addr() < to.addr() + len && to.addr() < from.addr() + len && len > 0 {
            return refuse("whose source and target overlap");
        }
        // SAFETY: the leases give `len` bytes for reading at `from` and for writing at `to`, which
        // do not overlap. The code that made them as parts of larger leases promises that no other
        // part with these bytes is in use.
        unsafe { self.run(from, to, len, whole.max(len)) };
        Ok(())
    }

    /// Copies `times` times under one lease, for calibration.
    pub(crate) fn repeat(
        &self,
        source: (&MemoryRange, usize),
        target: (&MemoryRange, usize),
        len: usize,
        times: u32,
    ) -> Result<()> {
        copy_pair(source, target, len, |from, to| {
            for _ in 0..times {
                // SAFETY: as in `copy`; the leases last until the closure returns.
                unsafe { self.run(std::hint::black_box(from), to, len, len) }
            }
        })
    }

    /// Copies a part of a copy of `whole` bytes, by the kernel for `whole`.
    ///
    /// # Safety
    /// `len` is at most `whole`. `len` bytes must be readable at `from` and writable at `to`, held
    /// by nobody else, and must not overlap.
    #[inline]
    unsafe fn run(&self, from: *const u8, to: *mut u8, len: usize, whole: usize) {
        if whole <= self.short_max {
            // SAFETY: the caller guarantees what this function demands. `short_max` is at most
            // MAX_INLINE_BYTES (see the constructors), less than `short::MAX`.
            return unsafe { short::copy(from, to, len) };
        }
        if whole < self.memcpy_below {
            // SAFETY: the caller guarantees what this function demands.
            return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        // SAFETY: the caller guarantees the addresses. The constructors checked that the processor
        // has the kernel's instructions.
        unsafe {
            match self.kernels[class(whole)] {
                Kernel::Memcpy => std::ptr::copy_nonoverlapping(from, to, len),
                #[cfg(target_arch = "x86_64")]
                Kernel::RepMovsb => stream::rep_movsb(from, to, len),
                #[cfg(target_arch = "x86_64")]
                Kernel::NtAvx2 => stream::copy::<stream::Avx2>(from, to, len, self.prefetch_bytes),
                #[cfg(target_arch = "x86_64")]
                Kernel::NtAvx512 => stream::copy::<stream::Avx512>(from, to, len, self.prefetch_bytes),
                #[cfg(not(target_arch = "x86_64"))]
                _ => std::ptr::copy_nonoverlapping(from, to, len),
            }
        }
    }
}

/// Returns the number of a length's highest bit; 0 for a length of 0.
#[inline]
pub(crate) fn class(len: usize) -> usize {
    (len | 1).ilog2() as usize % CLASSES
}
