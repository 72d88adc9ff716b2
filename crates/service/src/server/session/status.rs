//! The status of the service, as reported to a client.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, packet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{Session, SessionEnd, cut, timespec};
use crate::protocol::{STATUS_PIECE, ServiceAnswer};
use crate::server::quotas::account::SessionFacts;
use crate::status::{ClientStatus, ServiceStatus};
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

    /// Makes the status of the service.
    pub(super) fn status(&self) -> Result<Vec<u8>> {
        let shared = &self.shared;
        let mut report = shared.with_runtime(|runtime| Ok(runtime.report()))?;
        let broken = |e: serde_json::Error| Error::new(ErrorKind::System, "report", e.to_string()).with_source(e);
        let me = self.facts.peer.uid;
        let sees_all = me == 0 || me == rustix::process::getuid().as_raw();
        let sessions: Vec<_> = shared.sessions().values().cloned().collect();
        let seen = sessions.iter().filter(|other| sees_all || other.peer.uid == me);
        if !sees_all {
            // What each pipe of others asks for and does is nobody's business.
            report.resources.iter_mut().for_each(|resource| resource.stats.flows.clear());
        }
        let status = ServiceStatus {
            pid: std::process::id(),
            up_s: shared.began.elapsed().as_secs(),
            descriptors: own_descriptors(),
            mapped_bytes: shared.ledger.mapped(),
            turned_away: shared.turned_away.load(Ordering::Relaxed),
            connected: sessions.len() as u64,
            clients: seen.map(|facts| client_status(facts)).collect(),
            limits: shared.config.limits.clone(),
            runtime: report,
        };
        serde_json::to_vec(&status).map_err(broken)
    }
}

fn client_status(facts: &SessionFacts) -> ClientStatus {
    ClientStatus {
        number: facts.number,
        name: facts.name.lock().clone(),
        uid: facts.peer.uid,
        pid: facts.peer.pid,
        pipes: facts.pipes.load(Ordering::Relaxed),
        mapped_bytes: facts.mapped.load(Ordering::Relaxed),
    }
}

/// The descriptors that this process has open, without the one that reads the folder.
fn own_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}
