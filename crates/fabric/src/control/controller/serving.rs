//! The controller's loop: packets, deaths, deadlines.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use datapipes_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use super::Controller;
use crate::capability::{ObjectId, Party};
use crate::control::packet::{self, Arrived, PACKET_BYTES};
use crate::control::protocol::Ask;

/// The number of packets of one party that are served before the others have their turn.
const TURN: usize = 16;

/// Serves an application until it has gone.
///
/// # Errors
/// Errors of waiting for packets.
pub(crate) fn serve(application: OwnedFd) -> Result<()> {
    let mut controller = Controller::new(application);
    let served = serve_until_gone(&mut controller);
    // In any case no device outlives this call.
    controller.end();
    served
}

fn serve_until_gone(controller: &mut Controller) -> Result<()> {
    let mut buffer = vec![0; PACKET_BYTES + 1];
    loop {
        let Heard { spoke, said, died, joins, bridges } = listen(controller)?;
        for party in spoke {
            attend(controller, party, &mut buffer);
            // The application is served in between, so that it waits for one busy party at most.
            if !attend(controller, Party::APPLICATION, &mut buffer) {
                return Ok(());
            }
        }
        said.into_iter().for_each(|party| controller.heard(party));
        joins.into_iter().for_each(|object| controller.progress(object));
        bridges.into_iter().for_each(|object| controller.bridged(object, &mut buffer));
        died.into_iter().for_each(|party| controller.buried(party));
        controller.look_into_devices();
    }
}

#[derive(Default)]
struct Heard {
    spoke: Vec<Party>,
    said: Vec<Party>,
    died: Vec<Party>,
    joins: Vec<ObjectId>,
    bridges: Vec<ObjectId>,
}

#[derive(Clone, Copy)]
enum Who {
    Packet(Party),
    Stderr(Party),
    Death(Party),
    Join(ObjectId),
    Bridge(ObjectId),
}

/// Waits for the next packet, death, connection or deadline.
fn listen(controller: &Controller) -> Result<Heard> {
    let (mut fds, mut who) = (Vec::new(), Vec::new());
    for (party, peer) in &controller.peers {
        if peer.hung_up.is_none() {
            let out = if peer.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
            // Whoever waits for an answer is asked nothing before; that it hangs up is heard.
            let waits = *party == Party::APPLICATION && controller.owes_answer();
            let flags = if waits { PollFlags::empty() } else { PollFlags::IN };
            fds.push(PollFd::new(&peer.socket, flags | out));
            who.push(Who::Packet(*party));
        }
        if let Some(pipe) = peer.device.as_ref().and_then(|device| device.stderr.polled()) {
            fds.push(PollFd::from_borrowed_fd(pipe, PollFlags::IN));
            who.push(Who::Stderr(*party));
        }
        if let Some(pidfd) = peer.pidfd() {
            fds.push(PollFd::from_borrowed_fd(pidfd, PollFlags::IN));
            who.push(Who::Death(*party));
        }
    }
    for (object, joining) in &controller.joins {
        for (fd, flags) in joining.polled() {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
            who.push(Who::Join(*object));
        }
    }
    for (object, bridging) in &controller.bridges {
        for fd in bridging.polled() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            who.push(Who::Bridge(*object));
        }
    }
    let joins = controller.joins.values().filter_map(|j| j.deadline());
    let bridges = controller.bridges.values().filter_map(|b| b.deadline());
    let next = joins.chain(bridges).chain(controller.next_look()).min();
    let limit = next.map(|d| d.saturating_duration_since(Instant::now()));
    let limit = limit.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(Error::os("wait", e.raw_os_error(), "for packets")),
    }
    let mut heard = Heard::default();
    for (_, who) in fds.iter().zip(who).filter(|(fd, _)| !fd.revents().is_empty()) {
        match who {
            Who::Packet(party) => heard.spoke.push(party),
            Who::Stderr(party) => heard.said.push(party),
            Who::Death(party) => heard.died.push(party),
            Who::Join(object) => heard.joins.push(object),
            Who::Bridge(object) => heard.bridges.push(object),
        }
    }
    let now = Instant::now();
    let late = controller.joins.iter().filter(|(_, j)| j.deadline().is_some_and(|d| d <= now));
    heard.joins.extend(late.map(|(object, _)| *object));
    let late = controller.bridges.iter().filter(|(_, b)| b.deadline().is_some_and(|d| d <= now));
    heard.bridges.extend(late.map(|(object, _)| *object));
    Ok(heard)
}

/// Whether the other side of a socket has gone.
fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Serves a party for a turn. Returns false when it has gone. Descriptors are accepted only from
/// the application.
fn attend(controller: &mut Controller, party: Party, buffer: &mut [u8]) -> bool {
    for _ in 0..TURN {
        let waits = party == Party::APPLICATION && controller.owes_answer();
        let Some(peer) = controller.peers.get_mut(&party) else { return false };
        peer.flush();
        if waits {
            // Its next request is read after the answer. If the answer to a request that it gave up
            // came after that to its next one, it would take one for the other.
            return !has_hung_up(peer.socket.as_fd());
        }
        let arrived = packet::receive::<Ask>(peer.socket.as_fd(), buffer, party == Party::APPLICATION);
        match arrived {
            Ok(Arrived::Packet(ask, fds)) => controller.serve(party, ask, fds),
            Ok(Arrived::Nothing) => return true,
            Ok(Arrived::End) => {
                // A device without its control socket cannot be told anything. Usually it is about
                // to be found dead, and its exit status tells the reason, so it gets a short time.
                controller.hung_up(party);
                return false;
            }
            // The packet is gone. Its sender waits for an answer, and may be of another version.
            Err(e) if party == Party::APPLICATION && e.errno().is_none() => controller.refuse(party, &e),
            Err(e) => {
                controller.kill(party, &format!("it broke the control protocol: {e}"));
                return party != Party::APPLICATION;
            }
        }
    }
    true
}
