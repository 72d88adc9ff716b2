//! Copies between private and shared memory.
//!
//! Out of shared memory: by an instruction that the compiler does not look into, because another process may write the bytes
//! meanwhile. Into shared memory: past the caches from [`STREAM_FROM`] bytes on. This module promises no more than that it
//! touches `len` bytes at each address it was given.
#![allow(unsafe_code)]

/// Blocks from this length on are stored past the caches (non-temporal): another core reads them next, and a block of this
/// length does not stay in this core's cache. Ordinary stores into lines that another core just read ran at 2.3 GB/s here,
/// non-temporal ones at 49.
pub(crate) const STREAM_FROM: usize = 256 << 10;

/// Copies bytes that only this process can write into memory that others read.
pub(crate) fn into_shared(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "the caller cut the target");
    #[cfg(target_arch = "x86_64")]
    if source.len() >= STREAM_FROM {
        // SAFETY: both are of the same length and do not overlap, being borrowed as they are; SSE2 is part of x86-64.
        unsafe { stream(source, target) };
        return;
    }
    target.copy_from_slice(source);
}

/// 64 bytes a turn by stores past the caches; what is not aligned before and after by ordinary ones.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: &[u8], target: &mut [u8]) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };
    let head = target.as_ptr().align_offset(64).min(target.len());
    let (source_head, source) = source.split_at(head);
    let (target_head, target) = target.split_at_mut(head);
    target_head.copy_from_slice(source_head);
    let whole = target.len() / 64 * 64;
    for at in (0..whole).step_by(64) {
        // SAFETY: `at + 64 <= whole`, which is no more than the length of both; the target is aligned to 64 by the head. A
        // prefetch beyond the end is no access.
        unsafe {
            let from = source.as_ptr().add(at);
            let to = target.as_mut_ptr().add(at);
            _mm_prefetch::<_MM_HINT_NTA>(from.wrapping_add(512).cast());
            for part in 0..4 {
                let value = _mm_loadu_si128(from.cast::<__m128i>().add(part));
                _mm_stream_si128(to.cast::<__m128i>().add(part), value);
            }
        }
    }
    // SAFETY: a fence has no operands. It orders the stores above before the counter that publishes the block.
    unsafe { _mm_sfence() };
    target[whole..].copy_from_slice(&source[whole..]);
}

/// Copies `target.len()` bytes from memory that another process may write meanwhile.
///
/// # Safety
/// The bytes at `source` are mapped and outside of `target`.
pub(crate) unsafe fn out_of_shared(source: *const u8, target: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe { move_bytes(source, target.as_mut_ptr(), target.len()) }
}

/// Copies bytes by an instruction that the compiler does not look into.
///
/// # Safety
/// Both are mapped for so many bytes, and do not overlap.
pub(crate) unsafe fn move_bytes(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: copies as many bytes as both have (the caller's promise); the direction flag is clear as the calling convention
    // says.
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
    for at in 0..len {
        // SAFETY: within what the caller promised.
        unsafe { target.add(at).write_volatile(source.add(at).read_volatile()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_and_nothing_beyond() {
        let source: Vec<u8> = (0..STREAM_FROM + 500).map(|i| (i * 31 % 251) as u8).collect();
        for at in [0, 1, 13, 63, 64] {
            for len in [0, 1, 63, 64, 65, 4096, STREAM_FROM - 1, STREAM_FROM, STREAM_FROM + 77] {
                let mut shared = vec![0xEE; len + 200];
                into_shared(&source[at..at + len], &mut shared[at..at + len]);
                assert_eq!(&shared[at..at + len], &source[at..at + len]);
                assert!(shared[..at].iter().chain(&shared[at + len..]).all(|b| *b == 0xEE));
                let mut back = vec![0xEE; len + 2];
                // SAFETY: `len` bytes of a vector.
                unsafe { out_of_shared(shared[at..].as_ptr(), &mut back[1..=len]) };
                assert_eq!(&back[1..=len], &source[at..at + len]);
                assert!(back[0] == 0xEE && back[len + 1] == 0xEE);
            }
        }
    }
}
