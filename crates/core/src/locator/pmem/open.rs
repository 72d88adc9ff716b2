//! Opening and mapping persistent memory, with every reason for a refusal.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::options::PmemOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::locator::file::extend;
use crate::locator::file::kind::file_kind_words;
use crate::locator::file::space::{self, Refused};
use crate::locator::parent_dir;
use crate::memory::guarded::Flush;
use crate::memory::{MappedFile, MemoryRange, Region, Sharing};
use crate::watch::{self, WriteObservers};

/// The alignment of mappings of a DAX device that does not report its own.
const DEVICE_ALIGN: u64 = 2 << 20;

/// A file or device, mapped.
pub(super) struct Mapped {
    pub(super) range: MemoryRange,
    /// The observers that are told of changes.
    pub(super) watchers: Arc<WriteObservers>,
    /// The descriptor, if it is a file.
    pub(super) file: Option<OwnedFd>,
}

/// Maps the file or device at a path.
pub(super) fn map(path: &Path, options: PmemOptions) -> Result<Mapped> {
    if !options.emulated && Flush::of_this_processor().is_none() {
        let context = format!("{}: no flush instruction is known for {}", path.display(), std::env::consts::ARCH);
        return Err(Error::new(ErrorKind::Unavailable, "open", context).with_advice(AS_EMULATED));
    }
    let file = Opened::at(path, options.len.is_some())?;
    let len = match FileType::from_raw_mode(file.stat.st_mode) {
        FileType::RegularFile => file.file_len(options.len)?,
        FileType::CharacterDevice => file.device_len(options)?,
        _ => {
            let kind = file_kind_words(file.stat.st_mode);
            return Err(file.bad(format!("is {kind}, neither a file nor a DAX device")));
        }
    };
    let sharing = if options.emulated { Sharing::Written } else { Sharing::Synchronous };
    let bytes = usize::try_from(len).ok().filter(|len| *len <= isize::MAX as usize);
    let bytes = bytes.ok_or_else(|| file.bad(format!("has {len} bytes, more than this process can address")))?;
    let watchers = watch::of((file.stat.st_dev, file.stat.st_ino));
    let of = MappedFile { begins_at: 0, path: path.to_path_buf(), watchers: watchers.clone(), sharing };
    let region = Region::map_file(file.fd.as_fd(), bytes, of).map_err(|e| file.refused(e, sharing, len))?;
    let is_file = FileType::from_raw_mode(file.stat.st_mode) == FileType::RegularFile;
    Ok(Mapped { range: region.range(0, bytes)?, watchers, file: is_file.then_some(file.fd) })
}

/// Allocates a file's blocks where it has holes. Its length stays as it is. Does nothing on a file
/// system that cannot reserve.
pub(super) fn reserve_blocks(file: &OwnedFd, range: std::ops::Range<u64>) -> Result<(), Refused> {
    match space::reserve(file, FallocateFlags::KEEP_SIZE, range) {
        Err(Refused { errno: Errno::OPNOTSUPP | Errno::NOSYS, .. }) => Ok(()),
        other => other,
    }
}

const AS_EMULATED: &str =
    "open it as emulated (`?emulated`): then its bytes survive once they are synced, as in any file";

struct Opened<'a> {
    path: &'a Path,
    fd: OwnedFd,
    stat: Stat,
    /// Whether the file was created here.
    created: bool,
}

