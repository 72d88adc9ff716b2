//! A file that appears under its name when it is complete and synced. Dropped before that, it leaves nothing.
//!
//! `datapipes-sort` does the same for its outputs; it keeps the mode and owner of what it replaces, which a copy or a
//! generated file should not.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::{Error, ErrorKind, Result, Ssd};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A file under way to its name.
#[derive(Debug)]
pub(crate) struct Draft {
    ssd: Ssd,
    target: PathBuf,
    dir: PathBuf,
    /// Its name meanwhile, where it has one.
    hidden: Option<PathBuf>,
}

impl Draft {
    /// A file beside `path`; whatever is at `path` stays until [`publish`](Self::publish).
    pub(crate) fn beside(path: &Path) -> Result<Draft> {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if std::fs::metadata(&target).is_ok_and(|meta| !meta.is_file()) {
            // A rename would put a file in the place of a device or a pipe.
            let why = format!("{} is there, and is no regular file", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, "write", why).advice("name a file, new or to be replaced"));
        }
        let dir = folder_of(&target);
        let (ssd, hidden) = match Ssd::unlinked_in(&dir) {
            Ok(ssd) => (ssd, None),
            // No such files on this file system, or in this kernel.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let hidden = hidden_name(&dir);
                let created = Ssd::create_new(&hidden);
                let named = |e: Error| Error::os("create", e.raw_os_error().unwrap_or(0), path.display().to_string());
                (created.map_err(named)?, Some(hidden))
            }
            Err(e) => return Err(e),
        };
        Ok(Draft { ssd, target, dir, hidden })
    }

    /// The file.
    pub(crate) fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// Cuts it to its length, makes it durable and gives it its name.
    pub(crate) fn publish(mut self, len: u64) -> Result<()> {
        if self.ssd.len()? != len {
            self.ssd.set_len(len)?;
        }
        self.ssd.sync()?;
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => {
                let hidden = hidden_name(&self.dir);
                self.ssd.link_as(&hidden)?;
                hidden
            }
        };
        // From here on the hidden name must go, one way or the other.
        self.hidden = Some(hidden.clone());
        std::fs::rename(&hidden, &self.target)
            .map_err(|e| Error::io("rename", &e, format!("{} as {}", hidden.display(), self.target.display())))?;
        self.hidden = None;
        let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
        synced.map_err(|e| Error::io("sync", &e, self.dir.display().to_string()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // It may be gone already, which is what is wanted.
            let _ = std::fs::remove_file(hidden);
        }
    }
}

/// The directory that a path lies in.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn hidden_name(dir: &Path) -> PathBuf {
    dir.join(format!(".dpipe-output-{}-c{}", std::process::id(), COUNT.fetch_add(1, Relaxed)))
}
