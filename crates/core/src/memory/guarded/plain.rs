//! The same functions without a guard, for other architectures: a missing page ends the process.

use super::{AccessFault, Flush, LINE, Width};

/// Copies byte by byte. If the bytes change meanwhile, only the copied bytes are affected: the
/// compiler assumes nothing about what is read or when.
///
/// # Errors
/// None on this architecture.
///
/// # Safety
/// `len` bytes must be mapped at `from` for reading and at `to` for writing, and must not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    for at in 0..len {
        // SAFETY: the caller guarantees what this function demands.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    Ok(())
}

/// Copies as [`copy`] does: stores that bypass the caches are written only for x86-64.
///
/// # Errors
/// None on this architecture.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn stream(_: Width, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    // SAFETY: the caller guarantees what this function demands.
    unsafe { copy(from, to, len) }
}

/// Does nothing: the instructions are those of x86-64.
///
/// # Errors
/// None on this architecture.
///
/// # Safety
/// `len` bytes must be mapped at `start`.
pub unsafe fn write_back(_: Flush, _: *const u8, _: usize) -> Result<(), AccessFault> {
    Ok(())
}

/// Reads a byte of each line.
///
/// # Errors
/// None on this architecture.
///
/// # Safety
/// `len` bytes must be mapped at `start`.
pub unsafe fn load(start: *const u8, len: usize) -> Result<(), AccessFault> {
    for at in (0..len).step_by(LINE) {
        // SAFETY: `at` is less than the length, and that many bytes are mapped.
        unsafe { start.add(at).read_volatile() };
    }
    Ok(())
}
