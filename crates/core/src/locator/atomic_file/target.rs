//! Looking at a path before a file is written there, and beginning the new file beside it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FsWord, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::decide::{NameProtection, TargetFacts, TargetKind, Way, decide};
use super::folder::{Folder, PathEnd, end_of};
use super::identity::{LostAttribute, gives_rights, take_over};
use super::names::{self, Naming, OUTPUT, PRIVATE};
use crate::error::{Error, Result};
use crate::locator::Ssd;

/// The permission bits with which a new file is created. The umask of the process is removed from
/// them, or the default ACL of the directory applies. A file that replaces another gets the
/// permissions of that file instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u32);

impl FileMode {
    /// The bits of an ordinary new file: 0666.
    pub const USUAL: FileMode = FileMode(0o666);

    /// The permission bits of another file's mode, as `cp` creates a copy.
    pub const fn like(mode: u32) -> FileMode {
        FileMode(mode & 0o777)
    }

    /// The bits that both have: a file made from several files is as private as the most private of
    /// them.
    #[must_use]
    pub const fn and(self, other: FileMode) -> FileMode {
        FileMode(self.0 & other.0)
    }

    /// These bits, plus reading and writing for the owner, who will replace the file again.
    #[must_use]
    pub const fn and_owner(self) -> FileMode {
        FileMode(self.0 | 0o600)
    }

    /// Returns the bits of an open file.
    ///
    /// # Errors
    /// The errors of `fstat`.
    pub fn of(ssd: &Ssd) -> Result<FileMode> {
        let stat = rustix::fs::fstat(ssd.file().cached_fd());
        let stat = stat.map_err(|e| Error::os("look at", e.raw_os_error(), ssd.path().display().to_string()))?;
        Ok(FileMode::like(stat.st_mode))
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Default for FileMode {
    fn default() -> FileMode {
        FileMode::USUAL
    }
}

/// Returns what a path leads to.
///
/// # Errors
/// As of `open(2)` with `O_CREAT`: `NotFound` for an empty path or a missing directory, `System`
/// with `EISDIR` for a path that ends in a slash; other errors of the kernel.
pub fn target_kind(path: &Path) -> Result<TargetKind> {
    let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(kind_of(&stat, || rustix::fs::statfs(path).map(|fs| fs.f_type))),
        Err(Errno::NOENT) => end_of(path).map_err(fail).map(|_| TargetKind::Nothing),
        Err(e) => Err(fail(e)),
    }
}

fn kind_of(stat: &Stat, file_system: impl FnOnce() -> Result<FsWord, Errno>) -> TargetKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if file_system().is_ok_and(is_of_the_kernel) => TargetKind::Stream,
        FileType::RegularFile => TargetKind::File,
        FileType::Directory => TargetKind::Folder,
        FileType::BlockDevice => TargetKind::BlockDevice,
        FileType::Socket => TargetKind::Socket,
        _ => TargetKind::Stream,
    }
}

/// Whether files of a file system are an interface of the kernel, not stored bytes.
fn is_of_the_kernel(file_system: FsWord) -> bool {
    const PROC: u32 = 0x9fa0;
    const SYSFS: u32 = 0x6265_6572;
    const CGROUP: u32 = 0x0027_e0eb;
    const CGROUP2: u32 = 0x6367_7270;
    const DEBUGFS: u32 = 0x6462_6720;
    const TRACEFS: u32 = 0x7472_6163;
    const CONFIGFS: u32 = 0x6265_6570;
    const SECURITYFS: u32 = 0x7363_6673;
    const SELINUXFS: u32 = 0xf97c_ff8c;
    const EFIVARFS: u32 = 0xde5e_81e4;
    let word = file_system as u32;
    let all = [PROC, SYSFS, CGROUP, CGROUP2, DEBUGFS, TRACEFS, CONFIGFS, SECURITYFS, SELINUXFS, EFIVARFS];
    all.contains(&word)
}

/// A file without a name, or with a hidden one, in the folder where it will get its name.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) fd: OwnedFd,
    /// Its hidden name, if it must have one.
    pub(super) hidden: Option<OsString>,
    /// How it gets a name, if it has none.
    pub(super) naming: Naming,
    /// The mode that it gets as a new file.
    pub(super) mode: Mode,
}

