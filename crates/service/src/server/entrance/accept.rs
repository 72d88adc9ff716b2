//! Accepting clients.
//!
//! A client that is refused reads the reason as the answer to its hello, and then the end of the
//! connection (`lingering_close`).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result, packet, threads};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with};

use super::lingering_close::LingeringCloses;
use super::listen::Listener;
use super::peer::Peer;
use crate::protocol::ServiceAnswer;
use crate::server::log_event::{LogEvent, LoggedClient};
use crate::server::quotas::account::SessionFacts;
use crate::server::session::{Session, SessionDescriptors};
use crate::server::shared::Shared;
use crate::server::wake::{event, quiet};

/// How long to accept no client after the kernel had no memory or descriptors for one.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the service closes.
pub(in crate::server) fn run(shared: &Arc<Shared>, listener: Listener) {
    let patience = Duration::from_millis(shared.config.limits.hello_ms);
    let farewells = LingeringCloses::new(patience, listener.may_carry.then_some(&shared.intake));
    let mut door = Acceptor { shared, listener, number: 0, farewells, spare: event().ok() };
    while door.wait() {
        door.accept_one();
    }
    door.close();
}

struct Acceptor<'a> {
    shared: &'a Arc<Shared>,
    listener: Listener,
    /// The number of clients that came.
    number: u64,
    farewells: LingeringCloses<'a>,
    /// A descriptor that is closed for a moment when none is left, so that a client can be refused
    /// with a reason.
    spare: Option<OwnedFd>,
}

