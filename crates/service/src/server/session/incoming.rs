//! Packets of a client, and the descriptors that come with them. This process gets descriptors only
//! after they are known to be harmless.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::descriptor::passing;
use datapipes_core::packet::{self, PacketFacts, PacketPeek};
use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown};

use super::{Session, SessionEnd, cut, timespec};
use crate::protocol::{ClientRequest, MAX_DESCRIPTORS, MAX_REQUEST_BYTES};
use crate::server::descriptors::intake::{ReceiverMessage, ReceiverProcess};
use crate::server::descriptors::places;
use crate::server::entrance::hang_up::part;
use crate::server::quotas::numbers::bad;

impl Session {
    /// Returns whether a packet is there, and what comes with it.
    pub(super) fn look(&self) -> Result<Option<PacketPeek>, SessionEnd> {
        match packet::peek(self.socket.as_fd()) {
            Ok(glance) if glance.bytes == 0 => Err(SessionEnd::Quiet),
            Ok(glance) => Ok(Some(glance)),
            Err(e) => deaf(e).map(|()| None),
        }
    }

    /// Receives the bytes of the next packet. Its descriptors never become this process's.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<PacketFacts>, SessionEnd> {
        match packet::receive_into(self.socket.as_fd(), buffer, &mut [], RecvFlags::DONTWAIT) {
            Ok(packet) => Ok(Some(packet)),
            Err(e) => deaf(e).map(|()| None),
        }
    }

    /// Receives the next packet, which is there, with its descriptors through a helper process. If
    /// this service does not take such descriptors, they are refused before they come here.
    pub(super) fn take_in(&mut self, buffer: &mut [u8]) -> Result<Result<(ClientRequest, Vec<OwnedFd>)>, SessionEnd> {
        let until = Instant::now() + Duration::from_millis(self.shared.config.limits.hello_ms);
        let silent = || cut(ErrorKind::Unavailable, "the server of a file that it passed does not answer");
        // There is only one helper at a time: it must have closed what the client passed before.
        self.receivers.iter().for_each(ReceiverProcess::dismiss);
        while let Some(taker) = self.receivers.last() {
            if !self.wait_for(taker, Some(until))? {
                return Err(silent());
            }
            if taker.is_over() {
                self.receivers.pop();
            }
        }
        let taker = match self.shared.intake.take(self.socket.as_fd()) {
            Ok(taker) => taker,
            // The packet stays in the socket: reading it would close its descriptors.
            Err(e) => return Err(SessionEnd::Cut(e)),
        };
        let heard = self.wait_for(&taker, Some(until));
        // Even after an error, the session waits for this helper later.
        self.receivers.push(taker);
        if !heard? {
            return Err(silent());
        }
        let taken = self.hear_of_descriptors(buffer, until)?;
        // The helper closes its own copies of what it passed on at once, so none of them is left
        // when the client hears of its pipe.
        while let (Ok(_), Some(taker)) = (&taken, self.receivers.last()) {
            if !self.wait_for(taker, Some(until))? {
                return Err(silent());
            }
            if taker.is_over() {
                self.receivers.pop();
            }
        }
        Ok(taken)
    }

    fn hear_of_descriptors(
        &self,
        buffer: &mut [u8],
        until: Instant,
    ) -> Result<Result<(ClientRequest, Vec<OwnedFd>)>, SessionEnd> {
        let Some(taker) = self.receivers.last() else { return Ok(Err(broken_taker())) };
        let request = match taker.receive(buffer) {
            Ok(ReceiverMessage::Facts(packet, facts)) => parse(buffer, &packet).and_then(|request| {
                let ClientRequest::Connect(_) = request else { return Err(bad("this request needs no descriptors")) };
                places::judge(&facts, self.shared.config.any_filesystem)?;
                Ok(request)
            }),
            Ok(_) => Err(broken_taker()),
            // No helper could be started, and the packet is still there.
            Err(e) => return Err(SessionEnd::Cut(e)),
        };
        let request = match request {
            Ok(request) => request,
            Err(e) => {
                taker.dismiss();
                return Ok(Err(e));
            }
        };
        taker.go_on();
        if !self.wait_for(taker, Some(until))? {
            return Ok(Err(broken_taker()));
        }
        match taker.receive(buffer) {
            Ok(ReceiverMessage::Descriptors(fds)) => Ok(Ok((request, fds))),
            Ok(_) => Ok(Err(broken_taker())),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Waits until a helper sends a message or ends. Returns false if it does neither in time, and
    /// an error if the service stops.
    pub(super) fn wait_for(&self, taker: &ReceiverProcess, until: Option<Instant>) -> Result<bool, SessionEnd> {
        loop {
            let mut fds = [
                PollFd::new(taker, PollFlags::IN),
                PollFd::new(&self.shared.ending, PollFlags::IN),
                PollFd::new(&*self.wake_event, PollFlags::IN),
            ];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec);
            let ready = poll(&mut fds, timeout.as_ref());
            let due = [0, 1, 2].map(|at: usize| !fds[at].revents().is_empty());
            match (ready, due) {
                (_, [true, ..]) => return Ok(true),
                (_, [_, true, _]) => return Err(SessionEnd::Stops),
                (_, [.., true]) => self.handle_wake_event()?,
                (Err(Errno::INTR), ..) => {}
                (Ok(0), ..) if left.is_some_and(|left| left.is_zero()) => return Ok(false),
                (Ok(_), ..) => {}
                (Err(e), ..) => return Err(SessionEnd::Cut(Error::os("serve", e.raw_os_error(), "poll"))),
            }
        }
    }

    /// Waits until the helpers have closed what this client passed. The client keeps its slot
    /// meanwhile, so their number is bounded. A service that stops does not wait for them.
    pub(super) fn wait_for_takers(&mut self) {
        for taker in std::mem::take(&mut self.receivers) {
            taker.dismiss();
            while let Ok(true) = self.wait_for(&taker, None)
                && !taker.is_over()
            {}
        }
    }

    /// Ends the connection, so that the client sees the end. Returns whether no more descriptors
    /// can come.
    pub(super) fn hang_up(&self) -> bool {
        let refuses = passing::let_pass(&self.socket, false);
        let _ = shutdown(&self.socket, Shutdown::Both);
        refuses && !self.may_pass
    }

    /// Closes the connection. Packets left in it may carry descriptors, which are not closed here.
    pub(super) fn part(self, harmless: bool) {
        if harmless {
            return part(&self.socket);
        }
        let Some((socket, taker)) = self.shared.intake.discard(self.socket, self.words) else { return };
        let until = Instant::now() + Duration::from_millis(self.shared.config.limits.hello_ms);
        // This also waits if the service stops.
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && poll(&mut [PollFd::new(&taker, PollFlags::IN)], Some(&timespec(left))) == Err(Errno::INTR)
        {}
        match taker.receive(&mut []) {
            // From here on the other process is the last one with the connection.
            Ok(ReceiverMessage::Here) => drop(socket),
            _ => return self.shared.intake.leave(socket, None),
        }
        taker.go_on();
        // The client keeps its slot until the helper has closed the connection, or the service
        // stops.
        while !taker.is_over() {
            let mut fds = [PollFd::new(&taker, PollFlags::IN), PollFd::new(&self.shared.ending, PollFlags::IN)];
            if poll(&mut fds, None).is_ok() && !fds[1].revents().is_empty() {
                return;
            }
        }
    }
}

/// Interprets an error of receiving: nothing to read, or the end.
fn deaf(e: Errno) -> Result<(), SessionEnd> {
    match e {
        Errno::AGAIN => Ok(()),
        Errno::CONNRESET => Err(SessionEnd::Quiet),
        e => Err(SessionEnd::Cut(Error::os("serve", e.raw_os_error(), "receiving a request"))),
    }
}

fn broken_taker() -> Error {
    Error::new(ErrorKind::System, "connect", "the helper process for descriptors sent an unexpected message")
}

/// Parses the request of a packet.
pub(super) fn parse(buffer: &[u8], packet: &PacketFacts) -> Result<ClientRequest> {
    if packet.fds_cut {
        return Err(bad(&format!("more than {MAX_DESCRIPTORS} descriptors, or more than the service can have now")));
    }
    if packet.cut {
        return Err(bad(&format!("more than {MAX_REQUEST_BYTES} bytes")));
    }
    serde_json::from_slice(&buffer[..packet.bytes]).map_err(|e| bad(&format!("no request: {e}")))
}