impl Beside {
    /// Begins a file that only the owner may read until it is published.
    fn begin(folder: &Folder, mode: FileMode, replaced: Option<&Stat>) -> Result<Beside, Errno> {
        names::remove_leftovers(folder, OUTPUT);
        // Nobody sees a nameless file, so it may have the rights of a new file for a moment. This
        // shows which rights the umask and the folder's ACL leave.
        if let Some(fd) = names::nameless(folder, OFlags::empty(), Mode::from_raw_mode(mode.bits()))?
            && let Some(naming) = Naming::of(fd.as_fd(), folder)
        {
            let mode = make_private(&fd)?;
            return Ok(Beside { fd, hidden: None, naming, mode });
        }
        if folder.is_append_only() {
            // A hidden name could not be removed again.
            return Err(Errno::PERM);
        }
        let created = if replaced.is_some() { PRIVATE } else { Mode::from_raw_mode(mode.bits()) };
        let (fd, name) = names::hidden(folder, OUTPUT, created)?;
        let made = make_private(&fd).inspect_err(|_| {
            // The first error is the one to report.
            let _ = folder.remove(&name);
        });
        let mode = replaced.map_or(made?, |stat| Mode::from_raw_mode(stat.st_mode & 0o777));
        Ok(Beside { fd, hidden: Some(name), naming: Naming::ByDescriptor, mode })
    }
}

/// Leaves rights only to the owner, and returns the mode that the file is to have in the end.
fn make_private(fd: &OwnedFd) -> Result<Mode, Errno> {
    let created = Mode::from_raw_mode(rustix::fs::fstat(fd)?.st_mode & 0o777);
    if created != PRIVATE {
        rustix::fs::fchmod(fd, PRIVATE)?;
    }
    Ok(created)
}

/// A path, with the facts about it.
#[derive(Debug)]
pub(super) struct Target {
    /// The path, for messages.
    pub(super) shown: PathBuf,
    pub(super) way: Way,
    /// The folder and the name, unless the path names a descriptor.
    pub(super) place: Option<(Folder, OsString)>,
    /// A file that was begun beside it, if that was possible.
    pub(super) beside: Option<Beside>,
    /// The existing file, open for writing.
    pub(super) there: Option<OwnedFd>,
}

impl Target {
    pub(super) fn of(path: &Path, mode: FileMode) -> Result<Target> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
        let kind = target_kind(path)?;
        let (place, by_descriptor) = match end_of(path).map_err(fail)? {
            PathEnd::Name { folder, name } => (Some((Folder::open(&folder).map_err(fail)?, name)), false),
            PathEnd::Descriptor { .. } => (None, true),
        };
        let mut facts = TargetFacts {
            kind,
            by_descriptor,
            opened: Ok(()),
            beside: Err(Errno::NOENT),
            links: 0,
            mounted: false,
            leased: false,
            gives_rights: false,
            held: None,
            lost: None,
        };
        let mut target = Target { shown: path.to_path_buf(), way: Way::Stream, place, beside: None, there: None };
        if matches!(kind, TargetKind::File | TargetKind::Nothing) {
            target.look(path, mode, &mut facts).map_err(fail)?;
        }
        target.way = decide(&facts);
        Ok(target)
    }

    /// Collects the facts about a file, and begins another file beside it.
    fn look(&mut self, path: &Path, mode: FileMode, facts: &mut TargetFacts) -> Result<(), Errno> {
        let mut stat = None;
        if facts.kind == TargetKind::File {
            match open_there(path, self.place.as_ref().map(|(folder, _)| folder)) {
                Ok((fd, leased)) => {
                    facts.leased = leased;
                    stat = Some(rustix::fs::fstat(&fd)?);
                    self.there = Some(fd);
                }
                Err(e) => {
                    facts.opened = Err(e);
                    return Ok(());
                }
            }
        }
        let Some((folder, name)) = &self.place else { return Ok(()) };
        match Beside::begin(folder, mode, stat.as_ref()) {
            Ok(beside) => {
                facts.beside = Ok(());
                self.beside = Some(beside);
            }
            Err(e) => facts.beside = Err(e),
        }
        if let (Some(there), Some(stat)) = (&self.there, &stat) {
            look_at_file(there.as_fd(), stat, facts);
            facts.mounted = folder.is_mounted(name);
            facts.held = held_by(folder, stat);
            facts.lost = match &self.beside {
                Some(beside) => rehearse(there.as_fd(), beside.fd.as_fd())?,
                None => None,
            };
        }
        Ok(())
    }

    /// Makes the error of a refusal.
    pub(super) fn refusal(&self, e: Errno) -> Error {
        Error::os("open", e.raw_os_error(), self.shown.display().to_string())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let (Some((folder, _)), Some(Beside { hidden: Some(name), .. })) = (&self.place, &self.beside) {
            // It may be gone already, which is fine.
            let _ = folder.remove(name);
        }
    }
}

