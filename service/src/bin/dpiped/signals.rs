//! Signals that ask the service to stop, and one that a client could have sent to it.
//!
//! Unsafe code: the calls that block signals, ignore one and wait for one, on sets that live on the stack.
#![allow(unsafe_code)]

use datapipes::{Error, Result};

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

/// Keeps them for [`wait`]; to be called before there are other threads.
///
/// # Errors
/// What the kernel says.
pub(crate) fn block() -> Result<()> {
    let set = asked();
    // SAFETY: the set outlives the call; the old one is not asked for.
    let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if rc != 0 { Err(Error::os("start", rc, "blocking signals")) } else { Ok(()) }
}

/// A write beyond what files of this process may have (`RLIMIT_FSIZE`) is an error of the transfer (`EFBIG`), and not the end
/// of the service: clients say where is written.
///
/// # Errors
/// What the kernel says.
pub(crate) fn ignore_file_limit() -> Result<()> {
    // SAFETY: a valid signal, and an action without a handler.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(Error::io("start", &std::io::Error::last_os_error(), "ignoring SIGXFSZ"));
    }
    Ok(())
}

/// Sleeps until one of them comes; its name.
///
/// # Errors
/// What the kernel says.
pub(crate) fn wait() -> Result<&'static str> {
    let (set, mut signal) = (asked(), 0);
    loop {
        // SAFETY: the set and the number outlive the call.
        match unsafe { libc::sigwait(&raw const set, &raw mut signal) } {
            0 if signal == libc::SIGTERM => return Ok("SIGTERM"),
            0 => return Ok("SIGINT"),
            libc::EINTR => {}
            rc => return Err(Error::os("run", rc, "waiting for signals")),
        }
    }
}
