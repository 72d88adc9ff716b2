//! The controller: the one process that creates, delegates, activates and revokes (the paper's
//! kernel tile).

mod bridged;
mod bridging;
pub(super) mod joining;
pub(super) mod link;
mod link_wire;
pub(super) mod objects;
pub(super) mod peers;
pub(super) mod release;
pub(super) mod serving;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, pidfd_open};

use self::bridging::Bridging;
use self::joining::Joining;
use self::link::Link;
use self::objects::{ControlledObject, Endpoint};
use self::peers::{DeviceProcess, OWN_DESCRIPTORS, Peer, Told};
use self::release::Revocations;
use crate::capability::{Cap, ObjectId, Party, Rights, Tree};
use crate::channel::layout::State;
use crate::channel::{ChannelShape, Copies, ReceiveMode};
use crate::control::devices::groups::Groups;
use crate::control::devices::quota::Quota;
use crate::control::devices::stderr::{DeviceStderr, StderrWriter};
use crate::control::limits::DeviceLimits;
use crate::control::protocol::{Answer, Ask, ControllerStatus, DEVICE, DeviceEvent, EndpointId, EndpointSpec, Tell};
use crate::control::tls::TlsIdentity;
use crate::control::ucx_links::UcxLinkOptions;
use crate::device::{DeviceRole, StreamReport};
use crate::transport::Carrier;

/// The most objects and devices of one application.
const MAX_OBJECTS: usize = 4096;
const MAX_DEVICES: usize = 256;
/// The most endpoints of one device, and of the application.
const MAX_ENDPOINTS: usize = 256;
const MAX_ENDPOINTS_OF_APPLICATION: usize = 4 * MAX_OBJECTS;
/// The most bytes of the name of a port or a device.
const MAX_NAME: usize = 255;
/// The most devices of one answer to a status. A packet holds their names, whose characters may be
/// six times as long in it, and their charges.
const DEVICES_OF_ANSWER: usize = 12;
/// The most characters of a device's failure report.
const MAX_TEXT: usize = 4096;

pub(super) struct Controller {
    pub(super) tree: Tree,
    pub(super) objects: BTreeMap<ObjectId, ControlledObject>,
    /// The object of each endpoint.
    pub(super) object_of: BTreeMap<EndpointId, ObjectId>,
    /// Links that are not connected yet.
    pub(super) joins: BTreeMap<ObjectId, Joining>,
    /// With one, links are connected over TLS.
    pub(super) identity: Option<TlsIdentity>,
    /// Links whose bytes go by UCX, until they have ended.
    pub(super) bridges: BTreeMap<ObjectId, Bridging>,
    /// How links to other machines go by UCX, if they may.
    pub(super) ucx_links: Option<UcxLinkOptions>,
    /// The bytes of bridges that have ended well.
    pub(super) bridged_bytes: u64,
    pub(super) peers: BTreeMap<Party, Peer>,
    pub(super) revocations: Revocations,
    pub(super) groups: Groups,
    pub(super) stderr: StderrWriter,
    last_party: u32,
    last_object: u64,
    last_endpoint: EndpointId,
}

impl Controller {
    pub(super) fn new(application: OwnedFd) -> Controller {
        let mut peers = BTreeMap::new();
        peers.insert(Party::APPLICATION, Peer::new(application, "application".into(), None));
        Controller {
            tree: Tree::new(),
            objects: BTreeMap::new(),
            object_of: BTreeMap::new(),
            joins: BTreeMap::new(),
            identity: None,
            bridges: BTreeMap::new(),
            ucx_links: None,
            bridged_bytes: 0,
            peers,
            revocations: Revocations::default(),
            groups: Groups::find(),
            stderr: StderrWriter::open(),
            last_party: 0,
            last_object: 0,
            last_endpoint: 0,
        }
    }

    /// Executes a request of a party, as far as it is allowed.
    pub(super) fn serve(&mut self, by: Party, ask: Ask, fds: Vec<OwnedFd>) {
        if let (Party::APPLICATION, Ask::Connection { shape, carrier: Carrier::Ucx }) = (by, &ask) {
            // It is answered when the bridges have met.
            return self.bridge_within(*shape);
        }
        let answer = match self.noted(by, &ask) {
            Some(()) => return,
            None => self.answer(by, ask, fds),
        };
        let answer = answer.unwrap_or_else(|e| Answer::refused(&e));
        self.tell(by, Tell::Answer(answer), Vec::new());
    }

    /// Answers a request that was not understood, or whose descriptors could not be received.
    pub(super) fn refuse(&mut self, by: Party, why: &Error) {
        self.tell(by, Tell::Answer(Answer::refused(why)), Vec::new());
    }