/// Opens the existing file for writing, as `open(2)` without `O_TRUNC` does. Also returns whether a
/// lease on it had to end first.
fn open_there(path: &Path, folder: Option<&Folder>) -> Result<(OwnedFd, bool), Errno> {
    // In a directory where everyone may create files, the kernel may refuse to open another user's
    // file with O_CREAT (fs.protected_regular). This open is to be refused likewise.
    let sticky = folder.is_some_and(|f| f.stat().is_ok_and(|s| s.st_mode & libc::S_ISVTX != 0));
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let flags = if sticky { flags | OFlags::CREATE } else { flags };
    let mode = Mode::from_raw_mode(FileMode::USUAL.bits());
    match rustix::fs::open(path, flags | OFlags::NONBLOCK, mode) {
        Ok(fd) => {
            let now = rustix::fs::fcntl_getfl(&fd)?;
            // With O_NONBLOCK, io_uring would fail requests that have to wait.
            rustix::fs::fcntl_setfl(&fd, now - OFlags::NONBLOCK)?;
            Ok((fd, false))
        }
        Err(Errno::WOULDBLOCK) => Ok((rustix::fs::open(path, flags, mode)?, true)),
        Err(e) => Err(e),
    }
}

/// Returns the number of a file's names. On some processors the kernel's type for it has 32 bits.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)] // On x86-64 it has 64 bits already.
fn links(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink)
}

/// Adds the facts that the file itself tells.
fn look_at_file(there: BorrowedFd<'_>, stat: &Stat, facts: &mut TargetFacts) {
    facts.links = links(stat);
    facts.gives_rights = gives_rights(there, stat);
}

fn held_by(folder: &Folder, file: &Stat) -> Option<NameProtection> {
    if folder.is_append_only() {
        return Some(NameProtection::AppendOnly);
    }
    let own = folder.stat().ok()?;
    let user = rustix::process::geteuid().as_raw();
    let sticky = own.st_mode & libc::S_ISVTX != 0 && own.st_uid != user && file.st_uid != user;
    let may = || rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::FOWNER));
    (sticky && !may()).then_some(NameProtection::Sticky)
}

/// Tests whether a file can take over the identity of another. Afterwards it is private again.
fn rehearse(there: BorrowedFd<'_>, beside: BorrowedFd<'_>) -> Result<Option<LostAttribute>, Errno> {
    let lost = take_over(there, beside)?;
    rustix::fs::fchmod(beside, PRIVATE)?;
    Ok(lost)
}

/// Looks again whether the file that has a name now can be replaced, when its replacement is
/// complete.
pub(super) fn look_again(folder: &Folder, name: &OsString, there: BorrowedFd<'_>) -> Result<TargetFacts, Errno> {
    let stat = rustix::fs::fstat(there)?;
    let mut facts = TargetFacts {
        kind: TargetKind::File,
        by_descriptor: false,
        opened: Ok(()),
        beside: Ok(()),
        links: 0,
        mounted: folder.is_mounted(name),
        leased: false,
        gives_rights: false,
        held: held_by(folder, &stat),
        lost: None,
    };
    look_at_file(there, &stat, &mut facts);
    Ok(facts)
}