impl<'a> Opened<'a> {
    fn at(path: &'a Path, create: bool) -> Result<Opened<'a>> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        // The open must not block. What is neither a file nor a DAX device is refused below.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let mut created = false;
        let fd = match rustix::fs::open(path, flags, mode) {
            Err(Errno::NOENT) if create => {
                created = true;
                let fd = rustix::fs::open(path, flags | OFlags::CREATE, mode).map_err(fail)?;
                // A power failure that loses the name would lose the bytes.
                let folder = rustix::fs::open(parent_dir(path), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                folder.and_then(rustix::fs::fsync).map_err(fail)?;
                fd
            }
            other => other.map_err(fail)?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        Ok(Opened { path, fd, stat, created })
    }

    fn bad(&self, why: String) -> Error {
        Error::new(ErrorKind::InvalidInput, "open", format!("{} {why}", self.path.display()))
    }

    fn os(&self, operation: &'static str, e: Errno) -> Error {
        Error::os(operation, e.raw_os_error(), self.path.display().to_string())
    }

    /// Removes the file again, if it was created here and is still empty.
    fn take_back(&self) {
        let same = |there: &Stat| (there.st_dev, there.st_ino) == (self.stat.st_dev, self.stat.st_ino);
        if self.created && rustix::fs::lstat(self.path).is_ok_and(|there| same(&there) && there.st_size == 0) {
            // This fails only where another process removed the file.
            let _ = rustix::fs::unlink(self.path);
        }
    }

    /// Returns the length of a file to map, and extends the file to it with its space reserved.
    fn file_len(&self, wanted: Option<u64>) -> Result<u64> {
        let has = u64::try_from(self.stat.st_size).unwrap_or(0);
        let len = wanted.unwrap_or(has);
        if len == 0 {
            return Err(self.bad("has no bytes to map".into()).with_advice("give a length"));
        }
        if has < len {
            let watchers = watch::of((self.stat.st_dev, self.stat.st_ino));
            // Where the file system cannot reserve, the file gets its blocks on the first touch. If
            // the file system is full by then, the touch raises SIGBUS.
            extend::reserve(&self.fd, &watchers, 0..len).map_err(|refused| {
                self.take_back();
                refused.error(self.path).with_offset(len)
            })?;
            rustix::fs::fsync(&self.fd).map_err(|e| self.os("sync", e))?;
        }
        Ok(len)
    }

    /// Returns the length to map of a DAX device of persistent memory.
    fn device_len(&self, options: PmemOptions) -> Result<u64> {
        let (major, minor) = (rustix::fs::major(self.stat.st_rdev), rustix::fs::minor(self.stat.st_rdev));
        let device = DaxDevice::find(Path::new("/sys"), major, minor).map_err(|why| self.bad(why))?;
        if options.emulated {
            return Err(self.bad("is a device: only a file can be emulated, because only a file can be synced".into()));
        }
        if !device.persistent {
            let context = format!("{}: its memory is not persistent", self.path.display());
            return Err(Error::new(ErrorKind::Unavailable, "open", context)
                .with_advice("give it to the kernel as a NUMA node (system-ram mode) and use numa:NODE"));
        }
        let len = options.len.unwrap_or(device.len);
        let context = |what: &str| format!("{} bytes of {}, which {what}", len, self.path.display());
        if len == 0 || len > device.len {
            let has = context(&format!("has {}", device.len));
            return Err(Error::new(ErrorKind::OutOfRange, "open", has));
        }
        if !len.is_multiple_of(device.align) {
            let maps = context(&format!("maps multiples of {}", device.align));
            return Err(Error::new(ErrorKind::Misaligned, "open", maps).with_advice("map more and take a range of it"));
        }
        Ok(len)
    }

    /// Makes the error for a mapping that the kernel refused.
    fn refused(&self, e: Errno, sharing: Sharing, len: u64) -> Error {
        match (e, sharing) {
            // EINVAL comes from a kernel or a file system that does not know the flag.
            (Errno::OPNOTSUPP | Errno::INVAL, Sharing::Synchronous) => {
                let why = "MAP_SYNC is refused, so flushed stores may not be in the file";
                Error::new(ErrorKind::Unavailable, "open", format!("{}: {why}", self.path.display()))
                    .with_errno(e.raw_os_error())
                    .with_advice(format!(
                        "put it on persistent memory, on a file system mounted with `dax=always`; or {AS_EMULATED}"
                    ))
            }
            _ => Error::os("map", e.raw_os_error(), format!("{len} bytes of {}", self.path.display())),
        }
    }
}

/// A device whose memory is mapped directly (`/dev/dax0.0`).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DaxDevice {
    pub(super) len: u64,
    pub(super) align: u64,
    /// Whether it is on the kernel's bus of NVDIMMs, which also has persistent CXL memory. Other
    /// devices (memory reserved by the firmware, volatile CXL memory) lose their bytes.
    pub(super) persistent: bool,
}

impl DaxDevice {
    /// Finds the device with a number in sysfs, or returns why there is none.
    pub(super) fn find(sys: &Path, major: u32, minor: u32) -> Result<DaxDevice, String> {
        let at = sys.join(format!("dev/char/{major}:{minor}"));
        let subsystem = fs::read_link(at.join("subsystem")).ok();
        if subsystem.as_deref().and_then(Path::file_name).is_none_or(|name| name != "dax") {
            return Err("is a character device, but not a DAX device".into());
        }
        let number = |file: &Path| fs::read_to_string(file).ok().and_then(|text| parse_number(text.trim()));
        let len = number(&at.join("size")).ok_or_else(|| format!("has no size in {}", at.display()))?;
        let align = number(&at.join("align")).filter(|align| align.is_power_of_two()).unwrap_or(DEVICE_ALIGN);
        let real: PathBuf = fs::canonicalize(&at).unwrap_or(at);
        let persistent = real.components().any(|part| part.as_os_str().to_string_lossy().starts_with("ndbus"));
        Ok(DaxDevice { len, align, persistent })
    }
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}
