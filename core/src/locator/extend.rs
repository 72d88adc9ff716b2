//! Files grow, and growing never shortens them.
//!
//! ```text
//! reserve:  fallocate (space.rs)             the file system reserves the blocks, and extends the file in the same step
//!           it cannot?  is the file shorter? its length is set by writing the last byte of the range, a zero
//! ```
//!
//! Rejected: `ftruncate`. Between the look at the length and the call somebody else may have
//! written further on, and would be cut off. A byte that is written never shortens. It is written
//! while no pipe of this process writes it; another process that writes this one byte between our
//! look and our write would lose it.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::space::{self, Refused};
use crate::span::MAX_OFFSET;
use crate::watch::WriteObservers;

/// Reserves the blocks of a range of a regular file, which is at least as long as the end of the
/// range afterwards. False where the file system cannot reserve: then only the length is seen to.
pub(super) fn reserve(file: &impl AsFd, watchers: &WriteObservers, range: Range<u64>) -> Result<bool, Refused> {
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

/// Makes a file at least `end` bytes long; `end` is not beyond what the kernel takes as an offset.
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
    // A transfer that writes this byte extends the file itself, if it succeeds. It must not be
    // waited for: the caller may be who completes it.
    watchers.write_exclusively(last..end, grow).unwrap_or(Ok(()))
}
