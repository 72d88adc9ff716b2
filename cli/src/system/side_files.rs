//! Files that a command writes beside its work: a page, metrics, a picture. None of them may be
//! what the command reads or writes, or another of them, by whatever name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};

/// What two names of one file have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    /// A file, a folder or a block device that is there.
    Present { device: u64, inode: u64 },
    /// A file that is to be made: its folder, and its name in there.
    Absent { device: u64, inode: u64, name: OsString },
}

/// Refuses options (each with its file) that name one of `places`, or one file twice.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the option and both names.
pub(crate) fn keep_apart(options: &[(&str, Option<&Path>)], places: &[&Path]) -> Result<()> {
    let mut seen: Vec<(Identity, String)> = Vec::new();
    for (option, path) in options {
        let Some(path) = path else { continue };
        let Some(identity) = identity(path) else { continue };
        let place = places.iter().find(|place| self::identity(place).is_some_and(|other| other == identity));
        let other = match place {
            Some(place) => Some(place.display().to_string()),
            None => seen.iter().find(|(other, _)| *other == identity).map(|(_, option)| option.clone()),
        };
        if let Some(other) = other {
            let why = format!("{option} {}: this is the same file as {other}", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, "write", why).with_advice("name another file"));
        }
        seen.push((identity, (*option).to_owned()));
    }
    Ok(())
}

/// `None` for streams, which may be shared, and for what cannot be looked at: opening it says why.
fn identity(path: &Path) -> Option<Identity> {
    match rustix::fs::stat(path) {
        Ok(stat) => {
            let kind = stat.st_mode & libc::S_IFMT;
            let is_kept = matches!(kind, libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR);
            // A name of a descriptor means its place in the file, not the file (see `write_text`).
            (is_kept && super::files::own_descriptor(path).is_none())
                .then_some(Identity::Present { device: stat.st_dev, inode: stat.st_ino })
        }
        Err(_) => {
            let name = path.file_name()?.to_owned();
            let folder = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
                _ => PathBuf::from("."),
            };
            let stat = rustix::fs::stat(&folder).ok()?;
            Some(Identity::Absent { device: stat.st_dev, inode: stat.st_ino, name })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_by_any_name_is_refused() {
        let dir = datapipes_testkit::TempFolder::new().unwrap();
        let file = dir.path("in");
        std::fs::write(&file, "x").unwrap();
        std::fs::hard_link(&file, dir.path("hard")).unwrap();
        std::os::unix::fs::symlink("in", dir.path("soft")).unwrap();
        let refused = |path: &Path, places: &[&Path]| {
            keep_apart(&[("--metrics", Some(path))], places).is_err_and(|e| e.kind() == ErrorKind::InvalidInput)
        };
        for name in ["in", "./in", "hard", "soft"] {
            assert!(refused(&dir.at().join(name), &[&file]), "{name}");
        }
        assert!(refused(&dir.path("new"), &[&file, &dir.at().join("./new")]), "a file that is not there yet");
        assert!(!refused(&dir.path("other"), &[&file, &dir.path("new")]));
        assert!(!refused(Path::new("/dev/null"), &[Path::new("/dev/null")]), "streams may be shared");
        let new = dir.path("new");
        let twice = keep_apart(&[("--metrics", Some(&new)), ("--report-html", Some(&new)), ("--plot", None)], &[]);
        let text = twice.unwrap_err().to_string();
        assert!(text.contains("--report-html") && text.contains("--metrics"), "{text}");
    }
}