impl Acceptor<'_> {
    /// Sleeps until a client comes. Returns false when the service closes.
    fn wait(&mut self) -> bool {
        loop {
            let mut fds = vec![
                PollFd::new(&self.listener.socket, PollFlags::IN),
                PollFd::new(&self.shared.closing, PollFlags::IN),
                PollFd::new(&self.shared.asked, PollFlags::IN),
            ];
            fds.extend(self.farewells.events());
            let timeout = self.farewells.timeout().map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            // Only EINTR can happen: these descriptors are our own.
            let ready = poll(&mut fds, timeout.as_ref()).is_ok();
            let due: Vec<bool> = fds.iter().map(|fd| ready && !fd.revents().is_empty()).collect();
            drop(fds);
            self.farewells.see_to(&due[3..]);
            if due[2] {
                quiet(&self.shared.asked);
                self.shared.pulse.answer();
            }
            match (due[0], due[1]) {
                (_, true) => return false,
                (true, _) => return true,
                _ => {}
            }
        }
    }

    fn accept_one(&mut self) {
        self.shared.intake.close_unclosed();
        let full = match self.accept() {
            Ok(socket) => return self.admit(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(e) => e,
        };
        drop(self.spare.take());
        match self.accept() {
            Ok(socket) => {
                let why =
                    Error::os("accept", full.raw_os_error(), "a client").with_advice("try again when others have left");
                self.say_why(&socket, LoggedClient { number: self.number, peer: None }, &why);
                // Its descriptor is needed for others.
                self.farewells.part(socket);
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        if self.spare.is_none() {
            self.spare = event().ok();
        }
    }

    fn accept(&mut self) -> std::result::Result<OwnedFd, Errno> {
        let socket = accept_with(&self.listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        self.number += 1;
        Ok(socket)
    }

    /// Tells clients that wait at a socket of our own that the service stops. (A socket that was
    /// passed to us stays open: its clients wait for the next service.)
    fn close(mut self) {
        if !self.listener.take_down() {
            return;
        }
        let stops = crate::server::shared::stops();
        while let Ok(socket) = self.accept() {
            self.refuse_client(socket, LoggedClient { number: self.number, peer: None }, &stops);
        }
        // Clients that come only now get a moment to say hello.
        let until = Instant::now() + PAUSE;
        while self.farewells.timeout().is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let mut fds: Vec<_> = self.farewells.events().collect();
            let ready = poll(&mut fds, Some(&timeout)).is_ok();
            let spoke: Vec<bool> = fds.iter().map(|fd| ready && !fd.revents().is_empty()).collect();
            drop(fds);
            self.farewells.see_to(&spoke);
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let (shared, number) = (self.shared, self.number);
        let peer = match Peer::of(socket.as_fd()) {
            Ok(peer) => peer,
            Err(e) => return self.refuse_client(socket, LoggedClient { number, peer: None }, &e),
        };
        let whose = LoggedClient { number, peer: Some(peer) };
        let facts = Arc::new(SessionFacts::new(number, peer));
        let needs = match enter(shared, &facts).and_then(|()| SessionDescriptors::new()) {
            Ok(needs) => needs,
            Err(e) => {
                leave(shared, &facts);
                return self.refuse_client(socket, whose, &e);
            }
        };
        // Even if the session panics, the others go on, and the client's slot is free again.
        let gone = LeaveOnDrop { shared: shared.clone(), facts: facts.clone() };
        // The socket is sent to the thread after it has started.
        let (give, take) = std::sync::mpsc::channel::<OwnedFd>();
        let ours = shared.clone();
        let work = move || {
            let _gone = gone;
            if let Ok(socket) = take.recv() {
                Session::new(ours, socket, facts, needs).run();
            }
        };
        let refused = match threads::spawn(&format!("dpiped-{number}"), work) {
            Ok(_) => match give.send(socket) {
                Ok(()) => return,
                // The thread waits for the socket. If it ended before, the client is refused as if
                // no thread could be started.
                Err(back) => (back.0, Error::new(ErrorKind::System, "accept", "the thread for it ended")),
            },
            Err(e) => (socket, e),
        };
        self.refuse_client(refused.0, whose, &refused.1.with_advice("try again when others have left"));
    }

    /// Tells a client why it is refused, and closes the connection when the client has spoken.
    fn refuse_client(&mut self, socket: OwnedFd, whose: LoggedClient, why: &Error) {
        self.say_why(&socket, whose, why);
        self.farewells.add(socket);
    }

    fn say_why(&self, socket: &OwnedFd, whose: LoggedClient, why: &Error) {
        self.shared.turned_away.fetch_add(1, Ordering::Relaxed);
        let line = format_args!("{whose} turned away: {why}");
        self.shared.config.log.of_client(LogEvent::ClientTurnedAway, whose, line);
        if let Ok(bytes) = serde_json::to_vec(&ServiceAnswer::error(why)) {
            // A client that does not receive it sees the end of the connection.
            let _ = packet::send(socket.as_fd(), &bytes, &[], SendFlags::DONTWAIT);
        }
    }
}

struct LeaveOnDrop {
    shared: Arc<Shared>,
    facts: Arc<SessionFacts>,
}

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        leave(&self.shared, &self.facts);
    }
}

/// Registers a client, if it is allowed and there is room.
fn enter(shared: &Shared, facts: &Arc<SessionFacts>) -> Result<()> {
    let allowed = &shared.config.allow_uids;
    if !allowed.is_empty() && !allowed.contains(&facts.peer.uid) {
        let context = format!("user {} is not among those allowed", facts.peer.uid);
        return Err(Error::new(ErrorKind::PermissionDenied, "connect", context)
            .with_advice("ask for --allow-uid to include it"));
    }
    let limits = &shared.config.limits;
    let mut sessions = shared.sessions();
    let of_user = sessions.values().filter(|other| other.peer.uid == facts.peer.uid).count();
    let full = |context: String| {
        Err(Error::new(ErrorKind::Busy, "connect", context).with_advice("try again when others have left"))
    };
    if sessions.len() >= limits.clients {
        return full(format!("{} clients are connected, which is the limit", limits.clients));
    }
    if of_user >= limits.clients_per_uid {
        return full(format!("{of_user} clients of user {} are connected, which is the limit", facts.peer.uid));
    }
    sessions.insert(facts.number, facts.clone());
    Ok(())
}

fn leave(shared: &Shared, facts: &SessionFacts) {
    shared.sessions().remove(&facts.number);
    shared.left.notify_all();
}
