//! A device's side of the controller: what it asks and tells, and the endpoints that it is given.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::ports::{End, Ports, no_such};
use crate::capability::{Cap, Party, Rights};
use crate::control::limits::Threads;
use crate::control::packet::{self, Arrived, PACKET_BYTES};
use crate::control::protocol::{Answer, Ask, Tell};
use crate::device::role::{DeviceRole, StreamReport};
use crate::error_text::relayed;
use crate::memory::MemoryEndpoint;
use crate::transport::{Receiver, Sender};

/// The ends of a device's channels: inlets and outlets.
pub(crate) type Ends = (Vec<Option<Receiver>>, Vec<Sender>);

/// What a device is told first of all.
pub(crate) struct Boot {
    pub(crate) name: String,
    pub(crate) role: DeviceRole,
    pub(crate) threads: Threads,
    /// Descriptors that it works on.
    pub(crate) given: Vec<OwnedFd>,
}

/// The controller as a device process sees it.
pub struct ControllerClient {
    socket: OwnedFd,
    party: Party,
    ports: Ports,
    /// Work that arrived during another wait.
    work: VecDeque<(Vec<String>, Vec<String>)>,
    /// Revocations that are complete.
    settled: BTreeSet<u64>,
    buffer: Vec<u8>,
    /// The number of answers that nobody waits for any more.
    late: usize,
}

impl ControllerClient {
    pub(crate) fn new(socket: OwnedFd) -> ControllerClient {
        // The parent's death ends the device (see `sandbox`), so there is nothing to check during
        // waits.
        let ports = Ports::new(Arc::new(|| true));
        let (work, settled, buffer) = (VecDeque::new(), BTreeSet::new(), vec![0; PACKET_BYTES + 1]);
        ControllerClient { socket, party: Party::APPLICATION, ports, work, settled, buffer, late: 0 }
    }

    /// Waits to hear what this device is.
    pub(crate) fn boot(&mut self) -> Result<Boot> {
        match self.next()? {
            Some((Tell::Boot { party, name, role, threads }, given)) => {
                self.party = party;
                Ok(Boot { name, role, threads, given })
            }
            _ => Err(Error::new(ErrorKind::Corrupt, "start", "the controller did not send the device's role")),
        }
    }

    /// The socket to the controller.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the party that this device is.
    pub fn party(&self) -> Party {
        self.party
    }

    /// Delegates a capability of this device.
    ///
    /// # Errors
    /// See [`Tree::delegate`](crate::capability::Tree::delegate).
    pub fn delegate(&mut self, cap: Cap, to: Party, rights: Rights) -> Result<Cap> {
        match self.ask(&Ask::Delegate { cap, to, rights })? {
            Answer::Created { cap } => Ok(cap),
            other => Err(Error::new(ErrorKind::Corrupt, "ask", format!("{other:?}"))),
        }
    }

    /// Revokes a capability that this device commands. It waits like
    /// [`Session::revoke`](crate::control::Session::revoke).
    ///
    /// # Errors
    /// See [`Tree::revoke`](crate::capability::Tree::revoke).
    pub fn revoke(&mut self, cap: Cap) -> Result<()> {
        let span = datapipes_metrics::span!(Debug, "revoke", [], empty: []);
        let revoked = self.revoke_now(cap);
        span.ended(revoked.is_ok());
        revoked
    }

    fn revoke_now(&mut self, cap: Cap) -> Result<()> {
        let Answer::Revoked { settles: Some(revocation), .. } = self.ask(&Ask::Revoke { cap })? else { return Ok(()) };
        while !self.settled.remove(&revocation) {
            match self.next()? {
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Err(Error::new(ErrorKind::Unavailable, "revoke", "the controller has ended")),
            }
        }
        Ok(())
    }

    /// Handles messages of the controller without waiting: takes in endpoints, and gives back
    /// revoked ones. A body that works for a long time without using its channels must call this at
    /// least twice a second: a device that does not give back revoked memory in time is ended.
    ///
    /// # Errors
    /// Errors of mapping an endpoint. `Unavailable` where the controller has ended.
    pub fn attend(&mut self) -> Result<()> {
        self.confirm()?;
        loop {
            match packet::receive::<Tell>(self.socket.as_fd(), &mut self.buffer, true)? {
                Arrived::Packet(tell, fds) => self.obey(tell, fds)?,
                Arrived::Nothing => return Ok(()),
                Arrived::End => {
                    return Err(Error::new(ErrorKind::Unavailable, "attend", "the controller has ended"));
                }
            }
        }
    }