    /// Handles requests that get no answer.
    fn noted(&mut self, by: Party, ask: &Ask) -> Option<()> {
        match ask {
            Ask::Mapped { endpoint } => self.mapped(by, *endpoint),
            Ask::Unmapped { endpoint } => self.unmapped(by, *endpoint),
            Ask::Ready { confined, .. } if confined.landlock.len() > MAX_TEXT || confined.threads.len() > MAX_NAME => {
                self.kill(by, "it broke the control protocol: a lock-down whose description is too long");
            }
            Ask::Ready { confined, descriptors } => {
                // A second report would add an event that must not be dropped, each time.
                let device = self.peers.get_mut(&by).and_then(|peer| peer.device.as_mut());
                let first = device.is_some_and(|device| {
                    device.opened(*descriptors);
                    !std::mem::replace(&mut device.is_ready, true)
                });
                match first {
                    true => self.happened(DeviceEvent::Ready { device: by, confined: confined.clone() }),
                    false => self.kill(by, "it broke the control protocol: it was ready before"),
                }
            }
            Ask::Report(report) if is_too_long(report) => {
                self.kill(by, "it broke the control protocol: a report that is too long");
            }
            Ask::Report(report) => self.happened(DeviceEvent::Report { device: by, report: report.clone() }),
            _ => return None,
        }
        Some(())
    }

    fn happened(&mut self, event: DeviceEvent) {
        self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
    }

    fn answer(&mut self, by: Party, ask: Ask, fds: Vec<OwnedFd>) -> Result<Answer> {
        let of_application = matches!(
            ask,
            Ask::Launch { .. }
                | Ask::Channel { .. }
                | Ask::Connection { .. }
                | Ask::Offer { .. }
                | Ask::Join { .. }
                | Ask::Secure { .. }
                | Ask::UcxLinks { .. }
                | Ask::Memory { .. }
                | Ask::Run { .. }
                | Ask::Stop { .. }
                | Ask::Status { .. }
        );
        if of_application && by != Party::APPLICATION {
            let what = "only the application launches devices and creates channels";
            return Err(Error::new(ErrorKind::PermissionDenied, "ask", what));
        }
        match ask {
            Ask::Launch { name, role, limits } => self.launch(name, role, limits, fds),
            Ask::Channel { shape } => self.channel(by, shape),
            Ask::Connection { shape, carrier } => {
                self.created(by, |epoch| ControlledObject::link(Link::within(shape, epoch, carrier)?))
            }
            Ask::Offer { spec, at, key } => self.offer(spec, at, key),
            Ask::Join { spec, to, key } => self.join(spec, to, key),
            Ask::Secure { identity } => {
                self.identity = Some(*identity);
                Ok(Answer::Done)
            }
            Ask::UcxLinks { options } => {
                self.ucx_links = Some(options);
                Ok(Answer::Done)
            }
            Ask::Memory { len } => self.created(by, |_| ControlledObject::memory(len)),
            Ask::Delegate { cap, to, rights } => {
                self.peer(to)?;
                self.tree.delegate(cap, by, to, rights).map(|cap| Answer::Created { cap })
            }
            Ask::Activate { cap, port, rights, trust, copies } => self.activate(by, cap, port, (rights, trust, copies)),
            Ask::Revoke { cap } => self.revoke(by, cap),
            Ask::Run { device, ins, outs } => {
                self.peer(device)?;
                self.tell(device, Tell::Run { ins, outs }, Vec::new());
                Ok(Answer::Done)
            }
            Ask::Stop { device } => {
                self.peer(device)?;
                if device != Party::APPLICATION {
                    self.kill(device, "stopped by the application");
                }
                Ok(Answer::Done)
            }
            Ask::Status { after } => Ok(self.status(after)),
            Ask::Mapped { .. } | Ask::Unmapped { .. } | Ask::Ready { .. } | Ask::Report(_) => Ok(Answer::Done),
        }
    }

    fn peer(&mut self, party: Party) -> Result<&mut Peer> {
        let missing = || Error::new(ErrorKind::NotFound, "ask", format!("party {}", party.0));
        self.peers.get_mut(&party).ok_or_else(missing)
    }

