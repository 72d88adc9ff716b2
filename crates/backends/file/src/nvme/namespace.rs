//! The NVMe namespace behind a block device, and its generic character device.
//!
//! Everything is read from sysfs and from the generic device's number of its namespace; no command
//! is needed for it.
//!
//! Unsafe code: one `ioctl` without memory.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::locator::FilePlace;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::claim::Claims;
use super::command::IoCommand;

/// `NVME_IOCTL_ID`: `_IO('N', 0x40)`, the number of a generic device's namespace.
const NAMESPACE_NUMBER: libc::Ioctl = 0x4e40;
/// Where sysfs lists the generic devices (kernel 5.13).
const GENERIC: &str = "sys/class/nvme-generic";
/// The most blocks of a command.
const MAX_BLOCKS: u64 = 1 << 16;

/// What sysfs tells of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NvmeNamespace {
    /// The kernel's name of its generic device, such as `ng0n1`.
    pub(crate) generic: String,
    generic_number: String,
    pub(crate) number: u32,
    /// Bytes of a logical block, a power of two.
    pub(crate) block_bytes: u64,
    /// The number of logical blocks.
    pub(crate) blocks: u64,
    /// The most bytes of a command: the controller's limit (MDTS) and that of the list of pages,
    /// since nobody splits a command.
    pub(crate) command_bytes: u64,
    pub(crate) read_only: bool,
}

impl NvmeNamespace {
    /// Returns the namespace that a place is, or why it is none.
    pub(crate) fn of(file: &FilePlace) -> Result<NvmeNamespace, String> {
        if !file.is_block_device() {
            return Err("it is a file, not an NVMe namespace".into());
        }
        NvmeNamespace::under(Path::new("/"), rustix::fs::major(file.device()), rustix::fs::minor(file.device()))
    }

    /// Returns the namespace that is the block device with a number, by the sysfs below a root.
    fn under(root: &Path, major: u32, minor: u32) -> Result<NvmeNamespace, String> {
        let device = root.join(format!("sys/dev/block/{major}:{minor}"));
        let device = device.canonicalize().map_err(|e| format!("sysfs has no block device {major}:{minor}: {e}"))?;
        let name = device.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if device.join("partition").exists() {
            return Err(format!("{name} is a partition, and commands go to whole namespaces"));
        }
        let numbers = name.strip_prefix("nvme").filter(|rest| rest.contains('n'));
        let Some(numbers) = numbers else { return Err(format!("{name} is not an NVMe namespace")) };
        let generic = format!("ng{numbers}");
        let generic_number = text(&root.join(GENERIC).join(&generic).join("dev"))
            .map_err(|_| format!("{name} has no generic character device (kernel 5.13 makes them)"))?;
        let format = text(&device.join("integrity/format")).unwrap_or_else(|_| "none".into());
        if format != "none" {
            return Err(format!("the blocks of {name} have metadata ({format})"));
        }
        let block_bytes = number(&device.join("queue/logical_block_size"))?;
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return Err(format!("{name} has blocks of {block_bytes} bytes"));
        }
        // The kernel counts in units of 512 bytes, whatever the blocks are.
        let bytes = number(&device.join("size"))?.saturating_mul(512);
        let transfer = number(&device.join("queue/max_hw_sectors_kb"))?.saturating_mul(1024);
        // A command's bytes may begin and end within a page.
        let pages = number(&device.join("queue/max_segments"))?.saturating_sub(1);
        let listed = pages.saturating_mul(datapipes_core::process::page_size() as u64);
        let most = transfer.min(listed).min(block_bytes.saturating_mul(MAX_BLOCKS));
        let command_bytes = most & !block_bytes.wrapping_sub(1);
        if command_bytes == 0 {
            return Err(format!("a command to {name} moves {most} bytes at most, and a block has {block_bytes}"));
        }
        Ok(NvmeNamespace {
            generic,
            generic_number,
            number: u32::try_from(number(&device.join("nsid"))?).unwrap_or(0),
            block_bytes,
            // The size of a block is not 0.
            blocks: bytes.checked_div(block_bytes).unwrap_or(0),
            command_bytes,
            read_only: number(&device.join("ro"))? != 0,
        })
    }

    /// Opens the generic device, and makes sure that it is that of this namespace.
    pub(crate) fn open(&self, write: bool) -> Result<OwnedFd, String> {
        let path = PathBuf::from("/dev").join(&self.generic);
        let shown = path.display();
        let mode = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let fd = rustix::fs::open(&path, mode | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Mode::empty());
        let fd = fd.map_err(|e| match e {
            Errno::ACCESS | Errno::PERM => format!("{shown}: not permitted ({e})"),
            e => format!("{shown}: {e}"),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| format!("{shown}: {e}"))?;
        let found = format!("{}:{}", rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || found != self.generic_number {
            return Err(format!("{shown} is not the character device {}", self.generic_number));
        }
        // SAFETY: the request takes no argument, and the descriptor is open.
        let namespace = unsafe { libc::ioctl(fd.as_raw_fd(), NAMESPACE_NUMBER) };
        if namespace <= 0 || i64::from(namespace) != i64::from(self.number) {
            return Err(format!("{shown} says that it is namespace {namespace}, and sysfs says {}", self.number));
        }
        Ok(fd)
    }

    /// Returns the command for `len` bytes at an offset, or `None` where they are not whole blocks
    /// of the namespace, or too many.
    pub(crate) fn command(&self, write: bool, offset: u64, len: u32, address: u64) -> Option<IoCommand> {
        let inside = self.block_bytes.wrapping_sub(1);
        if len == 0 || offset & inside != 0 || u64::from(len) & inside != 0 || u64::from(len) > self.command_bytes {
            return None;
        }
        let (first_block, blocks) =
            (offset.checked_div(self.block_bytes)?, u64::from(len).checked_div(self.block_bytes)?);
        if first_block.checked_add(blocks)? > self.blocks {
            return None;
        }
        let blocks_less_one = u16::try_from(blocks.checked_sub(1)?).ok()?;
        Some(IoCommand { write, namespace: self.number, first_block, blocks_less_one, address, len })
    }

    /// The bytes of the namespace.
    pub(crate) fn len(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes)
    }
}

