//! The kernel's word that somebody else modified the file (fanotify).
//!
//! An event names the process that caused it, so our own writes are told apart; it comes right after the change, so who reads
//! between the two may still get old bytes. Needs no privilege from kernel 5.13 on.
//!
//! Unsafe code: two system calls that rustix does not have, and the reading of what they deliver. Promises: every pointer is of
//! a live value of the type that the call wants; events are read from bytes that the kernel filled, by their stated lengths.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use datapipes_core::{Error, Result, Ssd};

/// Modifications of one file by other processes.
pub(crate) struct Events {
    queue: OwnedFd,
    own: i32,
}

fn failed(what: &'static str, ssd: &Ssd) -> Error {
    Error::io(what, &std::io::Error::last_os_error(), ssd.path().display().to_string())
        .advice("look at the file's times instead, as by default")
}

impl Events {
    /// Begins to listen.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, or what the kernel says, where it does not let this process listen.
    pub(crate) fn of(ssd: &Ssd) -> Result<Events> {
        let flags = libc::FAN_CLOEXEC | libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: no pointers; the result is checked.
        let queue = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_LARGEFILE) as u32) };
        if queue < 0 {
            return Err(failed("listen for changes of", ssd));
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let queue = unsafe { OwnedFd::from_raw_fd(queue) };
        let file = ssd.file().cached_fd().as_raw_fd();
        // SAFETY: both descriptors are open; without a path, the second one names the file.
        let marked = unsafe {
            libc::fanotify_mark(queue.as_raw_fd(), libc::FAN_MARK_ADD, libc::FAN_MODIFY, file, std::ptr::null())
        };
        if marked < 0 {
            return Err(failed("listen for changes of", ssd));
        }
        Ok(Events { queue, own: std::process::id() as i32 })
    }

    /// Readable while there is something to [`take`](Self::take).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Takes all events; whether one was caused by another process, or some were lost.
    pub(crate) fn take(&self) -> bool {
        let mut foreign = false;
        let mut bytes = [0u8; 4096];
        while let Ok(n) = rustix::io::read(&self.queue, &mut bytes) {
            let mut rest = &bytes[..n];
            if rest.is_empty() {
                break;
            }
            while rest.len() >= size_of::<libc::fanotify_event_metadata>() {
                // SAFETY: there are enough bytes, which the kernel filled with such a value; it needs no alignment to be read so.
                let event = unsafe { rest.as_ptr().cast::<libc::fanotify_event_metadata>().read_unaligned() };
                foreign |= event.pid != self.own || event.mask & libc::FAN_Q_OVERFLOW != 0;
                let len = (event.event_len as usize).max(size_of::<libc::fanotify_event_metadata>());
                rest = rest.get(len..).unwrap_or_default();
            }
        }
        foreign
    }
}
