//! Copies between private and shared memory.
//!
//! Copies out of shared memory use an instruction that is opaque to the compiler, because another
//! process may write the bytes at the same time. Copies bypass the caches where that was measured
//! to be better (see [`Copies`]). This module only guarantees that it accesses `len` bytes at each
//! given address.
#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

/// The copies between processes that bypass the caches (non-temporal).
///
/// Another core reads the bytes next, so the best way depends on how a processor's caches share
/// lines. On one kind, ordinary stores to lines of another core ran at a tenth of the rate of
/// non-temporal stores. On another, non-temporal stores took two to four times as long. So the
/// threshold comes from calibration (`dpipe calibrate`: `handoff_nt_threshold_bytes` and
/// `prefetch_distance_bytes`). Without calibration no copy bypasses the caches.
///
/// The same holds for `rep movsb` (`handoff_rep_movsb_min_bytes`): on one kind of processor it took
/// twice as long as vector instructions for lines that another core has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copies {
    nt_min_bytes: Option<usize>,
    prefetch_bytes: usize,
    string_min_bytes: Option<usize>,
}

/// The longest useful prefetch distance.
const MAX_PREFETCH_BYTES: usize = 64 << 10;

impl Copies {
    /// All copies use the caches.
    pub const ORDINARY: Copies = Copies { nt_min_bytes: None, prefetch_bytes: 0, string_min_bytes: None };

    /// Copies of at least this many bytes bypass the caches.
    pub const fn past_caches_from(bytes: usize) -> Copies {
        Copies { nt_min_bytes: Some(bytes), ..Copies::ORDINARY }
    }

    /// Sets the prefetch distance, up to 64 KiB. 0 disables prefetching.
    #[must_use]
    pub const fn with_prefetch(self, bytes: usize) -> Copies {
        Copies { prefetch_bytes: if bytes < MAX_PREFETCH_BYTES { bytes } else { MAX_PREFETCH_BYTES }, ..self }
    }

    /// Copies out of shared memory of at least this many bytes, unless they bypass the caches, use
    /// the processor's instruction for strings (`rep movsb`).
    #[must_use]
    pub const fn by_string_from(self, bytes: usize) -> Copies {
        Copies { string_min_bytes: Some(bytes), ..self }
    }

    fn past_caches(self, len: usize) -> bool {
        cfg!(target_arch = "x86_64") && self.nt_min_bytes.is_some_and(|from| len >= from)
    }
}

/// Copies bytes that only this process can write into memory that others read.
pub(crate) fn into_shared(source: &[u8], target: &mut [u8], copies: Copies) {
    assert_eq!(source.len(), target.len(), "the caller cut the target");
    if copies.past_caches(source.len()) {
        // SAFETY: both have the same length. They do not overlap, because one is borrowed
        // exclusively.
        unsafe { across(source.as_ptr(), target, copies) };
    } else {
        target.copy_from_slice(source);
    }
}

/// Copies `target.len()` bytes from memory that others may write into memory that others read.
///
/// # Safety
/// The bytes at `source` are mapped and outside of `target`.
pub(crate) unsafe fn across(source: *const u8, target: &mut [u8], copies: Copies) {
    // SAFETY: the caller's promise.
    unsafe {
        if copies.past_caches(target.len()) {
            return stream(source, target, copies.prefetch_bytes.min(MAX_PREFETCH_BYTES));
        }
        if copies.string_min_bytes.is_some_and(|from| target.len() >= from) {
            return move_string(source, target.as_mut_ptr(), target.len());
        }
        move_bytes(source, target.as_mut_ptr(), target.len());
    }
}

/// Copies by ordinary stores: on this processor no size is copied past the caches.
///
/// # Safety
/// As [`across`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(source: *const u8, target: &mut [u8], _ahead: usize) {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(source, target.as_mut_ptr(), target.len()) }
}

/// Copies 64 bytes at a time with non-temporal stores, and the unaligned ends with ordinary ones.
///
/// # Safety
/// As [`across`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: &mut [u8], ahead: usize) {
    let head = target.as_ptr().align_offset(64).min(target.len());
    let whole = (target.len() - head) / 64 * 64;
    let (end, target) = (head + whole, target.as_mut_ptr_range());
    let rest = target.end.addr() - target.start.addr() - end;
    // SAFETY: head, whole and rest add up to the length that both have (the caller's promise). The
    // target is aligned to 64 after the head. A prefetch beyond the end is not an access. SSE2 is
    // part of x86-64. The fence orders the stores before the counter that publishes the block.
    unsafe {
        move_bytes(source, target.start, head);
        if whole > 0 {
            std::arch::asm!(
                "2:",
                "prefetchnta [{from} + {ahead}]",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movntps [{to}], {a}",
                "movntps [{to} + 16], {b}",
                "movntps [{to} + 32], {c}",
                "movntps [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {left}, 64",
                "jnz 2b",
                "sfence",
                from = inout(reg) source.add(head) => _,
                to = inout(reg) target.start.add(head) => _,
                left = inout(reg) whole => _,
                ahead = in(reg) ahead,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
        move_bytes(source.add(end), target.start.add(end), rest);
    }
}

/// Copies `target.len()` bytes from memory that another process may write meanwhile.
///
/// # Safety
/// The bytes at `source` are mapped and outside of `target`.
pub(crate) unsafe fn out_of_shared(source: *const u8, target: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(source, target.as_mut_ptr(), target.len()) }
}