    /// Returns the memory that was activated at a port, once [`attend`](Self::attend) has taken it
    /// in.
    ///
    /// # Errors
    /// `NotFound` where there is none.
    pub fn memory(&mut self, port: &str) -> Result<MemoryEndpoint> {
        match self.ports.take(port) {
            Some(End::Memory(memory)) => Ok(memory),
            _ => Err(no_such(port)),
        }
    }

    /// Reports on a stream to the application.
    ///
    /// # Errors
    /// `Busy` or `Device` where the controller does not respond.
    pub fn report(&mut self, report: StreamReport) -> Result<()> {
        self.say(&Ask::Report(report))
    }

    pub(crate) fn say(&mut self, ask: &Ask) -> Result<()> {
        loop {
            match packet::send(self.socket.as_fd(), ask, &[]) {
                Err(e) if e.kind() == ErrorKind::Busy => self.pause(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        self.say(ask)?;
        let answered = self.answer();
        // Whatever went wrong meanwhile, the answer may still come, and is then not that of the
        // next request.
        self.late += usize::from(answered.is_err());
        match answered? {
            Answer::Refused { kind, errno, text } => Err(relayed(&kind, errno, text)),
            answer => Ok(answer),
        }
    }

    /// Waits for the answer to the last request.
    fn answer(&mut self) -> Result<Answer> {
        loop {
            match self.next()? {
                Some((Tell::Answer(answer), _)) if self.late == 0 => return Ok(answer),
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Err(Error::new(ErrorKind::Unavailable, "ask", "the controller has ended")),
            }
        }
    }

    /// The ports of the next work; None when the controller has gone.
    pub(crate) fn next_work(&mut self) -> Result<Option<(Vec<String>, Vec<String>)>> {
        loop {
            if let Some(work) = self.work.pop_front() {
                return Ok(Some(work));
            }
            match self.next()? {
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Ok(None),
            }
        }
    }

    /// The ends at these ports, once all of them are there; None when the controller has gone.
    pub(crate) fn ends(&mut self, ins: Vec<String>, outs: Vec<String>) -> Result<Option<Ends>> {
        while !ins.iter().chain(&outs).all(|port| self.ports.has(port)) {
            if let Some(port) = ins.iter().chain(&outs).find(|port| self.ports.lost(port)) {
                let context = format!("port {port} was revoked before the work began");
                return Err(Error::new(ErrorKind::PermissionDenied, "begin", context));
            }
            match self.next()? {
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Ok(None),
            }
        }
        let (mut receivers, mut senders) = (Vec::new(), Vec::new());
        for port in &ins {
            match self.ports.take(port) {
                Some(End::Receiver(receiver)) => receivers.push(Some(receiver)),
                _ => return Err(no_such(port)),
            }
        }
        for port in &outs {
            match self.ports.take(port) {
                Some(End::Sender(sender)) => senders.push(sender),
                _ => return Err(no_such(port)),
            }
        }
        Ok(Some((receivers, senders)))
    }

    fn obey(&mut self, tell: Tell, fds: Vec<OwnedFd>) -> Result<()> {
        match tell {
            Tell::Endpoint(spec) => {
                let endpoint = spec.endpoint;
                self.ports.first_half(spec, fds)?;
                self.say(&Ask::Mapped { endpoint })
            }
            Tell::Complete { endpoint } => self.ports.second_half(endpoint, fds),
            Tell::Release { endpoint } => {
                self.ports.release(endpoint);
                self.confirm()
            }
            Tell::Run { ins, outs } => {
                self.work.push_back((ins, outs));
                Ok(())
            }
            Tell::Settled { revocation } => {
                self.settled.insert(revocation);
                Ok(())
            }
            Tell::Answer(_) => {
                self.late = self.late.saturating_sub(1);
                Ok(())
            }
            Tell::Event(_) | Tell::Boot { .. } => Ok(()),
        }
    }

    /// Reports the memory that is no longer mapped here.
    fn confirm(&mut self) -> Result<()> {
        for endpoint in self.ports.unmapped() {
            self.say(&Ask::Unmapped { endpoint })?;
        }
        Ok(())
    }

    /// Returns the next packet, or None when the controller has gone.
    fn next(&mut self) -> Result<Option<(Tell, Vec<OwnedFd>)>> {
        self.confirm()?;
        loop {
            match packet::receive::<Tell>(self.socket.as_fd(), &mut self.buffer, true)? {
                Arrived::Packet(tell, fds) => return Ok(Some((tell, fds))),
                Arrived::End => return Ok(None),
                Arrived::Nothing => self.pause(PollFlags::IN)?,
            }
        }
    }

    fn pause(&self, flags: PollFlags) -> Result<()> {
        match poll(&mut [PollFd::new(&self.socket, flags)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("wait", e.raw_os_error(), "for the controller")),
        }
    }
}
