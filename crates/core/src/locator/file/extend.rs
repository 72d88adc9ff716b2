//! Extending files without ever shortening them.
//!
//! ```text
//! reserve:  fallocate (space.rs) reserves the blocks and extends the file in one step
//!           unsupported, and the file is shorter?  a zero is written as the last byte of the range
//! ```
//!
//! Rejected: `ftruncate`. Between the check of the length and the call, another process may write
//! beyond that length, and its bytes would be cut off. Writing a byte never shortens a file. It is
//! written while no pipe of this process writes it. If another process writes the same byte between
//! the check and this write, its byte is lost.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::space::{self, Refused};
use crate::span::MAX_OFFSET;
use crate::watch::WriteObservers;

/// Reserves the blocks of a range of a regular file, which then ends no earlier than the range.
/// Returns false where the file system cannot reserve; then only the length is set.
pub(in crate::locator) fn reserve(
    file: &impl AsFd,
    watchers: &WriteObservers,
    range: Range<u64>,
) -> Result<bool, Refused> {
    if range.is_empty() {
        return Ok(true);
    }
    if range.end > MAX_OFFSET {
        return Err(Errno::FBIG.into());
    }
    match space::reserve(file, FallocateFlags::empty(), range.clone()) {
        Ok(()) => Ok(true),
        Err(Refused { errno: Errno::OPNOTSUPP | Errno::NOSYS, .. }) => {
            extend(file.as_fd(), watchers, range.end)?;
            Ok(false)
        }
        Err(refused) => Err(refused),
    }
}

/// Makes a file at least `end` bytes long. `end` is an offset that the kernel accepts.
fn extend(file: BorrowedFd<'_>, watchers: &WriteObservers, end: u64) -> Result<(), Errno> {
    let Some(last) = end.checked_sub(1) else { return Ok(()) };
    let is_shorter = || rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0) < end);
    let grow = || match is_shorter()? {
        true => match retry_on_intr(|| rustix::io::pwrite(file, &[0], last))? {
            1 if !is_shorter()? => Ok(()),
            _ => Err(Errno::IO),
        },
        false => Ok(()),
    };
    // A transfer that writes this byte extends the file itself, if it succeeds. This must not wait
    // for it: the caller may be the thread that completes it.
    watchers.write_exclusively(last..end, grow).unwrap_or(Ok(()))
}
