//! The door.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapipes::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with};

use super::account::SessionFacts;
use super::listen::Listener;
use super::peer::Peer;
use super::session::Session;
use super::{Shared, event};
use crate::packet;
use crate::protocol::Answer;

/// How long the door stays shut where the kernel has no memory or descriptors for another client.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the service closes.
pub(super) fn run(shared: &Arc<Shared>, listener: Listener) {
    let mut number = 0;
    // Given up for a moment where there are no descriptors left, so that a client can be told.
    let mut spare = event().ok();
    loop {
        let mut fds = [PollFd::new(&listener.socket, PollFlags::IN), PollFd::new(&shared.closing, PollFlags::IN)];
        // EINTR; nothing else can happen to descriptors of our own.
        let _ = poll(&mut fds, None);
        if fds[1].revents().contains(PollFlags::IN) {
            return;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let full = match accept_with(&listener.socket, flags) {
            Ok(socket) => {
                number += 1;
                admit(shared, socket, number);
                continue;
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(e) => e,
        };
        drop(spare.take());
        match accept_with(&listener.socket, flags) {
            Ok(socket) => {
                let why =
                    Error::os("accept", full.raw_os_error(), "a client").advice("try again when others have left");
                turn_away(shared, &socket, &format!("client {}", number + 1), &why);
                number += 1;
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        if spare.is_none() {
            spare = event().ok();
        }
    }
}

fn admit(shared: &Arc<Shared>, socket: OwnedFd, number: u64) {
    let peer = match Peer::of(socket.as_fd()) {
        Ok(peer) => peer,
        Err(e) => return turn_away(shared, &socket, &format!("client {number}"), &e),
    };
    let whose = format!("client {number} (user {}, process {})", peer.uid, peer.pid);
    let facts = Arc::new(SessionFacts {
        number,
        peer,
        name: Mutex::default(),
        pipes: AtomicU64::new(0),
        mapped: AtomicU64::new(0),
    });
    let bell = match enter(shared, &facts).and_then(|()| event()) {
        Ok(bell) => bell,
        Err(e) => {
            leave(shared, &facts);
            return turn_away(shared, &socket, &whose, &e);
        }
    };
    let session = Session::new(shared.clone(), socket, facts.clone(), bell);
    // Whatever happens in there, the others go on, and the client's place is free again.
    let gone = Gone { shared: shared.clone(), facts };
    let work = move || {
        let _gone = gone;
        session.run();
    };
    if let Err(e) = std::thread::Builder::new().name(format!("dpiped-{number}")).spawn(work) {
        // Its connection went with the session.
        shared.turned_away.fetch_add(1, Ordering::Relaxed);
        shared.config.log.line(format_args!("{whose} turned away: a thread for it: {e}"));
    }
}

struct Gone {
    shared: Arc<Shared>,
    facts: Arc<SessionFacts>,
}

impl Drop for Gone {
    fn drop(&mut self) {
        leave(&self.shared, &self.facts);
    }
}

/// Counts a client in.
fn enter(shared: &Shared, facts: &Arc<SessionFacts>) -> Result<()> {
    let allowed = &shared.config.allow_uids;
    if !allowed.is_empty() && !allowed.contains(&facts.peer.uid) {
        let context = format!("user {} is not among those allowed", facts.peer.uid);
        return Err(Error::new(ErrorKind::PermissionDenied, "connect", context).advice("have --allow-uid given for it"));
    }
    let limits = &shared.config.limits;
    let mut sessions = shared.sessions();
    let of_user = sessions.values().filter(|other| other.peer.uid == facts.peer.uid).count();
    let full = |context: String| {
        Err(Error::new(ErrorKind::Busy, "connect", context).advice("try again when others have left"))
    };
    if sessions.len() >= limits.clients {
        return full(format!("{} clients are connected, which is the most", limits.clients));
    }
    if of_user >= limits.clients_per_uid {
        return full(format!("{of_user} clients of user {} are connected, which is the most", facts.peer.uid));
    }
    sessions.insert(facts.number, facts.clone());
    Ok(())
}

fn leave(shared: &Shared, facts: &SessionFacts) {
    shared.sessions().remove(&facts.number);
    shared.left.notify_all();
}

/// Says why, and hangs up.
fn turn_away(shared: &Shared, socket: &OwnedFd, whose: &str, why: &Error) {
    shared.turned_away.fetch_add(1, Ordering::Relaxed);
    shared.config.log.line(format_args!("{whose} turned away: {why}"));
    if let Ok(bytes) = serde_json::to_vec(&Answer::error(why)) {
        // A client that does not hear it sees that we hang up.
        let _ = packet::send(socket.as_fd(), &bytes, &[], SendFlags::DONTWAIT);
    }
}
