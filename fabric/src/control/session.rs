//! The application's side of the controller.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;

use super::events::Events;
use super::joining::{Key, LinkSpec};
use super::packet::{self, Arrived, PACKET_BYTES};
use super::ports::{End, Ports, no_such};
use super::protocol::{Answer, Ask, ControllerStatus, DeviceEvent, Tell, relayed};
use super::quota::DeviceLimits;
use crate::capability::{Cap, Party, Rights};
use crate::channel::{ChannelShape, Copies, Patience, Taking, Trust};
use crate::device::DeviceRole;
use crate::memory::MemoryEndpoint;
use crate::process::CONTROLLER;
use crate::transport::{Carrier, Receiver, Sender};

/// How long the controller may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long an orderly end of the controller may take, and one by force.
const END: Duration = Duration::from_secs(3);
/// Packets that are taken at once.
const MAX_AT_ONCE: usize = 4096;

/// Which program runs as controller and devices: one whose `main` begins with
/// [`process::enter`](crate::process::enter).
#[derive(Clone, Debug, Default)]
pub enum Program {
    /// This one.
    #[default]
    This,
    /// The one at a path, such as the crate's own `fabric-device`.
    At(PathBuf),
}

/// A device that was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device(pub Party);

/// A controller of one's own, as a process, and what it is asked for. When the session ends, so do
/// its devices.
///
/// It belongs to the process that started it: in a child made by `fork` its calls fail (`Forked`),
/// and dropping it there ends nothing.
pub struct Session {
    socket: Arc<OwnedFd>,
    controller: Child,
    ports: Ports,
    events: Events,
    /// Revocations that have come to their end, and that nobody waited for.
    settled: BTreeSet<u64>,
    buffer: Vec<u8>,
    patience: Patience,
    copies: Copies,
    /// Answers that nobody waits for any more.
    late: usize,
    owner: OwningProcess,
}

impl Session {
    /// Starts a controller.
    ///
    /// # Errors
    /// `NotFound` where the program is not there; `Unavailable` where it is none that can be a
    /// controller.
    pub fn start(program: &Program) -> Result<Session> {
        let os = |e: Errno| Error::os("start", e.raw_os_error(), "a controller");
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(os)?;
        let path = match program {
            Program::This => PathBuf::from("/proc/self/exe"),
            Program::At(path) => path.clone(),
        };
        let mut command = Command::new(&path);
        command.arg(CONTROLLER).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let controller = command.spawn().map_err(|e| Error::io("start", &e, path.display().to_string()))?;
        // The command holds the other end until it goes: with it open, a controller's death would
        // not be seen.
        drop(command);
        let socket = Arc::new(ours);
        let watched = socket.clone();
        let ports = Ports::of_application(Arc::new(move || lives(watched.as_fd())));
        let (events, settled, buffer) = (Events::default(), BTreeSet::new(), vec![0; PACKET_BYTES + 1]);
        let (patience, late) = (Patience::up_to(ANSWER), 0);
        let (copies, owner) = (Copies::default(), OwningProcess::here());
        let mut session = Session { socket, controller, ports, events, settled, buffer, patience, copies, late, owner };
        let missing = "begin its `main` with `datapipes_fabric::process::enter`";
        session.status().map_err(|e| e.within(format!("{} as controller", path.display())).advice(missing))?;
        Ok(session)
    }

