//! An open file or block device, as backends see it.
#![deny(clippy::arithmetic_side_effects)]

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::topology::BlockDevice;
use crate::watch::WriteObservers;

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

/// An open file, as backends see an [`Ssd`](super::ssd::Ssd): its descriptors and the facts about
/// it.
pub struct FilePlace {
    pub(super) path: PathBuf,
    pub(super) cached: OwnedFd,
    /// The descriptor opened with `O_DIRECT`, or why that was refused.
    pub(super) direct: Result<OwnedFd, String>,
    /// Why the file system refused a request past the page cache, once it did.
    pub(super) direct_refused: Arc<OnceLock<String>>,
    pub(super) access: FileAccess,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) appends: bool,
    pub(super) block_device: bool,
    pub(super) memory_align: u32,
    pub(super) offset_align: u32,
    pub(super) device: u64,
    pub(super) file_system: Option<u32>,
    pub(super) watchers: Arc<WriteObservers>,
    /// The queue of the device behind it, once it was looked for.
    pub(super) queue: Arc<OnceLock<Option<DeviceQueue>>>,
}

/// The queue that the kernel has for a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceQueue {
    /// Requests that it holds, if the kernel says so.
    pub requests: Option<u32>,
    /// The longest request that is not split, in bytes, if the kernel says so.
    pub request_bytes: Option<u64>,
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

    /// The queue of the block device behind it; `None` where no device is known.
    ///
    /// It is looked for once for an open file: that takes about seventy system calls, and each
    /// connect asks for it.
    pub fn queue(&self) -> Option<DeviceQueue> {
        if let Some(known) = self.queue.get() {
            return *known;
        }
        // The path is by descriptor, so that it works for files without a name.
        let path = format!("/proc/self/fd/{}", self.cached.as_raw_fd());
        let device = BlockDevice::behind(Path::new(&path)).ok().and_then(|storage| storage.device);
        let found = device.map(|device| DeviceQueue {
            requests: device.nr_requests,
            request_bytes: device.max_sectors_kb.map(|kib| u64::from(kib) << 10),
        });
        // Nobody waits here for another thread, which a child of fork would do for ever.
        let _ = self.queue.set(found);
        found
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

    pub(super) fn error(&self, operation: &'static str, e: Errno) -> Error {
        Error::os(operation, e.raw_os_error(), self.path.display().to_string())
    }
}

impl fmt::Debug for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePlace({}, {:?})", self.path.display(), self.access)
    }
}
