//! Ending a connection so that the client can read why.
//!
//! The kernel resets a connection that is closed while it has unread data: the other end reads
//! ECONNRESET first, and what was sent before only after that, if it tries again. A client that is
//! refused before it spoke would get EPIPE, and perhaps SIGPIPE, for its hello. So nothing is left
//! unread here, and a refused client may say hello first.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{Shutdown, shutdown};

use super::hang_up::part;
use crate::server::descriptors::intake::Intake;

/// The most refused clients that may take their time. Beyond that the first of them are closed:
/// they can still read the reason, unless they try to say hello before.
const MAX_LINGERING: usize = 64;

/// Refused clients that were told the reason and have not said hello yet, with the time at which
/// they are closed.
pub(in crate::server) struct LingeringCloses<'a> {
    told: VecDeque<(OwnedFd, Instant)>,
    patience: Duration,
    /// If descriptors can come with unread data, the helper processes that close them.
    intake: Option<&'a Intake>,
}

impl<'a> LingeringCloses<'a> {
    pub(in crate::server) const fn new(patience: Duration, intake: Option<&'a Intake>) -> LingeringCloses<'a> {
        LingeringCloses { told: VecDeque::new(), patience, intake }
    }

    /// Ends a connection, and closes no descriptor that came with it.
    pub(in crate::server) fn part(&self, socket: OwnedFd) {
        let _ = shutdown(&socket, Shutdown::Both);
        match self.intake {
            Some(intake) => intake.leave(socket, None),
            None => part(&socket),
        }
    }

    /// Keeps a connection on which the reason was sent, until the client has spoken or its time is
    /// over.
    pub(in crate::server) fn add(&mut self, socket: OwnedFd) {
        // The client reads the end after the reason.
        let _ = shutdown(&socket, Shutdown::Write);
        if self.told.len() >= MAX_LINGERING
            && let Some((socket, _)) = self.told.pop_front()
        {
            self.part(socket);
        }
        self.told.push_back((socket, Instant::now() + self.patience));
    }

    /// The events to wait for.
    pub(in crate::server) fn events(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.told.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN))
    }

    /// How long to wait; `None` if there is nothing to wait for.
    pub(in crate::server) fn timeout(&self) -> Option<Duration> {
        self.told.front().map(|(_, until)| until.saturating_duration_since(Instant::now()))
    }

    /// Closes the connections of clients that spoke, according to [`events`](Self::events), and of
    /// those whose time is over.
    pub(in crate::server) fn see_to(&mut self, spoke: &[bool]) {
        let now = Instant::now();
        let mut spoke = spoke.iter();
        for (socket, until) in std::mem::take(&mut self.told) {
            if *spoke.next().unwrap_or(&false) || until <= now {
                self.part(socket);
            } else {
                self.told.push_back((socket, until));
            }
        }
    }
}

impl Drop for LingeringCloses<'_> {
    fn drop(&mut self) {
        for (socket, _) in std::mem::take(&mut self.told) {
            self.part(socket);
        }
    }
}
