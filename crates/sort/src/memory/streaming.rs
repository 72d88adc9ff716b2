//! Copies that leave the caches alone: bytes that are not read again soon go past them.

/// Copies bytes to memory that is not read again soon. On x86-64 the stores are non-temporal: they
/// read no line of the target before they write it, and displace nothing in the caches.
///
/// Call [`fence`] before another thread or a device reads the target.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        const LANE: usize = size_of::<__m128i>();
        assert_eq!(to.len(), from.len(), "both sides of a copy have the same length");
        if to.as_ptr().align_offset(LANE) == 0 && to.len().is_multiple_of(LANE) {
            for at in (0..to.len()).step_by(LANE) {
                // SAFETY: both slices have a whole number of lanes, and `at` is the start of one;
                // the target was checked to be aligned, the source need not be. SSE2 belongs to
                // every x86-64 processor.
                unsafe {
                    let lane = _mm_loadu_si128(from.as_ptr().add(at).cast());
                    _mm_stream_si128(to.as_mut_ptr().add(at).cast(), lane);
                }
            }
            return;
        }
    }
    to.copy_from_slice(from);
}

/// Orders all copies of this thread before what it does next.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE belongs to every x86-64 processor, and a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..200).collect();
        for start in 0..20 {
            for len in 0..100 {
                let mut to = [0xff; 200];
                copy_past_caches(&mut to[start..start + len], &from[7..7 + len]);
                fence();
                assert_eq!(to[start..start + len], from[7..7 + len]);
                assert!(to[..start].iter().chain(&to[start + len..]).all(|b| *b == 0xff));
            }
        }
    }
}
