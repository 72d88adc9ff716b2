//! Regions over a file's pages: persistent places in memory, and files that are read in place.

use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use super::mapped_file::{FileChange, MappedFile, Sharing};
use crate::error::{Error, Result};
use crate::memory::guarded;
use crate::memory::range::MemoryRange;
use crate::memory::region::Region;
use crate::watch::{Change, WriteObservers};

/// A mapping of a file, which ends when this is dropped.
pub(in crate::memory) struct Unmap {
    base: NonNull<u8>,
    /// A multiple of the page size: huge pages are unmapped as a whole or not at all.
    len: usize,
}

impl Unmap {
    /// Takes a mapping of `len` bytes of a file.
    pub(in crate::memory) fn new(file: BorrowedFd<'_>, base: NonNull<u8>, len: usize) -> Unmap {
        let page = match rustix::fs::fstatfs(file) {
            Ok(system) if system.f_type as u64 & 0xFFFF_FFFF == HUGETLBFS => {
                usize::try_from(system.f_bsize).unwrap_or(1).max(1)
            }
            _ => 1,
        };
        Unmap { base, len: len.checked_next_multiple_of(page).unwrap_or(len) }
    }
}

/// The number of the hugetlbfs file system (`statfs(2)`).
const HUGETLBFS: u64 = 0x9584_58F6;

// SAFETY: the mapping belongs to the process, not to a thread, and this value is only dropped.
unsafe impl Send for Unmap {}
// SAFETY: as above.
unsafe impl Sync for Unmap {}

impl Drop for Unmap {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mmap. Only the region referred to the mapping,
        // and it is being dropped, since it owns this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Region {
    /// Maps `len` bytes of an open file or character device for reading and writing, from the
    /// offset on that `of` has, which is a multiple of the page size.
    ///
    /// Touching a page that the file no longer has, or that the medium cannot return, raises
    /// `SIGBUS`. Copies in this module are guarded against that.
    pub(crate) fn map_file(file: BorrowedFd<'_>, len: usize, of: MappedFile) -> Result<Region, Errno> {
        guarded::install().map_err(|e| e.errno().map_or(Errno::IO, Errno::from_raw_os_error))?;
        let flags = match of.sharing {
            Sharing::Written => libc::MAP_SHARED,
            Sharing::Synchronous => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            // Most pages are never written, so no memory is set aside for copies of all.
            Sharing::Private => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::off_t::try_from(of.begins_at).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), at) };
        if base == libc::MAP_FAILED {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        let Some(base) = NonNull::new(base.cast::<u8>()) else { return Err(Errno::NOMEM) };
        // SAFETY: the mapping is valid until `Unmap` is dropped. Any process that opens the file
        // may change it, so the region is shared.
        Ok(unsafe { Region::of_file(base, len, (Box::new(Unmap::new(file, base, len)), of)) })
    }
}

impl MemoryRange {
    /// The file that its region maps, if any.
    pub(crate) fn file(&self) -> Option<&MappedFile> {
        self.region().file()
    }

    /// The file that stores to the range reach, if any.
    pub(crate) fn stored_file(&self) -> Option<&MappedFile> {
        self.file().filter(|file| file.sharing != Sharing::Private)
    }

    /// The offset of the range in the file that its region maps.
    pub(crate) fn at_in(&self, file: &MappedFile) -> u64 {
        file.begins_at.saturating_add(self.at() as u64)
    }

    /// Tells the observers of the file, if there is one, that the whole range is about to change.
    /// The caller makes this before the lease and drops it after the lease.
    ///
    /// # Errors
    /// `Forked` where the file was mapped by a parent of this process.
    #[inline]
    pub(in crate::memory) fn change(&self, operation: &'static str) -> Result<Option<Change<&WriteObservers>>> {
        self.change_of(operation, |watchers| &**watchers)
    }

    /// As [`change`](Self::change), for a lease to own.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    #[inline]
    pub(in crate::memory) fn lasting_change(&self, operation: &'static str) -> Result<Option<FileChange>> {
        self.change_of(operation, Arc::clone)
    }

    #[inline]
    fn change_of<'a, W: Deref<Target = WriteObservers>>(
        &'a self,
        operation: &'static str,
        refer: impl FnOnce(&'a Arc<WriteObservers>) -> W,
    ) -> Result<Option<Change<W>>> {
        let Some(file) = self.stored_file() else { return Ok(None) };
        file.watchers.check_process(operation)?;
        let start = self.at_in(file);
        Ok(Some(Change::begin(refer(&file.watchers), start..start.saturating_add(self.len() as u64))))
    }

    /// Returns when the bytes of `part` of this range are in the file (`msync`). The range must be
    /// of a mapped file.
    ///
    /// # Errors
    /// `OutOfRange`, and the kernel's errors: `Device` where a page could not be written.
    pub(crate) fn write_to_file(&self, part: Range<usize>) -> Result<()> {
        let part = self.range(part.start, part.len())?;
        let skip = part.address().addr() % crate::process::page_size();
        let start = part.address().wrapping_sub(skip);
        // SAFETY: these are whole pages of a mapping that the range keeps; no byte of memory is
        // changed.
        let rc = unsafe { libc::msync(start.cast(), part.len() + skip, libc::MS_SYNC) };
        if rc != 0 {
            let e = std::io::Error::last_os_error();
            return Err(
                Error::io("persist", e, format!("{} bytes of a file", part.len())).with_offset(part.at() as u64)
            );
        }
        Ok(())
    }
}
