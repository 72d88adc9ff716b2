//! Making places of the descriptors that a client passed, and refusing them with a reason.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use datapipes_core::locator::file_kind_words;
use datapipes_core::memory::{Access, Region};
use datapipes_core::process::page_size;
use datapipes_core::{Dram, Error, ErrorKind, Locator, Result, Ssd};
use rustix::fs::{FileType, OFlags, fstat, fstatfs};
use rustix::io::Errno;

use super::guard::PageWatch;
use super::intake::DescriptorFacts;
use crate::protocol::PlaceSpec;
use crate::server::quotas::account::{ClientQuota, Ledger, SessionFacts};

/// File systems whose files are served by the kernel alone, or by machines that the administrator
/// chose when mounting, by the magic numbers of statfs(2). FUSE is not here, because a client may
/// serve it and never answer. The kernel's own (proc, sysfs, tracefs) are not here, because reading
/// and writing them depends on the process.
const FILE_SYSTEMS: [u64; 24] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // Btrfs
    0xF2F5_2010, // F2FS
    0x2FC1_2FC1, // ZFS
    0xCA45_1A4E, // bcachefs
    0x0102_1994, // tmpfs, memfd, devtmpfs
    0x8584_58F6, // ramfs
    0x9584_58F6, // hugetlbfs
    OVERLAY,
    0x3153_464A, // JFS
    0x5265_4973, // ReiserFS
    0x4D44,      // FAT
    0x2011_BAB0, // exFAT
    0x7366_746E, // NTFS
    0x9660,      // ISO 9660
    0x7371_7368, // SquashFS
    0xE0F5_E1E2, // EROFS
    0x6969,      // NFS
    0xFE53_4D42, // SMB2
    0xFF53_4D42, // CIFS
    0x00C3_6400, // Ceph
    0x0BD0_0BD0, // Lustre
    0x4750_4653, // GPFS
];

/// overlayfs, which any user may mount in a user namespace, over FUSE too. It is trusted if it is a
/// mount of this process's own namespace, which is the administrator's.
const OVERLAY: u64 = 0x794C_7630;

/// Those of them whose files are memory.
const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58F6, HUGETLBFS];

const HUGETLBFS: u64 = 0x9584_58F6;

/// The use of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Role {
    Source,
    Target,
}

/// A place of a client, kept as long as a pipe uses it.
pub(in crate::server) enum OpenedPlace {
    Memory { memory: MappedMemory, dram: Dram },
    File { ssd: Ssd },
}

/// A client's memory, mapped.
#[derive(Clone)]
pub(in crate::server) struct MappedMemory {
    /// Device and inode of the memfd.
    identity: (u64, u64),
    access: Access,
    region: Region,
    watch: Arc<PageWatch>,
}

impl MappedMemory {
    /// Returns whether a page of it was missed.
    pub(in crate::server) fn failed(&self) -> bool {
        self.watch.was_hit()
    }
}

impl OpenedPlace {
    pub(in crate::server) fn locator(&self) -> &dyn Locator {
        match self {
            OpenedPlace::Memory { dram, .. } => dram,
            OpenedPlace::File { ssd } => ssd,
        }
    }

    /// Returns the number of descriptors that are kept open for it.
    pub(in crate::server) fn descriptors(&self) -> usize {
        match self {
            OpenedPlace::Memory { .. } => 0,
            OpenedPlace::File { ssd } => 1 + usize::from(ssd.file().direct_fd().is_ok()),
        }
    }

    pub(in crate::server) fn memory(&self) -> Option<&MappedMemory> {
        match self {
            OpenedPlace::Memory { memory, .. } => Some(memory),
            OpenedPlace::File { .. } => None,
        }
    }
}

/// The descriptors of a request, with the information which were used.
pub(in crate::server) struct PassedDescriptors {
    fds: Vec<(OwnedFd, Cell<bool>)>,
}

impl PassedDescriptors {
    pub(in crate::server) fn new(fds: Vec<OwnedFd>) -> PassedDescriptors {
        PassedDescriptors { fds: fds.into_iter().map(|fd| (fd, Cell::new(false))).collect() }
    }

    fn get(&self, at: usize) -> Result<&OwnedFd> {
        let Some((fd, used)) = self.fds.get(at) else {
            return Err(bad(format!("descriptor {at} is named, and {} came with the request", self.fds.len())));
        };
        used.set(true);
        Ok(fd)
    }

    /// Returns a copy of a descriptor to keep.
    fn own(&self, at: usize) -> Result<OwnedFd> {
        self.get(at)?.try_clone().map_err(|e| Error::io("connect", e, "a descriptor"))
    }

    /// Refuses unused descriptors: a client that passes more than it names means something else.
    pub(in crate::server) fn all_used(&self) -> Result<()> {
        match self.fds.iter().position(|(_, used)| !used.get()) {
            None => Ok(()),
            Some(at) => Err(bad(format!("descriptor {at} came with the request and is not named in it"))),
        }
    }
}

