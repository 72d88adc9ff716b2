//! Calls of the kernel for pages of memory, and what stands in for them under Miri.

use crate::error::Error;

pub(in crate::memory) fn last_os_error(operation: &'static str, context: String) -> Error {
    Error::io(operation, std::io::Error::last_os_error(), context)
}

#[cfg(not(miri))]
pub(in crate::memory) use libc::madvise as advise;

/// Binds pages by the policy. Returns whether the kernel accepted it; errno says
/// why not.
#[cfg(not(miri))]
pub(in crate::memory) fn bind_pages((start, len): (*mut u8, usize), mask: &[u64; 16], policy: libc::c_int) -> bool {
    let bits = mask.len() * 64;
    // SAFETY: the mask is an array of that many bits that outlives the call; the kernel reads and
    // writes no byte of the pages, and refuses those that are not mapped.
    let rc = unsafe { libc::syscall(libc::SYS_mbind, start, len, policy, mask.as_ptr(), bits, 0u32) };
    rc == 0
}

/// Maps anonymous private pages at an address of the kernel's choice. Returns `MAP_FAILED` and sets
/// errno where the kernel refuses.
#[cfg(not(miri))]
pub(in crate::memory) fn map_pages(len: usize) -> *mut libc::c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: such a mapping touches nothing that exists.
    unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) }
}

/// # Safety
/// The pages must be a mapping that `map_pages` returned, and nothing may refer to it any more.
#[cfg(not(miri))]
pub(in crate::memory) unsafe fn unmap_pages(base: *mut u8, len: usize) {
    // SAFETY: as above.
    unsafe { libc::munmap(base.cast(), len) };
}

/// Miri supports neither `MAP_NORESERVE` nor advice nor NUMA. Under it, memory comes from the
/// allocator, and binding is refused as by a kernel without NUMA.
#[cfg(miri)]
mod miri {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    pub(in crate::memory) fn bind_pages(_: (*mut u8, usize), _: &[u64; 16], _: libc::c_int) -> bool {
        // SAFETY: the pointer is that of this thread's errno.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        false
    }

    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, crate::process::page_size()).ok()
    }

    pub(in crate::memory) fn map_pages(len: usize) -> *mut libc::c_void {
        // SAFETY: the caller, `Region::map`, refuses a length of 0.
        layout(len).map_or(libc::MAP_FAILED, |layout| unsafe { alloc_zeroed(layout) }.cast())
    }

    pub(in crate::memory) unsafe fn unmap_pages(base: *mut u8, len: usize) {
        if let Some(layout) = layout(len) {
            // SAFETY: the caller passes a mapping that `map_pages` returned, and its length.
            unsafe { dealloc(base, layout) };
        }
    }

    pub(in crate::memory) unsafe fn advise(address: *mut libc::c_void, len: usize, advice: libc::c_int) -> libc::c_int {
        if advice != libc::MADV_DONTNEED {
            return -1; // A kernel that does not know the advice also fails.
        }
        // SAFETY: the caller holds the sole lease on these pages.
        unsafe { address.write_bytes(0, len) };
        0
    }
}
#[cfg(miri)]
pub(in crate::memory) use miri::{advise, bind_pages, map_pages, unmap_pages};
