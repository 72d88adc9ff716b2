//! A file or a block device as a place.
#![deny(clippy::arithmetic_side_effects)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::extend;
use super::file_place::{FileAccess, FilePlace};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::endpoint::path_words;
use crate::locator::file::kind::file_kind_words;
use crate::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::span::MAX_OFFSET;
use crate::watch::{self, WriteObservers};

/// `STATX_DIOALIGN` (kernel 6.1), which rustix does not name yet.
const STATX_DIOALIGN: u32 = 0x2000;

/// A file or a block device as a place.
///
/// ```
/// use datapipes_core::Ssd;
/// let dir = std::env::temp_dir();
/// let ssd = Ssd::unlinked_in(&dir)?; // vanishes with its last user, also after kill -9
/// ssd.preallocate(1 << 20)?;
/// assert_eq!(ssd.len()?, 1 << 20);
/// assert!(Ssd::open("/no/such/file").is_err_and(|e| e.to_string().contains("/no/such/file")));
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ssd(Arc<FilePlace>);

impl Ssd {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `InvalidInput` for a directory, a pipe or a character
    /// device.
    pub fn open(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDONLY)
    }

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_rw(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDWR)
    }

    /// Creates a file, or empties an existing one, for reading and writing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn create(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)
    }

    /// Creates a file that must not exist yet, for reading and writing.
    ///
    /// # Errors
    /// As [`open`](Self::open); `System` with `EEXIST` where it exists.
    pub fn create_new(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file without a name in `dir`. The kernel frees it with its last descriptor, whatever
    /// happens to the process.
    ///
    /// # Errors
    /// `Unavailable` where the file system does not support such files; otherwise as
    /// [`open`](Self::open).
    pub fn unlinked_in(dir: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(dir.as_ref(), OFlags::RDWR | OFlags::TMPFILE)
    }

    /// Takes an open descriptor; `name` is for messages. A file that was opened with `O_APPEND` can
    /// only be a source, because the kernel writes at its end, whatever the offset.
    ///
    /// # Errors
    /// `InvalidInput` where it is neither a regular file nor a block device.
    pub fn from_fd(fd: OwnedFd, name: impl AsRef<Path>) -> Result<Ssd> {
        let name = name.as_ref();
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), name.display().to_string());
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(fail)?;
        if flags.contains(OFlags::PATH) {
            return Err(only_a_name(name));
        }
        if !flags.contains(OFlags::DIRECT) {
            return Ssd::describe(fd, name, flags, reopen_direct);
        }
        // This descriptor only goes past the page cache. Unaligned bytes need one that goes through
        // it.
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mode = flags & OFlags::RWMODE;
        let cached = rustix::fs::open(again, mode | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).map_err(fail)?;
        Ssd::describe(cached, name, flags, |_, _| Ok(fd))
    }

    /// Takes open descriptors, and opens nothing itself. `cached` goes through the page cache.
    /// `direct`, if there is one, goes past it (`O_DIRECT`); it must be of the same file and opened
    /// in the same mode. `name` is for messages.
    ///
    /// # Errors
    /// `InvalidInput` where it is neither a regular file nor a block device, or where the two
    /// descriptors do not match.
    pub fn from_fds(cached: OwnedFd, direct: Option<OwnedFd>, name: impl AsRef<Path>) -> Result<Ssd> {
        let name = name.as_ref();
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), name.display().to_string());
        let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "open", format!("{} {why}", name.display()));
        let flags = rustix::fs::fcntl_getfl(&cached).map_err(fail)?;
        if flags.contains(OFlags::PATH) {
            return Err(only_a_name(name));
        }
        if flags.contains(OFlags::DIRECT) {
            return Err(
                bad("only goes past the page cache (O_DIRECT)").with_advice("pass a descriptor without the flag, too")
            );
        }
        if let Some(direct) = &direct {
            let theirs = rustix::fs::fcntl_getfl(direct).map_err(fail)?;
            let (a, b) = (rustix::fs::fstat(&cached).map_err(fail)?, rustix::fs::fstat(direct).map_err(fail)?);
            let same = OFlags::RWMODE | OFlags::APPEND;
            if !theirs.contains(OFlags::DIRECT) || theirs & same != flags & same {
                return Err(bad("has a second descriptor that is not the same except for O_DIRECT"));
            }
            if (a.st_dev, a.st_ino) != (b.st_dev, b.st_ino) {
                return Err(bad("has a second descriptor of another file"));
            }
        }
        let why = || "no descriptor that goes past the page cache was passed".to_owned();
        Ssd::describe(cached, name, flags, |_, _| direct.ok_or_else(why))
    }

    fn open_flags(path: &Path, flags: OFlags) -> Result<Ssd> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        let open = |more| rustix::fs::open(path, flags | more | OFlags::CLOEXEC | OFlags::NOCTTY, mode);
        // Without the flag, opening a FIFO without a writer, or some devices, would block.
        let fd = match open(OFlags::NONBLOCK) {
            // Another process holds a lease on the file. The blocking open waits until it gives the
            // lease up.
            Err(Errno::AGAIN) if std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) => open(OFlags::empty()),
            Err(Errno::NXIO) => return Err(not_a_file(path, "a socket, or a device that does not exist")),
            other => other,
        };
        let fd = fd.map_err(|e| Error::os("open", e.raw_os_error(), path.display().to_string()))?;
        let ssd = Ssd::describe(fd, path, flags, reopen_direct)?;
        // It is a file or a block device, so from here on requests may block.
        let shown = rustix::fs::fcntl_getfl(&ssd.0.cached);
        shown
            .and_then(|flags| rustix::fs::fcntl_setfl(&ssd.0.cached, flags & !OFlags::NONBLOCK))
            .map_err(|e| Error::os("open", e.raw_os_error(), path.display().to_string()))?;
        Ok(ssd)
    }

    fn describe(
        cached: OwnedFd,
        path: &Path,
        flags: OFlags,
        direct: impl FnOnce(&OwnedFd, OFlags) -> Result<OwnedFd, String>,
    ) -> Result<Ssd> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
        let stat = rustix::fs::fstat(&cached).map_err(fail)?;
        let block_device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::BlockDevice => true,
            _ => return Err(not_a_file(path, file_kind_words(stat.st_mode))),
        };
        let direct = direct(&cached, flags);
        let mask = StatxFlags::from_bits_retain(STATX_DIOALIGN);
        let (memory_align, offset_align) = match rustix::fs::statx(&cached, "", AtFlags::EMPTY_PATH, mask) {
            Ok(x) if x.stx_mask & STATX_DIOALIGN != 0 && x.stx_dio_offset_align != 0 => {
                (x.stx_dio_mem_align.max(1), x.stx_dio_offset_align)
            }
            // The alignment is not reported (kernel before 6.1, tmpfs). A page serves every file
            // system known to us.
            _ => (4096, 4096),
        };
        let mode = flags & OFlags::RWMODE;
        // The kernel's field is wider on some machines; the numbers have 32 bits.
        let file_system = rustix::fs::fstatfs(&cached).ok().map(|fs| fs.f_type as u32);
        let watchers = watch::of(if block_device { (stat.st_rdev, u64::MAX) } else { (stat.st_dev, stat.st_ino) });
        if flags.contains(OFlags::TRUNC) {
            // The open emptied the file: observers with bytes of it must drop them.
            watchers.write_observed(0..u64::MAX, || {});
        }
        Ok(Ssd(Arc::new(FilePlace {
            path: path.to_path_buf(),
            cached,
            direct,
            direct_refused: Arc::default(),
            access: FileAccess::Auto,
            readable: mode != OFlags::WRONLY,
            writable: mode != OFlags::RDONLY,
            appends: flags.contains(OFlags::APPEND),
            block_device,
            memory_align,
            offset_align,
            device: if block_device { stat.st_rdev } else { stat.st_dev },
            file_system,
            watchers,
            queue: Arc::default(),
        })))
    }

    /// Returns the same file with another access.
    ///
    /// # Errors
    /// `Unavailable` where direct access is asked for and the file system refuses it; errors of
    /// `dup`.
    pub fn with_access(&self, access: FileAccess) -> Result<Ssd> {
        let old = &self.0;
        if access == FileAccess::Direct
            && let Err(why) = old.direct_fd()
        {
            return Err(Error::new(ErrorKind::Unavailable, "open direct", format!("{}: {why}", old.path.display()))
                .with_advice("use cached or auto access"));
        }
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("duplicate", e, old.path.display().to_string()));
        Ok(Ssd(Arc::new(FilePlace {
            path: old.path.clone(),
            cached: dup(&old.cached)?,
            direct: match &old.direct {
                Ok(fd) => Ok(dup(fd)?),
                Err(why) => Err(why.clone()),
            },
            direct_refused: old.direct_refused.clone(),
            access,
            watchers: old.watchers.clone(),
            queue: old.queue.clone(),
            ..**old
        })))
    }

    /// The open file, as backends see it.
    pub fn file(&self) -> &Arc<FilePlace> {
        &self.0
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The present length, in bytes.
    ///
    /// # Errors
    /// The kernel's error.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64> {
        self.0.len()
    }

    /// Whether [`len`](Self::len) is the number of bytes that reading returns; see
    /// [`FilePlace::len_is_exact`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn len_is_exact(&self) -> Result<bool> {
        self.0.len_is_exact()
    }

    /// Truncates or extends to `len` bytes; an extension reads as zeros.
    ///
    /// # Errors
    /// `NoSpace`, `PermissionDenied`, and the kernel's other errors.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.0.watchers.check_process("set length")?;
        // The range goes to the largest offset: a write beyond the length of a moment ago is cut
        // off as well.
        self.0.watchers.write_observed(self.len()?.min(len)..u64::MAX, || {
            rustix::fs::ftruncate(&self.0.cached, len).map_err(|e| self.0.error("set length", e).with_offset(len))
        })
    }

    /// Reserves space for `len` bytes and extends the file to them, so that later writes neither
    /// run out of space nor change the file's length. Where the file system cannot reserve, only
    /// the length is set and `false` is returned.
    ///
    /// # Errors
    /// `NoSpace` where they do not fit: a request for more than the file system says is free is
    /// refused before the kernel is asked. Errors of the kernel; the file keeps what was reserved
    /// by then.
    pub fn preallocate(&self, len: u64) -> Result<bool> {
        self.reserve(0, len)
    }

    /// Reserves space for a range, so that later writes there do not run out of it. The file is
    /// extended to the end of the range and never shortened, even if others write or reserve
    /// meanwhile. Where the file system cannot reserve, only the length is set and `false` is
    /// returned. If the file was shorter, the last byte of the range is then written as zero,
    /// unless a pipe of this process is about to write it. If another process writes this byte at
    /// the same time, its byte may be lost.
    ///
    /// # Errors
    /// As [`preallocate`](Self::preallocate); `OutOfRange` for a range beyond 2^63 - 1, the
    /// kernel's largest offset.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<bool> {
        self.0.watchers.check_process("reserve space for")?;
        if self.0.block_device {
            return Ok(true);
        }
        let Some(end) = offset.checked_add(len).filter(|end| *end <= MAX_OFFSET) else {
            let context = format!("{len} bytes at {offset} of {}", self.0.path.display());
            return Err(Error::new(ErrorKind::OutOfRange, "reserve", context));
        };
        extend::reserve(&self.0.cached, &self.0.watchers, offset..end)
            .map_err(|refused| refused.error(&self.0.path).with_bytes_done(0).with_offset(offset))
    }

    /// Makes a locator of an open file.
    pub(in crate::locator) fn of(file: Arc<FilePlace>) -> Ssd {
        Ssd(file)
    }

    /// Frees the blocks of a range, which then reads as zeros. Does nothing where the file system
    /// cannot do that.
    ///
    /// # Errors
    /// The kernel's error, except that it does not support this.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.0.watchers.check_process("free space of")?;
        use rustix::fs::FallocateFlags as F;
        let punched = self.0.watchers.write_observed(offset..offset.saturating_add(len), || {
            rustix::fs::fallocate(&self.0.cached, F::PUNCH_HOLE | F::KEEP_SIZE, offset, len)
        });
        match punched {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(self.0.error("free space of", e).with_offset(offset)),
        }
    }

    /// Returns when all bytes moved here so far would survive a power failure.
    ///
    /// # Errors
    /// `Device`, `NoSpace`: the data may be lost.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.0.cached).map_err(|e| self.0.error("sync", e))
    }
}

