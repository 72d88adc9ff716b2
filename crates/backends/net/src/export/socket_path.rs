//! The path of an exporter's Unix socket. A socket that a killed process left behind is replaced;
//! one that a process serves is not.

use std::fs::{OpenOptions, TryLockError};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

use datapipes_core::file_lock::FileLock;
use datapipes_core::{Error, ErrorKind, Result};

use crate::control::local::connect_by;

/// What the kernel's structure of an address has room for, without the zero at the end.
const MAX_PATH_BYTES: usize = 107;

/// A path that this process serves.
pub(super) struct SocketPath {
    path: PathBuf,
    /// Device and number of the socket, so that no other one is removed.
    socket: (u64, u64),
    /// Held while it does.
    _lock: FileLock,
}

impl SocketPath {
    /// Takes the right to serve a path, and listens there. The path is the whole one, which is the
    /// same in every folder.
    ///
    /// # Errors
    /// `Busy` where another process serves it; `InvalidInput` where something other than a socket
    /// is there, or for a path that no ticket can name; errors of listening.
    pub(super) fn bind(path: &Path) -> Result<(UnixListener, SocketPath)> {
        let path = &whole(path)?;
        let shown = path.display().to_string();
        let failed = |e| Error::io("listen", e, &shown);
        let is_there = is_socket(path)?;
        let lock = lock(path)?;
        // No exporter serves it, since we have the lock; another program may.
        if is_there {
            // A listener whose queue is full is one, too.
            match connect_by(path, Instant::now()) {
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                _ => return Err(served(path)),
            }
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let about = std::fs::symlink_metadata(path).map_err(failed)?;
        Ok((listener, SocketPath { path: path.clone(), socket: (about.dev(), about.ino()), _lock: lock }))
    }

    /// The whole path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, and the file of the lock while the lock is held.
    pub(super) fn remove(self) {
        // If another process removed them before, nothing is left to do; one that has another
        // socket there keeps it.
        let own = |about: std::fs::Metadata| (about.dev(), about.ino()) == self.socket;
        if std::fs::symlink_metadata(&self.path).is_ok_and(own) {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = std::fs::remove_file(lock_path(&self.path));
    }
}

/// The whole path, if the kernel can have a socket there and a ticket can name it.
fn whole(path: &Path) -> Result<PathBuf> {
    let wrong = |why: &str| Error::new(ErrorKind::InvalidInput, "listen", format!("unix:{}: {why}", path.display()));
    if path.as_os_str().is_empty() {
        return Err(wrong("there is no path"));
    }
    let whole = std::path::absolute(path).map_err(|e| Error::io("listen", e, path.display().to_string()))?;
    match whole.to_str() {
        None => Err(wrong("a path that is not UTF-8 has no place in a ticket")),
        Some(text) if text.len() > MAX_PATH_BYTES || text.contains('\n') => {
            Err(wrong("a path of more than 107 bytes, or with a line break, cannot be used")
                .with_advice("use a shorter one"))
        }
        Some(_) => Ok(whole),
    }
}

/// Whether there is a socket. What is not a socket is an error.
fn is_socket(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => Ok(true),
        Ok(_) => {
            let context = format!("{}: there is a file that is not a socket", path.display());
            Err(Error::new(ErrorKind::InvalidInput, "listen", context).with_advice("remove it, or choose another path"))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("listen", e, path.display().to_string())),
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn lock(path: &Path) -> Result<FileLock> {
    let name = lock_path(path);
    let failed = |e| Error::io("listen", e, name.display().to_string());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    loop {
        let lock = FileLock::take(options.open(&name).map_err(failed)?).map_err(|e| match e {
            TryLockError::WouldBlock => served(path),
            TryLockError::Error(e) => failed(e),
        })?;
        // Whoever had it may have removed the file in between: then others lock another one.
        let own = lock.file().metadata().map_err(failed)?;
        if std::fs::symlink_metadata(&name).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            return Ok(lock);
        }
    }
}

fn served(path: &Path) -> Error {
    Error::new(ErrorKind::Busy, "listen", format!("{}: another exporter is there", path.display()))
        .with_advice("choose another path, or stop it first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_serves_is_replaced_and_no_other() {
        let path = std::env::temp_dir().join(format!("datapipes-socket-path-{}", std::process::id()));
        let (listener, own) = SocketPath::bind(&path).unwrap();
        assert_eq!(SocketPath::bind(&path).err().map(|e| e.kind()), Some(ErrorKind::Busy));
        // As after a kill: the socket stays, and nothing listens.
        drop((listener, own));
        assert!(is_socket(&path).unwrap());
        let (listener, own) = SocketPath::bind(&path).unwrap();
        own.remove();
        drop(listener);
        assert!(!path.exists() && !lock_path(&path).exists());
        // A socket that another program put there in between stays.
        let (listener, own) = SocketPath::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        own.remove();
        assert!(path.exists());
        drop((listener, other));
        std::fs::remove_file(&path).unwrap();
        use std::os::unix::ffi::OsStrExt;
        let not_text = std::ffi::OsStr::from_bytes(b"/tmp/\xff");
        for wrong in [Path::new(""), Path::new(&"x".repeat(200)), Path::new(not_text), Path::new("/tmp/a\nb")] {
            assert_eq!(SocketPath::bind(wrong).err().map(|e| e.kind()), Some(ErrorKind::InvalidInput), "{wrong:?}");
        }
        // A program that knows nothing of the lock.
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(SocketPath::bind(&path).err().map(|e| e.kind()), Some(ErrorKind::Busy));
        drop(other);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "no socket").unwrap();
        assert_eq!(SocketPath::bind(&path).err().map(|e| e.kind()), Some(ErrorKind::InvalidInput));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(lock_path(&path)).unwrap();
    }
}
