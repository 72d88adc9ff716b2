//! Files without names, and the hidden names of files that must have one.
//!
//! A hidden name is `.dpipe-output-` or `.dpipe-spill-`, a tag, and sixteen random digits. The
//! process that makes such a file holds a lock (`flock`) on it while it has that name, and the
//! kernel ends the lock with the process. So a file that can be locked has lost its process, on
//! whatever machine or in whatever container it ran, and is removed. The tag names the file system
//! through which the file was made: locks taken through FUSE are not visible beneath it, so a file
//! is judged only through the file system through which it was made.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::folder::Folder;

/// The prefix of incomplete outputs' names.
pub(super) const OUTPUT: &str = ".dpipe-output-";
/// The prefix of scratch files' names.
pub(super) const SCRATCH: &str = ".dpipe-spill-";

/// The mode of incomplete files: only the owner may read them.
pub(super) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The number of random names to try before another problem is assumed.
const MAX_TRIES: usize = 100;
/// The number of names of a folder that are searched for leftovers. In a huge folder this must not
/// take seconds.
const MAX_LOOKED_AT: usize = 4096;

/// How a nameless file is given a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// By its descriptor (`AT_EMPTY_PATH`): for root, and since kernel 6.10 for the process that
    /// opened it.
    ByDescriptor,
    /// By its link in `/proc/self/fd`.
    ByProc,
}

impl Naming {
    /// Returns the way that works for this file. It is tested without naming the file: `.` exists
    /// in every folder.
    pub(super) fn of(file: BorrowedFd<'_>, folder: &Folder) -> Option<Naming> {
        let works = |way: &Naming| way.link(file, folder, OsStr::new(".")) == Err(Errno::EXIST);
        [Naming::ByDescriptor, Naming::ByProc].into_iter().find(works)
    }

    /// Gives a file a name, which must not exist yet.
    pub(super) fn link(self, file: BorrowedFd<'_>, folder: &Folder, name: &OsStr) -> Result<(), Errno> {
        match self {
            Naming::ByDescriptor => rustix::fs::linkat(file, "", folder.fd(), name, AtFlags::EMPTY_PATH),
            Naming::ByProc => {
                let from = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(rustix::fs::CWD, from, folder.fd(), name, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }
}

/// Opens a nameless file in a folder; `None` where the file system or the kernel does not support
/// that.
pub(super) fn nameless(folder: &Folder, flags: OFlags, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    match folder.open_in(OsStr::new("."), OFlags::RDWR | OFlags::TMPFILE | flags, mode) {
        Ok(fd) => Ok(Some(fd)),
        // EISDIR comes from kernels before 3.11, which open the folder. A folder that was removed
        // answers ENOENT in any case.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Creates a file with a hidden name, and locks it.
pub(super) fn hidden(folder: &Folder, prefix: &str, mode: Mode) -> Result<(OwnedFd, OsString), Errno> {
    for _ in 0..MAX_TRIES {
        let name = hidden_name(folder, prefix)?;
        match folder.open_in(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
            // If it cannot be locked, no other process can lock it either, so nobody removes it.
            Ok(fd) => match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                // A process that searches for leftovers was faster, and removes it.
                Err(Errno::WOULDBLOCK) => {}
                _ => return Ok((fd, name)),
            },
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

/// Gives a nameless file a hidden name. The file is locked before that.
pub(super) fn link_hidden(naming: Naming, file: BorrowedFd<'_>, folder: &Folder) -> Result<OsString, Errno> {
    lock(file);
    for _ in 0..MAX_TRIES {
        let name = hidden_name(folder, OUTPUT)?;
        match naming.link(file, folder, &name) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

fn lock(file: BorrowedFd<'_>) {
    // If it cannot be locked, no other process can lock it either, so nobody removes it.
    let _ = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
}

/// Unlocks a file that has its final name, so that its users can lock it.
pub(super) fn unlock(file: BorrowedFd<'_>) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

fn hidden_name(folder: &Folder, prefix: &str) -> Result<OsString, Errno> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{prefix}{}-{:016x}", tag(folder)?, u64::from_le_bytes(random)).into())
}

/// Returns a word for the file system through which a folder is reached.
fn tag(folder: &Folder) -> Result<String, Errno> {
    let (kind, id) = (rustix::fs::fstatfs(folder.fd())?.f_type, rustix::fs::fstatvfs(folder.fd())?.f_fsid);
    // A file system without an id has a device number, which changes with every mount.
    let id = if id == 0 { folder.stat()?.st_dev } else { id };
    let bytes = [(kind as u64).to_le_bytes(), id.to_le_bytes()].concat();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    Ok(format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff)))
}

/// Whether [`hidden_name`] makes such names.
fn is_hidden(name: &[u8], prefix: &str, tag: &str) -> bool {
    let rest = name.strip_prefix(prefix.as_bytes()).and_then(|n| n.strip_prefix(tag.as_bytes()));
    let random = rest.and_then(|n| n.strip_prefix(b"-"));
    random.is_some_and(|r| r.len() == 16 && r.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Removes files whose processes are gone. What cannot be looked at or removed stays.
pub(super) fn remove_leftovers(folder: &Folder, prefix: &str) {
    let Ok(tag) = tag(folder) else { return };
    let Ok(list) = folder.open_in(OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) else { return };
    let Ok(entries) = Dir::new(list) else { return };
    for entry in entries.take(MAX_LOOKED_AT).map_while(Result::ok) {
        let name = entry.file_name().to_bytes();
        if is_hidden(name, prefix, &tag) {
            // A later call may succeed.
            let _ = remove_if_left(folder, OsStr::from_bytes(name));
        }
    }
}

fn remove_if_left(folder: &Folder, name: &OsStr) -> Result<(), Errno> {
    // It is opened for writing, because NFS locks no file that is open only for reading.
    let file = folder.open_in(name, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (open, named) = (rustix::fs::fstat(&file)?, folder.stat_of(name)?);
    let is_file = FileType::from_raw_mode(open.st_mode) == FileType::RegularFile;
    // The file may have got its final name between the open and the lock. Its hidden name is then
    // gone or is another file's.
    if is_file && (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino) {
        folder.remove(name)?;
    }
    Ok(())
}

/// Opens a scratch file in a folder, which nobody else sees.
pub(super) fn scratch(folder: &Folder) -> Result<OwnedFd, Errno> {
    if let Some(fd) = nameless(folder, OFlags::EXCL, PRIVATE)? {
        return Ok(fd);
    }
    remove_leftovers(folder, SCRATCH);
    let (fd, name) = hidden(folder, SCRATCH, PRIVATE)?;
    // From here on it has no name. Only a crash between these two calls leaves a file.
    match folder.remove(&name) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    // Some file systems lose a file with its name, even if it is open.
    rustix::fs::fstat(fd.as_fd())?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_of_the_same_file_system_are_ours() {
        let tag = "0123abcd";
        assert!(is_hidden(b".dpipe-output-0123abcd-00000000000000ff", OUTPUT, tag));
        for other in [
            ".dpipe-output-1-0",
            ".dpipe-output-notes",
            ".dpipe-output-0123abcd-",
            ".dpipe-output-0123abcd-00000000000000fg",
            ".dpipe-output-0123abcd-00000000000000ff.bak",
            ".dpipe-output-0123abce-00000000000000ff",
            ".dpipe-spill-0123abcd-00000000000000ff",
            "x.dpipe-output-0123abcd-00000000000000ff",
        ] {
            assert!(!is_hidden(other.as_bytes(), OUTPUT, tag), "{other}");
        }
    }
}
