//! A folder that a test works in.

use std::fs::Permissions;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A folder of a test's own, which vanishes with this value and everything in it.
#[derive(Debug)]
pub struct TempFolder(tempfile::TempDir);

impl TempFolder {
    /// A new one under another: for tests their target folder (`CARGO_TARGET_TMPDIR`), for /tmp may
    /// be memory.
    ///
    /// # Errors
    /// Those of making a folder.
    pub fn under(parent: impl AsRef<Path>) -> io::Result<TempFolder> {
        std::fs::create_dir_all(&parent)?;
        // As of any folder: tests start programs as other users.
        let usual = Permissions::from_mode(0o777);
        tempfile::Builder::new().prefix("test-").permissions(usual).tempdir_in(parent).map(TempFolder)
    }

    /// A new one on the disk of the test's own program, for tests inside a crate.
    ///
    /// # Errors
    /// Those of finding the program and of making a folder.
    pub fn beside_the_program() -> io::Result<TempFolder> {
        TempFolder::under(std::env::current_exe()?.parent().unwrap_or(Path::new(".")))
    }

    /// A new one under the folder for temporary files, whose path is short enough for a socket.
    ///
    /// # Errors
    /// Those of making a folder.
    pub fn new() -> io::Result<TempFolder> {
        TempFolder::under(std::env::temp_dir())
    }

    /// It stays when this value is dropped.
    pub fn keep(&mut self) {
        self.0.disable_cleanup(true);
    }

    /// Returns its path.
    pub fn at(&self) -> &Path {
        self.0.path()
    }

    /// Where something of this name is in it, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at().join(name)
    }

    /// What is in it: every file and folder, hidden ones and those further down too, by its path
    /// from here, in order.
    ///
    /// # Errors
    /// Those of reading a folder.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut folders = vec![self.at().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                names.extend(path.strip_prefix(self.at()).map(|name| name.display().to_string()));
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

impl Deref for TempFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.at()
    }
}

impl AsRef<Path> for TempFolder {
    fn as_ref(&self) -> &Path {
        self.at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_are_apart_and_vanish_with_what_is_in_them() {
        let (one, other) = (TempFolder::new().unwrap(), TempFolder::beside_the_program().unwrap());
        assert_ne!(one.at(), other.at());
        std::fs::create_dir(one.path("b")).unwrap();
        for name in ["b/c", ".a"] {
            std::fs::write(one.path(name), name).unwrap();
        }
        assert_eq!(one.names().unwrap(), [".a", "b", "b/c"]);
        assert!(other.names().unwrap().is_empty());
        let path = one.at().to_path_buf();
        drop(one);
        assert!(!path.exists() && other.at().exists());
    }
}
