//! Persistent memory: a file of a DAX file system, or a DAX device.

mod open;
mod options;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use options::PmemOptions;

use super::endpoint::path_words;
use super::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::error::Result;
use crate::memory::MemoryRange;
use crate::watch::WriteObservers;

/// Bytes that the medium writes at once. A store to a part of them costs the medium a read and a
/// write of them all.
const BLOCK: u64 = 256;

/// Persistent memory as a place (CIDR'23, section 5.1): bytes that are loaded and stored and
/// survive a power failure.
///
/// **What survives when.** A transfer into a `Pmem` flushes and fences its bytes before it returns.
/// Bytes that were changed through a lease survive once [`persist`](Self::persist) has returned for
/// them. Neither is atomic: after a power failure in between, any of the lines (64 bytes) may be
/// old or new. A place opened as `emulated` is a file in the page cache: bytes survive once
/// `persist` or `sync` has returned.
///
/// **What else can change it.** Any process that opens the file or device, other places of this
/// process, a pipe into the file. So references to its bytes are not given out:
/// [`read`](Self::read) and [`write`](Self::write) copy, and pipes move. A caller who knows that
/// there are no others may vouch for that ([`MemoryRange::lease_unchecked`]). Two places over one
/// file do not know each other's leases.
///
/// **What can go wrong.** A page that the file lost (truncated, or a hole on a full file system) or
/// that the medium cannot read (a bad block) raises `SIGBUS`. Transfers, [`read`](Self::read),
/// [`write`](Self::write) and [`persist`](Self::persist) return an error of kind `Device` instead,
/// with the offset in the file and the bytes done (on x86-64, in threads that do not block
/// `SIGBUS`). Where the kernel itself moves the bytes, from or to a file, the offset is that file's
/// and the errno is `EFAULT`. For that, opening a `Pmem` installs a handler of `SIGBUS`, which
/// passes all other faults on. A thread that touches such a page through a lease is killed by the
/// signal, as with any mapped file.
///
/// ```
/// use datapipes_core::{Persistence, Locator, Pmem, PmemOptions};
/// # let path = std::env::temp_dir().join(format!("datapipes-doc-pmem-{}", std::process::id()));
/// let pmem = Pmem::open_with(&path, PmemOptions::default().len(1 << 20).emulated(true))?;
/// pmem.write(0, b"data")?;
/// pmem.persist(0..4)?;
/// assert_eq!(pmem.endpoint().facts.persistence, Persistence::AfterSync);
/// assert!(pmem.endpoint().facts.name.ends_with("?emulated"));
/// # std::fs::remove_file(&path).map_err(|e| datapipes_core::Error::io("remove", e, "a file"))?;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pmem {
    range: MemoryRange,
    path: Arc<PathBuf>,
    /// The file, unless this is a device. Its blocks are reserved before its pages are touched.
    file: Option<Arc<OwnedFd>>,
    emulated: bool,
    watchers: Arc<WriteObservers>,
}

impl Pmem {
    /// Opens all of an existing file on a file system mounted with DAX, or of a device such as
    /// `/dev/dax0.0`.
    ///
    /// # Errors
    /// `Unavailable` where stores would not be persistent once flushed: the kernel refuses
    /// `MAP_SYNC`, a DAX device is not persistent memory, or no flush instruction is known for the
    /// processor. `InvalidInput` for an empty file or for anything that is not a file or a DAX
    /// device. Errors of opening and mapping.
    pub fn open(path: impl AsRef<Path>) -> Result<Pmem> {
        Pmem::open_with(path, PmemOptions::default())
    }

