//! The storage behind a path: mount, file system, block device, and the alignment of direct I/O.

pub(super) mod block;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};
use serde::{Deserialize, Serialize};

use super::mounts::{self, Mount};
use super::tree::Tree;
use crate::error::{Error, Result};
use block::{BlockDevice, DeviceNumber};

/// The storage behind a path, which may be a file, a directory or a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StorageFacts {
    /// The path that was asked about.
    pub path: PathBuf,
    /// The type of the file system (`ext4`, `xfs`, `tmpfs`), or `block device`.
    pub fs_type: Option<String>,
    /// Where that file system is mounted.
    pub mount_point: Option<PathBuf>,
    /// What is mounted there (`/dev/vda`, `tmpfs`, `server:/export`).
    pub mount_source: Option<String>,
    /// The device number of the file system, or of the block device itself.
    pub number: DeviceNumber,
    /// The block device, if there is one.
    pub device: Option<BlockDevice>,
    /// Why there is no block device.
    pub device_absent: Option<String>,
    /// Direct I/O on files here.
    pub direct_io: DirectIo,
    /// The size of the file system or device in bytes; `None` where the file system does not report
    /// it.
    pub total_bytes: Option<u64>,
    /// Unused bytes, including those reserved for root.
    pub free_bytes: Option<u64>,
    /// Unused bytes that this user may fill.
    pub available_bytes: Option<u64>,
}

/// Whether direct I/O works, and its alignments where the kernel reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DirectIo {
    /// Whether it works; `None` where that could not be found out.
    pub supported: Option<bool>,
    /// Alignment of the address in memory, as `statx` reports it.
    pub memory_align_bytes: Option<u32>,
    /// Alignment of offset and length, as `statx` reports it.
    pub offset_align_bytes: Option<u32>,
    /// Where the figures come from, or why they are not known.
    pub note: String,
}

impl BlockDevice {
    /// Describes the storage behind an existing path: file system, space, block device, alignment
    /// of direct I/O.
    ///
    /// For a directory, direct I/O is tested with an unnamed temporary file in it, which leaves no
    /// trace.
    ///
    /// # Errors
    /// `NotFound` and `PermissionDenied` for the path itself. Everything else that cannot be read
    /// is `None`, with a reason.
    ///
    /// ```
    /// let storage = datapipes_core::topology::BlockDevice::behind(std::path::Path::new("/tmp"))?;
    /// assert!(storage.available_bytes > Some(0));
    /// assert!(storage.device.is_some() != storage.device_absent.is_some());
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    pub fn behind(path: &Path) -> Result<StorageFacts> {
        let tree = Tree::at(Path::new("/"));
        let stat = stat(CWD, path)?;
        let is_device = FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::BlockDevice;
        let number = if is_device {
            DeviceNumber { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor }
        } else {
            DeviceNumber { major: stat.stx_dev_major, minor: stat.stx_dev_minor }
        };
        let mount = if is_device { None } else { mount_of(&tree, &stat, path) };
        let (device, device_absent) = match find_device(&tree, number, mount.as_ref()) {
            Ok(device) => (Some(device), None),
            Err(reason) => (None, Some(reason)),
        };
        let mut storage = StorageFacts {
            path: path.to_path_buf(),
            fs_type: if is_device {
                Some("block device".to_owned())
            } else {
                mount.as_ref().map(|m| m.fs_type.clone())
            },
            mount_point: mount.as_ref().map(|mount| PathBuf::from(&mount.mount_point)),
            mount_source: mount.map(|mount| mount.source),
            number,
            direct_io: direct_io(path, &stat),
            total_bytes: None,
            free_bytes: None,
            available_bytes: None,
            device,
            device_absent,
        };
        if is_device {
            storage.total_bytes = storage.device.as_ref().and_then(|device| device.size_bytes);
        } else if let Some(fs) = counted_blocks(path) {
            storage.total_bytes = fs.f_blocks.checked_mul(fs.f_frsize);
            storage.free_bytes = fs.f_bfree.checked_mul(fs.f_frsize);
            storage.available_bytes = fs.f_bavail.checked_mul(fs.f_frsize);
        }
        Ok(storage)
    }

    /// Returns only the bytes that may still be written to the file system of a path; `None` where
    /// that is not known.
    pub fn available_at(path: &Path) -> Option<u64> {
        let fs = counted_blocks(path)?;
        fs.f_bavail.checked_mul(fs.f_frsize)
    }
}

/// Returns the usage of a path's file system. One that reports 0 blocks does not count them (some
/// FUSE file systems, /proc) and is not full.
fn counted_blocks(path: &Path) -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs(path).ok().filter(|fs| fs.f_blocks > 0)
}

impl StorageFacts {
    /// The alignment of offsets and lengths that is safe for direct I/O here: the reported one,
    /// else the physical block, else 4096.
    pub fn offset_align_bytes(&self) -> u32 {
        let device = self.device.as_ref();
        let physical = device.and_then(|device| device.physical_block_bytes).map(|bytes| bytes.max(512));
        self.direct_io.offset_align_bytes.or(physical).filter(|align| align.is_power_of_two()).unwrap_or(4096)
    }