/// The context for opening the places of a request.
pub(in crate::server) struct Opener<'a> {
    pub(in crate::server) passed: &'a PassedDescriptors,
    /// The memory that this client has mapped already.
    pub(in crate::server) mapped: Vec<MappedMemory>,
    pub(in crate::server) ledger: &'a Arc<Ledger>,
    pub(in crate::server) facts: &'a Arc<SessionFacts>,
    pub(in crate::server) wake_event: &'a Arc<OwnedFd>,
}

impl Opener<'_> {
    /// Opens a place from the passed descriptors.
    ///
    /// # Errors
    /// `InvalidInput`, `PermissionDenied`, `OutOfRange`, and `Busy` for a limit. Each says what was
    /// expected.
    pub(in crate::server) fn open(&mut self, spec: &PlaceSpec, role: Role) -> Result<OpenedPlace> {
        self.open_as(spec, role).map_err(|e| e.within(if role == Role::Source { "the source" } else { "the target" }))
    }

    fn open_as(&mut self, spec: &PlaceSpec, role: Role) -> Result<OpenedPlace> {
        match *spec {
            PlaceSpec::Memory { fd, offset, len } => self.memory(fd, offset, len, role),
            PlaceSpec::File { fd, direct, access } => {
                let cached = self.passed.own(fd)?;
                let direct = direct.map(|at| self.passed.own(at)).transpose()?;
                check_file(&cached, role)?;
                let name = format!("file {fd} of client {}", self.facts.number);
                let ssd = Ssd::from_fds(cached, direct, name)?.with_access(access)?;
                Ok(OpenedPlace::File { ssd })
            }
        }
    }

    fn memory(&mut self, fd: usize, offset: u64, len: Option<u64>, role: Role) -> Result<OpenedPlace> {
        let fd = self.passed.get(fd)?;
        let stat = fstat(fd).map_err(|e| Error::os("map", e.raw_os_error(), "the length of a descriptor"))?;
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        let identity = (stat.st_dev, stat.st_ino);
        let serves = |memory: &&MappedMemory| {
            memory.identity == identity
                && memory.region.len() as u64 >= has
                && (role == Role::Source || memory.access == Access::Write)
        };
        let memory = match self.mapped.iter().find(serves) {
            // The rights are the descriptor's: another descriptor of the same memory may have more
            // than this one.
            Some(known) if role == Role::Source || mode(fd)? == OFlags::RDWR => known.clone(),
            _ => {
                // `st_blocks` counts blocks of 512 bytes. A client that removes blocks later is cut
                // off when they are missed.
                let there = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
                if there < has {
                    let context = format!("only {there} of {has} bytes of a memfd are allocated");
                    return Err(
                        bad(context).with_advice("write it, or have it allocated (fallocate), before it is passed")
                    );
                }
                let memory = self.map(fd, has, role, identity)?;
                self.mapped.push(memory.clone());
                memory
            }
        };
        let mapped = memory.region.len() as u64;
        let len = len.unwrap_or(mapped.saturating_sub(offset));
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > mapped) {
            let context = format!("{len} bytes at {offset} of {mapped} bytes of memory");
            return Err(Error::new(ErrorKind::OutOfRange, "map", context));
        }
        let range = memory.region.range(offset as usize, len as usize)?;
        Ok(OpenedPlace::Memory { memory, dram: Dram::over(range) })
    }

    fn map(&self, fd: &OwnedFd, len: u64, role: Role, identity: (u64, u64)) -> Result<MappedMemory> {
        let page = page_of(fd)?;
        let charge = ClientQuota::take(self.ledger, self.facts, len)?;
        let watch = Arc::new(PageWatch::new(self.wake_event.clone())?);
        let keeper = Arc::new((Unwatch(watch.clone()), charge));
        let map = |access| Region::map_sealed(fd.as_fd(), len, access, Box::new(keeper.clone()));
        // A source is mapped for writing too if the client may write it: only such pages can be
        // registered with the kernel, so that a device need not look them up each time.
        let (region, access) = match map(Access::Write) {
            Err(e) if role == Role::Source && e.kind() == ErrorKind::PermissionDenied => {
                (map(Access::Read)?, Access::Read)
            }
            other => (other?, Access::Write),
        };
        watch.set(&region, page)?;
        Ok(MappedMemory { identity, access, region, watch })
    }
}

