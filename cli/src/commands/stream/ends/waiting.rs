//! Waits of the command that a signal ends, and patience: for a connection, for the writer of a
//! named pipe, for blocks to move.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::time::Timespec;

use crate::system::signals;

/// How often a wait looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long nothing may happen; None for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commands::stream) struct WaitTimeout(pub(in crate::commands::stream) Option<Duration>);

impl WaitTimeout {
    /// An error where it is over.
    pub(in crate::commands::stream) fn check(self, since: Instant, what: impl FnOnce() -> String) -> Result<()> {
        match self.0 {
            Some(patience) if since.elapsed() >= patience => {
                let told = format!("{} s went by, waiting for {}", patience.as_secs_f64(), what());
                Err(Error::new(ErrorKind::Busy, "stream", told).with_advice("give a longer --timeout"))
            }
            _ => Ok(()),
        }
    }

    /// Waits until a descriptor is ready, or at its end.
    pub(in crate::commands::stream) fn for_ready(
        self,
        fd: &OwnedFd,
        flags: PollFlags,
        what: impl Fn() -> String,
    ) -> Result<()> {
        let since = Instant::now();
        let slice = self.0.map_or(LOOK_EVERY, |patience| patience.min(LOOK_EVERY));
        let limit = Timespec { tv_sec: 0, tv_nsec: slice.subsec_nanos().into() };
        loop {
            signals::check("stream")?;
            match poll(&mut [PollFd::new(&fd.as_fd(), flags)], Some(&limit)) {
                Ok(0) | Err(Errno::INTR) => self.check(since, &what)?,
                Ok(_) => return Ok(()),
                Err(e) => return Err(Error::os("wait", e.raw_os_error(), what())),
            }
        }
    }
}

/// Connects to the first of a host's addresses that answers.
pub(in crate::commands::stream) fn connect(address: &str, patience: WaitTimeout) -> Result<OwnedFd> {
    let addresses = address.to_socket_addrs().map_err(|e| Error::io("connect", e, address))?;
    let mut last = Error::new(ErrorKind::NotFound, "connect", format!("{address} has no address"));
    for one in addresses {
        match connect_to(one, address, patience) {
            Err(e) if !matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::Busy) => last = e,
            other => return other,
        }
    }
    Err(last)
}

fn connect_to(to: SocketAddr, name: &str, patience: WaitTimeout) -> Result<OwnedFd> {
    let fail = |e: Errno| Error::os("connect", e.raw_os_error(), name);
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(fail)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            patience.for_ready(&socket, PollFlags::OUT, || format!("{name} to answer"))?;
            rustix::net::sockopt::socket_error(&socket).map_err(fail)?.map_err(fail)?;
        }
        Err(e) => return Err(fail(e)),
    }
    rustix::io::ioctl_fionbio(&socket, false).map_err(fail)?;
    Ok(socket)
}
