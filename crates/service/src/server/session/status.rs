//! The status of the service, as reported to a client.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, packet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{Session, SessionEnd, cut, timespec};
use crate::protocol::{STATUS_PIECE, ServiceAnswer};
use crate::server::status::{Viewer, service_status};

impl Session {
    /// Sends a status, piece by piece as the client reads.
    pub(super) fn tell(&self, text: &[u8]) -> Result<(), SessionEnd> {
        self.answer(&ServiceAnswer::Status { len: text.len() as u64 }, None)?;
        let until = Instant::now() + Duration::from_millis(self.shared.config.limits.hello_ms);
        for piece in text.chunks(STATUS_PIECE) {
            loop {
                match packet::send(self.socket.as_fd(), piece, &[], SendFlags::DONTWAIT) {
                    Ok(()) => break,
                    Err(Errno::AGAIN | Errno::NOBUFS) => self.await_room(until)?,
                    Err(Errno::PIPE | Errno::CONNRESET) => return Err(SessionEnd::Quiet),
                    Err(e) => return Err(SessionEnd::Cut(Error::os("serve", e.raw_os_error(), "sending a status"))),
                }
            }
        }
        Ok(())
    }

    fn await_room(&self, until: Instant) -> Result<(), SessionEnd> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(cut(ErrorKind::InvalidInput, "it does not read its answers"));
        }
        let timeout = timespec(left);
        let mut fds = [
            PollFd::new(&self.shared.ending, PollFlags::IN),
            PollFd::new(&*self.wake_event, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::OUT),
        ];
        // An interrupted wait is just a short one.
        let _ = poll(&mut fds, Some(&timeout));
        match [0, 1].map(|at: usize| !fds[at].revents().is_empty()) {
            [true, _] => Err(SessionEnd::Stops),
            [_, true] => self.handle_wake_event(),
            _ => Ok(()),
        }
    }

    /// The status of the service, as this client may see it.
    pub(super) fn status(&self) -> Result<Vec<u8>> {
        let status = service_status(&self.shared, Viewer::User(self.facts.peer.uid))?;
        serde_json::to_vec(&status).map_err(|e| Error::new(ErrorKind::System, "report", e.to_string()).with_source(e))
    }
}
