//! When a bridge sleeps, and for how long: until its socket, UCX or the controller has something.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use datapipes_core::{Error, Result};
use datapipes_ucx::{Armed, PeerMessages};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

/// It looks after this time, because an event of UCX's can be missing: a queue of the peer that was
/// full has room again, and nobody says so.
const MAX_SLEEP: Duration = Duration::from_secs(1);
const MIN_SLEEP: Duration = Duration::from_millis(1);
/// How long UCX may have something to do without doing it before the bridge sleeps all the same.
const STUCK: Duration = Duration::from_micros(50);
/// The longest sleep until it looks again.
const MAX_STUCK_SLEEP: Duration = Duration::from_millis(4);

/// What a bridge waits for beside UCX.
pub(super) struct Awaited<'a> {
    /// The controller. Its end is all that comes from it.
    pub(super) controller: BorrowedFd<'a>,
    /// The socket, if it is waited for.
    pub(super) socket: Option<(BorrowedFd<'a>, PollFlags)>,
}

/// The sleeps of a bridge that has nothing to do.
pub(super) struct Idle {
    sleep: Duration,
    /// Since when UCX has something to do and does not do it.
    stuck_since: Option<Instant>,
    /// Whether its event called last, and for nothing so far.
    was_called: bool,
    /// Since when its event calls for nothing, as while a connection waits for the peer's answer.
    called_since: Option<Instant>,
}

impl Idle {
    pub(super) fn new() -> Idle {
        Idle { sleep: MIN_SLEEP, stuck_since: None, was_called: false, called_since: None }
    }

    /// Notes that there was work.
    pub(super) fn worked(&mut self) {
        *self = Idle::new();
    }

    /// Sleeps until there may be something to do. Returns whether the controller is still there.
    ///
    /// # Errors
    /// Errors of UCX, and of waiting.
    pub(super) fn wait(&mut self, peer: &mut PeerMessages, awaited: &Awaited<'_>) -> Result<bool> {
        let mut limit = self.sleep;
        if std::mem::take(&mut self.was_called) {
            self.called_since.get_or_insert_with(Instant::now);
        }
        if peer.arm()? == Armed::Busy {
            // It also says so as long as the peer's queue is full. Then its event is of no use.
            let stuck = self.stuck_since.get_or_insert_with(Instant::now).elapsed();
            // As long as it has been stuck, so that the sleeps grow.
            limit = if stuck < STUCK { Duration::ZERO } else { stuck.min(MAX_STUCK_SLEEP) };
        } else {
            self.stuck_since = None;
            if let Some(since) = self.called_since {
                limit = since.elapsed().min(MAX_STUCK_SLEEP);
            }
        }
        let listens = self.stuck_since.is_none() && self.called_since.is_none();
        let mut fds = vec![PollFd::from_borrowed_fd(awaited.controller, PollFlags::IN)];
        fds.extend(awaited.socket.map(|(socket, flags)| PollFd::from_borrowed_fd(socket, flags)));
        if listens {
            fds.push(PollFd::from_borrowed_fd(peer.event(), PollFlags::IN));
        }
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut fds, Some(&limit)) {
            Ok(0) if listens => self.sleep = (self.sleep * 2).min(MAX_SLEEP),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("wait", e.raw_os_error(), "the events of a bridge")),
        }
        self.was_called = listens && fds.last().is_some_and(|event| !event.revents().is_empty());
        Ok(fds.first().is_none_or(|controller| controller.revents().is_empty()))
    }
}