    /// Opens with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open); `OutOfRange` or `Misaligned` for a length that a device does not
    /// have or cannot map; `NoSpace` where the file system lacks space for the length.
    pub fn open_with(path: impl AsRef<Path>, options: PmemOptions) -> Result<Pmem> {
        let open::Mapped { range, watchers, file } = open::map(path.as_ref(), options)?;
        let path = Arc::new(path.as_ref().to_path_buf());
        Ok(Pmem { range, path, file: file.map(Arc::new), emulated: options.emulated, watchers })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a plain file that stands in for persistent memory.
    pub fn is_emulated(&self) -> bool {
        self.emulated
    }

    /// Makes a place of `len` bytes at `at` of this one, which are the same bytes.
    ///
    /// # Errors
    /// `OutOfRange` where the bytes do not lie within this place.
    pub fn range(&self, at: usize, len: usize) -> Result<Pmem> {
        Ok(Pmem { range: self.range.range(at, len)?, ..self.clone() })
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Copies the bytes at `at` into a buffer.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a transfer or another lease of this process may write them;
    /// `Device` where the file lost a page, with its offset.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        self.range.read(at, into)
    }

    /// Copies a buffer over the bytes at `at`. They survive a power failure once
    /// [`persist`](Self::persist) has returned for them. Caches in front of the file are told of
    /// the change.
    ///
    /// # Errors
    /// `OutOfRange`; `Busy` while a transfer or another lease of this process holds them; `Device`
    /// where the file lost a page or has no space for it, with its offset. Bytes before that page
    /// are changed.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        self.range.write(at, from)
    }

    /// The memory range, which knows its file. Bytes that are written to it, or to a place over it
    /// ([`Dram::over`](super::Dram::over)), are written to the file, and caches in front of the
    /// file are told. It leases bytes in place to a caller who vouches that nobody else accesses
    /// them ([`MemoryRange::lease_unchecked`]). A lease for writing counts as a change of the file
    /// until it ends.
    pub fn memory(&self) -> &MemoryRange {
        &self.range
    }

    /// Touches every page, so that later accesses do not fault: on a DAX file each first store to a
    /// page may cost a commit of the file system's journal. The blocks of a file are reserved
    /// first, so that a full file system causes an error, not a signal.
    ///
    /// # Errors
    /// `NoSpace`; `OutOfMemory`; `Device` where the file lost a page; `Unavailable` on a kernel
    /// before 5.14.
    pub fn prefault(&self) -> Result<()> {
        self.watchers.check_process("prefault")?;
        if let Some(file) = &self.file {
            let (at, len) = (self.range.at() as u64, self.range.len() as u64);
            open::reserve_blocks(file, at..at.saturating_add(len)).map_err(|e| e.error(&self.path).with_offset(at))?;
        }
        self.range.prefault()
    }

    /// Returns when the present bytes of `part` would survive a power failure. Their lines are
    /// written back (CLWB, else CLFLUSHOPT, else CLFLUSH) and fenced. Where the place is emulated,
    /// their pages are also written to the file (`msync`). It takes no lease, so a writer can
    /// persist while it goes on. Caches in front of the file (`datapipes-cache`) are told of the
    /// part, since it may have been stored to by its address.
    ///
    /// # Errors
    /// `OutOfRange`; `Device` where the file lost a page; where it is emulated, the kernel's
    /// errors: `Device`, `NoSpace`.
    pub fn persist(&self, part: Range<usize>) -> Result<()> {
        self.watchers.check_process("persist")?;
        let at = |byte: usize| (self.range.at() as u64).saturating_add(byte as u64);
        self.watchers.write_observed(at(part.start)..at(part.end), || {
            self.range.write_back(part.clone())?;
            if self.emulated { self.range.write_to_file(part) } else { Ok(()) }
        })
    }

    /// Makes the whole place persistent, as [`persist`](Self::persist) does.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn sync(&self) -> Result<()> {
        self.persist(0..self.len())
    }

    /// Returns `pmem:PATH`, with the part if it is not the whole, and `?emulated` if it is.
    fn name(&self) -> String {
        let whole = self.range.len() == self.range.region().len();
        let part = if whole { String::new() } else { format!("@{}+{}", self.range.at(), self.range.len()) };
        format!("pmem:{}{part}{}", path_words(&self.path), if self.emulated { "?emulated" } else { "" })
    }
}

impl Locator for Pmem {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: if self.emulated { "pmem-emulated" } else { "pmem" },
            name: self.name(),
            reach: Reach::Memory,
            granularity: if self.emulated { 1 } else { BLOCK },
            alignment: BLOCK,
            persistence: if self.emulated { Persistence::AfterSync } else { Persistence::OnCompletion },
            len: Some(self.range.len() as u64),
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(self.range.clone()) }
    }
}

#[cfg(test)]
mod tests;