/// A namespace that a mover sends commands to.
pub(crate) struct OpenNamespace {
    pub(crate) facts: NvmeNamespace,
    /// The generic device.
    pub(crate) device: OwnedFd,
    /// Kept for as long as the namespace may be written.
    _claim: Option<Arc<OwnedFd>>,
}

impl OpenNamespace {
    /// Opens the namespace that a place is. One that is written is claimed first.
    pub(crate) fn open(file: &FilePlace, write: bool, claims: &Claims) -> Result<OpenNamespace, String> {
        let facts = NvmeNamespace::of(file)?;
        if write && facts.read_only {
            return Err("the namespace is read-only".into());
        }
        let claim = if write { Some(claims.take(file)?) } else { None };
        let device = facts.open(write)?;
        Ok(OpenNamespace { facts, device, _claim: claim })
    }
}

/// Returns the generic devices of this machine that this process may open for reading, or why there
/// is none.
pub(crate) fn generic_devices() -> Result<Vec<String>, String> {
    let listed = std::fs::read_dir(Path::new("/").join(GENERIC));
    let listed = listed.map_err(|_| "no NVMe namespace has a generic character device (/dev/ngXnY)".to_owned())?;
    let mut names: Vec<String> =
        listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let (mut usable, mut reasons) = (Vec::new(), Vec::new());
    for name in names {
        let path = PathBuf::from("/dev").join(&name);
        match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
            Ok(_) => usable.push(path.display().to_string()),
            Err(e) => reasons.push(format!("{}: {e}", path.display())),
        }
    }
    match (usable.is_empty(), reasons.is_empty()) {
        (false, _) => Ok(usable),
        (true, false) => Err(reasons.join("; ")),
        (true, true) => Err("there is no NVMe namespace with a generic character device (/dev/ngXnY)".into()),
    }
}

