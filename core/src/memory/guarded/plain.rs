//! The same without a guard, where there is none: a page that is gone ends the process.

use super::{AccessFault, Flush, LINE, Width};

/// Copies byte by byte. Who changes the bytes meanwhile changes what is copied, and nothing else:
/// the compiler knows neither what is read nor when.
///
/// # Errors
/// None here.
///
/// # Safety
/// `len` bytes must be mapped at `from` for reading and at `to` for writing, and must not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    for at in 0..len {
        // SAFETY: what this function demands.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    Ok(())
}

/// As [`copy`]: stores past the caches are written for x86-64 alone.
///
/// # Errors
/// None here.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn stream(_: Width, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    // SAFETY: what this function demands.
    unsafe { copy(from, to, len) }
}

/// Nothing: the instructions are those of x86-64.
///
/// # Errors
/// None here.
///
/// # Safety
/// `len` bytes must be mapped at `start`.
pub unsafe fn write_back(_: Flush, _: *const u8, _: usize) -> Result<(), AccessFault> {
    Ok(())
}

/// Reads a byte of each line.
///
/// # Errors
/// None here.
///
/// # Safety
/// `len` bytes must be mapped at `start`.
pub unsafe fn load(start: *const u8, len: usize) -> Result<(), AccessFault> {
    for at in (0..len).step_by(LINE) {
        // SAFETY: it is less than the length, so many bytes are mapped.
        unsafe { start.add(at).read_volatile() };
    }
    Ok(())
}
