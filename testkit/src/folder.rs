//! A folder that a test works in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A folder of a test's own, which vanishes with this value and everything in it.
#[derive(Debug)]
pub struct TempFolder(PathBuf);

static COUNT: AtomicU64 = AtomicU64::new(0);

impl TempFolder {
    /// A new one under another: for tests their target folder (`CARGO_TARGET_TMPDIR`), for /tmp may
    /// be memory.
    ///
    /// # Errors
    /// Those of making a folder.
    pub fn under(parent: impl AsRef<Path>) -> io::Result<TempFolder> {
        let name = format!("folder-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = parent.as_ref().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(TempFolder(path))
    }

    /// Where it is.
    pub fn at(&self) -> &Path {
        &self.0
    }

    /// Where something of this name is in it, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What is in it: every file and folder, hidden ones and those further down too, by its path
    /// from here, in order.
    ///
    /// # Errors
    /// Those of reading a folder.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                names.extend(path.strip_prefix(&self.0).map(|name| name.display().to_string()));
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path);
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // What cannot be removed fails no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_are_apart_and_vanish_with_what_is_in_them() {
        let (one, other) =
            (TempFolder::under(std::env::temp_dir()).unwrap(), TempFolder::under(std::env::temp_dir()).unwrap());
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