fn only_a_name(path: &Path) -> Error {
    let why = "is a descriptor that does not open its file (O_PATH)";
    Error::new(ErrorKind::InvalidInput, "open", format!("{} {why}", path.display()))
}

fn not_a_file(path: &Path, what: &str) -> Error {
    let context = format!("{} is {what}, not a file or a block device", path.display());
    Error::new(ErrorKind::InvalidInput, "open", context)
}

/// Opens the file of a descriptor again, past the page cache.
fn reopen_direct(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, String> {
    let mode = flags & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, mode | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).map_err(|e| match e {
        Errno::INVAL => "the file system does not support direct I/O".to_owned(),
        e => format!("opening past the page cache: {e}"),
    })
}

impl Ssd {
    /// The observers of this file, shared by all places of this process that opened it.
    pub fn write_observers(&self) -> &Arc<WriteObservers> {
        self.file().write_observers()
    }
}

impl Locator for Ssd {
    fn endpoint(&self) -> Endpoint {
        let file = &self.0;
        let facts = PlaceFacts {
            kind: "ssd",
            name: format!("ssd:{}", path_words(&file.path)),
            reach: Reach::File,
            granularity: if file.access == FileAccess::Cached { 1 } else { u64::from(file.offset_align) },
            alignment: u64::from(file.offset_align.max(4096)),
            persistence: Persistence::AfterSync,
            len: if file.block_device { file.len().ok() } else { None },
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::File(self.0.clone()) }
    }
}

#[cfg(test)]
mod tests;