fn check_file(fd: &OwnedFd, role: Role) -> Result<()> {
    let flags = flags(fd)?;
    let denied = |why: &str| Error::new(ErrorKind::PermissionDenied, "open", format!("the descriptor {why}"));
    if flags.contains(OFlags::PATH) {
        return Err(bad("the descriptor only names a file, and does not open it (O_PATH)".into()));
    }
    let mode = flags & OFlags::RWMODE;
    match role {
        Role::Source if mode != OFlags::RDONLY && mode != OFlags::RDWR => return Err(denied("may not be read")),
        Role::Target if mode != OFlags::WRONLY && mode != OFlags::RDWR => return Err(denied("may not be written")),
        Role::Target if flags.contains(OFlags::APPEND) => {
            return Err(denied("appends (O_APPEND), so that bytes would not go where a transfer says"));
        }
        Role::Target if is_in_memory(fd)? => {
            return Err(bad(
                "the file lies in memory (tmpfs), and pages that a transfer adds would be charged to the service"
                    .into(),
            )
            .with_advice("pass a memfd as memory, or use a file on a disk"));
        }
        _ => {}
    }
    Ok(())
}

/// Decides whether descriptors with these facts may come into this process: only if closing and
/// reading them cannot wait for a process of the client. Their roles are checked later, here.
///
/// # Errors
/// `Unsupported` for files that a client may serve itself, `InvalidInput` for types that cannot be
/// a place.
pub(in crate::server) fn judge(facts: &[DescriptorFacts], any_filesystem: bool) -> Result<()> {
    facts.iter().enumerate().try_for_each(|(at, facts)| judge_one(at, facts, any_filesystem))
}

fn judge_one(at: usize, facts: &DescriptorFacts, any_filesystem: bool) -> Result<()> {
    if facts.errno != 0 {
        return Err(Error::os("open", facts.errno, format!("the file system of descriptor {at}")));
    }
    let unsupported = |what: String| Err(Error::new(ErrorKind::Unsupported, "open", format!("descriptor {at} {what}")));
    let kind = FileType::from_raw_mode(facts.mode);
    match kind {
        FileType::Socket | FileType::CharacterDevice => {
            let kind = file_kind_words(facts.mode);
            return Err(bad(format!("descriptor {at} is {kind}: neither a file, a block device nor a memfd")));
        }
        FileType::BlockDevice if !any_filesystem && is_served_by_a_process(facts.device) => {
            return unsupported("is of a block device that a process serves (ublk)".into()).map_err(|e| {
                e.with_advice("the service takes only devices that the kernel serves, unless run with --any-filesystem")
            });
        }
        _ if any_filesystem => return Ok(()),
        _ => {}
    }
    if facts.file_system == OVERLAY && !is_mounted_here(facts.mount) {
        return unsupported("is of an overlay mounted in another namespace".into()).map_err(|e| {
            e.with_advice(
                "the layers below it may be served by a client: run the service with --any-filesystem to take it",
            )
        });
    }
    if !FILE_SYSTEMS.contains(&facts.file_system) {
        return unsupported(format!("is of a file system of the type {:#x}", facts.file_system)).map_err(|e| {
            e.with_advice(
                "the service takes only files of file systems that the kernel serves, unless run with --any-filesystem",
            )
        });
    }
    Ok(())
}

/// Whether a block device is one of `ublk`, which users without privileges may serve.
fn is_served_by_a_process(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
    let name = link.ok().and_then(|path| path.file_name().map(|name| name.to_string_lossy().starts_with("ublk")));
    // A device that cannot be looked up may not be the kernel's.
    name.unwrap_or(true)
}

/// Whether a mount is one of this process's namespace.
fn is_mounted_here(id: u64) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').next().and_then(|first| first.parse().ok()) == Some(id))
}

/// Whether a file lies in memory. Pages that the service is the first to write would be charged to
/// it for as long as any process has the file, even after the pipe has ended.
fn is_in_memory(fd: &OwnedFd) -> Result<bool> {
    let fail = |e: Errno| Error::os("open", e.raw_os_error(), "the file system of a descriptor");
    let system = fstatfs(fd).map_err(fail)?.f_type as u64 & 0xFFFF_FFFF;
    let stat = fstat(fd).map_err(fail)?;
    // Devices have their names in such a file system, but their bytes elsewhere.
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(regular && IN_MEMORY.contains(&system))
}

/// The bytes of a page of a memfd. (`st_blksize` is something else if the kernel gives large folios
/// to memory files.)
fn page_of(fd: &OwnedFd) -> Result<usize> {
    let system = fstatfs(fd).map_err(|e| Error::os("map", e.raw_os_error(), "the pages of a memfd"))?;
    match system.f_type as u64 & 0xFFFF_FFFF {
        HUGETLBFS => Ok(usize::try_from(system.f_bsize).unwrap_or(0).max(page_size())),
        _ => Ok(page_size()),
    }
}

/// Stops watching just before the memory is unmapped. The session may keep the watch, to see what
/// happened.
struct Unwatch(Arc<PageWatch>);

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.0.clear();
    }
}

fn flags(fd: &OwnedFd) -> Result<OFlags> {
    rustix::fs::fcntl_getfl(fd).map_err(|e| Error::os("open", e.raw_os_error(), "the mode of a descriptor"))
}

fn mode(fd: &OwnedFd) -> Result<OFlags> {
    Ok(flags(fd)? & OFlags::RWMODE)
}

fn bad(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "connect", what)
}
