//! A file that is written in place, because a new file would not have its identity.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::decide::InPlaceReason;
use crate::error::{Error, Result};
use crate::locator::Ssd;
use crate::locator::file::space::{self, Refused};
use crate::process::OwningProcess;

/// An open file whose bytes are to be replaced. It is untouched until [`begin`](Self::begin).
///
/// From `begin` until [`publish`](Self::publish) has returned, an error, a signal or a power
/// failure leaves it incomplete and the old bytes lost, as `cp` and GNU `sort -o` do.
#[derive(Debug)]
pub struct InPlaceFile {
    ssd: Ssd,
    reason: InPlaceReason,
    begun: AtomicBool,
    pub(super) is_synced: bool,
    owner: OwningProcess,
}

impl InPlaceFile {
    pub(super) fn new(file: OwnedFd, path: &Path, reason: InPlaceReason) -> Result<InPlaceFile> {
        Ok(InPlaceFile {
            ssd: Ssd::from_fd(file, path)?,
            reason,
            begun: AtomicBool::new(false),
            is_synced: true,
            owner: OwningProcess::here(),
        })
    }

    /// The file, for writing after [`begin`](Self::begin).
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// Why it is written in place.
    pub fn reason(&self) -> &InPlaceReason {
        &self.reason
    }

    /// Whether the old bytes have been discarded.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    /// Discards the old bytes. If the new length is known, space for it is reserved first; if there
    /// is not enough, the old bytes stay.
    ///
    /// # Errors
    /// `NoSpace` with the file untouched; `Forked` in a child of the process that opened it; other
    /// errors of the kernel.
    pub fn begin(&self, len: Option<u64>) -> Result<()> {
        self.owner.check("write in place")?;
        let (old_len, fd) = (self.ssd.len()?, self.fd());
        if let Some(len) = len {
            self.reserve(len, old_len)?;
        }
        self.begun.store(true, Relaxed);
        let Some(len) = len else { return self.ssd.set_len(0) };
        let whole = len.max(old_len);
        // After a crash, bytes of the old file among the new ones would go unnoticed; zeros do not.
        // Existing blocks are kept, so that no other process takes the space meanwhile.
        let zeroed = self.ssd.file().write_observers().write_observed(0..u64::MAX, || match whole {
            0 => Ok(()),
            // The holes of the old file may need more space than there is. Then the file is emptied
            // below.
            _ => space::reserve(&fd, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 0..whole),
        });
        if zeroed.is_err() {
            self.ssd.set_len(0)?;
            self.reserve(len, 0)?;
        }
        Ok(())
    }

    /// Reserves space for `len` bytes, beyond the blocks that the file has. Its bytes and its
    /// length stay.
    fn reserve(&self, len: u64, old_len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        match space::reserve(&self.fd(), FallocateFlags::KEEP_SIZE, 0..len) {
            Ok(()) | Err(Refused { errno: Errno::OPNOTSUPP | Errno::NOSYS, .. }) => Ok(()),
            Err(refused) => {
                // This returns what was reserved beyond the end. The first error is reported,
                // whatever the result here.
                let _ = self
                    .ssd
                    .file()
                    .write_observers()
                    .write_observed(old_len..u64::MAX, || rustix::fs::ftruncate(self.fd(), old_len));
                Err(refused
                    .error(self.ssd.path())
                    .with_advice(format!("nothing was changed; it would be written in place, because {}", self.reason)))
            }
        }
    }

    /// Writes bytes from its beginning, through the page cache; for small files. It is called after
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// `NoSpace`, `Device`. `Forked` in a child of the process that opened it.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        self.owner.check("write in place")?;
        let shown = || self.ssd.path().display().to_string();
        write_all(&self.ssd, bytes).map_err(|(e, done)| Error::os("write", e.raw_os_error(), shown()).with_offset(done))
    }

    /// Sets the file's length and makes it durable.
    ///
    /// # Errors
    /// `NoSpace` or `Device`; the file is then incomplete. `Forked` in a child of the process that
    /// opened it.
    pub fn publish(self, len: u64) -> Result<InPlaceReason> {
        self.owner.check("publish")?;
        let incomplete = |e: Error| e.with_advice(format!("it was written in place, because {}", self.reason));
        if self.ssd.len().map_err(incomplete)? != len {
            self.ssd.set_len(len).map_err(incomplete)?;
        }
        if self.is_synced {
            self.ssd.sync().map_err(incomplete)?;
        }
        Ok(self.reason)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ssd.file().cached_fd()
    }
}

/// Writes bytes from a file's beginning. An error comes with the number of bytes written before.
pub(super) fn write_all(ssd: &Ssd, bytes: &[u8]) -> Result<(), (Errno, u64)> {
    ssd.file().write_observers().write_observed(0..bytes.len() as u64, || {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(ssd.file().cached_fd(), &bytes[done..], done as u64) {
                Ok(0) => return Err((Errno::IO, done as u64)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err((e, done as u64)),
            }
        }
        Ok(())
    })
}

/// Copies the first `len` bytes of a file to another.
pub(super) fn copy_all(from: &Ssd, to: &Ssd, len: u64) -> Result<()> {
    let (source, target) = (from.file().cached_fd(), to.file().cached_fd());
    to.file().write_observers().write_observed(0..u64::MAX, || {
        let (mut done, mut buffer) = (0, Vec::new());
        while done < len {
            let moved = match step(source, target, Span { at: done, left: len - done }, &mut buffer) {
                Err(Errno::INTR) => continue,
                // The file is shorter than its length was.
                Ok(0) => Err(Errno::IO),
                other => other,
            };
            let shown = || to.path().display().to_string();
            done += moved.map_err(|e| Error::os("copy to", e.raw_os_error(), shown()).with_offset(done))?;
        }
        Ok(())
    })
}

#[derive(Clone, Copy)]
struct Span {
    at: u64,
    left: u64,
}

/// Copies some bytes: in the kernel, or through `buffer` once the kernel has failed to.
fn step(source: BorrowedFd<'_>, target: BorrowedFd<'_>, span: Span, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    const BUFFER: usize = 1 << 20;
    if buffer.is_empty() {
        let (mut from, mut to) = (span.at, span.at);
        let most = usize::try_from(span.left).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), most) {
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::BADF) => {
                buffer.resize(BUFFER, 0);
            }
            // Some file systems of the kernel return 0 for files that are not empty.
            Ok(0) => buffer.resize(BUFFER, 0),
            Ok(moved) => return Ok(moved as u64),
            Err(e) => return Err(e),
        }
    }
    let most = buffer.len().min(usize::try_from(span.left).unwrap_or(usize::MAX));
    let read = rustix::io::pread(source, &mut buffer[..most], span.at)?;
    let mut written = 0;
    while written < read {
        match rustix::io::pwrite(target, &buffer[written..read], span.at + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => written += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read as u64)
}
