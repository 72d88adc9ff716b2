//! The life of a device process: boot, lock-down, endpoints, work, revocation.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::sandbox::confine;
use super::{alone, inherited};
use crate::capability::{Cap, Party, Rights};
use crate::control::packet::{self, Arrived, PACKET_BYTES};
use crate::control::ports::{End, Ports, no_such};
use crate::control::protocol::{Answer, Ask, Tell, relayed};
use crate::device::{DeviceChannels, Functions, StreamReport, body};
use crate::memory::MemoryEndpoint;

/// What a device process has of the controller.
pub struct ControllerClient {
    socket: OwnedFd,
    party: Party,
    ports: Ports,
    /// Work that came while something else was being waited for.
    work: VecDeque<(Vec<String>, Vec<String>)>,
    /// Revocations that have come to their end.
    settled: BTreeSet<u64>,
    buffer: Vec<u8>,
}

impl ControllerClient {
    pub(crate) fn new(socket: OwnedFd) -> ControllerClient {
        // The parent's death ends the device (see `sandbox`), so there is nothing to ask while
        // waiting.
        let ports = Ports::new(Arc::new(|| true));
        let (work, settled, buffer) = (VecDeque::new(), BTreeSet::new(), vec![0; PACKET_BYTES + 1]);
        ControllerClient { socket, party: Party::APPLICATION, ports, work, settled, buffer }
    }

    /// Is a device, until the controller ends it.
    pub(super) fn live(socket: OwnedFd, functions: &Functions) -> Result<()> {
        let mut attendant = ControllerClient::new(socket);
        let (name, role, threads, given) = match attendant.next()? {
            Some((Tell::Boot { party, name, role, threads }, given)) => {
                attendant.party = party;
                (name, role, threads, given)
            }
            _ => return Err(Error::new(ErrorKind::Corrupt, "start", "the controller did not say what this device is")),
        };
        alone::keep_orphans()?;
        let mut body = body(role, given, functions).map_err(|e| e.within(format!("device {name}")))?;
        let descriptors = inherited::count();
        let confined = confine(attendant.socket.as_fd(), threads)?;
        attendant.say(&Ask::Ready { confined, descriptors })?;
        while let Some((ins, outs)) = attendant.next_work()? {
            let outcome = match attendant.stage(ins, outs) {
                Ok(Some(mut stage)) => body.run(&mut stage),
                Ok(None) => return Ok(()),
                Err(error) => Err(error),
            };
            // The ends are gone now; a peer that waits has been told.
            if let Err(error) = outcome {
                attendant.say(&Ask::Report(StreamReport::failed(&error)))?;
            }
        }
        Ok(())
    }

    /// Which party this device is.
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

    /// Revokes a capability that this device commands; waits as
    /// [`Session::revoke`](crate::control::Session::revoke) does.
    ///
    /// # Errors
    /// See [`Tree::revoke`](crate::capability::Tree::revoke).
    pub fn revoke(&mut self, cap: Cap) -> Result<()> {
        let Answer::Revoked { settles: Some(revocation), .. } = self.ask(&Ask::Revoke { cap })? else { return Ok(()) };
        while !self.settled.remove(&revocation) {
            match self.next()? {
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Err(Error::new(ErrorKind::Unavailable, "revoke", "the controller has ended")),
            }
        }
        Ok(())
    }

    /// Does what the controller told meanwhile, without waiting: takes endpoints in, and gives back
    /// what was revoked. A body that works for long on something else than the channels of its
    /// stage must call this at least twice a second: a device that does not give back in time what
    /// was revoked is ended.
    ///
    /// # Errors
    /// What mapping an endpoint meets; `Unavailable` where the controller has ended.
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

    /// The memory that was activated at a port, which is there as soon as [`attend`](Self::attend)
    /// has taken it in.
    ///
    /// # Errors
    /// `NotFound` where there is none.
    pub fn memory(&mut self, port: &str) -> Result<MemoryEndpoint> {
        match self.ports.take(port) {
            Some(End::Memory(memory)) => Ok(memory),
            _ => Err(no_such(port)),
        }
    }

    /// Tells the application how a stream went.
    ///
    /// # Errors
    /// `Busy`, `Device` where the controller does not listen.
    pub fn report(&mut self, report: StreamReport) -> Result<()> {
        self.say(&Ask::Report(report))
    }

    fn say(&mut self, ask: &Ask) -> Result<()> {
        loop {
            match packet::send(self.socket.as_fd(), ask, &[]) {
                Err(e) if e.kind() == ErrorKind::Busy => self.pause(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        self.say(ask)?;
        loop {
            match self.next()? {
                Some((Tell::Answer(Answer::Refused { kind, errno, text }), _)) => {
                    return Err(relayed(&kind, errno, text));
                }
                Some((Tell::Answer(answer), _)) => return Ok(answer),
                Some((tell, fds)) => self.obey(tell, fds)?,
                None => return Err(Error::new(ErrorKind::Unavailable, "ask", "the controller has ended")),
            }
        }
    }

    fn next_work(&mut self) -> Result<Option<(Vec<String>, Vec<String>)>> {
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

    /// Waits until all ports are there.
    fn stage(&mut self, ins: Vec<String>, outs: Vec<String>) -> Result<Option<DeviceChannels<'_>>> {
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
        Ok(Some(DeviceChannels::new(receivers, senders, self)))
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
            Tell::Answer(_) | Tell::Event(_) | Tell::Boot { .. } => Ok(()),
        }
    }

    /// Tells of what is no longer mapped here.
    fn confirm(&mut self) -> Result<()> {
        for endpoint in self.ports.unmapped() {
            self.say(&Ask::Unmapped { endpoint })?;
        }
        Ok(())
    }

    /// The next packet; None when the controller has gone.
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
