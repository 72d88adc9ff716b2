//! Copies of up to 128 bytes, without a call and without a loop. Beyond that, wider registers are
//! faster.
//!
//! ```text
//! 40 bytes:   [ first 32 bytes             ]
//!                     [ last 32 bytes              ]   two copies of a fixed length; may overlap
//! ```

/// The longest copy, in bytes.
pub(super) const MAX: usize = 128;

/// # Safety
/// `len` is at most [`MAX`]; `len` bytes must be readable at `from` and writable at `to`, held by
/// nobody else, and must not overlap.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len <= MAX);
    // SAFETY: each arm copies the first N and the last N bytes, and its pattern ensures that there
    // are at least N and at most 2 N. The caller guarantees that they are valid.
    unsafe {
        match len {
            65..=128 => ends::<64>(from, to, len),
            33..=64 => ends::<32>(from, to, len),
            17..=32 => ends::<16>(from, to, len),
            8..=16 => ends::<8>(from, to, len),
            4..=7 => ends::<4>(from, to, len),
            2..=3 => ends::<2>(from, to, len),
            1 => to.write(from.read()),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`copy`], and `len` is at least `N` and at most `2 * N`.
#[inline(always)]
unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: N bytes at the start and N bytes before the end lie within the `len` bytes that the
    // caller guarantees.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, N);
        std::ptr::copy_nonoverlapping(from.add(len - N), to.add(len - N), N);
    }
}
