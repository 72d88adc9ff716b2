//! Memory that a client and the service share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use datapipes_core::memory::{Access, MemoryRange, Region};
use datapipes_core::{Dram, Endpoint, Error, Locator, Pages, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

/// Memory that can be passed to the service: a memfd, sealed so that its length stays. In this
/// process it is a place like any other.
///
/// While a [`ClientPipe`](crate::ClientPipe) moves bytes from or to it, it holds leases on them, as
/// a pipe of this process does. A process that has the descriptor can reach the bytes past any
/// lease, so give it only to processes that keep to the rules. For this reason there are no
/// references to the bytes: [`read`](Self::read) and [`write`](Self::write) copy, and a caller who
/// knows what the others do can lease them by [`memory`](Self::memory) (`lease_unchecked`).
///
/// ```
/// use datapipes_service::SharedMemory;
/// let memory = SharedMemory::create(1 << 20)?;
/// memory.write(0, &[7])?;
/// assert_eq!(memory.to_vec()?[0], 7);
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    dram: Dram,
}

impl SharedMemory {
    /// Makes `len` bytes, zeroed, of ordinary pages. They are touched here: memory passed to the
    /// service must be populated, because pages are charged to the process that touches them first.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes; `OutOfMemory`.
    pub fn create(len: usize) -> Result<SharedMemory> {
        SharedMemory::create_on(Pages::Small, len)
    }

    /// Makes `len` bytes, zeroed, of the given pages. Huge pages are taken from the system's
    /// reserve (hugetlb); `len` must be a multiple of one.
    ///
    /// # Errors
    /// The same as for [`create`](Self::create); `OutOfMemory` if not enough huge pages are free;
    /// `InvalidInput` for another length.
    pub fn create_on(pages: Pages, len: usize) -> Result<SharedMemory> {
        let os = |e: Errno| Error::os("create", e.raw_os_error(), format!("{len} bytes of shared memory"));
        let huge = if pages == Pages::Huge { MemfdFlags::HUGETLB } else { MemfdFlags::empty() };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let fd = match memfd_create("datapipes", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => memfd_create("datapipes", flags),
            other => other,
        };
        let fd = fd.map_err(os)?;
        ftruncate(&fd, len as u64).map_err(os)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(os)?;
        let memory = SharedMemory::from_fd(fd)?;
        memory.memory().prefault()?;
        Ok(memory)
    }

    /// Takes the whole of a memfd that was made elsewhere, for reading and writing. The service
    /// accepts it only if all of its pages are populated (written, or allocated by fallocate(2)).
    ///
    /// # Errors
    /// The same as for [`Region::map_sealed`].
    pub fn from_fd(fd: OwnedFd) -> Result<SharedMemory> {
        let stat = fstat(&fd).map_err(|e| Error::os("map", e.raw_os_error(), "the length of a descriptor"))?;
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let region = Region::map_sealed(fd.as_fd(), len, Access::Write, Box::new(()))?;
        let dram = Dram::over(region.range(0, region.len())?);
        Ok(SharedMemory { fd, dram })
    }

    /// Returns the same bytes as a place of this process.
    pub fn as_dram(&self) -> &Dram {
        &self.dram
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.dram.len()
    }

    /// The memory range.
    pub fn memory(&self) -> &MemoryRange {
        self.dram.memory()
    }

    /// Copies the bytes at `at` into a buffer.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a transfer or another part of this process may write them.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        self.memory().read(at, into)
    }

    /// Returns a copy of all bytes.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        self.memory().to_vec()
    }

    /// Copies a buffer over the bytes at `at`.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a transfer or another part of this process holds them.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        self.memory().write(at, from)
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Locator for SharedMemory {
    fn endpoint(&self) -> Endpoint {
        self.dram.endpoint()
    }
}
