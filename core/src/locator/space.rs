//! Space of a file system, which is reserved only where it is there.
//!
//! ```text
//! a step of a range:  what the rest needs at least  >  what the file system says is free?   refused, nothing was asked
//!                     fallocate                                                             the next step
//! ```
//!
//! A kernel that is asked for more than there is may take all there is before it says so, and the
//! file system is full for everybody else meanwhile. So it is asked for what is there, and looked
//! at again before each step: others take space, too. A file system that states no blocks at all
//! does not count them: there the kernel alone decides.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use crate::error::Error;

/// What the kernel is asked for at once, in bytes.
const STEP: u64 = 1 << 30;
/// `st_blocks` counts in these, whatever the file system's own blocks are.
const STATED_BLOCK: u64 = 512;

/// Why space was not reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) errno: Errno,
    /// Where nothing was asked, because it is not there.
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
    /// As an error about the file at a path.
    pub(super) fn error(self, path: &Path) -> Error {
        let shown = path.display();
        let context = match self.missing {
            Some(Missing { needed_bytes, free_bytes }) => {
                format!("{shown}: {needed_bytes} bytes more are needed, and its file system has {free_bytes} free")
            }
            None => shown.to_string(),
        };
        Error::os("reserve space for", self.errno.raw_os_error(), context)
    }
}

/// Reserves the blocks of a range of a regular file, by `fallocate` with these flags.
pub(super) fn reserve(file: &impl AsFd, flags: FallocateFlags, range: Range<u64>) -> Result<(), Refused> {
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

/// What is missing for the rest of a range of which all before `at` is reserved; None where it is
/// there, or not known.
fn missing(file: &impl AsFd, range: &Range<u64>, at: u64) -> Result<Option<Missing>, Errno> {
    let Some(free_bytes) = free_bytes(file) else { return Ok(None) };
    let stat = rustix::fs::fstat(file)?;
    let has = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STATED_BLOCK);
    // Blocks that the file has may all lie in the rest; those before `at` do not. So it needs this
    // much at least.
    let elsewhere = has.saturating_sub(at.saturating_sub(range.start));
    let needed_bytes = range.end.saturating_sub(at).saturating_sub(elsewhere);
    Ok((needed_bytes > free_bytes).then_some(Missing { needed_bytes, free_bytes }))
}

/// Bytes that this user can have of a file's file system; None where it does not count them.
pub(super) fn free_bytes(file: &impl AsFd) -> Option<u64> {
    let fs = rustix::fs::fstatvfs(file).ok().filter(|fs| fs.f_blocks > 0)?;
    // Some blocks are kept for root. Other users to whom they are given can be set at the mount; of
    // those nothing is known.
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    blocks.checked_mul(fs.f_frsize)
}
