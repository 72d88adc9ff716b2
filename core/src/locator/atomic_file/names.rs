//! Files that have no name yet, and the names of those that must have one.
//!
//! A hidden name is `.dpipe-output-` or `.dpipe-spill-`, a tag, and sixteen random digits. Whoever
//! makes such a file holds a lock (`flock`) on it for as long as it has that name, and the kernel
//! ends the lock with the process. So a file that can be locked belongs to nobody, whatever
//! machine, container or process number made it, and is removed. The tag says through which file
//! system it was made: locks taken through FUSE are not seen beneath it, so a file is judged only
//! through the file system that it was made through.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::folder::Folder;

/// Names of outputs that are not complete start with this.
pub(super) const OUTPUT: &str = ".dpipe-output-";
/// Names of scratch files start with this.
pub(super) const SCRATCH: &str = ".dpipe-spill-";

/// Nobody but the owner may read what is not complete.
pub(super) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// So many random names are taken before something else must be wrong.
const MAX_TRIES: usize = 100;
/// So many names of a folder are looked at for what the dead left: in a huge folder this must not
/// take seconds.
const MAX_LOOKED_AT: usize = 4096;

/// How a file without a name is given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// By its descriptor (`AT_EMPTY_PATH`): for root, and since kernel 6.10 for whoever opened it.
    ByDescriptor,
    /// By its link in `/proc/self/fd`.
    ByProc,
}

impl Naming {
    /// Whichever works for this file, asked without giving it a name: `.` exists in every folder.
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

/// A file in a folder without a name; `None` where the file system, or the kernel, has no such
/// files.
pub(super) fn nameless(folder: &Folder, flags: OFlags, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
    match folder.open_in(OsStr::new("."), OFlags::RDWR | OFlags::TMPFILE | flags, mode) {
        Ok(fd) => Ok(Some(fd)),
        // EISDIR: kernels before 3.11, which open the folder. A folder that was removed answers
        // ENOENT in any case.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A new file with a hidden name, locked.
pub(super) fn hidden(folder: &Folder, prefix: &str, mode: Mode) -> Result<(OwnedFd, OsString), Errno> {
    for _ in 0..MAX_TRIES {
        let name = hidden_name(folder, prefix)?;
        match folder.open_in(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
            // Where it cannot be locked, nobody else can lock it either, and so nobody removes it.
            Ok(fd) => match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                // Somebody who looks for leftovers was quicker than we, and removes it.
                Err(Errno::WOULDBLOCK) => {}
                _ => return Ok((fd, name)),
            },
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}

/// Gives a file without a name a hidden one. It is locked before it has a name.
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
    // Where it cannot be locked, nobody else can lock it either, and so nobody removes it.
    let _ = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
}

/// Ends the lock of a file that has its final name: who uses it then may lock it.
pub(super) fn unlock(file: BorrowedFd<'_>) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

fn hidden_name(folder: &Folder, prefix: &str) -> Result<OsString, Errno> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{prefix}{}-{:016x}", tag(folder)?, u64::from_le_bytes(random)).into())
}

/// The file system that a folder is reached through, as a word.
fn tag(folder: &Folder) -> Result<String, Errno> {
    let (kind, id) = (rustix::fs::fstatfs(folder.fd())?.f_type, rustix::fs::fstatvfs(folder.fd())?.f_fsid);
    // A file system without an id has a device number, which is new with every mount.
    let id = if id == 0 { folder.stat()?.st_dev } else { id };
    let bytes = [(kind as u64).to_le_bytes(), id.to_le_bytes()].concat();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    Ok(format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff)))
}

/// Whether a name is one of those that [`hidden_name`] makes.
fn is_hidden(name: &[u8], prefix: &str, tag: &str) -> bool {
    let rest = name.strip_prefix(prefix.as_bytes()).and_then(|n| n.strip_prefix(tag.as_bytes()));
    let random = rest.and_then(|n| n.strip_prefix(b"-"));
    random.is_some_and(|r| r.len() == 16 && r.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// Removes what those left who are gone. What cannot be looked at or removed stays.
pub(super) fn remove_leftovers(folder: &Folder, prefix: &str) {
    let Ok(tag) = tag(folder) else { return };
    let Ok(list) = folder.open_in(OsStr::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) else { return };
    let Ok(entries) = Dir::new(list) else { return };
    for entry in entries.take(MAX_LOOKED_AT).map_while(Result::ok) {
        let name = entry.file_name().to_bytes();
        if is_hidden(name, prefix, &tag) {
            // The next one who comes may have more luck.
            let _ = remove_if_left(folder, OsStr::from_bytes(name));
        }
    }
}

fn remove_if_left(folder: &Folder, name: &OsStr) -> Result<(), Errno> {
    // For writing: NFS locks no file that is open for reading only.
    let file = folder.open_in(name, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (open, named) = (rustix::fs::fstat(&file)?, folder.stat_of(name)?);
    let is_file = FileType::from_raw_mode(open.st_mode) == FileType::RegularFile;
    // It may have got its final name between our open and our lock; then its hidden name is gone,
    // or another file's.
    if is_file && (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino) {
        folder.remove(name)?;
    }
    Ok(())
}

/// A file of a folder that nobody else sees, for scratch.
pub(super) fn scratch(folder: &Folder) -> Result<OwnedFd, Errno> {
    if let Some(fd) = nameless(folder, OFlags::EXCL, PRIVATE)? {
        return Ok(fd);
    }
    remove_leftovers(folder, SCRATCH);
    let (fd, name) = hidden(folder, SCRATCH, PRIVATE)?;
    // From here on it has no name. Only a death between these two calls leaves something.
    match folder.remove(&name) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    // Some file systems lose a file with its name, though it is open.
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
