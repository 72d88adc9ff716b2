//! What two names of one file have in common.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

use datapipes::locator::{PathEnd, path_end};
use rustix::fs::{FileType, Stat, stat};

/// What is known of a place by whatever name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlaceIdentity {
    /// A file, a folder, a named pipe or a socket that is there.
    There { device: u64, inode: u64 },
    /// A block device, which may have several nodes.
    BlockDevice { number: u64 },
    /// A file that is to be made: its folder, and its name in there.
    Absent { device: u64, inode: u64, name: OsString },
}

impl PlaceIdentity {
    /// `None` for terminals and the like, which may be shared, and for what cannot be looked at:
    /// opening it says why.
    pub(super) fn of_path(path: &Path) -> Option<PlaceIdentity> {
        if let Ok(stat) = stat(path) {
            return PlaceIdentity::of(&stat);
        }
        let Ok(PathEnd::Name { folder, name }) = path_end(path) else { return None };
        let stat = stat(&folder).ok()?;
        Some(PlaceIdentity::Absent { device: stat.st_dev, inode: stat.st_ino, name })
    }

    pub(super) fn of(stat: &Stat) -> Option<PlaceIdentity> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice | FileType::Symlink | FileType::Unknown => None,
            FileType::BlockDevice => Some(PlaceIdentity::BlockDevice { number: stat.st_rdev }),
            _ => Some(PlaceIdentity::There { device: stat.st_dev, inode: stat.st_ino }),
        }
    }

    /// Whether bytes are stored there, so that a second writer destroys them.
    pub(super) fn of_stored(stat: &Stat) -> Option<PlaceIdentity> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        matches!(kind, FileType::RegularFile | FileType::BlockDevice).then(|| PlaceIdentity::of(stat))?
    }

    fn is(&self, found: &Metadata) -> bool {
        *self == PlaceIdentity::There { device: found.dev(), inode: found.ino() }
    }
}

/// Whether the end of a path is, or would be, directly in a folder, or is another name of a file in
/// it.
pub(super) fn is_in(folder: &Path, path: &Path) -> bool {
    let identity = PlaceIdentity::of_path(path);
    let Ok(of_folder) = stat(folder) else {
        // Both are to be made.
        return identity.is_some() && identity == PlaceIdentity::of_path(folder);
    };
    if let Ok(PathEnd::Name { folder: parent, .. }) = path_end(path)
        && stat(&parent).is_ok_and(|of| (of.st_dev, of.st_ino) == (of_folder.st_dev, of_folder.st_ino))
    {
        return true;
    }
    let Some(identity @ PlaceIdentity::There { inode, .. }) = identity else { return false };
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let may_be = entry.ino() == inode || entry.file_type().is_ok_and(|kind| kind.is_symlink());
        may_be && std::fs::metadata(entry.path()).is_ok_and(|found| identity.is(&found))
    })
}
