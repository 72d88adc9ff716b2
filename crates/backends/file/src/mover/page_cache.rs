//! Keeps the page cache of a block device and commands that go past it coherent.
//!
//! The kernel does so itself for requests past the page cache (`O_DIRECT`): it writes back what the
//! cache has before one, and drops the pages of a write before and after it. It knows nothing of
//! commands, so this does the same by system calls. A page that another process maps, or reads
//! through the cache at the same moment, may stay there with its old bytes.
#![deny(clippy::arithmetic_side_effects)]

use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

pub(super) use datapipes_core::page_cache::write_back;

/// Drops the clean pages that a range touches from the page cache.
pub(super) fn drop_pages(file: BorrowedFd<'_>, at: u64, len: u64) {
    let inside = (datapipes_core::process::page_size() as u64).wrapping_sub(1);
    // The kernel keeps pages that the range has only in part, so it gets whole ones.
    let start = at & !inside;
    let end = at.saturating_add(len).saturating_add(inside) & !inside;
    // Pages that cannot be dropped stay, as the kernel's own dropping leaves them.
    let _ = rustix::fs::fadvise(file, start, NonZeroU64::new(end.saturating_sub(start)), rustix::fs::Advice::DontNeed);
}
