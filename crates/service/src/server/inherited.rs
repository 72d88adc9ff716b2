//! Sockets that systemd opened and passes to the service that it starts.
//!
//! Unsafe code: taking over the passed descriptors, which are 3 and 4.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::FdFlags;

use super::entrance::listen::Listener;
use super::metrics::MetricsListener;

/// The first descriptor that systemd passes.
const FIRST_PASSED: i32 = 3;
/// The name (`FileDescriptorName=`) of the socket at which metrics can be fetched.
const METRICS: &str = "metrics";

/// The sockets that systemd (or a program that acts like it) passed to this process.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct InheritedSockets {
    /// The socket that clients connect to.
    pub service: Option<Listener>,
    /// The socket at which metrics can be fetched: the one that is called `metrics`.
    pub metrics: Option<MetricsListener>,
}

impl InheritedSockets {
    /// Takes what `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES` name. It must be called once,
    /// before threads are started and descriptors opened.
    ///
    /// # Errors
    /// `InvalidInput` for more than one socket of a kind, and for sockets of another type: that for
    /// clients is a listening Unix socket of the type `SOCK_SEQPACKET`, that for metrics a
    /// listening stream socket.
    pub fn take() -> Result<InheritedSockets> {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
        if number("LISTEN_PID") != Some(std::process::id()) {
            return Ok(InheritedSockets::default());
        }
        let count = number("LISTEN_FDS").unwrap_or(0);
        let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "listen", format!("LISTEN_FDS: {why}"));
        let many = "more than one socket for clients, or for metrics, was passed";
        if count > 2 {
            return Err(bad(many));
        }
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = InheritedSockets::default();
        for fd in (FIRST_PASSED..).take(count as usize) {
            let is_for_metrics = names.next() == Some(METRICS);
            // SAFETY: of the descriptor's number only its flags are asked for, which owns nothing.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            if flags < 0 {
                return Err(bad("the descriptor is not open"));
            }
            // SAFETY: LISTEN_PID names this process, so the process that started it put an open
            // descriptor there for it to own; nothing was opened before, and it is taken once.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)
                .map_err(|e| Error::os("listen", e.raw_os_error(), "LISTEN_FDS"))?;
            let is_second = if is_for_metrics { sockets.metrics.is_some() } else { sockets.service.is_some() };
            if is_second {
                return Err(bad(many));
            }
            if is_for_metrics {
                sockets.metrics = Some(MetricsListener::passed(socket)?);
            } else {
                sockets.service = Some(Listener::passed(socket)?);
            }
        }
        Ok(sockets)
    }
}
