//! The application's side of the controller.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::process::OwningProcess;
use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;

use super::events::Events;
use super::ports::{End, Ports, no_such};
use crate::capability::{Cap, Party, Rights};
use crate::channel::{ChannelShape, Copies, Patience, ReceiveMode, Trust};
use crate::control::devices::groups;
use crate::control::key::{Key, LinkSpec};
use crate::control::limits::DeviceLimits;
use crate::control::packet::{self, Arrived, PACKET_BYTES};
use crate::control::protocol::CONTROLLER;
use crate::control::protocol::{Answer, Ask, ControllerStatus, DeviceEvent, Tell};
use crate::control::ucx_links::UcxLinkOptions;
use crate::device::DeviceRole;
use crate::error_text::relayed;
use crate::memory::MemoryEndpoint;
use crate::transport::{Carrier, Receiver, Sender};

/// The longest time that the controller may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest time for a forced end of the controller, and for an orderly one if nothing else is
/// said.
const END: Duration = Duration::from_secs(3);
/// The longest wait for the devices of a controller that was killed, to remove their groups.
const GROUPS: Duration = Duration::from_millis(100);
/// The most packets that are handled at once.
const MAX_AT_ONCE: usize = 4096;

/// The program that runs as controller and devices. Its `main` must begin with
/// [`process::enter`](crate::process::enter).
#[derive(Clone, Debug, Default)]
pub enum Program {
    /// This program.
    #[default]
    This,
    /// The program at a path, such as the crate's own `fabric-device`.
    At(PathBuf),
}

/// A device that was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device(pub Party);

/// A controller process, and the requests to it. When the session ends, its devices end as well.
///
/// It belongs to the process that started it: in a child made by `fork` its calls fail (`Forked`),
/// and dropping it there ends nothing.
pub struct Session {
    socket: Arc<OwnedFd>,
    controller: Child,
    ports: Ports,
    events: Events,
    /// Completed revocations that nobody waited for.
    settled: BTreeSet<u64>,
    buffer: Vec<u8>,
    patience: Patience,
    copies: Copies,
    /// The number of answers that nobody waits for any more.
    late: usize,
    /// How long an orderly end may take.
    end: Duration,
    owner: OwningProcess,
}

const MISSING_ENTER: &str = "begin its `main` with `fabric::process::enter` (crate `datapipes`, or `datapipes_fabric`)";

impl Session {
    /// Starts a controller.
    ///
    /// # Errors
    /// `NotFound` where the program does not exist. `Unavailable` where it cannot act as a
    /// controller.
    pub fn start(program: &Program) -> Result<Session> {
        if let Some(role) = crate::process::unheeded_role() {
            // Without this, each copy of a program that does not call `enter` would start the next.
            let context = format!("a controller in a process that was started as {role}");
            return Err(Error::new(ErrorKind::Unavailable, "start", context).with_advice(MISSING_ENTER));
        }
        let os = |e: Errno| Error::os("start", e.raw_os_error(), "a controller");
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(os)?;
        let path = match program {
            Program::This => PathBuf::from("/proc/self/exe"),
            Program::At(path) => path.clone(),
        };
        let mut command = Command::new(&path);
        command.arg(CONTROLLER).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let controller =
            threads::start_program(&mut command).map_err(|e| Error::io("start", e, path.display().to_string()))?;
        // The command holds the other end until it is dropped. With that open, a controller's death
        // would not be noticed.
        drop(command);
        let socket = Arc::new(ours);
        let watched = socket.clone();
        let ports = Ports::of_application(Arc::new(move || lives(watched.as_fd())));
        let (events, settled, buffer) = (Events::default(), BTreeSet::new(), vec![0; PACKET_BYTES + 1]);
        let (patience, late, end) = (Patience::up_to(ANSWER), 0, END);
        let (copies, owner) = (Copies::default(), OwningProcess::here());
        let mut session =
            Session { socket, controller, ports, events, settled, buffer, patience, copies, late, end, owner };
        session
            .status()
            .map_err(|e| e.within(format!("{} as controller", path.display())).with_advice(MISSING_ENTER))?;
        Ok(session)
    }

