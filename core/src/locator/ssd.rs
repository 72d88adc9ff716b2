//! A file, or a block device.
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
    /// By residency and size, decided at connect: what is in the page cache is read from there,
    /// large files past it.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`); refused where the file system cannot.
    Direct,
    /// Through the page cache.
    Cached,
}

/// An open file: the descriptors and what is known about it. This is what backends see of an
/// [`Ssd`].
pub struct FilePlace {
    path: PathBuf,
    cached: OwnedFd,
    /// Opened with `O_DIRECT`, or why that was refused.
    direct: Result<OwnedFd, String>,
    /// Why requests past the page cache were refused, once one was.
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
    /// Who must know when its bytes change.
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

    /// The descriptor that goes past it, or why there is none.
    ///
    /// # Errors
    /// The reason, as text for the route.
    pub fn direct_fd(&self) -> Result<BorrowedFd<'_>, &str> {
        if let Some(why) = self.direct_refused.get() {
            return Err(why);
        }
        self.direct.as_ref().map(AsFd::as_fd).map_err(String::as_str)
    }

    /// Takes note that the file system opens the file past the page cache and refuses requests
    /// there. From now on
    /// [`direct_fd`](Self::direct_fd) says so, for every place that shares this opening of the file.
    pub fn refuse_direct(&self, why: impl Into<String>) {
        // Whoever was first has said it.
        let _ = self.direct_refused.set(why.into());
    }

    /// What the caller asked for.
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
            // The kernel would put the bytes at the end, whatever offset it is given.
            (true, true) => Some("the file is open for appending only (O_APPEND)"),
            (true, false) => None,
        }
    }

    /// The number of its file system (`f_type` of `statfs(2)`); of a block device, of the one that
    /// its name is in. `None` where the kernel did not say.
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

    /// The device it lies on (`st_dev`, or `st_rdev` of a block device).
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The length now, in bytes.
    ///
    /// # Errors
    /// What `fstat` or `lseek` says.
    pub fn len(&self) -> Result<u64> {
        if self.block_device {
            return rustix::fs::seek(&self.cached, rustix::fs::SeekFrom::End(0)).map_err(|e| self.error("measure", e));
        }
        let stat = rustix::fs::fstat(&self.cached).map_err(|e| self.error("measure", e))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Whether it has no bytes now.
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Whether [`len`](Self::len) is the number of bytes that reading gives. Files that the kernel
    /// makes up while they are read (in /proc, /sys) state 0, or a page, and hold more or less:
    /// they are read to their end, whatever they state.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn len_is_exact(&self) -> Result<bool> {
        let stat = rustix::fs::fstat(&self.cached).map_err(|e| self.error("measure", e))?;
        // What has blocks is on a medium. Nothing else is looked into, so that the page cache stays
        // as it is.
        if self.block_device || stat.st_blocks > 0 || !self.readable {
            return Ok(true);
        }
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let has = |at: u64| retry_on_intr(|| rustix::io::pread(&self.cached, &mut [0u8; 1], at)).map(|bytes| bytes > 0);
        // A file that refuses to be read there (some of /sys do) is not one whose length is known;
        // reading it tells more.
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
    /// Opens for reading.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `InvalidInput` for a directory, a pipe or a character
    /// device.
    pub fn open(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDONLY)
    }

    /// Opens what exists for reading and writing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_rw(path: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(path.as_ref(), OFlags::RDWR)
    }

    /// Creates a file, or empties the one that is there, for reading and writing.
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

    /// A file without a name in `dir`: the kernel frees it with its last descriptor, whatever
    /// happens to the process.
    ///
    /// # Errors
    /// `Unavailable` where the file system knows no such files; otherwise as [`open`](Self::open).
    pub fn unlinked_in(dir: impl AsRef<Path>) -> Result<Ssd> {
        Ssd::open_flags(dir.as_ref(), OFlags::RDWR | OFlags::TMPFILE)
    }

    /// Takes a descriptor that somebody opened; `name` is for messages. One that was opened with
    /// `O_APPEND` is a source only: the kernel writes to its end, whatever the offset.
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
        // It goes past the page cache alone: what is not aligned needs one that does not.
        let again = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mode = flags & OFlags::RWMODE;
        let cached = rustix::fs::open(again, mode | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()).map_err(fail)?;
        Ssd::describe(cached, name, flags, |_, _| Ok(fd))
    }

    /// Takes descriptors that somebody opened, and opens nothing itself: `cached` goes through the
    /// page cache, `direct`, if there is one, is of the same file, opened in the same mode, and
    /// goes past it (`O_DIRECT`). `name` is for messages.
    ///
    /// # Errors
    /// `InvalidInput` where it is neither a regular file nor a block device, or the two do not
    /// belong together.
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
                bad("goes past the page cache alone (O_DIRECT)").advice("pass a descriptor without the flag, too")
            );
        }
        if let Some(direct) = &direct {
            let theirs = rustix::fs::fcntl_getfl(direct).map_err(fail)?;
            let (a, b) = (rustix::fs::fstat(&cached).map_err(fail)?, rustix::fs::fstat(direct).map_err(fail)?);
            let same = OFlags::RWMODE | OFlags::APPEND;
            if !theirs.contains(OFlags::DIRECT) || theirs & same != flags & same {
                return Err(bad("has a second descriptor that is not the same with O_DIRECT"));
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
        // A pipe without a writer, or a device, would block until somebody comes.
        let fd = match open(OFlags::NONBLOCK) {
            // Somebody holds a lease on the file, who is asked for it.
            Err(Errno::AGAIN) if std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) => open(OFlags::empty()),
            Err(Errno::NXIO) => return Err(not_a_file(path, "a socket, or a device that is not there")),
            other => other,
        };
        let fd = fd.map_err(|e| Error::os("open", e.raw_os_error(), path.display().to_string()))?;
        let ssd = Ssd::describe(fd, path, flags, reopen_direct)?;
        // It is a file or a block device: requests wait for it from here on.
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
            // Not reported (kernel before 6.1, tmpfs): a page serves every file system that we
            // know.
            _ => (4096, 4096),
        };
        let mode = flags & OFlags::RWMODE;
        // The kernel's field is wider on some machines; the numbers have 32 bits.
        let file_system = rustix::fs::fstatfs(&cached).ok().map(|fs| fs.f_type as u32);
        let watchers = watch::of(if block_device { (stat.st_rdev, u64::MAX) } else { (stat.st_dev, stat.st_ino) });
        if flags.contains(OFlags::TRUNC) {
            // It happened when the file was opened: whoever has bytes of it must let go of them.
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

    /// The same file with another access.
    ///
    /// # Errors
    /// `Unavailable` where direct access is asked for and the file system refuses it; what `dup`
    /// says.
    pub fn with_access(&self, access: FileAccess) -> Result<Ssd> {
        let old = &self.0;
        if access == FileAccess::Direct
            && let Err(why) = old.direct_fd()
        {
            return Err(Error::new(ErrorKind::Unavailable, "open direct", format!("{}: {why}", old.path.display()))
                .advice("use cached or auto access"));
        }
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("duplicate", &e, old.path.display().to_string()));
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

    /// The open file.
    pub fn file(&self) -> &Arc<FilePlace> {
        &self.0
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The length now, in bytes.
    ///
    /// # Errors
    /// What the kernel says.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64> {
        self.0.len()
    }

    /// Whether [`len`](Self::len) is the number of bytes that reading gives; see
    /// [`FilePlace::len_is_exact`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn len_is_exact(&self) -> Result<bool> {
        self.0.len_is_exact()
    }

    /// Cuts or extends to `len` bytes; an extension reads as zeros.
    ///
    /// # Errors
    /// `NoSpace`, `PermissionDenied`; what the kernel says.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.0.watchers.check_process("set length")?;
        // To the end of all files: a write beyond what the length was a moment ago is cut off as
        // well.
        self.0.watchers.write_observed(self.len()?.min(len)..u64::MAX, || {
            rustix::fs::ftruncate(&self.0.cached, len).map_err(|e| self.0.error("set length", e).offset(len))
        })
    }

    /// Reserves space for `len` bytes and extends to them, so that later writes neither run out of
    /// space nor change the file's length. Where the file system cannot reserve, only the length is
    /// set and `false` is returned.
    ///
    /// # Errors
    /// `NoSpace` where they do not fit: what is more than the file system says is free is refused
    /// before the kernel is asked for anything. What the kernel says; what it had reserved by then
    /// stays with the file.
    pub fn preallocate(&self, len: u64) -> Result<bool> {
        self.reserve(0, len)
    }

    /// Reserves space for a range, so that later writes there do not run out of it; the file is
    /// extended to its end, and never shortened, whoever else writes or reserves meanwhile. Where
    /// the file system cannot reserve, only the length is seen to and `false` is returned. The last
    /// byte of the range is written then, as zero, if the file was shorter, unless a pipe of this
    /// process is about to write it; another process that writes this very byte at the same time
    /// may lose it.
    ///
    /// # Errors
    /// As [`preallocate`](Self::preallocate); `OutOfRange` for a range beyond 2^63 - 1, what the
    /// kernel takes as an offset.
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
            .map_err(|refused| refused.error(&self.0.path).bytes_done(0).offset(offset))
    }

    /// The locator of an open file.
    pub(super) fn of(file: Arc<FilePlace>) -> Ssd {
        Ssd(file)
    }

    /// Frees the blocks of a range; they read as zeros. A file system that cannot does nothing.
    ///
    /// # Errors
    /// What the kernel says, other than that it cannot.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.0.watchers.check_process("free space of")?;
        use rustix::fs::FallocateFlags as F;
        let punched = self.0.watchers.write_observed(offset..offset.saturating_add(len), || {
            rustix::fs::fallocate(&self.0.cached, F::PUNCH_HOLE | F::KEEP_SIZE, offset, len)
        });
        match punched {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(self.0.error("free space of", e).offset(offset)),
        }
    }

    /// Returns when everything moved here so far would survive a power failure.
    ///
    /// # Errors
    /// `Device`, `NoSpace`: the data may be lost.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.0.cached).map_err(|e| self.0.error("sync", e))
    }
}

fn only_a_name(path: &Path) -> Error {
    let why = "is a descriptor that names a file and does not open it (O_PATH)";
    Error::new(ErrorKind::InvalidInput, "open", format!("{} {why}", path.display()))
}

fn not_a_file(path: &Path, what: &str) -> Error {
    let context = format!("{} is {what}, not a file or a block device", path.display());
    Error::new(ErrorKind::InvalidInput, "open", context)
}

/// Opens the file of a descriptor once more, past the page cache.
fn reopen_direct(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, String> {
    let mode = flags & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, mode | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).map_err(|e| match e {
        Errno::INVAL => "the file system does not do direct I/O".to_owned(),
        e => format!("opening past the page cache: {e}"),
    })
}

impl Ssd {
    /// The watches of this file, shared by all places of this process that opened it.
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