fn text(path: &Path) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn number(path: &Path) -> Result<u64, String> {
    let text = text(path)?;
    text.parse().map_err(|_| format!("{}: `{text}` is no number", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use datapipes_testkit::{Random, TempFolder};

    /// A sysfs with one namespace, `nvme0n1` at 259:0, and its partition at 259:1.
    fn sysfs() -> TempFolder {
        let folder = TempFolder::new().unwrap();
        let device = folder.at().join("sys/devices/pci0/nvme/nvme0/nvme0n1");
        std::fs::create_dir_all(device.join("queue")).unwrap();
        std::fs::create_dir_all(device.join("nvme0n1p1")).unwrap();
        std::fs::create_dir_all(folder.at().join("sys/dev/block")).unwrap();
        std::fs::create_dir_all(folder.at().join(GENERIC).join("ng0n1")).unwrap();
        for (file, value) in [
            ("queue/logical_block_size", "4096"),
            ("queue/max_hw_sectors_kb", "512"),
            ("queue/max_segments", "127"),
            ("size", "2048"),
            ("nsid", "3"),
            ("ro", "0"),
            ("nvme0n1p1/partition", "1"),
        ] {
            std::fs::write(device.join(file), format!("{value}\n")).unwrap();
        }
        std::fs::write(folder.at().join(GENERIC).join("ng0n1/dev"), "238:0\n").unwrap();
        let link = |number: &str, at: &Path| {
            std::os::unix::fs::symlink(at, folder.at().join("sys/dev/block").join(number)).unwrap();
        };
        link("259:0", &device);
        link("259:1", &device.join("nvme0n1p1"));
        folder
    }

    #[test]
    fn a_namespace_is_read_from_sysfs_and_what_is_none_is_refused_with_the_reason() {
        let folder = sysfs();
        let device = folder.at().join("sys/devices/pci0/nvme/nvme0/nvme0n1");
        let found = || NvmeNamespace::under(folder.at(), 259, 0);
        let namespace = found().unwrap();
        assert_eq!((namespace.number, namespace.block_bytes, namespace.blocks), (3, 4096, 256));
        // 126 pages are less than 512 KiB.
        assert_eq!((namespace.command_bytes, namespace.read_only), (126 * 4096, false));
        assert_eq!((namespace.generic.as_str(), namespace.len()), ("ng0n1", 1 << 20));
        let refused = |file: &str, value: &str, why: &str| {
            let (path, before) = (device.join(file), std::fs::read(device.join(file)));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, value).unwrap();
            let found = found();
            assert!(found.as_ref().is_err_and(|e| e.contains(why)), "{file} = {value}: {found:?}");
            match before {
                Ok(bytes) => std::fs::write(&path, bytes).unwrap(),
                Err(_) => std::fs::remove_file(&path).unwrap(),
            }
        };
        refused("integrity/format", "T10-DIF-TYPE1-CRC\n", "metadata");
        refused("queue/logical_block_size", "520", "blocks of 520 bytes");
        refused("queue/max_segments", "1", "at most");
        refused("queue/max_hw_sectors_kb", "2", "moves 2048 bytes at most");
        refused("size", "many", "no number");
        assert!(NvmeNamespace::under(folder.at(), 259, 1).is_err_and(|e| e.contains("partition")));
        assert!(NvmeNamespace::under(folder.at(), 8, 0).is_err_and(|e| e.contains("8:0")));
        std::fs::remove_dir_all(folder.at().join(GENERIC)).unwrap();
        assert!(found().is_err_and(|e| e.contains("no generic character device")));
    }

    #[test]
    fn no_command_reaches_beyond_the_namespace_or_is_of_a_part_of_a_block() {
        let namespace = NvmeNamespace::under(sysfs().at(), 259, 0).unwrap();
        let block = namespace.block_bytes;
        let mut random = Random(datapipes_testkit::seed(3));
        let mut made = 0;
        for _ in 0..20_000 {
            let near = |random: &mut Random, most: u64| match random.next() % 4 {
                0 => u64::MAX - random.next() % (4 * block),
                1 => namespace.len().wrapping_add(random.next() % (4 * block)).wrapping_sub(2 * block),
                2 => random.next() % (most / block + 1) * block,
                _ => random.next() % most,
            };
            let offset = near(&mut random, 2 * namespace.len());
            let len = near(&mut random, 2 * namespace.command_bytes) as u32;
            let whole = offset.is_multiple_of(block) && u64::from(len).is_multiple_of(block) && len > 0;
            let inside = u128::from(offset) + u128::from(len) <= u128::from(namespace.len());
            let fits = u64::from(len) <= namespace.command_bytes;
            let command = namespace.command(true, offset, len, 4096);
            assert_eq!(command.is_some(), whole && inside && fits, "{len} bytes at {offset}");
            if let Some(command) = command {
                made += 1;
                assert_eq!(command.first_block * block, offset);
                assert_eq!((u64::from(command.blocks_less_one) + 1) * block, u64::from(len));
            }
        }
        assert!(made > 200, "{made}");
    }
}
