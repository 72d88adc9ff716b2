//! Reserving space of a file system, but only space that is free.
//!
//! ```text
//! for each step of a range:
//!     the rest needs more than the file system says is free?  refuse; the kernel was not asked
//!     otherwise fallocate, and go on with the next step
//! ```
//!
//! A kernel that is asked for more than there is may take all there is before it refuses, and
//! meanwhile the file system is full for others. So it is asked only for space that is free, and
//! this is checked again before each step, because others take space too. A file system that
//! reports 0 blocks does not count them; there the kernel alone decides.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use crate::error::Error;

/// The bytes that the kernel is asked for at once.
const STEP: u64 = 1 << 30;
/// `st_blocks` counts in units of this size, whatever the file system's block size is.
const STATED_BLOCK: u64 = 512;

/// Why space was not reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::locator) struct Refused {
    pub(in crate::locator) errno: Errno,
    /// The space that is missing, if the kernel was not asked because of it.
    missing: Option<Missing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missing {
    needed_bytes: u64,
    free_bytes: u64,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused { errno, missing: None }
    }
}

impl Refused {
    /// Returns this as an error about the file at a path.
    pub(in crate::locator) fn error(self, path: &Path) -> Error {
        let shown = path.display();
        let context = match self.missing {
            Some(Missing { needed_bytes, free_bytes }) => {
                format!("{shown}: {needed_bytes} more bytes are needed, and its file system has {free_bytes} free")
            }
            None => shown.to_string(),
        };
        Error::os("reserve space for", self.errno.raw_os_error(), context)
    }
}

/// Reserves the blocks of a range of a regular file, by `fallocate` with these flags.
pub(in crate::locator) fn reserve(file: &impl AsFd, flags: FallocateFlags, range: Range<u64>) -> Result<(), Refused> {
    let mut at = range.start;
    while at < range.end {
        if let Some(missing) = missing(file, &range, at)? {
            return Err(Refused { errno: Errno::NOSPC, missing: Some(missing) });
        }
        let end = at.saturating_add(STEP).min(range.end);
        let len = end.saturating_sub(at);
        retry_on_intr(|| rustix::fs::fallocate(file, flags, at, len))?;
        at = end;
    }
    Ok(())
}

/// Returns the space that is missing for the rest of a range, where all before `at` is reserved.
/// `None` means that it is free, or that this is not known.
fn missing(file: &impl AsFd, range: &Range<u64>, at: u64) -> Result<Option<Missing>, Errno> {
    let Some(free_bytes) = free_bytes(file) else { return Ok(None) };
    let stat = rustix::fs::fstat(file)?;
    let has = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STATED_BLOCK);
    // All blocks of the file may lie in the rest, except those before `at`. So the rest needs at
    // least this much.
    let elsewhere = has.saturating_sub(at.saturating_sub(range.start));
    let needed_bytes = range.end.saturating_sub(at).saturating_sub(elsewhere);
    Ok((needed_bytes > free_bytes).then_some(Missing { needed_bytes, free_bytes }))
}

/// Returns the bytes that this user can have of a file's file system, or `None` where it does not
/// count them.
pub(in crate::locator) fn free_bytes(file: &impl AsFd) -> Option<u64> {
    let fs = rustix::fs::fstatvfs(file).ok().filter(|fs| fs.f_blocks > 0)?;
    // Some blocks are reserved for root. A mount option can grant them to other users too, which is
    // not known here.
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    blocks.checked_mul(fs.f_frsize)
}