    /// Launches a device, which gets the descriptors beforehand and can open nothing by itself. It
    /// is ready when an
    /// [`DeviceEvent::Ready`] tells so.
    ///
    /// # Errors
    /// `OutOfRange` for more than 8 descriptors; what starting a process meets.
    pub fn launch(&mut self, name: &str, role: DeviceRole, given: &[BorrowedFd<'_>]) -> Result<Device> {
        self.launch_within(name, role, given, DeviceLimits::default())
    }

    /// The same, with other limits than the usual ones. What the device uses, and what keeps it to
    /// its limits, is in
    /// [`ControllerStatus::charges`].
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_within(
        &mut self,
        name: &str,
        role: DeviceRole,
        given: &[BorrowedFd<'_>],
        limits: DeviceLimits,
    ) -> Result<Device> {
        match self.ask(&Ask::Launch { name: name.into(), role, limits }, given)? {
            Answer::Device { party } => Ok(Device(party)),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates a channel; the capability has all rights to it.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape; `OutOfMemory`.
    pub fn channel(&mut self, shape: ChannelShape) -> Result<Cap> {
        self.created(&Ask::Channel { shape })
    }

    /// Creates a channel between two parties of this machine over what is said; the capability has
    /// all rights to it.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape; `OutOfMemory`; what making sockets meets.
    pub fn channel_over(&mut self, shape: ChannelShape, carrier: Carrier) -> Result<Cap> {
        match carrier {
            Carrier::SharedMemory => self.channel(shape),
            _ => self.created(&Ask::Connection { shape, carrier }),
        }
    }

    /// Creates one end of a channel to another machine: the controller there has the other end,
    /// when it has [joined](Self::join) with the same key and shape and the other side. `side` is
    /// [`Rights::SEND`] or [`Rights::RECEIVE`], and the capability has no other right (but to
    /// delegate). Returns the address where the controller listens: that of `at`, with a port where
    /// that was 0. It listens until somebody with the key has come, or the capability is revoked.
    ///
    /// Who connects and says nothing is cut off after ten seconds. At most 128 such connections are
    /// kept; then the oldest goes of the address that has most. So nobody at other addresses pushes
    /// a joiner out, however slow its first words are; who floods the port from the joiner's own
    /// address, or from 128 of them, can, and [`join`](Self::join) is to be called again.
    ///
    /// The two find each other out without showing the key, and what goes over the channel is
    /// encrypted and protected against change: see [`offer_link`](Self::offer_link) for one that is
    /// not.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape or side; what listening meets.
    pub fn offer(&mut self, shape: ChannelShape, side: Rights, at: SocketAddr, key: &Key) -> Result<(Cap, SocketAddr)> {
        self.offer_link(LinkSpec::new(shape, side), at, key)
    }

    /// The same, with all that can be said of a link.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub fn offer_link(&mut self, spec: LinkSpec, at: SocketAddr, key: &Key) -> Result<(Cap, SocketAddr)> {
        match self.ask(&Ask::Offer { spec, at, key: key.clone() }, &[])? {
            Answer::Offered { cap, address } => Ok((cap, address)),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates the end of a channel that another controller [offers](Self::offer) at an address. It
    /// can be activated at once; the endpoint is there when the link is [`joined`](Self::joined).
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape or side; what making a socket meets. Whether the other is
    /// there is told later.
    pub fn join(&mut self, shape: ChannelShape, side: Rights, to: SocketAddr, key: &Key) -> Result<Cap> {
        self.join_link(LinkSpec::new(shape, side), to, key)
    }

    /// The same, with all that can be said of a link.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_link(&mut self, spec: LinkSpec, to: SocketAddr, key: &Key) -> Result<Cap> {
        self.created(&Ask::Join { spec, to, key: key.clone() })
    }

    /// Waits until a link that was offered or joined is connected.
    ///
    /// # Errors
    /// `Busy` when patience ends; `Device` where it cannot be connected: the other is not there, or
    /// refuses.
    pub fn joined(&mut self, link: Cap, patience: Patience) -> Result<()> {
        match self.event_where(patience, |e| matches!(e, DeviceEvent::Link { cap, .. } if *cap == link))? {
            DeviceEvent::Link { error: Some(why), .. } => Err(Error::new(ErrorKind::Device, "join", why).advice(
                "is it offered there, with the same key, shape and encryption, and the other side? then join again",
            )),
            _ => Ok(()),
        }
    }

    /// Creates a memory, zeroed; the capability has all rights to it.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes; `OutOfMemory`.
    pub fn memory(&mut self, len: usize) -> Result<Cap> {
        self.created(&Ask::Memory { len })
    }

    /// Gives a party a capability with the same rights or fewer.
    ///
    /// # Errors
    /// `PermissionDenied`, `NotFound`: see [`Tree::delegate`](crate::capability::Tree::delegate).
    pub fn delegate(&mut self, cap: Cap, to: Party, rights: Rights) -> Result<Cap> {
        self.created(&Ask::Delegate { cap, to, rights })
    }

    /// Configures an endpoint at the holder of a capability, under a name that the holder knows it
    /// by. A channel works when both of its ends are there. `trust` matters where the holder
    /// receives.
    ///
    /// # Errors
    /// `PermissionDenied` where the capability has fewer rights or is not commanded by this party;
    /// `Busy` where that end of the channel is somewhere already; `NoSpace` where its holder has as
    /// many ends as it can have: a device 256, and of channels over sockets no more than it has
    /// room for among 64 descriptors (about 50).
    pub fn activate(&mut self, cap: Cap, port: &str, rights: Rights, trust: Trust) -> Result<()> {
        self.activate_taking(cap, port, rights, trust.into())
    }

    pub(crate) fn activate_taking(&mut self, cap: Cap, port: &str, rights: Rights, trust: Taking) -> Result<()> {
        self.done(&Ask::Activate { cap, port: port.into(), rights, trust, copies: self.copies })
    }

    /// Takes a capability away with all that was delegated from it, also while blocks are under
    /// way; the number of capabilities that went.
    ///
    /// Both ends of a channel are cut off when this returns. A memory that others go on using is
    /// out of reach of the devices that had it by these capabilities: each has shown that it has
    /// nothing of it any more, or is dead. That takes as long as such a device takes to answer, a
    /// second at most.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` where it is not commanded by this party; `Busy` when patience
    /// ends before a device is known to have nothing of a memory: the capabilities are gone, and
    /// the controller goes on with the device.
    pub fn revoke(&mut self, cap: Cap) -> Result<usize> {
        match self.ask(&Ask::Revoke { cap }, &[])? {
            Answer::Revoked { count, settles: None } => Ok(count),
            Answer::Revoked { count, settles: Some(revocation) } => {
                self.until(self.patience, "devices to give back what was revoked", |session| {
                    session.settled.remove(&revocation).then_some(())
                })?;
                Ok(count)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Lets a device work, from these of its ports to those. It takes up work when all of them are
    /// there.
    ///
    /// # Errors
    /// `NotFound` for a device that has ended.
    pub fn run(&mut self, device: Device, ins: &[String], outs: &[String]) -> Result<()> {
        self.done(&Ask::Run { device: device.0, ins: ins.to_vec(), outs: outs.to_vec() })
    }

    /// Ends a device's process.
    ///
    /// # Errors
    /// `NotFound` for one that has ended.
    pub fn stop(&mut self, device: Device) -> Result<()> {
        self.done(&Ask::Stop { device: device.0 })
    }

    /// What the controller has now.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended.
    pub fn status(&mut self) -> Result<ControllerStatus> {
        match self.ask(&Ask::Status, &[])? {
            Answer::Status(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// This party's sending end at a port, once the channel works.
    ///
    /// # Errors
    /// `Busy` when patience ends; `NotFound` for a port that receives; `Unavailable` where the
    /// controller has ended.
    pub fn sender(&mut self, port: &str, patience: Patience) -> Result<Sender> {
        match self.end(port, patience)? {
            End::Sender(sender) => Ok(sender),
            _ => Err(no_such(port)),
        }
    }

    /// This party's receiving end at a port, once the channel works.
    ///
    /// # Errors
    /// As [`sender`](Self::sender).
    pub fn receiver(&mut self, port: &str, patience: Patience) -> Result<Receiver> {
        match self.end(port, patience)? {
            End::Receiver(receiver) => Ok(receiver),
            _ => Err(no_such(port)),
        }
    }

    /// This party's memory at a port.
    ///
    /// # Errors
    /// As [`sender`](Self::sender).
    pub fn shared_memory(&mut self, port: &str, patience: Patience) -> Result<MemoryEndpoint> {
        match self.end(port, patience)? {
            End::Memory(memory) => Ok(memory),
            _ => Err(no_such(port)),
        }
    }

    /// The next event of a device.
    ///
    /// # Errors
    /// `Busy` when patience ends; `Unavailable` where the controller has ended.
    pub fn event(&mut self, patience: Patience) -> Result<DeviceEvent> {
        self.event_where(patience, |_| true)
    }

    /// The next event that `wanted` wants; others are kept.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    pub fn event_where(&mut self, patience: Patience, wanted: impl Fn(&DeviceEvent) -> bool) -> Result<DeviceEvent> {
        self.until(patience, "an event", |session| session.events.take(&wanted))
    }

    /// Waits until a device has locked itself down.
    ///
    /// # Errors
    /// `Busy` when patience ends; `Device` where it ended instead.
    pub fn ready(&mut self, device: Device, patience: Patience) -> Result<super::Confined> {
        let of_it = |e: &DeviceEvent| match e {
            DeviceEvent::Ready { device: d, .. } | DeviceEvent::Ended { device: d, .. } => *d == device.0,
            _ => false,
        };
        match self.event_where(patience, of_it)? {
            DeviceEvent::Ready { confined, .. } => Ok(confined),
            other => Err(Error::new(ErrorKind::Device, "launch", format!("the device is not there: {other:?}"))),
        }
    }

    /// Readable when the controller has something to say: call [`attend`](Self::attend) then.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// How long the controller may take for an answer from now on; ten seconds, if this is not
    /// said. What was asked may be done nevertheless, later: what it made then goes with the
    /// session.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Which copies of ends that are activated from now on go past the caches; none, if this is not
    /// said.
    pub fn set_copies(&mut self, copies: Copies) {
        self.copies = copies;
    }

    /// The controller's process.
    pub fn controller_pid(&self) -> u32 {
        self.controller.id()
    }

    /// Does what the controller told meanwhile, without waiting.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended.
    pub fn attend(&mut self) -> Result<()> {
        // A device that tells without end does not keep this from returning.
        for _ in 0..MAX_AT_ONCE {
            match self.take_one()? {
                None => break,
                Some(None) => {}
                Some(Some(_)) => return Err(Error::new(ErrorKind::Corrupt, "receive", "an answer to nothing")),
            }
        }
        Ok(())
    }

    fn end(&mut self, port: &str, patience: Patience) -> Result<End> {
        self.until(patience, port, |session| session.ports.take(port))
    }

    fn created(&mut self, ask: &Ask) -> Result<Cap> {
        match self.ask(ask, &[])? {
            Answer::Created { cap } => Ok(cap),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&mut self, ask: &Ask) -> Result<()> {
        match self.ask(ask, &[])? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and waits for the answer; what else comes meanwhile is done.
    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        let until = deadline(self.patience);
        self.send(ask, fds, until)?;
        loop {
            match self.take_one()? {
                Some(Some(Answer::Refused { kind, errno, text })) => return Err(relayed(&kind, errno, text)),
                Some(Some(answer)) => return Ok(answer),
                Some(None) => {}
                None => {
                    let paused = self.pause(until, PollFlags::IN, "the controller's answer");
                    // It may come yet, and is then not that to what is asked next.
                    self.late += usize::from(paused.is_err());
                    paused?;
                }
            }
        }
    }

    fn send(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>], until: Instant) -> Result<()> {
        self.owner.check("ask")?;
        loop {
            match packet::send(self.socket.as_fd(), ask, fds) {
                Err(e) if e.kind() == ErrorKind::Busy => self.pause(until, PollFlags::OUT, "room for a packet")?,
                Err(e) if e.kind() == ErrorKind::Device => return Err(ended()),
                other => return other,
            }
        }
    }

    fn until<T>(&mut self, patience: Patience, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> Result<T> {
        let until = deadline(patience);
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            // Whoever tells without end is no reason to wait for longer.
            if self.take_one()?.is_none() || Instant::now() >= until {
                if let Some(found) = found(self) {
                    return Ok(found);
                }
                self.pause(until, PollFlags::IN, what)?;
            }
        }
    }

    fn pause(&self, until: Instant, flags: PollFlags, what: &str) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(ErrorKind::Busy, "wait", format!("for {what}: nothing came in time")));
        }
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("wait", e.raw_os_error(), "for the controller")),
        }
    }

    /// One packet, if one is there: an answer, or something that was done.
    fn take_one(&mut self) -> Result<Option<Option<Answer>>> {
        self.owner.check("receive")?;
        self.confirm();
        let arrived = packet::receive::<Tell>(self.socket.as_fd(), &mut self.buffer, true)?;
        let (tell, fds) = match arrived {
            Arrived::Packet(tell, fds) => (tell, fds),
            Arrived::Nothing => return Ok(None),
            Arrived::End => return Err(ended()),
        };
        match tell {
            Tell::Answer(_) if self.late > 0 => self.late -= 1,
            Tell::Answer(answer) => return Ok(Some(Some(answer))),
            Tell::Endpoint(spec) => {
                let endpoint = spec.endpoint;
                self.ports.first_half(spec, fds)?;
                self.send(&Ask::Mapped { endpoint }, &[], deadline(self.patience))?;
            }
            Tell::Complete { endpoint } => self.ports.second_half(endpoint, fds)?,
            Tell::Release { endpoint } => {
                self.ports.release(endpoint);
                self.confirm();
            }
            Tell::Event(event) => self.events.add(event),
            Tell::Settled { revocation } => {
                self.settled.insert(revocation);
            }
            Tell::Boot { .. } | Tell::Run { .. } => {}
        }
        Ok(Some(None))
    }

    /// Tells of what is no longer mapped here.
    fn confirm(&mut self) {
        for endpoint in self.ports.unmapped() {
            // Only bookkeeping of the controller waits for it.
            let _ = packet::send(self.socket.as_fd(), &Ask::Unmapped { endpoint }, &[]);
        }
    }
}

impl Drop for Session {
    /// Ends the controller, which ends its devices: an orderly end is waited for, one that does not
    /// come is made.
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        // The controller ends when nobody can speak to it any more; its devices are ended by it
        // before.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if !self.has_ended_within(END) {
            // It is stopped, or stuck. Its devices end with it.
            let _ = self.controller.kill();
            self.has_ended_within(END);
        }
    }
}

impl Session {
    /// Waits for the controller's process; looked at again and again, for a descriptor of it may
    /// not be to be had.
    fn has_ended_within(&mut self, limit: Duration) -> bool {
        let (until, mut pause) = (Instant::now() + limit, Duration::from_micros(100));
        loop {
            match self.controller.try_wait() {
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(10));
                }
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => return true,
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session(controller {})", self.controller.id())
    }
}

fn lives(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    asked.is_err() || !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// When a wait ends; a patience that is longer than the clock goes is a year.
fn deadline(patience: Patience) -> Instant {
    let now = Instant::now();
    now.checked_add(patience.limit).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "ask", "the controller has ended").advice("start a new session")
}

fn unexpected(answer: &Answer) -> Error {
    Error::new(ErrorKind::Corrupt, "ask", format!("an answer to something else: {answer:?}"))
}
