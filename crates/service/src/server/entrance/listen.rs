//! The socket that clients connect to.

use std::fs::TryLockError;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use datapipes_core::descriptor::passing;
use datapipes_core::file_lock::FileLock;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket. If it was bound here, its path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    pub(in crate::server) socket: OwnedFd,
    /// Whether descriptors may come with what clients send before they have said hello.
    pub(in crate::server) may_carry: bool,
    path: Option<PathBuf>,
    /// Held while we serve the path.
    _lock: Option<FileLock>,
}

impl Listener {
    /// Listens at a path, with these permissions. A socket file that no process serves any more is
    /// replaced. Beside it a file with the suffix `.lock` stays, which keeps other services away.
    ///
    /// # Errors
    /// `Busy` if another service has the path; `InvalidInput` if something other than a socket is
    /// there; errors of the kernel.
    pub fn bind(path: impl AsRef<Path>, mode: u32) -> Result<Listener> {
        let path = path.as_ref();
        let (socket, lock) = bind_path(path, mode, SocketType::SEQPACKET)?;
        let may_carry = may_carry(&socket);
        Ok(Listener { socket, may_carry, path: Some(path.to_path_buf()), _lock: Some(lock) })
    }

    /// Takes a socket that was passed to this process.
    ///
    /// # Errors
    /// `InvalidInput` unless it is a listening Unix socket of the type `SOCK_SEQPACKET`.
    pub(in crate::server) fn passed(socket: OwnedFd) -> Result<Listener> {
        let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "listen", format!("LISTEN_FDS: {why}"));
        let checks = || -> rustix::io::Result<bool> {
            Ok(sockopt::socket_domain(&socket)? == AddressFamily::UNIX
                && sockopt::socket_type(&socket)? == SocketType::SEQPACKET
                && sockopt::socket_acceptconn(&socket)?)
        };
        match checks() {
            Ok(true) => {
                let may_carry = may_carry(&socket);
                Ok(Listener { socket, may_carry, path: None, _lock: None })
            }
            Ok(false) => Err(bad("the descriptor is not a listening Unix socket of the type SEQPACKET")),
            Err(e) => Err(bad("the descriptor is not a socket").with_errno(e.raw_os_error())),
        }
    }

    /// Removes its path, so that no more clients come. Returns false if the socket was passed to
    /// us.
    pub(in crate::server) fn take_down(&mut self) -> bool {
        let Some(path) = self.path.take() else { return false };
        // If another process removed it before, nothing is left to do.
        let _ = rustix::fs::unlink(path);
        true
    }

    /// Returns the path, if the socket was bound here.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.take_down();
    }
}

/// Binds a socket of a kind to a path, and takes the right to serve it.
///
/// # Errors
/// As [`Listener::bind`].
pub(in crate::server) fn bind_path(path: &Path, mode: u32, kind: SocketType) -> Result<(OwnedFd, FileLock)> {
    let fail = |e: Errno| Error::os("listen", e.raw_os_error(), path.display().to_string());
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    let lock = lock(path)?;
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => {}
        Err(e) => return Err(fail(e)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            let context = format!("{}: there is a file that is not a socket", path.display());
            return Err(
                Error::new(ErrorKind::InvalidInput, "listen", context).with_advice("remove it, or choose another path")
            );
        }
        Ok(_) => {
            // We have the lock, so no other dpiped serves it; another program may.
            let probe = socket(kind)?;
            match connect(&probe, &address) {
                Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(fail)?,
                _ => return Err(served(path)),
            }
        }
    }
    let socket = socket(kind)?;
    // The umask keeps clients away until the permissions are set.
    let before = rustix::process::umask(Mode::from_raw_mode(0o777 & !mode));
    let bound = bind(&socket, &address);
    rustix::process::umask(before);
    bound.map_err(fail)?;
    listen(&socket, BACKLOG).map_err(fail)?;
    Ok((socket, lock))
}

fn socket(kind: SocketType) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(|e| Error::os("listen", e.raw_os_error(), "a socket"))
}

/// Forbids clients to pass descriptors before they have said hello. Returns whether they can
/// nevertheless, because an older kernel does not know how to forbid it.
pub(in crate::server) fn may_carry(socket: &OwnedFd) -> bool {
    !passing::let_pass(socket, false)
}

fn served(path: &Path) -> Error {
    Error::new(ErrorKind::Busy, "listen", format!("{}: another service is there", path.display()))
        .with_advice("one coordinator serves a machine: use it, or stop it first")
}

/// Takes the right to serve a path.
fn lock(path: &Path) -> Result<FileLock> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let fail = |e: Errno| Error::os("listen", e.raw_os_error(), Path::new(&name).display().to_string());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
    FileLock::take(file.into()).map_err(|e| match e {
        TryLockError::WouldBlock => served(path),
        TryLockError::Error(e) => Error::io("listen", e, Path::new(&name).display().to_string()),
    })
}
