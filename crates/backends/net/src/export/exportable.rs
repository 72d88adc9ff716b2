//! Memory that other processes can map: a sealed memfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use datapipes_core::memory::{Access, Region};
use datapipes_core::process::page_size;
use datapipes_core::topology::Topology;
use datapipes_core::{Dram, Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

/// Less than this is not worth asking what can be had.
const MIN_CHECKED_BYTES: usize = 1 << 20;

/// Main memory of this process that can be exported.
///
/// Others may change its bytes at any time, so they are never seen by reference:
/// [`MemoryRange::read`](datapipes_core::memory::MemoryRange::read) and `write` copy, and pipes
/// move.
#[derive(Clone, Debug)]
pub struct ExportableMemory {
    memfd: Arc<OwnedFd>,
    dram: Dram,
}

impl ExportableMemory {
    /// Allocates `len` bytes, zeroed. All of them are allocated now.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes; `OutOfMemory`, `NoSpace`.
    pub fn allocate(len: usize) -> Result<ExportableMemory> {
        let whole =
            len.checked_next_multiple_of(page_size()).filter(|whole| *whole > 0 && *whole <= isize::MAX as usize);
        let Some(whole) = whole else {
            return Err(Error::new(ErrorKind::InvalidInput, "allocate", format!("{len} bytes of exportable memory")));
        };
        // All of it is taken at once. What the machine or the process's group has not, the kernel
        // would make room for by killing a process.
        let usable = if whole < MIN_CHECKED_BYTES { None } else { Topology::discover().memory.usable_bytes() };
        if let Some(usable) = usable.filter(|usable| whole as u64 > *usable) {
            let context = format!("{len} bytes of exportable memory, where {usable} can be had");
            return Err(Error::new(ErrorKind::OutOfMemory, "allocate", context));
        }
        let os = |e: Errno| Error::os("allocate", e.raw_os_error(), format!("{len} bytes of exportable memory"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("datapipes-export", flags).map_err(os)?;
        rustix::fs::ftruncate(&memfd, whole as u64).map_err(os)?;
        // A page that the kernel cannot give later would end the process that touches it.
        rustix::fs::fallocate(&memfd, FallocateFlags::empty(), 0, whole as u64).map_err(os)?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).map_err(os)?;
        let region = Region::map_sealed(memfd.as_fd(), whole as u64, Access::Write, Box::new(()))?;
        Ok(ExportableMemory { memfd: Arc::new(memfd), dram: Dram::over(region.range(0, len)?) })
    }

    /// The memory as a place of this process.
    pub fn dram(&self) -> &Dram {
        &self.dram
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.dram.len()
    }

    /// A descriptor for a process that writes the memory.
    pub(super) fn writable(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// A descriptor by which nobody can write the memory, also by changing the protection of a
    /// mapping.
    ///
    /// # Errors
    /// Errors of opening, such as a missing `/proc`.
    pub(super) fn read_only(&self) -> Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&*self.memfd));
        rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::os("export", e.raw_os_error(), format!("{path}, for reading only")))
    }

    /// Checks that a range is one of whole pages, or ends with the memory.
    ///
    /// # Errors
    /// `OutOfRange`; `Misaligned`, since the kernel can only give whole pages to another process.
    pub(super) fn check_range(&self, at: usize, len: usize) -> Result<()> {
        let end = at.checked_add(len).filter(|end| *end <= self.len() && len > 0);
        let Some(end) = end else {
            let context = format!("{len} bytes at {at} of {} bytes of memory", self.len());
            return Err(Error::new(ErrorKind::OutOfRange, "export", context));
        };
        let page = page_size();
        if at.is_multiple_of(page) && (end.is_multiple_of(page) || end == self.len()) {
            return Ok(());
        }
        let context = format!("{len} bytes at {at}: the bytes beside them in a page would be exported too");
        Err(Error::new(ErrorKind::Misaligned, "export", context)
            .with_advice(format!("begin and end at multiples of {page} bytes, or at the end of the memory")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_exported() {
        let page = page_size();
        let memory = ExportableMemory::allocate(3 * page + 5).unwrap();
        for (at, len) in [(0, page), (page, page), (0, 3 * page + 5), (3 * page, 5)] {
            memory.check_range(at, len).unwrap();
        }
        for (at, len) in [(1, page), (0, page - 1), (0, 5), (page, 2 * page + 4)] {
            assert_eq!(memory.check_range(at, len).unwrap_err().kind(), ErrorKind::Misaligned, "{len} at {at}");
        }
        for (at, len) in [(0, 0), (0, 3 * page + 6), (usize::MAX, 2), (4 * page, 1)] {
            assert_eq!(memory.check_range(at, len).unwrap_err().kind(), ErrorKind::OutOfRange, "{len} at {at}");
        }
        assert_eq!(ExportableMemory::allocate(1 << 46).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(ExportableMemory::allocate(0).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn the_descriptor_for_reading_cannot_be_written() {
        let memory = ExportableMemory::allocate(page_size()).unwrap();
        let fd = memory.read_only().unwrap();
        assert!(rustix::io::write(&fd, b"x").is_err());
        assert!(Region::map_sealed(fd.as_fd(), page_size() as u64, Access::Write, Box::new(())).is_err());
    }
}
