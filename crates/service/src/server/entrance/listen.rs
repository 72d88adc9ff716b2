//! The socket that clients connect to.
//!
//! Unsafe code: taking over descriptor 3, which systemd passes when it starts the service for the
//! first client.
#![allow(unsafe_code)]

use std::fs::TryLockError;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use datapipes_core::descriptor::passing;
use datapipes_core::file_lock::FileLock;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The first descriptor that systemd passes.
const FIRST_PASSED: i32 = 3;

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
        let fail = |e: Errno| Error::os("listen", e.raw_os_error(), path.display().to_string());
        let address = SocketAddrUnix::new(path).map_err(fail)?;
        let lock = lock(path)?;
        match rustix::fs::lstat(path) {
            Err(Errno::NOENT) => {}
            Err(e) => return Err(fail(e)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
                let context = format!("{}: there is a file that is not a socket", path.display());
                return Err(Error::new(ErrorKind::InvalidInput, "listen", context)
                    .with_advice("remove it, or choose another path"));
            }
            Ok(_) => {
                // We have the lock, so no other dpiped serves it; another program may.
                let probe = socket()?;
                match connect(&probe, &address) {
                    Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(fail)?,
                    _ => return Err(served(path)),
                }
            }
        }
        let socket = socket()?;
        // The umask keeps clients away until the permissions are set.
        let before = rustix::process::umask(Mode::from_raw_mode(0o777 & !mode));
        let bound = bind(&socket, &address);
        rustix::process::umask(before);
        bound.map_err(fail)?;
        listen(&socket, BACKLOG).map_err(fail)?;
        let may_carry = may_carry(&socket);
        Ok(Listener { socket, may_carry, path: Some(path.to_path_buf()), _lock: Some(lock) })
    }

    /// Returns the socket that systemd (or a program that acts like it) passed to this process by
    /// `LISTEN_PID` and `LISTEN_FDS`; `None` if none was passed. It must be called once, before
    /// threads are started and descriptors opened.
    ///
    /// # Errors
    /// `InvalidInput` unless exactly one listening Unix socket of the type `SOCK_SEQPACKET` was
    /// passed.
    pub fn inherited() -> Result<Option<Listener>> {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(None);
        }
        let count = number("LISTEN_FDS").unwrap_or(0);
        let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "listen", format!("LISTEN_FDS: {why}"));
        match count {
            0 => return Ok(None),
            1 => {}
            _ => return Err(bad("more than one socket was passed")),
        }
        // SAFETY: LISTEN_PID names this process, so the process that started it put a descriptor
        // there for it to own; nothing was opened before. If the descriptor is closed all the same,
        // the checks below fail and the drop closes nothing.
        let socket = unsafe { OwnedFd::from_raw_fd(FIRST_PASSED) };
        let checks = || -> rustix::io::Result<bool> {
            rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
            Ok(sockopt::socket_domain(&socket)? == AddressFamily::UNIX
                && sockopt::socket_type(&socket)? == SocketType::SEQPACKET
                && sockopt::socket_acceptconn(&socket)?)
        };
        match checks() {
            Ok(true) => {
                let may_carry = may_carry(&socket);
                Ok(Some(Listener { socket, may_carry, path: None, _lock: None }))
            }
            Ok(false) => Err(bad("the descriptor is not a listening Unix socket of the type SEQPACKET")),
            Err(e) => {
                std::mem::forget(socket);
                Err(bad("the descriptor is not a socket").with_errno(e.raw_os_error()))
            }
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

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(|e| Error::os("listen", e.raw_os_error(), "a socket"))
}

/// Forbids clients to pass descriptors before they have said hello. Returns whether they can
/// nevertheless, because an older kernel does not know how to forbid it.
fn may_carry(socket: &OwnedFd) -> bool {
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
