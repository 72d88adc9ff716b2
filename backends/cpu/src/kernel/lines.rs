//! Operations on the cache lines of leased bytes: load, write back, flush, demote. None changes a
//! byte.

use datapipes_core::memory::RawLease;
use datapipes_core::memory::guarded::Flush;

use crate::instructions::CopyInstructions;

const LINE: usize = 64;
/// How far ahead of the loads the lines are prefetched: past the end of a page, where the hardware
/// stops.
const AHEAD: usize = 1024;

/// What to do with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineOp {
    /// CLDEMOTE: towards the cache that the cores share. A hint.
    Demote,
    /// CLWB: to memory, and keep it.
    WriteBack,
    /// CLFLUSHOPT: to memory, and drop it from every cache.
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

    /// What it was found by, or why it is absent.
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
    /// None where the processor lacks the instruction.
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

    /// The same as an instruction that a page which is gone ends with an answer; None for a hint,
    /// which touches no page.
    pub fn flush(self) -> Option<Flush> {
        match self.0 {
            LineOp::Demote => None,
            LineOp::WriteBack => Some(Flush::Clwb),
            LineOp::Flush => Some(Flush::Clflushopt),
        }
    }

    /// Does it to every line that holds a byte of the lease, and waits until it is ordered
    /// (`sfence`).
    pub fn apply(self, lease: &RawLease) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the addresses lie in lines of leased, mapped bytes (a line never spans two
        // pages); the processor has the instruction, which the constructor checked; no instruction
        // changes a byte.
        unsafe {
            use std::arch::asm;
            let first = lease.address().map_addr(|address| address / LINE * LINE);
            let count = if lease.len() == 0 {
                0
            } else {
                (lease.address().addr() + lease.len()).div_ceil(LINE) - first.addr() / LINE
            };
            // One loop an instruction: the choice is made outside.
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

/// Brings every line of the lease into the caches of the core that runs this. Each line is read,
/// not only prefetched: a prefetch may be dropped, and when this returns the lines have arrived.
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
        // SAFETY: at is less than the length of the lease, which gives the right to read.
        unsafe { start.add(at).read_volatile() };
        // The next line begins at a multiple of its size, wherever the lease does.
        at += LINE - (start.addr() + at) % LINE;
    }
}

/// Reads every whole 256 bytes of the lease with the widest loads there are.
pub(crate) fn read(lease: &RawLease, instructions: &CopyInstructions) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::stream::{Avx2, Avx512, read};
        if instructions.avx512().is_ok() {
            // SAFETY: the lease gives the right to read its bytes; `instructions` are proof of
            // AVX-512.
            return unsafe { read::<Avx512>(lease.address(), lease.len()) };
        }
        if instructions.avx2().is_ok() {
            // SAFETY: as above, of AVX2.
            return unsafe { read::<Avx2>(lease.address(), lease.len()) };
        }
    }
    let _ = instructions;
    // SAFETY: the lease gives the right to read its bytes, and they are initialized, as mapped
    // memory is.
    let words = unsafe { std::slice::from_raw_parts(lease.address().cast::<[u8; 8]>(), lease.len() / 8) };
    std::hint::black_box(words.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word)));
}
