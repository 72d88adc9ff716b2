//! A file or a block device as a place.
#![deny(clippy::arithmetic_side_effects)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::extend;
use super::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::error::{Error, ErrorKind, Result};
use crate::span::MAX_OFFSET;
use crate::watch::{self, WriteObservers};

/// `STATX_DIOALIGN` (kernel 6.1), which rustix does not name yet.
const STATX_DIOALIGN: u32 = 0x2000;

/// Whether transfers go past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileAccess {
    /// Decided at connect by residency and size: bytes in the page cache are read from there, large
    /// files past it.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`). Connecting fails where the file system does not support
    /// it.
    Direct,
    /// Through the page cache.
    Cached,
}

/// An open file, as backends see an [`Ssd`]: its descriptors and the facts about it.
pub struct FilePlace {
    path: PathBuf,
    cached: OwnedFd,
    /// The descriptor opened with `O_DIRECT`, or why that was refused.
    direct: Result<OwnedFd, String>,
    /// Why the file system refused a request past the page cache, once it did.
    direct_refused: Arc<OnceLock<String>>,
    access: FileAccess,
    readable: bool,
    writable: bool,
    appends: bool,
    block_device: bool,
    memory_align: u32,
    offset_align: u32,
    device: u64,
    file_system: Option<u32>,
    watchers: Arc<WriteObservers>,
}

impl FilePlace {
    /// The observers that are told when its bytes change.
    pub fn write_observers(&self) -> &Arc<WriteObservers> {
        &self.watchers
    }

    /// The path it was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that goes through the page cache.
    pub fn cached_fd(&self) -> BorrowedFd<'_> {
        self.cached.as_fd()
    }

    /// The descriptor that goes past the page cache, or why there is none.
    ///
    /// # Errors
    /// The reason, as text for the route.
    pub fn direct_fd(&self) -> Result<BorrowedFd<'_>, &str> {
        if let Some(why) = self.direct_refused.get() {
            return Err(why);
        }
        self.direct.as_ref().map(AsFd::as_fd).map_err(String::as_str)
    }

    /// Notes that the file system opens the file past the page cache but refuses requests there.
    /// From now on [`direct_fd`](Self::direct_fd) returns this reason, for every place that shares
    /// this opening of the file.
    pub fn refuse_direct(&self, why: impl Into<String>) {
        // Only the first reason is kept.
        let _ = self.direct_refused.set(why.into());
    }

    /// The access that the caller asked for.
    pub fn access(&self) -> FileAccess {
        self.access
    }

    /// Whether it may be read.
    pub fn readable(&self) -> bool {
        self.readable
    }

    /// Whether it may be written at any offset.
    pub fn writable(&self) -> bool {
        self.not_writable().is_none()
    }

    /// Why it may not be written at any offset, if it may not.
    pub fn not_writable(&self) -> Option<&'static str> {
        match (self.writable, self.appends) {
            (false, _) => Some("the file is open for reading only"),
            // The kernel would put the bytes at the end, whatever the offset is.
            (true, true) => Some("the file is open for appending only (O_APPEND)"),
            (true, false) => None,
        }
    }

    /// The number of its file system (`f_type` of `statfs(2)`). For a block device, it is that of
    /// the file system with the device's name. `None` if the kernel did not report it.
    pub fn file_system(&self) -> Option<u32> {
        self.file_system
    }

    /// Whether it is a block device rather than a file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// The alignment of addresses for direct I/O, in bytes.
    pub fn memory_align(&self) -> u32 {
        self.memory_align
    }

    /// The alignment of offsets and lengths for direct I/O, in bytes.
    pub fn offset_align(&self) -> u32 {
        self.offset_align
    }

    /// The device that holds it (`st_dev`, or `st_rdev` of a block device).
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The present length, in bytes.
    ///
    /// # Errors
    /// Errors of `fstat` or `lseek`.
    pub fn len(&self) -> Result<u64> {
        if self.block_device {
            return rustix::fs::seek(&self.cached, rustix::fs::SeekFrom::End(0)).map_err(|e| self.error("measure", e));
        }
        let stat = rustix::fs::fstat(&self.cached).map_err(|e| self.error("measure", e))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Whether its present length is 0.
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Whether [`len`](Self::len) is the number of bytes that reading returns. Files that the
    /// kernel generates while they are read (in /proc, /sys) report a length of 0 or of a page, and
    /// hold more or less. Such files must be read to their end.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn len_is_exact(&self) -> Result<bool> {
        let stat = rustix::fs::fstat(&self.cached).map_err(|e| self.error("measure", e))?;
        // A file with blocks is on a medium. Only other files are read here, so that the page cache
        // stays as it is.
        if self.block_device || stat.st_blocks > 0 || !self.readable {
            return Ok(true);
        }
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let has = |at: u64| retry_on_intr(|| rustix::io::pread(&self.cached, &mut [0u8; 1], at)).map(|bytes| bytes > 0);
        // The length of a file that refuses a read here (some in /sys do) is not known; reading all
        // of it tells more.
        Ok(has(len) == Ok(false) && len.checked_sub(1).is_none_or(|last| has(last) == Ok(true)))
    }

    fn error(&self, operation: &'static str, e: Errno) -> Error {
        Error::os(operation, e.raw_os_error(), self.path.display().to_string())
    }
}

impl fmt::Debug for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePlace({}, {:?})", self.path.display(), self.access)
    }
}

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
            other => return Err(not_a_file(path, &format!("a {other:?}"))),
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
    pub(super) fn of(file: Arc<FilePlace>) -> Ssd {
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
            name: format!("ssd:{}", file.path.display()),
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