    fn launch(&mut self, name: String, role: DeviceRole, limits: DeviceLimits, fds: Vec<OwnedFd>) -> Result<Answer> {
        if self.peers.len() > MAX_DEVICES {
            return Err(Error::new(ErrorKind::NoSpace, "launch", format!("more than {MAX_DEVICES} devices")));
        }
        check_name("launch", &name)?;
        let os = |e: rustix::io::Errno| Error::os("launch", e.raw_os_error(), name.clone());
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(os)?;
        let (heard, said) = pipe_with(PipeFlags::CLOEXEC).map_err(os)?;
        rustix::fs::fcntl_setfl(&heard, rustix::fs::OFlags::NONBLOCK).map_err(os)?;
        let child = started(&name, theirs, said)?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(e) => {
                ended(child);
                return Err(os(e));
            }
        };
        self.last_party += 1;
        let party = Party(self.last_party);
        // It does nothing before it gets its role.
        let mut quota = Quota::new(&self.groups, party, &role, limits);
        quota.take_in(child.id());
        let threads = quota.threads();
        let stderr = DeviceStderr::new(heard, &name);
        let descriptors = OWN_DESCRIPTORS + fds.len();
        let device = DeviceProcess { child, pidfd, stderr, quota, is_ready: false, descriptors, verdict: None };
        self.peers.insert(party, Peer::new(ours, name.clone(), Some(device)));
        self.tell(party, Tell::Boot { party, name, role, threads }, fds);
        Ok(Answer::Device { party })
    }

    fn channel(&mut self, by: Party, shape: ChannelShape) -> Result<Answer> {
        self.created(by, |epoch| ControlledObject::channel(shape, epoch))
    }

    fn created(&mut self, by: Party, make: impl FnOnce(u64) -> Result<ControlledObject>) -> Result<Answer> {
        self.create(by, make).map(|(_, cap)| Answer::Created { cap })
    }

    pub(super) fn create(
        &mut self,
        by: Party,
        make: impl FnOnce(u64) -> Result<ControlledObject>,
    ) -> Result<(ObjectId, Cap)> {
        if self.objects.len() >= MAX_OBJECTS {
            return Err(Error::new(ErrorKind::NoSpace, "create", format!("more than {MAX_OBJECTS} objects")));
        }
        // The number of an object is also the epoch of its messages. No number is used twice.
        let controlled = make(self.last_object + 1)?;
        self.last_object += 1;
        let object = ObjectId(self.last_object);
        let cap = self.tree.root(object, controlled.all_rights(), by);
        self.objects.insert(object, controlled);
        Ok((object, cap))
    }

    fn activate(
        &mut self,
        by: Party,
        cap: Cap,
        port: String,
        (rights, trust, copies): (Rights, ReceiveMode, Copies),
    ) -> Result<Answer> {
        check_name("activate", &port)?;
        let capability = self.tree.get(cap)?.clone();
        let refuse = |what: &str| Err(Error::new(ErrorKind::PermissionDenied, "activate", what));
        if !self.tree.commands(cap, by) {
            return refuse("the capability is held by somebody else");
        }
        // A party gets only ends that it asked for: it could mistake another one for such an end.
        if by != Party::APPLICATION && by != capability.holder {
            return refuse("a device activates only capabilities that it holds itself");
        }
        if !capability.rights.include(rights) {
            return refuse("the capability has fewer rights");
        }
        let party = capability.holder;
        let full = |what: &str| Err(Error::new(ErrorKind::NoSpace, "activate", what));
        let needs = self.objects.get(&capability.object).map(ControlledObject::needs).unwrap_or_default();
        let peer = self.peer(party)?;
        if peer.ports.contains(&port) {
            let what = format!("port {port} is in use at party {}", party.0);
            return Err(Error::new(ErrorKind::Busy, "activate", what).with_advice("choose another name"));
        }
        let most = if party == Party::APPLICATION { MAX_ENDPOINTS_OF_APPLICATION } else { MAX_ENDPOINTS };
        if peer.endpoints.len() >= most {
            return full("the party has as many endpoints as it can have");
        }
        let sockets = peer.needs().descriptors + needs.descriptors;
        if needs.descriptors > 0 && peer.device.as_ref().is_some_and(|device| !device.has_room(sockets)) {
            let what = "the device has as many channels over sockets as it can have";
            return full(what).map_err(|e| e.with_advice("over shared memory it can have more"));
        }
        let Some(controlled) = self.objects.get_mut(&capability.object) else {
            return Err(Error::new(ErrorKind::NotFound, "activate", "the object of the capability has gone"));
        };
        let id = self.last_endpoint + 1;
        let (name, mapped, asked, gone, revocation) = (port.clone(), false, false, false, None);
        let end = Endpoint { party, cap, rights, port: name, trust, mapped, asked, gone, revocation };
        let told = controlled.activate(id, end)?;
        self.last_endpoint = id;
        self.object_of.insert(id, capability.object);
        let peer = self.peer(party)?;
        peer.ports.insert(port.clone());
        peer.endpoints.insert(id, needs);
        peer.allow();
        match told {
            Some((kind, fds)) => {
                self.tell(party, Tell::Endpoint(EndpointSpec { endpoint: id, port, kind, copies }), fds)
            }
            // It is sent when the link is connected.
            None => {
                let joining = self.joins.get_mut(&capability.object);
                joining.into_iter().for_each(|j| j.waiting.push((id, party, port.clone(), copies)));
            }
        }
        Ok(Answer::Done)
    }

    fn mapped(&mut self, by: Party, id: EndpointId) {
        let controlled = self.object_of.get(&id).and_then(|object| self.objects.get_mut(object));
        let Some(controlled) = controlled.filter(|t| t.endpoints.get(&id).is_some_and(|e| e.party == by)) else {
            return self.kill(by, "it broke the control protocol: it mapped what it was not given");
        };
        match controlled.mapped(id) {
            Ok(halves) => {
                for (party, endpoint, fds) in halves {
                    self.tell(party, Tell::Complete { endpoint }, fds);
                }
            }
            Err(_) => controlled.end(State::Revoked),
        }
    }

    /// Ends everything, because the application has gone or the controller must end.
    pub(super) fn end(&mut self) {
        self.bridges.clear();
        for controlled in self.objects.values_mut() {
            controlled.end(State::ControllerGone);
        }
        // All are killed before any is waited for.
        let mut devices: Vec<_> =
            std::mem::take(&mut self.peers).into_values().filter_map(|peer| peer.device).collect();
        devices.iter().for_each(DeviceProcess::kill);
        for DeviceProcess { mut child, stderr, quota, .. } in devices.drain(..) {
            let _ = child.wait();
            stderr.end(&self.stderr);
            quota.close(&mut self.groups);
        }
        self.stderr.close();
    }

    /// Reads the standard error of a device.
    pub(super) fn heard(&mut self, party: Party) {
        if let Some(device) = self.peers.get_mut(&party).and_then(|peer| peer.device.as_mut()) {
            device.stderr.listen(&self.stderr);
        }
    }

    pub(super) fn tell(&mut self, party: Party, tell: Tell, fds: Vec<OwnedFd>) {
        let told = self.peers.get_mut(&party).map(|peer| peer.tell(tell, fds));
        if told == Some(Told::TooMuch) {
            self.kill(party, "it does not read what it is told");
        }
    }

    fn status(&self, after: Party) -> Answer {
        let all = || self.peers.iter().filter(|(party, _)| **party > after);
        let devices =
            || all().filter_map(|(party, peer)| Some((*party, peer, peer.device.as_ref()?))).take(DEVICES_OF_ANSWER);
        let more = all().filter(|(_, peer)| peer.device.is_some()).count() > DEVICES_OF_ANSWER;
        let releasing = |t: &ControlledObject| t.endpoints.values().filter(|e| e.asked && !e.gone).count();
        let status = ControllerStatus {
            pid: std::process::id(),
            devices: devices().map(|(party, peer, device)| (party, peer.name.clone(), device.child.id())).collect(),
            objects: self.objects.len(),
            bytes: self.objects.values().map(|t| t.bytes).sum(),
            capabilities: self.tree.len(),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count()),
            releasing: self.objects.values().map(releasing).sum(),
            bridges: self.bridges.values().map(Bridging::running).sum(),
            bridged_bytes: self.bridged_bytes,
            charges: devices().map(|(party, _, device)| device.quota.charge(party, device.child.id())).collect(),
        };
        Answer::Status { status, more }
    }
}

/// Starts the process of a device, with its control socket, and with a pipe for its standard error.
fn started(name: &str, socket: OwnedFd, said: OwnedFd) -> Result<Child> {
    // The controller runs the program that the application chose. A party that could change the
    // program could change this process as well.
    let mut command = Command::new("/proc/self/exe");
    command.arg(DEVICE).stdin(Stdio::from(socket)).stdout(Stdio::null()).stderr(Stdio::from(said)).env_clear();
    if let Ok(trace) = std::env::var("RUST_BACKTRACE") {
        command.env("RUST_BACKTRACE", trace);
    }
    threads::start_program(&mut command).map_err(|e| Error::io("launch", e, name))
}

/// Ends a process that no table has yet.
fn ended(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn check_name(operation: &'static str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        let context = format!("a name of {} bytes, where 1 to {MAX_NAME} can be", name.len());
        return Err(Error::new(ErrorKind::InvalidInput, operation, context));
    }
    Ok(())
}

fn is_too_long(report: &StreamReport) -> bool {
    report.error.as_ref().is_some_and(|failure| failure.kind.len() > MAX_NAME || failure.text.len() > MAX_TEXT * 4)
}
