//! Signals that ask the service to stop, and one that a client could cause.
//!
//! Unsafe code: the calls that block signals, ignore one, and open a descriptor for them, on signal
//! sets that live on the stack.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use datapipes_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

fn asked() -> libc::sigset_t {
    // SAFETY: a set of all zeros may be emptied, and signals with valid numbers added to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        set
    }
}

/// Signals that are blocked until they are waited for.
pub(crate) struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals from here on. It must be called before other threads are started.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn block() -> Result<Signals> {
        let set = asked();
        // SAFETY: the set outlives the call; the old one is not asked for.
        let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if rc != 0 {
            return Err(Error::os("start", rc, "blocking signals"));
        }
        // SAFETY: a new descriptor of a set that outlives the call.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::io("start", std::io::Error::last_os_error(), "a descriptor for signals"));
        }
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sleeps until a signal comes, or the other end of a socket is closed.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn wait(&self, failed: BorrowedFd<'_>) -> Result<Why> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(&failed, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => break,
                Ok(_) if !fds[1].revents().is_empty() => return Ok(Why::Failed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::os("run", e.raw_os_error(), "waiting for signals")),
            }
        }
        let got = rustix::io::read(&self.0, &mut info).map_err(|e| Error::os("run", e.raw_os_error(), "a signal"))?;
        // The structure begins with the number of the signal.
        let number = info.first_chunk().filter(|_| got >= 4).map_or(0, |number| u32::from_ne_bytes(*number));
        Ok(Why::Signal(if number == libc::SIGINT.cast_unsigned() { "SIGINT" } else { "SIGTERM" }))
    }
}

/// Ignores `SIGXFSZ`: a write beyond the file size limit of this process (`RLIMIT_FSIZE`) then
/// fails only the transfer (`EFBIG`). Clients choose where is written, so it must not end the
/// service.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn ignore_file_limit() -> Result<()> {
    // SAFETY: a valid signal, and an action without a handler.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(Error::io("start", std::io::Error::last_os_error(), "ignoring SIGXFSZ"));
    }
    Ok(())
}

/// The reason why a service stops.
pub(crate) enum Why {
    /// It received the signal of this name.
    Signal(&'static str),
    /// It cannot continue.
    Failed,
}