    /// Launches a device. It gets the descriptors beforehand and can open nothing by itself. A
    /// [`DeviceEvent::Ready`] tells when it is ready.
    ///
    /// # Errors
    /// `OutOfRange` for more than 8 descriptors. Errors of starting a process.
    pub fn launch(&mut self, name: &str, role: DeviceRole, given: &[BorrowedFd<'_>]) -> Result<Device> {
        self.launch_within(name, role, given, DeviceLimits::default())
    }

    /// As [`launch`](Self::launch), with other limits than the default.
    /// [`ControllerStatus::charges`] shows the device's use, and what enforces the limits.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
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

    /// Creates a channel. The capability has all rights to it.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape, and `OutOfMemory`.
    pub fn channel(&mut self, shape: ChannelShape) -> Result<Cap> {
        self.created(&Ask::Channel { shape })
    }

    /// Creates a channel between two parties of this machine over the given carrier. The capability
    /// has all rights to it. Over UCX it returns when two processes have started and have met,
    /// which takes a moment.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape, `OutOfMemory`, and errors of making sockets. `Unavailable`
    /// where the carrier is UCX, and that is not installed or does not work here.
    pub fn channel_over(&mut self, shape: ChannelShape, carrier: Carrier) -> Result<Cap> {
        match carrier {
            Carrier::SharedMemory => self.channel(shape),
            _ => self.created(&Ask::Connection { shape, carrier }),
        }
    }

    /// Creates one end of a channel to another machine. The controller there gets the other end by
    /// [joining](Self::join) with the same key and shape and the opposite side. `side` is
    /// [`Rights::SEND`] or [`Rights::RECEIVE`], and the capability has only this right and that to
    /// delegate. Returns the address where the controller listens: `at`, with an assigned port if
    /// that was 0. It listens until a party with the key has come, or the capability is revoked.
    ///
    /// A connection that sends nothing is cut off after ten seconds. At most 128 such connections
    /// are kept. Beyond that, the oldest one of the address with most of them is cut off. So nobody
    /// at other addresses can displace a joiner, however slow its first messages are. An attacker
    /// that floods the port from the joiner's own address, or from 128 addresses, can, and
    /// [`join`](Self::join) must be called again.
    ///
    /// The two controllers authenticate each other without showing the key. The bytes of the
    /// channel are encrypted and protected against change. [`offer_link`](Self::offer_link) can
    /// make one without encryption.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape or side. Errors of listening.
    pub fn offer(&mut self, shape: ChannelShape, side: Rights, at: SocketAddr, key: &Key) -> Result<(Cap, SocketAddr)> {
        self.offer_link(LinkSpec::new(shape, side), at, key)
    }

    /// As [`offer`](Self::offer), with all settings of a link.
    ///
    /// # Errors
    /// Those of [`offer`](Self::offer).
    pub fn offer_link(&mut self, spec: LinkSpec, at: SocketAddr, key: &Key) -> Result<(Cap, SocketAddr)> {
        match self.ask(&Ask::Offer { spec, at, key: key.clone() }, &[])? {
            Answer::Offered { cap, address } => Ok((cap, address)),
            other => Err(unexpected(&other)),
        }
    }

    /// Creates the end of a channel that another controller [offers](Self::offer) at an address. It
    /// can be activated at once. The endpoint exists when the link is [`joined`](Self::joined).
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape or side. Errors of making a socket. Whether the other
    /// controller is there is reported later.
    pub fn join(&mut self, shape: ChannelShape, side: Rights, to: SocketAddr, key: &Key) -> Result<Cap> {
        self.join_link(LinkSpec::new(shape, side), to, key)
    }

    /// As [`join`](Self::join), with all settings of a link.
    ///
    /// # Errors
    /// Those of [`join`](Self::join).
    pub fn join_link(&mut self, spec: LinkSpec, to: SocketAddr, key: &Key) -> Result<Cap> {
        self.created(&Ask::Join { spec, to, key: key.clone() })
    }

    /// Connects all links that are offered or joined from now on over TLS: each of the two
    /// controllers shows a certificate, and goes on only if it believes the other's, before the key
    /// is proved. A controller without one is refused, and refuses.
    ///
    /// TLS protects how a link is connected. Its ends seal the bytes themselves
    /// ([`Encryption`](super::super::Encryption)), with keys that nobody has who was not there.
    ///
    /// # Errors
    /// `OutOfRange` for certificates that are too long for a packet; `Unavailable` where the
    /// controller has ended.
    #[cfg(feature = "tls")]
    pub fn secure_links(&mut self, identity: &datapipes_tls::TlsIdentity) -> Result<()> {
        self.done(&Ask::Secure { identity: Box::new(identity.clone()) })
    }

    /// Lets links of [`LinkCarrier::Ucx`](super::super::LinkCarrier) that are offered or joined
    /// from now on go by UCX, as the options say. They must say that the network is trusted.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended.
    pub fn ucx_links(&mut self, options: &UcxLinkOptions) -> Result<()> {
        self.done(&Ask::UcxLinks { options: options.clone() })
    }

    /// Waits until a link that was offered or joined is connected.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `Device` where it cannot be connected: the other
    /// controller is not there, or refuses.
    pub fn joined(&mut self, link: Cap, patience: Patience) -> Result<()> {
        match self.event_where(patience, |e| matches!(e, DeviceEvent::Link { cap, .. } if *cap == link))? {
            DeviceEvent::Link { error: Some(why), .. } => Err(Error::new(ErrorKind::Device, "join", why).with_advice(
                "check that it is offered there with the same key, shape, encryption and carrier and the opposite side, then join again",
            )),
            _ => Ok(()),
        }
    }

    /// Creates a zeroed memory. The capability has all rights to it.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, and `OutOfMemory`.
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

    /// Configures an endpoint at the holder of a capability, under a name by which the holder knows
    /// it. A channel works when both of its ends exist. `trust` matters only where the holder
    /// receives.
    ///
    /// # Errors
    /// `PermissionDenied` where the capability lacks rights or this party does not command it.
    /// `Busy` where that end of the channel is in use. `NoSpace` where its holder has reached its
    /// limit of ends: for a device 256, and for channels over sockets the room among its 64
    /// descriptors (about 50).
    pub fn activate(&mut self, cap: Cap, port: &str, rights: Rights, trust: Trust) -> Result<()> {
        self.activate_with_mode(cap, port, rights, trust.into())
    }

    pub(crate) fn activate_with_mode(
        &mut self,
        cap: Cap,
        port: &str,
        rights: Rights,
        trust: ReceiveMode,
    ) -> Result<()> {
        self.done(&Ask::Activate { cap, port: port.into(), rights, trust, copies: self.copies })
    }

    /// Removes a capability and all that was delegated from it, even while blocks are in flight.
    /// Returns the number of removed capabilities.
    ///
    /// When this returns, both ends of a channel are cut off. A memory that others continue to use
    /// is out of reach of the devices that had it by these capabilities: each has proved that it
    /// has nothing of it any more, or is dead. That takes as long as such a device takes to answer,
    /// at most a second.
    ///
    /// # Errors
    /// `NotFound`. `PermissionDenied` where this party does not command it. `Busy` when the
    /// patience is over before a device is known to have nothing of a memory: the capabilities are
    /// gone, and the controller continues with the device.
    pub fn revoke(&mut self, cap: Cap) -> Result<usize> {
        let span = datapipes_metrics::span!(Debug, "revoke", [], empty: []);
        let revoked = self.revoke_now(cap);
        span.ended(revoked.is_ok());
        revoked
    }

    fn revoke_now(&mut self, cap: Cap) -> Result<usize> {
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

    /// Starts a device's work, from the ports `ins` to the ports `outs`. It begins when all of them
    /// exist.
    ///
    /// # Errors
    /// `NotFound` for a device that has ended.
    pub fn run(&mut self, device: Device, ins: &[String], outs: &[String]) -> Result<()> {
        self.done(&Ask::Run { device: device.0, ins: ins.to_vec(), outs: outs.to_vec() })
    }

    /// Ends a device's process.
    ///
    /// # Errors
    /// `NotFound` if it has ended already.
    pub fn stop(&mut self, device: Device) -> Result<()> {
        self.done(&Ask::Stop { device: device.0 })
    }

    /// Returns the present resources of the controller.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended.
    pub fn status(&mut self) -> Result<ControllerStatus> {
        let mut after = Party::APPLICATION;
        let mut devices = Vec::new();
        let mut charges = Vec::new();
        loop {
            match self.ask(&Ask::Status { after }, &[])? {
                Answer::Status { mut status, more } => {
                    devices.append(&mut status.devices);
                    charges.append(&mut status.charges);
                    match devices.last() {
                        Some((last, ..)) if more => after = *last,
                        _ => return Ok(ControllerStatus { devices, charges, ..status }),
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Takes this party's sending end at a port, once the channel works.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `NotFound` for a receiving port. `Unavailable` where the
    /// controller has ended.
    pub fn sender(&mut self, port: &str, patience: Patience) -> Result<Sender> {
        match self.end(port, patience)? {
            End::Sender(sender) => Ok(sender),
            _ => Err(no_such(port)),
        }
    }

    /// Takes this party's receiving end at a port, once the channel works.
    ///
    /// # Errors
    /// Those of [`sender`](Self::sender).
    pub fn receiver(&mut self, port: &str, patience: Patience) -> Result<Receiver> {
        match self.end(port, patience)? {
            End::Receiver(receiver) => Ok(receiver),
            _ => Err(no_such(port)),
        }
    }

    /// Takes this party's memory at a port.
    ///
    /// # Errors
    /// Those of [`sender`](Self::sender).
    pub fn shared_memory(&mut self, port: &str, patience: Patience) -> Result<MemoryEndpoint> {
        match self.end(port, patience)? {
            End::Memory(memory) => Ok(memory),
            _ => Err(no_such(port)),
        }
    }

    /// Waits for the next event of a device or link.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `Unavailable` where the controller has ended.
    pub fn event(&mut self, patience: Patience) -> Result<DeviceEvent> {
        self.event_where(patience, |_| true)
    }

    /// Waits for the next event for which `wanted` is true. Other events are kept.
    ///
    /// # Errors
    /// Those of [`event`](Self::event).
    pub fn event_where(&mut self, patience: Patience, wanted: impl Fn(&DeviceEvent) -> bool) -> Result<DeviceEvent> {
        self.until(patience, "an event", |session| session.events.take(&wanted))
    }

    /// Waits until a device has locked itself down.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `Device` where it ended instead.
    pub fn ready(&mut self, device: Device, patience: Patience) -> Result<crate::control::Confined> {
        let of_it = |e: &DeviceEvent| match e {
            DeviceEvent::Ready { device: d, .. } | DeviceEvent::Ended { device: d, .. } => *d == device.0,
            _ => false,
        };
        match self.event_where(patience, of_it)? {
            DeviceEvent::Ready { confined, .. } => Ok(confined),
            other => Err(Error::new(ErrorKind::Device, "launch", format!("the device is not there: {other:?}"))),
        }
    }

    /// A descriptor that is readable when a message has come. Then call [`attend`](Self::attend).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sets how long the controller may take to answer. The default is ten seconds. A request may
    /// still be executed after that. Objects that it creates then end with the session.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Sets the copies that bypass the caches, for ends that are activated from now on. The default
    /// is none.
    pub fn set_copies(&mut self, copies: Copies) {
        self.copies = copies;
    }

    /// Sets how long dropping it waits for an orderly end of the controller and its devices, before
    /// it kills them (3 s if this is not called). A device that waits for a slow disk, in a sync
    /// for example, ends only after that, whoever waits.
    pub fn set_end_patience(&mut self, limit: Duration) {
        self.end = limit;
    }

    /// The process id of the controller.
    pub fn controller_pid(&self) -> u32 {
        self.controller.id()
    }

    /// Handles messages of the controller without waiting.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended.
    pub fn attend(&mut self) -> Result<()> {
        // The limit makes this return even if a device sends messages without end.
        for _ in 0..MAX_AT_ONCE {
            match self.take_one()? {
                None => break,
                Some(None) => {}
                Some(Some(_)) => return Err(Error::new(ErrorKind::Corrupt, "receive", "an unexpected answer")),
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

    /// Sends a request and waits for the answer. Other messages are handled meanwhile.
    fn ask(&mut self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        let until = deadline(self.patience);
        self.send(ask, fds, until)?;
        let answered = loop {
            match self.take_one() {
                Ok(Some(Some(answer))) => break Ok(answer),
                Ok(Some(None)) => {}
                Ok(None) => {
                    if let Err(e) = self.pause(until, PollFlags::IN, "the controller's answer") {
                        break Err(e);
                    }
                }
                Err(e) => break Err(e),
            }
        };
        // Whatever went wrong meanwhile, the answer may still come, and is then not that of the
        // next request.
        self.late += usize::from(answered.is_err());
        match answered? {
            Answer::Refused { kind, errno, text } => Err(relayed(&kind, errno, text)),
            answer => Ok(answer),
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
            // A party that sends without end does not extend the wait.
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

    /// Handles one packet, if there is one. Returns an answer, or Some(None) for anything else.
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

    /// Reports memory that is no longer mapped here.
    fn confirm(&mut self) {
        for endpoint in self.ports.unmapped() {
            // Only bookkeeping of the controller depends on it.
            let _ = packet::send(self.socket.as_fd(), &Ask::Unmapped { endpoint }, &[]);
        }
    }
}

impl Drop for Session {
    /// Ends the controller, which ends its devices. It waits for an orderly end, and kills the
    /// controller if that does not come.
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        // The controller ends when its socket is closed, after it has ended its devices.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if !self.has_ended_within(self.end) {
            // It is stopped or stuck. Its devices end with it.
            let _ = self.controller.kill();
            self.has_ended_within(END);
            groups::remove_those_of_the_gone(GROUPS);
        }
    }
}

impl Session {
    /// Waits for the controller's process by polling, because a descriptor of it may not be
    /// available.
    fn has_ended_within(&mut self, limit: Duration) -> bool {
        let (began, mut pause) = (Instant::now(), Duration::from_micros(100));
        loop {
            match self.controller.try_wait() {
                Ok(None) if began.elapsed() < limit => {
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

/// The end of a wait. A patience beyond the range of the clock becomes a year.
fn deadline(patience: Patience) -> Instant {
    let now = Instant::now();
    now.checked_add(patience.limit).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "ask", "the controller has ended").with_advice("start a new session")
}

fn unexpected(answer: &Answer) -> Error {
    Error::new(ErrorKind::Corrupt, "ask", format!("an answer to something else: {answer:?}"))
}
