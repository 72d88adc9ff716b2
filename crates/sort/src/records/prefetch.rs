//! Prefetching memory into the caches.

/// Prefetches the two cache lines at `at` of `bytes` for use soon. They may lie behind the end of
/// `bytes`.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = bytes.as_ptr().wrapping_add(at).cast::<i8>();
        // SAFETY: a prefetch is a hint that touches no memory architecturally, whatever the
        // address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(start);
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

/// Prefetches all lines of the record of `len` bytes at `at` for use soon. A record that is not
/// aligned has a line more than its length suggests.
#[inline]
pub(crate) fn prefetch_record(bytes: &[u8], at: usize, len: usize) {
    const LINES: usize = 128;
    for start in (0..len).step_by(LINES) {
        prefetch(bytes, at + start);
    }
    prefetch(bytes, (at + len).saturating_sub(LINES / 2 + 1));
}

/// Prefetches as [`prefetch`] does, but for later use: into the second-level cache only.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch_far(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let start = bytes.as_ptr().wrapping_add(at).cast::<i8>();
        // SAFETY: as in `prefetch`.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(start);
            _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(64));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}
