//! Copies of bytes that others may change meanwhile.

/// Copies `len` bytes. Who changes them meanwhile changes what is copied, and nothing else: the compiler knows neither what
/// is read nor when.
///
/// # Safety
/// `len` bytes must be mapped at `from` for reading and at `to` for writing, and must not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: what this function demands; the direction flag is clear wherever Rust code runs.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// As above, byte by byte.
///
/// # Safety
/// As above.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: what this function demands.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}
