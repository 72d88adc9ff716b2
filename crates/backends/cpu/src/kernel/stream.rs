//! `rep movsb`, and the copy that bypasses the caches: one algorithm for every vector width.
//!
//! ```text
//! head:  ordinary stores until the target is at a line
//! body:  four lines a turn: prefetch the source `ahead` bytes further on (or not), load, store
//!        past the caches; then line by line
//! tail:  ordinary stores
//! sfence: such stores are weakly ordered, and the next holder of the lease must see them
//! ```
//!
//! The vectors are in inline assembly instead of intrinsics: the loop is then the same at any
//! optimization level, and AVX-512 needs no newer compiler than the rest of the project.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch, _mm_sfence};

use super::short;

const LINE: usize = 64;
const BLOCK: usize = 4 * LINE;

/// Moves lines with the registers of one instruction set.
///
/// # Safety
/// For each function, the instruction set must be available and the bytes valid.
pub(super) trait Vector {
    /// Copies 256 bytes; `to` is a multiple of 64.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn block(from: *const u8, to: *mut u8);
    /// Copies 64 bytes; `to` is a multiple of 64.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn line(from: *const u8, to: *mut u8);
    /// Reads 256 bytes and discards them.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn read(from: *const u8);
}

pub(super) struct Avx2;
pub(super) struct Avx512;

macro_rules! vector {
    ($name:ty, $load:literal, $store:literal,
     block: [$(($register:literal, $at:literal)),*], line: [$(($line_register:literal, $line_at:literal)),*]) => {
        impl Vector for $name {
            #[inline(always)]
            unsafe fn block(from: *const u8, to: *mut u8) {
                // SAFETY: the caller guarantees 256 bytes at both addresses and the instruction
                // set. The vector registers that are written are declared (an xmm register stands
                // for its whole width).
                unsafe {
                    asm!(
                        $(concat!($load, " ", $register, ", [{from} + ", $at, "]"),)*
                        $(concat!($store, " [{to} + ", $at, "], ", $register),)*
                        from = in(reg) from, to = in(reg) to,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn line(from: *const u8, to: *mut u8) {
                // SAFETY: as for `block`, with 64 bytes.
                unsafe {
                    asm!(
                        $(concat!($load, " ", $line_register, ", [{from} + ", $line_at, "]"),)*
                        $(concat!($store, " [{to} + ", $line_at, "], ", $line_register),)*
                        from = in(reg) from, to = in(reg) to, out("xmm0") _, out("xmm1") _,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn read(from: *const u8) {
                // SAFETY: as for `block`; only registers are written.
                unsafe {
                    asm!(
                        $(concat!($load, " ", $register, ", [{from} + ", $at, "]"),)*
                        from = in(reg) from,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        options(nostack, preserves_flags, readonly)
                    );
                }
            }
        }
    };
}

vector!(Avx512, "vmovdqu64", "vmovntdq",
    block: [("zmm0", "0"), ("zmm1", "64"), ("zmm2", "128"), ("zmm3", "192")], line: [("zmm0", "0")]);
vector!(Avx2, "vmovdqu", "vmovntdq",
    block: [("ymm0", "0"), ("ymm1", "32"), ("ymm2", "64"), ("ymm3", "96"),
            ("ymm4", "128"), ("ymm5", "160"), ("ymm6", "192"), ("ymm7", "224")],
    line: [("ymm0", "0"), ("ymm1", "32")]);

/// Copies with stores that bypass the caches. Fewer than two lines are copied by ordinary stores,
/// and so are the head and the tail.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, held by nobody else, and must not
/// overlap. The processor must have `V`'s instructions.
pub(super) unsafe fn copy<V: Vector>(from: *const u8, to: *mut u8, len: usize, ahead: usize) {
    if len < 2 * LINE {
        // SAFETY: the caller guarantees what this function demands; `short` takes up to 128 bytes.
        return unsafe { short::copy(from, to, len) };
    }
    // SAFETY: the caller guarantees what this function demands; the length is at least 128 here.
    unsafe { if ahead == 0 { body::<V, false>(from, to, len, 0) } else { body::<V, true>(from, to, len, ahead) } }
}

/// # Safety
/// As for [`copy`], and `len` is at least 128.
unsafe fn body<V: Vector, const PREFETCH: bool>(from: *const u8, to: *mut u8, len: usize, ahead: usize) {
    let head = to.addr().wrapping_neg() % LINE;
    // SAFETY: head is less than 64 and len at least 128. `at` never passes len, because each step
    // is taken only while that many bytes are left. A prefetch may name any address. The caller
    // guarantees the rest.
    unsafe {
        short::copy(from, to, head);
        let mut at = head;
        while len - at >= BLOCK {
            if PREFETCH {
                let next = from.wrapping_add(at + ahead).cast::<i8>();
                _mm_prefetch::<_MM_HINT_NTA>(next);
                _mm_prefetch::<_MM_HINT_NTA>(next.wrapping_add(LINE));
                _mm_prefetch::<_MM_HINT_NTA>(next.wrapping_add(2 * LINE));
                _mm_prefetch::<_MM_HINT_NTA>(next.wrapping_add(3 * LINE));
            }
            V::block(from.add(at), to.add(at));
            at += BLOCK;
        }
        while len - at >= LINE {
            V::line(from.add(at), to.add(at));
            at += LINE;
        }
        leave_vectors();
        short::copy(from.add(at), to.add(at), len - at);
        _mm_sfence();
    }
}

/// Reads every byte with the widest loads, for measuring.
///
/// # Safety
/// `len` bytes must be readable at `from`; the processor must have `V`'s instructions.
pub(super) unsafe fn read<V: Vector>(from: *const u8, len: usize) {
    // SAFETY: every block lies within `len`; the caller guarantees the rest.
    unsafe {
        for at in (0..len / BLOCK).map(|block| block * BLOCK) {
            V::read(from.add(at));
        }
        leave_vectors();
    }
}

/// Clears the upper halves of the registers. Otherwise older code that follows is slow on some
/// processors.
///
/// # Safety
/// The processor must have AVX.
#[inline(always)]
unsafe fn leave_vectors() {
    // SAFETY: AVX is available, because every `Vector` needs it. All registers whose upper halves
    // are cleared are declared.
    unsafe {
        asm!("vzeroupper",
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack, preserves_flags, nomem));
    }
}

/// The microcoded copy.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, held by nobody else, and must not
/// overlap.
#[inline]
pub(super) unsafe fn rep_movsb(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees what this function demands. The direction flag is clear by the
    // ABI, and all registers are declared.
    unsafe {
        asm!("rep movsb", inout("rsi") from => _, inout("rdi") to => _, inout("rcx") len => _,
            options(nostack, preserves_flags));
    }
}