/// Copies bytes with the processor's instruction for strings, where it has one.
///
/// # Safety
/// Both are mapped for `len` bytes and do not overlap.
unsafe fn move_string(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it copies as many bytes as both have (the caller's promise). The direction flag is
    // clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        move_bytes(source, target, len)
    }
}

/// Copies bytes with instructions that are opaque to the compiler.
///
/// # Safety
/// Both are mapped for `len` bytes and do not overlap.
pub(crate) unsafe fn move_bytes(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    let whole = len / 128 * 128;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it copies as many bytes as both have (the caller's promise). SSE2 is part of x86-64.
    unsafe {
        if whole > 0 {
            std::arch::asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups {e}, [{from} + 64]",
                "movups {f}, [{from} + 80]",
                "movups {g}, [{from} + 96]",
                "movups {h}, [{from} + 112]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                "movups [{to} + 64], {e}",
                "movups [{to} + 80], {f}",
                "movups [{to} + 96], {g}",
                "movups [{to} + 112], {h}",
                "sub {from}, -128",
                "sub {to}, -128",
                "add {left}, -128",
                "jnz 2b",
                from = inout(reg) source => _,
                to = inout(reg) target => _,
                left = inout(reg) whole => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                e = out(xmm_reg) _, f = out(xmm_reg) _, g = out(xmm_reg) _, h = out(xmm_reg) _,
                options(nostack)
            );
        }
        move_string(source.add(whole), target.add(whole), len - whole);
    }
    #[cfg(target_arch = "aarch64")]
    let whole = len / 32 * 32;
    #[cfg(target_arch = "aarch64")]
    if whole > 0 {
        // SAFETY: `whole` bytes are within what both have (the caller's promise). Loads and stores
        // of ordinary memory need no alignment there.
        unsafe {
            std::arch::asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{from}], #32",
                "stp {a:q}, {b:q}, [{to}], #32",
                "subs {left}, {left}, #32",
                "b.ne 2b",
                from = inout(reg) source => _,
                to = inout(reg) target => _,
                left = inout(reg) whole => _,
                a = out(vreg) _,
                b = out(vreg) _,
                options(nostack)
            );
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let whole = 0;
    #[cfg(not(target_arch = "x86_64"))]
    for at in whole..len {
        // SAFETY: the access is within what the caller promised.
        unsafe { target.add(at).write_volatile(source.add(at).read_volatile()) };
    }
}

/// Prefetches the line of a value that will be read soon.
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, and its address is that of a reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_and_nothing_beyond() {
        const FROM: usize = 4000;
        let source: Vec<u8> = (0..FROM + 50_000).map(|i| (i * 31 % 251) as u8).collect();
        let past = Copies::past_caches_from(FROM);
        let string = Copies::ORDINARY.by_string_from(100);
        for copies in [Copies::ORDINARY, past, past.with_prefetch(512), past.with_prefetch(usize::MAX), string] {
            for at in [0, 1, 13, 63, 64] {
                for len in [0, 1, 63, 64, 65, 127, 128, 129, 300, FROM - 1, FROM, FROM + 77, 40_000] {
                    let mut shared = vec![0xEE; len + 200];
                    into_shared(&source[at..at + len], &mut shared[at..at + len], copies);
                    assert_eq!(&shared[at..at + len], &source[at..at + len]);
                    assert!(shared[..at].iter().chain(&shared[at + len..]).all(|b| *b == 0xEE));
                    let mut back = vec![0xEE; len + 2];
                    // SAFETY: `len` bytes of a vector.
                    unsafe { out_of_shared(shared[at..].as_ptr(), &mut back[1..=len]) };
                    assert_eq!(&back[1..=len], &source[at..at + len]);
                    // SAFETY: as above.
                    unsafe { across(shared[at..].as_ptr(), &mut back[1..=len], copies) };
                    assert_eq!(&back[1..=len], &source[at..at + len]);
                    assert!(back[0] == 0xEE && back[len + 1] == 0xEE);
                }
            }
        }
    }
}
