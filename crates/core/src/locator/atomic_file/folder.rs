//! A folder that is held open, so that it stays the same even if its path changes.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::error::Error;

/// The number of links that the kernel follows before it gives up (`ELOOP`).
const MAX_LINKS: usize = 40;

/// An open folder, and its path for messages.
#[derive(Debug)]
pub(super) struct Folder {
    /// Opened with `O_PATH`, which needs no right to list the folder.
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Folder, Errno> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Folder { fd, path: path.to_path_buf() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(&self.fd)
    }

    /// Looks at a name in it; links are not followed.
    pub(super) fn stat_of(&self, name: &OsStr) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether something is mounted on this name.
    pub(super) fn is_mounted(&self, name: &OsStr) -> bool {
        let asked = rustix::fs::statx(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
        asked.is_ok_and(|x| x.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// Whether names can only be added to it (`chattr +a`).
    pub(super) fn is_append_only(&self) -> bool {
        let asked = rustix::fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
        asked.is_ok_and(|x| x.stx_attributes.contains(StatxAttributes::APPEND))
    }

    pub(super) fn open_in(&self, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.fd, name, flags | OFlags::CLOEXEC | OFlags::NOCTTY, mode)
    }

    pub(super) fn remove(&self, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
    }

    /// Returns when the names in it would survive a power failure. A folder that may be written but
    /// not read, or for which there is no descriptor any more, cannot be synced itself. Then the
    /// whole file system is synced, through a file in the folder.
    pub(super) fn sync(&self, file_in_it: BorrowedFd<'_>) -> Result<(), Errno> {
        let opened = rustix::fs::openat(&self.fd, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        match opened.and_then(rustix::fs::fsync) {
            Err(
                Errno::ACCESS
                | Errno::PERM
                | Errno::INVAL
                | Errno::NOSYS
                | Errno::OPNOTSUPP
                | Errno::MFILE
                | Errno::NFILE,
            ) => rustix::fs::syncfs(file_in_it),
            other => other,
        }
    }
}

/// Returns the directory that contains a path.
pub fn parent_dir(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Where a path ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEnd {
    /// A file has this name in a folder, or would have it. All links were followed, even those that
    /// lead to nothing.
    Name {
        /// The folder.
        folder: PathBuf,
        /// The name in it.
        name: OsString,
    },
    /// The path leads to an open file through `/proc`, as `/dev/stdout` and `/dev/fd/3` do. The
    /// file may have no name.
    Descriptor {
        /// The last name: the number of the descriptor in its process, or `exe`, `cwd`, `root`.
        name: OsString,
    },
}

/// Follows a path to its end.
///
/// # Errors
/// As of `open(2)` with `O_CREAT`: `NotFound` for an empty path or a missing directory, `System`
/// with `EISDIR` for a path that ends in a slash and with `ELOOP` for links in a circle.
pub fn path_end(path: &Path) -> Result<PathEnd, Error> {
    end_of(path).map_err(|e| Error::os("open", e.raw_os_error(), path.display().to_string()))
}

/// Follows a path as `open(2)` with `O_CREAT` does.
pub(super) fn end_of(path: &Path) -> Result<PathEnd, Errno> {
    let mut path = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        let name = last_name(&path)?.to_os_string();
        let folder = parent_dir(&path);
        match rustix::fs::lstat(&path) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                if is_proc(&folder) {
                    return Ok(PathEnd::Descriptor { name });
                }
                let leads_to = std::fs::read_link(&path).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
                path = folder.join(leads_to);
            }
            Ok(_) | Err(Errno::NOENT) => return Ok(PathEnd::Name { folder, name }),
            Err(e) => return Err(e),
        }
    }
    Err(Errno::LOOP)
}

/// Returns the last name of a path, which must be possible for a file.
fn last_name(path: &Path) -> Result<&OsStr, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(Errno::NOENT);
    }
    // `Path` drops a slash or a dot at the end, which means a folder.
    let text = bytes.rsplit(|b| *b == b'/').next().unwrap_or_default();
    match path.components().next_back() {
        Some(Component::Normal(name)) if name.as_bytes() == text => Ok(name),
        _ => Err(Errno::ISDIR),
    }
}

/// Whether a folder is in `/proc`: links there lead to open files, whatever their text is.
fn is_proc(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|fs| fs.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_in_a_name_or_in_a_folder() {
        let end = |path: &str| last_name(Path::new(path)).map(|name| name.to_str().unwrap().to_owned());
        for (path, name) in [("a", "a"), ("a/b", "b"), ("/b", "b"), ("./b", "b"), ("a/../b", "b"), ("a//b", "b")] {
            assert_eq!(end(path), Ok(name.to_owned()), "{path}");
        }
        for folder in ["a/", "a/.", ".", "..", "/", "a/..", "./", "a/b//"] {
            assert_eq!(end(folder), Err(Errno::ISDIR), "{folder}");
        }
        assert_eq!(end(""), Err(Errno::NOENT));
    }

    #[test]
    fn links_are_followed_to_where_nothing_is() {
        let root = std::env::temp_dir().join(format!("draft-ends-{}", std::process::id()));
        std::fs::create_dir_all(root.join("d")).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link("d/new", "one");
        link("../one", "d/two");
        link("round", "round");
        link("/proc/self/fd/1", "out");
        let end = |name: &str| end_of(&root.join(name));
        let at = |folder: &str, name: &str| Ok(PathEnd::Name { folder: root.join(folder), name: name.into() });
        assert_eq!(end("one"), at("d", "new"));
        assert_eq!(end("d/two"), at("d/../d", "new"));
        assert_eq!(end("none"), at("", "none"));
        assert_eq!(end("round"), Err(Errno::LOOP));
        let descriptor = |name: &str| Ok(PathEnd::Descriptor { name: name.into() });
        assert_eq!(end("out"), descriptor("1"));
        assert_eq!(end_of(Path::new("/proc/self/fd/0")), descriptor("0"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
