//! Operations on the cache lines of leased bytes: load, write back, flush, demote. None changes a
//! byte.

use datapipes_core::memory::RawLease;
use datapipes_core::memory::guarded::Flush;

use crate::instructions::CopyInstructions;

const LINE: usize = 64;
/// How far ahead of the loads the lines are prefetched: beyond the end of a page, where the
/// hardware's own prefetching stops.
const AHEAD: usize = 1024;

/// An operation on a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOp {
    /// CLDEMOTE: a hint to move it towards the cache that the cores share.
    Demote,
    /// CLWB: write it to memory and keep it.
    WriteBack,
    /// CLFLUSHOPT: write it to memory and drop it from every cache.
    Flush,
}

impl LineOp {
    /// Its name as a primitive.
    pub fn name(self) -> &'static str {
        match self {
            LineOp::Demote => "cldemote",
            LineOp::WriteBack => "clwb",
            LineOp::Flush => "clflushopt",
        }
    }

    /// How it was found on this machine, or why it is absent.
    pub fn available(self, instructions: &CopyInstructions) -> Result<String, String> {
        match self {
            LineOp::Demote => instructions.cldemote(),
            LineOp::WriteBack => instructions.clwb(),
            LineOp::Flush => instructions.clflushopt(),
        }
    }
}

/// A line operation that this processor has.
#[derive(Clone, Copy, Debug)]
pub struct LineInstruction(LineOp);

impl LineInstruction {
    /// Returns `None` where the processor lacks the instruction.
    pub fn new(op: LineOp, instructions: &CopyInstructions) -> Option<LineInstruction> {
        op.available(instructions).ok()?;
        // SAFETY: `available` found the instruction, by the CPUID of this processor.
        Some(unsafe { LineInstruction::unchecked(op) })
    }

    /// # Safety
    /// The processor must have the instruction.
    unsafe fn unchecked(op: LineOp) -> LineInstruction {
        LineInstruction(op)
    }

    /// The same instruction for the guarded routines, where a missing page is an error. `None` for
    /// a hint, which touches no page.
    pub fn flush(self) -> Option<Flush> {
        match self.0 {
            LineOp::Demote => None,
            LineOp::WriteBack => Some(Flush::Clwb),
            LineOp::Flush => Some(Flush::Clflushopt),
        }
    }

    /// Applies it to every line that holds a byte of the lease, and waits until that is ordered
    /// (`sfence`).
    pub fn apply(self, lease: &RawLease) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the addresses lie in lines of leased, mapped bytes (a line never spans two
        // pages). The constructor checked that the processor has the instruction. No instruction
        // changes a byte.
        unsafe {
            use std::arch::asm;
            let first = lease.address().map_addr(|address| address / LINE * LINE);
            let count = if lease.len() == 0 {
                0
            } else {
                (lease.address().addr() + lease.len()).div_ceil(LINE) - first.addr() / LINE
            };
            // Each instruction has its own loop: the choice is made outside.
            macro_rules! each_line {
                ($instruction:literal) => {
                    for line in 0..count {
                        let address = first.wrapping_add(line * LINE);
                        asm!(concat!($instruction, " [{}]"), in(reg) address, options(nostack, preserves_flags));
                    }
                };
            }
            match self.0 {
                LineOp::Demote => each_line!("cldemote"),
                LineOp::WriteBack => each_line!("clwb"),
                LineOp::Flush => each_line!("clflushopt"),
            }
            std::arch::x86_64::_mm_sfence();
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = lease;
    }
}

/// Loads every line of the lease into the caches of the calling core. Each line is read, because a
/// prefetch may be dropped; so all lines have arrived when this returns.
pub(crate) fn load(lease: &RawLease) {
    let (start, len) = (lease.address().cast_const(), lease.len());
    let mut at = 0;
    while at < len {
        #[cfg(target_arch = "x86_64")]
        if len - at > AHEAD {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch may name any address; this one lies within the lease.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(at + AHEAD).cast()) };
        }
        // SAFETY: `at` is less than the length of the lease, which gives the right to read.
        unsafe { start.add(at).read_volatile() };
        // The next line begins at a multiple of its size, wherever the lease begins.
        at += LINE - (start.addr() + at) % LINE;
    }
}

/// Reads all whole blocks of 256 bytes of the lease with the widest loads available.
pub(crate) fn read(lease: &RawLease, instructions: &CopyInstructions) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::stream::{Avx2, Avx512, read};
        if instructions.avx512().is_ok() {
            // SAFETY: the lease gives the right to read its bytes; `instructions` prove that
            // AVX-512 is there.
            return unsafe { read::<Avx512>(lease.address(), lease.len()) };
        }
        if instructions.avx2().is_ok() {
            // SAFETY: as above, for AVX2.
            return unsafe { read::<Avx2>(lease.address(), lease.len()) };
        }
    }
    let _ = instructions;
    // SAFETY: the lease gives the right to read its bytes, and mapped memory is initialized.
    let words = unsafe { std::slice::from_raw_parts(lease.address().cast::<[u8; 8]>(), lease.len() / 8) };
    std::hint::black_box(words.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
}
