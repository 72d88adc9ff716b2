//! The NUMA nodes on which the pages of a range are.

use std::collections::BTreeMap;

use super::range::MemoryRange;
use crate::error::{Error, ErrorKind, Result};

/// The number of pages queried by one system call.
const AT_ONCE: usize = 4096;
/// The most pages that are queried: all of 1 GiB of ordinary pages. Of a longer range, every n-th
/// page is queried.
pub(crate) const MAX_PAGES: usize = 1 << 18;

/// The nodes where pages were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageNodes {
    /// The number of pages queried.
    pub(crate) asked: usize,
    /// The number of pages on each node.
    pub(crate) on: BTreeMap<u32, usize>,
    /// Pages on no node, counted by errno: never touched (`ENOENT`, or `EFAULT` on an older
    /// kernel), or not movable.
    pub(crate) without: BTreeMap<i32, usize>,
}

impl MemoryRange {
    /// Asks the kernel on which node each page is (`move_pages` without a destination). In a range
    /// of more than `MAX_PAGES` pages, it asks about each n-th page.
    ///
    /// # Errors
    /// `Unavailable` on a kernel without NUMA; `PermissionDenied` in a sandbox that forbids the
    /// call.
    pub(crate) fn page_nodes(&self) -> Result<PageNodes> {
        let page = crate::process::page_size();
        let skip = self.address().addr() % page;
        let pages = (self.len() + skip).div_ceil(page);
        let step = pages.div_ceil(MAX_PAGES).max(1);
        let first = self.address().wrapping_sub(skip);
        let mut found = PageNodes::default();
        let addresses: Vec<_> = (0..pages).step_by(step).map(|n| first.wrapping_add(n * page).cast()).collect();
        for chunk in addresses.chunks(AT_ONCE) {
            let mut status = vec![0i32; chunk.len()];
            pages_status(chunk, &mut status)?;
            found.asked += chunk.len();
            for status in status {
                match u32::try_from(status) {
                    Ok(node) => *found.on.entry(node).or_default() += 1,
                    Err(_) => *found.without.entry(-status).or_default() += 1,
                }
            }
        }
        Ok(found)
    }
}

/// Miri has no NUMA, so it answers as a kernel without NUMA.
#[cfg(miri)]
fn pages_status(_: &[*mut libc::c_void], _: &mut [i32]) -> Result<()> {
    Err(Error::new(ErrorKind::Unavailable, "verify", "on which NUMA nodes the pages are").with_errno(libc::ENOSYS))
}

/// Stores the node of each page, or a negative errno.
#[cfg(not(miri))]
fn pages_status(pages: &[*mut libc::c_void], status: &mut [i32]) -> Result<()> {
    debug_assert_eq!(pages.len(), status.len());
    let nowhere = std::ptr::null::<libc::c_int>();
    // SAFETY: both arrays have `pages.len()` elements and outlive the call. Without destinations no
    // page moves, and an address that is not mapped is reported, not touched.
    let rc =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, status.as_mut_ptr(), 0) };
    if rc == 0 {
        return Ok(());
    }
    let e = std::io::Error::last_os_error();
    let context = "on which NUMA nodes the pages are";
    Err(match e.raw_os_error() {
        Some(libc::ENOSYS) => Error::new(ErrorKind::Unavailable, "verify", context).with_errno(libc::ENOSYS),
        _ => Error::io("verify", e, context),
    })
}
