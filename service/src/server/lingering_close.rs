//! How a connection ends, so that the client reads why.
//!
//! The kernel resets a connection that is closed while something in it is unread: who is at the
//! other end reads ECONNRESET first, and what was said before only after that, if it tries again. A
//! client that is refused before it spoke would get EPIPE, and perhaps SIGPIPE, for its hello. So
//! nothing is left unread here, and who is turned away may say hello first.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use super::intake::Intake;

/// Clients that may take their time to hear that they are not let in. Beyond that the first of them
/// are hung up on: they still read why, unless they want to say hello before.
const MAX_LINGERING: usize = 64;

/// Ends a connection: the client can send nothing more, reads what was sent, and then the end.
pub(super) fn part(socket: &OwnedFd) {
    // It fails where the client has hung up.
    let _ = shutdown(socket, Shutdown::Both);
    // What came before that: it comes to an end, for nothing follows. Descriptors in it are closed
    // by the kernel.
    let mut byte = [0];
    loop {
        match recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            // A packet without bytes cannot be told from the end, unless others lie behind it.
            Ok((0, _)) | Err(_) if !is_readable(socket) => return,
            Err(e) if e != Errno::INTR && e != Errno::CONNRESET => return,
            _ => {}
        }
    }
}

/// Whether a packet with bytes waits.
pub(super) fn is_readable(socket: &OwnedFd) -> bool {
    rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
}

/// Those who were told why they are not let in and have not said hello yet, by the time at which
/// they are hung up on.
pub(super) struct LingeringCloses<'a> {
    told: VecDeque<(OwnedFd, Instant)>,
    patience: Duration,
    /// Where the kernel lets descriptors come with what is unread: what closes them.
    intake: Option<&'a Intake>,
}

impl<'a> LingeringCloses<'a> {
    pub(super) const fn new(patience: Duration, intake: Option<&'a Intake>) -> LingeringCloses<'a> {
        LingeringCloses { told: VecDeque::new(), patience, intake }
    }

    /// Ends a connection, and closes nothing that came with it.
    pub(super) fn part(&self, socket: OwnedFd) {
        let _ = shutdown(&socket, Shutdown::Both);
        match self.intake {
            Some(intake) => intake.leave(socket, None),
            None => part(&socket),
        }
    }

    /// Keeps a connection over which all was said, until the client has spoken or its time is over.
    pub(super) fn add(&mut self, socket: OwnedFd) {
        // So that it reads the end after what was said.
        let _ = shutdown(&socket, Shutdown::Write);
        if self.told.len() >= MAX_LINGERING
            && let Some((socket, _)) = self.told.pop_front()
        {
            self.part(socket);
        }
        self.told.push_back((socket, Instant::now() + self.patience));
    }

    /// What to wait for.
    pub(super) fn events(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.told.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN))
    }

    /// How long to wait; None where there is nothing to wait for.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.told.front().map(|(_, until)| until.saturating_duration_since(Instant::now()))
    }

    /// Hangs up on those who spoke, as [`events`](Self::events) say, and on those whose time is
    /// over.
    pub(super) fn see_to(&mut self, spoke: &[bool]) {
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
