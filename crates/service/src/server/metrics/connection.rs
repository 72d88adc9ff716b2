//! One client of the metrics, from its first byte to the end of the connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::request::{MAX_HEAD_BYTES, Wanted, wanted};

/// How long a connection lasts at most. Whoever fetches metrics on purpose needs milliseconds.
pub(super) const MAX_TIME: Duration = Duration::from_secs(2);

/// A connection.
pub(super) struct MetricsConnection {
    socket: OwnedFd,
    /// When it is closed, whatever was done.
    pub(super) until: Instant,
    stage: Stage,
}

enum Stage {
    Reads(Vec<u8>),
    Writes {
        answer: Arc<[u8]>,
        at: usize,
    },
    /// The answer was sent. What the client still sends is dropped: closed with bytes unread, the
    /// kernel would reset the connection, and the client could lose the answer.
    Ends,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waits,
    /// The whole answer is on its way.
    Answered,
    /// The client went away before, or says nothing that is HTTP.
    Gone,
}

impl MetricsConnection {
    pub(super) fn new(socket: OwnedFd, now: Instant) -> MetricsConnection {
        MetricsConnection { socket, until: now + MAX_TIME, stage: Stage::Reads(Vec::new()) }
    }

    /// The event that it waits for.
    pub(super) fn event(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Reads(_) | Stage::Ends => PollFlags::IN,
            Stage::Writes { .. } => PollFlags::OUT,
        };
        PollFd::new(&self.socket, flags)
    }

    /// Whether the client has its answer already.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Ends)
    }

    /// Goes on after its event came: with one read, so that no client keeps the others waiting, or
    /// with writes until the socket is full. `answer` makes the answer.
    pub(super) fn go_on(&mut self, answer: impl FnOnce(Wanted) -> Arc<[u8]>) -> Progress {
        match &mut self.stage {
            Stage::Reads(head) => {
                let mut buffer = [0; 2048];
                let room = buffer.len().min(MAX_HEAD_BYTES - head.len());
                match recv(&self.socket, &mut buffer[..room], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Progress::Gone,
                    Ok((len, _)) => head.extend_from_slice(&buffer[..len]),
                    Err(Errno::AGAIN | Errno::INTR) => return Progress::Waits,
                    Err(_) => return Progress::Gone,
                }
                let Some(wanted) = wanted(head) else { return Progress::Waits };
                self.stage = Stage::Writes { answer: answer(wanted), at: 0 };
                self.write()
            }
            Stage::Writes { .. } => self.write(),
            Stage::Ends => self.drop_input(),
        }
    }

    fn write(&mut self) -> Progress {
        let Stage::Writes { answer, at } = &mut self.stage else { return Progress::Waits };
        while *at < answer.len() {
            match send(&self.socket, &answer[*at..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(len) => *at += len,
                Err(Errno::AGAIN) => return Progress::Waits,
                Err(Errno::INTR) => {}
                Err(_) => return Progress::Gone,
            }
        }
        self.stage = Stage::Ends;
        // If the client is gone, its end is noticed next.
        let _ = shutdown(&self.socket, Shutdown::Write);
        Progress::Answered
    }

    fn drop_input(&mut self) -> Progress {
        let mut buffer = [0; 2048];
        match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR) => Progress::Waits,
            Ok((0, _)) | Err(_) => Progress::Gone,
        }
    }
}