    /// The alignment of memory addresses that is safe for direct I/O here: the reported one, else
    /// that of offsets.
    pub fn memory_align_bytes(&self) -> u32 {
        let reported = self.direct_io.memory_align_bytes.filter(|align| align.is_power_of_two());
        reported.unwrap_or_else(|| self.offset_align_bytes())
    }
}

fn stat(at: impl AsFd, path: &Path) -> Result<Statx> {
    let flags = if path.as_os_str().is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let mask = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN | StatxFlags::MNT_ID;
    rustix::fs::statx(at, path, flags, mask)
        .map_err(|errno| Error::os("stat", errno.raw_os_error(), path.display().to_string()))
}

/// Finds the mount by the kernel's id. Before Linux 5.8, it is the one with the longest mount point
/// that contains the path.
fn mount_of(tree: &Tree, stat: &Statx, path: &Path) -> Option<Mount> {
    let mounts = mounts::read(tree);
    if has(stat, StatxFlags::MNT_ID) {
        return mounts.into_iter().find(|mount| mount.id == stat.stx_mnt_id);
    }
    let real = path.canonicalize().ok()?;
    // Of equals the last is taken: a later mount covers an earlier one.
    mounts.into_iter().filter(|mount| real.starts_with(&mount.mount_point)).max_by_key(|mount| mount.mount_point.len())
}

fn has(stat: &Statx, flag: StatxFlags) -> bool {
    stat.stx_mask & flag.bits() != 0
}

/// Finds the device by its number. The device numbers of btrfs and similar file systems are made
/// up, but the mount's source is a device.
fn find_device(tree: &Tree, number: DeviceNumber, mount: Option<&Mount>) -> Result<BlockDevice, String> {
    if number.major != 0 {
        return block::device(tree, number);
    }
    let Some(mount) = mount else {
        return Err(format!("device number {number} is not a real device, and the mount is not known"));
    };
    let source = Path::new(&mount.source);
    if source.starts_with("/dev")
        && let Ok(stat) = stat(CWD, source)
        && stat.stx_rdev_major != 0
    {
        return block::device(tree, DeviceNumber { major: stat.stx_rdev_major, minor: stat.stx_rdev_minor });
    }
    Err(match mount.fs_type.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" => format!("{} lives in memory", mount.fs_type),
        "overlay" => "an overlay: its device is that of the lower directory, which is not visible here".to_owned(),
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" => {
            format!("{} is served by another machine ({})", mount.fs_type, mount.source)
        }
        other => format!("{other} has no block device of its own (source {})", mount.source),
    })
}

/// Tests the file itself, or an unnamed one in the directory.
fn direct_io(path: &Path, stat_of_path: &Statx) -> DirectIo {
    match FileType::from_raw_mode(u32::from(stat_of_path.stx_mode)) {
        FileType::RegularFile | FileType::BlockDevice => {
            reported(stat_of_path).unwrap_or_else(|| probed(path, OFlags::RDONLY))
        }
        FileType::Directory => {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                Err(errno) => {
                    let note = format!("not known: no unnamed file can be made in the directory: {errno}");
                    return DirectIo { note, ..DirectIo::default() };
                }
            };
            let report = stat(File::from(file), Path::new("")).ok().and_then(|stat| reported(&stat));
            report.unwrap_or_else(|| probed(path, OFlags::TMPFILE | OFlags::RDWR))
        }
        _ => DirectIo { supported: Some(false), note: "not a file".to_owned(), ..DirectIo::default() },
    }
}

/// Returns what statx reports, if anything (Linux 6.1, for some file systems).
fn reported(stat: &Statx) -> Option<DirectIo> {
    if !has(stat, StatxFlags::DIOALIGN) {
        return None;
    }
    let nonzero = |align: u32| (align > 0).then_some(align);
    let offset_align_bytes = nonzero(stat.stx_dio_offset_align);
    Some(DirectIo {
        supported: Some(offset_align_bytes.is_some()),
        memory_align_bytes: nonzero(stat.stx_dio_mem_align),
        offset_align_bytes,
        note: match offset_align_bytes {
            Some(_) => "reported by statx".to_owned(),
            None => "statx: no direct I/O on this file (encryption, journalled data, inline data)".to_owned(),
        },
    })
}

/// Opening with O_DIRECT shows whether it is accepted, but not the alignment.
fn probed(path: &Path, access: OFlags) -> DirectIo {
    let opened = rustix::fs::open(path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match opened {
        Ok(_) => DirectIo {
            supported: Some(true),
            note: "O_DIRECT is accepted; the alignment is not reported".to_owned(),
            ..DirectIo::default()
        },
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
            DirectIo { supported: Some(false), note: "O_DIRECT is refused".to_owned(), ..DirectIo::default() }
        }
        Err(errno) => DirectIo { note: format!("not known: open: {errno}"), ..DirectIo::default() },
    }
}
