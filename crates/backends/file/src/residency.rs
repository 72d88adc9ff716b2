//! The share of a file that the page cache holds.
//!
//! Unsafe code: the system calls `cachestat` (kernel 6.5) and, on older kernels, `mincore` over a
//! mapping.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use datapipes_core::Ssd;
use datapipes_core::locator::FilePlace;

/// `cachestat`, which libc does not define on every target. The number is the same on all but
/// alpha.
const SYS_CACHESTAT: libc::c_long = 451;
/// Files up to this length are checked by `mincore`, where `cachestat` is missing.
const MAX_MINCORE_BYTES: u64 = 16 << 30;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the share of a file that the page cache holds, from 0 to 1; `None` where the kernel does
/// not tell. (A process that may not write the file is told that all of it is there, or nothing.)
///
/// ```
/// let path = std::env::temp_dir().join(format!("datapipes-cached-share-{}", std::process::id()));
/// std::fs::write(&path, [7; 8192]).map_err(|e| datapipes_core::Error::io("write", e, "a file"))?;
/// let share = datapipes_file::cached_share(&datapipes_core::Ssd::open(&path)?);
/// assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
/// # std::fs::remove_file(&path).map_err(|e| datapipes_core::Error::io("remove", e, "a file"))?;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
pub fn cached_share(file: &Ssd) -> Option<f64> {
    share(file.file(), file.len().ok()?)
}

/// Whether the page cache has all of the `len` bytes at `offset` of a file; `None` where the kernel
/// does not tell (before 6.5, and of files that the process may not write). To try a read that does
/// not wait instead (`RWF_NOWAIT`) has an effect where the bytes are missing: the kernel begins to
/// read them.
pub fn is_cached(file: &Ssd, offset: u64, len: u64) -> Option<bool> {
    let page = datapipes_core::process::page_size() as u64;
    if len == 0 || on_dax(file.file()) {
        return Some(len == 0);
    }
    let pages = offset.checked_add(len - 1)? / page - offset / page + 1;
    Some(by_cachestat(file.file(), &Range { offset, len })? >= pages)
}

/// Returns the share of a file of `len` bytes that the page cache holds, from 0 to 1; `None` where
/// the kernel does not tell.
pub(crate) fn share(file: &FilePlace, len: u64) -> Option<f64> {
    // A file on DAX has no pages in the cache, and the kernel must not be asked about it:
    // `cachestat` takes what the kernel keeps of such a file for evicted pages, which crashed
    // kernel 6.12 (seen in `cargo xtask guest`).
    if len == 0 || on_dax(file) {
        return Some(0.0);
    }
    let pages = len.div_ceil(datapipes_core::process::page_size() as u64);
    let cached = by_cachestat(file, &Range { offset: 0, len: 0 }).or_else(|| by_mincore(file, len))?;
    Some((cached as f64 / pages as f64).min(1.0))
}

/// Whether the file's bytes are accessed in persistent memory itself, without a page cache.
fn on_dax(file: &FilePlace) -> bool {
    /// `STATX_ATTR_DAX` (kernel 5.8).
    const DAX: u64 = 0x20_0000;
    let (flags, mask) = (rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::TYPE);
    rustix::fs::statx(file.cached_fd(), "", flags, mask).is_ok_and(|stat| stat.stx_attributes.bits() & DAX != 0)
}

/// The pages of a range that are there; a length of 0 is up to the end.
fn by_cachestat(file: &FilePlace, range: &Range) -> Option<u64> {
    let mut stat = Stat::default();
    let fd = file.cached_fd().as_raw_fd();
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let rc = unsafe { libc::syscall(SYS_CACHESTAT, fd, std::ptr::from_ref(range), &raw mut stat, 0) };
    (rc == 0).then_some(stat.cached)
}

fn by_mincore(file: &FilePlace, len: u64) -> Option<u64> {
    if len > MAX_MINCORE_BYTES {
        return None;
    }
    let len = usize::try_from(len).ok()?;
    let fd = file.cached_fd().as_raw_fd();
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists; it is
    // never read.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if map == libc::MAP_FAILED {
        return None;
    }
    let mut pages = vec![0u8; len.div_ceil(datapipes_core::process::page_size())];
    // SAFETY: the mapping has `len` bytes, and the vector a byte for each of its pages.
    let rc = unsafe { libc::mincore(map, len, pages.as_mut_ptr()) };
    // SAFETY: address and length are those of the mapping made above, to which nothing refers.
    unsafe { libc::munmap(map, len) };
    (rc == 0).then(|| pages.iter().filter(|p| *p & 1 != 0).count() as u64)
}
