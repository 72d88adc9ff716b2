//! Files that are not there yet, or never will be: outputs under way to their names, and scratch files.
//!
//! Both are nameless (`O_TMPFILE`) where the file system can, so that the kernel frees them with the process, whatever
//! happens to it. Where it cannot, they have a name that says whose they are, and the next user of the directory removes
//! those of processes that are gone.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Ssd;
use crate::error::{Error, ErrorKind, Result};

/// Names of outputs that are not complete start with this.
const OUTPUT: &str = ".dpipe-output-";
/// Names of scratch files start with this.
const SCRATCH: &str = ".dpipe-spill-";

/// Whose mode and owner a published file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Those of any new file of this process.
    New,
    /// Those of the file that it replaces, as far as the process may give files away.
    OfReplaced,
}

/// A file under way to its name. Dropped before [`publish`](Self::publish), it leaves nothing.
///
/// ```
/// use datapipes_core::{Draft, Identity};
/// let path = std::env::temp_dir().join(format!("draft-{}", std::process::id()));
/// drop(Draft::beside(&path)?); // changed its mind: nothing is there
/// assert!(!path.exists());
/// Draft::beside(&path)?.publish(5, Identity::New)?;
/// assert_eq!(std::fs::read(&path).unwrap(), [0; 5]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Draft {
    ssd: Ssd,
    target: PathBuf,
    dir: PathBuf,
    /// Its name meanwhile, where it has one.
    hidden: Option<PathBuf>,
}

impl Draft {
    /// A file beside `path`; whatever is at `path` stays until it is published. The file behind a link is replaced, not
    /// the link.
    ///
    /// # Errors
    /// `InvalidInput` where `path` is there and is no regular file; what creating a file in its directory meets.
    pub fn beside(path: &Path) -> Result<Draft> {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if std::fs::metadata(&target).is_ok_and(|meta| !meta.is_file()) {
            // A rename would put a file in the place of a device or a pipe.
            let why = format!("{} is there, and is no regular file", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, "write", why).advice("name a file, new or to be replaced"));
        }
        let dir = folder_of(&target);
        remove_leftovers(&dir, OUTPUT);
        let (ssd, hidden) = match Ssd::unlinked_in(&dir) {
            Ok(ssd) => (ssd, None),
            Err(e) if knows_no_nameless(&e) => {
                let hidden = hidden_name(&dir, OUTPUT);
                (Ssd::create_new(&hidden)?, Some(hidden))
            }
            Err(e) => return Err(e),
        };
        Ok(Draft { ssd, target, dir, hidden })
    }

    /// The file, to be written to.
    pub fn ssd(&self) -> &Ssd {
        &self.ssd
    }

    /// Cuts the file to its length, makes it durable and gives it its name.
    ///
    /// # Errors
    /// `NoSpace`, `Device` from making it durable; what naming it meets. Nothing of it is left then.
    pub fn publish(mut self, len: u64, identity: Identity) -> Result<()> {
        if self.ssd.len()? != len {
            self.ssd.set_len(len)?;
        }
        if identity == Identity::OfReplaced {
            self.take_over_identity()?;
        }
        self.ssd.sync()?;
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => {
                let hidden = hidden_name(&self.dir, OUTPUT);
                self.ssd.link_as(&hidden)?;
                hidden
            }
        };
        // From here on the hidden name must go, one way or the other.
        self.hidden = Some(hidden.clone());
        let shown = || format!("{} as {}", hidden.display(), self.target.display());
        std::fs::rename(&hidden, &self.target).map_err(|e| Error::io("rename", &e, shown()))?;
        self.hidden = None;
        let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
        synced.map_err(|e| Error::io("sync", &e, self.dir.display().to_string()))
    }

    fn take_over_identity(&self) -> Result<()> {
        let Ok(old) = std::fs::metadata(&self.target) else { return Ok(()) };
        let fd = self.ssd.file().cached_fd();
        let mode = rustix::fs::Mode::from_raw_mode(old.permissions().mode() & 0o7777);
        let (user, group) = (rustix::fs::Uid::from_raw(old.uid()), rustix::fs::Gid::from_raw(old.gid()));
        // Only a privileged process may give files away: to fail here is no reason to lose the result.
        let _ = rustix::fs::fchown(fd, Some(user), Some(group));
        let named = || self.target.display().to_string();
        rustix::fs::fchmod(fd, mode).map_err(|e| Error::os("set mode of", e.raw_os_error(), named()))
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

impl Ssd {
    /// A file in `dir` that nobody else sees and that is gone with its last user, also after `kill -9`.
    ///
    /// # Errors
    /// `NotFound` where there is no such directory; `PermissionDenied`; what the kernel says.
    pub fn scratch_in(dir: &Path) -> Result<Ssd> {
        match Ssd::unlinked_in(dir) {
            Ok(ssd) => Ok(ssd),
            Err(e) if dir.is_dir() && knows_no_nameless(&e) => {
                remove_leftovers(dir, SCRATCH);
                let path = hidden_name(dir, SCRATCH);
                let ssd = Ssd::create_new(&path)?;
                // From here on it has no name: something can be left only by a death between these two calls.
                std::fs::remove_file(&path).map_err(|e| Error::io("remove", &e, path.display().to_string()))?;
                Ok(ssd)
            }
            Err(e) => Err(e),
        }
    }
}

/// The directory that a path lies in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Whether the file system, or the kernel, refuses `O_TMPFILE` as such (kernels before 3.11 open the directory).
fn knows_no_nameless(e: &Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOENT))
}

fn hidden_name(dir: &Path, prefix: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    dir.join(format!("{prefix}{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)))
}

/// Removes files of processes that are gone.
fn remove_leftovers(dir: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(prefix)?.split('-').next()?.parse::<u32>().ok());
        if let Some(pid) = owner
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            // Somebody else may have removed it: all the same.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
