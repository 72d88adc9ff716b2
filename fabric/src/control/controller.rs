//! The controller: the one process that creates, delegates, activates and revokes (the paper's kernel tile).

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::joining::Joining;
use super::link::Link;
use super::objects::{Endpoint, Thing};
use super::packet;
use super::protocol::{Answer, Ask, EndpointId, EndpointSpec, Event, Status, Tell};
use crate::capability::{Cap, Capability, ObjectId, Party, Rights, Tree};
use crate::channel::layout::State;
use crate::channel::{Shape, Taking};
use crate::device::Role;
use crate::process::DEVICE;

/// A device that was told to unmap and has not done so after this time is killed: as nothing here stands between a process and
/// what it has mapped, its end is what takes the memory away.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// Packets that wait for a party that does not read.
const MOST_WAITING: usize = 256;
/// Objects, and devices, that one application can have.
const MOST_OBJECTS: usize = 4096;
const MOST_DEVICES: usize = 256;

pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    name: String,
    child: Option<(Child, OwnedFd)>,
    waiting: VecDeque<(Tell, Vec<OwnedFd>)>,
    /// When it is killed, if it does not unmap before.
    pub(super) deadline: Option<Instant>,
    /// Why it was killed, if it was.
    verdict: Option<String>,
}

impl Peer {
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref().map(|(_, pidfd)| pidfd.as_fd())
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }
}

pub(super) struct Controller {
    tree: Tree,
    pub(super) things: BTreeMap<ObjectId, Thing>,
    /// Links that are not connected yet.
    pub(super) joins: BTreeMap<ObjectId, Joining>,
    pub(super) peers: BTreeMap<Party, Peer>,
    last_party: u32,
    last_object: u64,
    last_endpoint: EndpointId,
}

impl Controller {
    pub(super) fn new(application: OwnedFd) -> Controller {
        let mut peers = BTreeMap::new();
        peers.insert(Party::APPLICATION, Peer::new(application, "application".into(), None));
        let (tree, things, joins) = (Tree::new(), BTreeMap::new(), BTreeMap::new());
        Controller { tree, things, joins, peers, last_party: 0, last_object: 0, last_endpoint: 0 }
    }

    /// Does what a party asks, as far as it may.
    pub(super) fn serve(&mut self, by: Party, ask: Ask, fds: Vec<OwnedFd>) {
        let answer = match self.noted(by, &ask) {
            Some(()) => return,
            None => self.answer(by, ask, fds),
        };
        let answer = answer.unwrap_or_else(|e| Answer::refused(&e));
        self.tell(by, Tell::Answer(answer), Vec::new());
    }

    /// What is not answered.
    fn noted(&mut self, by: Party, ask: &Ask) -> Option<()> {
        match ask {
            Ask::Mapped { endpoint } => self.mapped(by, *endpoint),
            Ask::Unmapped { endpoint } => self.unmapped(by, *endpoint),
            Ask::Ready { confined } => {
                let event = Event::Ready { device: by, confined: confined.clone() };
                self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
            }
            Ask::Report(report) => {
                let event = Event::Report { device: by, report: report.clone() };
                self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
            }
            _ => return None,
        }
        Some(())
    }

    fn answer(&mut self, by: Party, ask: Ask, fds: Vec<OwnedFd>) -> Result<Answer> {
        let of_application = matches!(
            ask,
            Ask::Launch { .. }
                | Ask::Channel { .. }
                | Ask::Connection { .. }
                | Ask::Offer { .. }
                | Ask::Join { .. }
                | Ask::Memory { .. }
                | Ask::Run { .. }
                | Ask::Stop { .. }
                | Ask::Status
        );
        if of_application && by != Party::APPLICATION {
            let what = "only the application launches devices and creates channels";
            return Err(Error::new(ErrorKind::PermissionDenied, "ask", what));
        }
        match ask {
            Ask::Launch { name, role } => self.launch(name, role, fds),
            Ask::Channel { shape } => self.channel(by, shape),
            Ask::Connection { shape, carrier } => {
                self.created(by, |epoch| Thing::link(Link::within(shape, epoch, carrier)?))
            }
            Ask::Offer { shape, side, at, key } => self.offer(shape, side, at, key),
            Ask::Join { shape, side, to, key } => self.join(shape, side, to, key),
            Ask::Memory { len } => self.created(by, |_| Thing::memory(len)),
            Ask::Delegate { cap, to, rights } => {
                self.peer(to)?;
                self.tree.delegate(cap, by, to, rights).map(|cap| Answer::Created { cap })
            }
            Ask::Activate { cap, port, rights, trust } => self.activate(by, cap, port, rights, trust),
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
            Ask::Status => Ok(Answer::Status(self.status())),
            Ask::Mapped { .. } | Ask::Unmapped { .. } | Ask::Ready { .. } | Ask::Report(_) => Ok(Answer::Done),
        }
    }

    fn peer(&mut self, party: Party) -> Result<&mut Peer> {
        let missing = || Error::new(ErrorKind::NotFound, "ask", format!("party {}", party.0));
        self.peers.get_mut(&party).ok_or_else(missing)
    }

    fn launch(&mut self, name: String, role: Role, fds: Vec<OwnedFd>) -> Result<Answer> {
        if self.peers.len() > MOST_DEVICES {
            return Err(Error::new(ErrorKind::NoSpace, "launch", format!("more than {MOST_DEVICES} devices")));
        }
        let os = |e: rustix::io::Errno| Error::os("launch", e.raw_os_error(), name.clone());
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(os)?;
        // The controller runs the program that the application chose: whoever could change it could change this one.
        let mut command = Command::new("/proc/self/exe");
        command.arg(DEVICE).stdin(Stdio::from(theirs)).stdout(Stdio::null()).env_clear();
        if let Ok(trace) = std::env::var("RUST_BACKTRACE") {
            command.env("RUST_BACKTRACE", trace);
        }
        let child = command.spawn().map_err(|e| Error::io("launch", &e, name.clone()))?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(os)?;
        self.last_party += 1;
        let party = Party(self.last_party);
        self.peers.insert(party, Peer::new(ours, name.clone(), Some((child, pidfd))));
        self.tell(party, Tell::Boot { party, name, role }, fds);
        Ok(Answer::Device { party })
    }

    fn channel(&mut self, by: Party, shape: Shape) -> Result<Answer> {
        self.created(by, |epoch| Thing::channel(shape, epoch))
    }

    fn created(&mut self, by: Party, make: impl FnOnce(u64) -> Result<Thing>) -> Result<Answer> {
        self.create(by, make).map(|(_, cap)| Answer::Created { cap })
    }

    pub(super) fn create(&mut self, by: Party, make: impl FnOnce(u64) -> Result<Thing>) -> Result<(ObjectId, Cap)> {
        if self.things.len() >= MOST_OBJECTS {
            return Err(Error::new(ErrorKind::NoSpace, "create", format!("more than {MOST_OBJECTS} objects")));
        }
        // Its number is also the epoch of what is said over it: none is ever used twice.
        let thing = make(self.last_object + 1)?;
        self.last_object += 1;
        let object = ObjectId(self.last_object);
        let cap = self.tree.root(object, thing.all_rights(), by);
        self.things.insert(object, thing);
        Ok((object, cap))
    }

    fn activate(&mut self, by: Party, cap: Cap, port: String, rights: Rights, trust: Taking) -> Result<Answer> {
        let capability = self.tree.get(cap)?.clone();
        let refuse = |what: &str| Err(Error::new(ErrorKind::PermissionDenied, "activate", what));
        if !self.tree.commands(cap, by) {
            return refuse("the capability is held by somebody else");
        }
        if !capability.rights.include(rights) {
            return refuse("the capability has fewer rights");
        }
        // Else a device could make another believe it blindly.
        if trust != Taking::Copy && by != Party::APPLICATION && by != capability.holder {
            return refuse("only the application, or who receives, says that a sender is trusted");
        }
        self.last_endpoint += 1;
        let (endpoint, party) = (self.last_endpoint, capability.holder);
        let Some(thing) = self.things.get_mut(&capability.object) else {
            return Err(Error::new(ErrorKind::NotFound, "activate", "what the capability is about has gone"));
        };
        match thing.activate(Endpoint::new(endpoint, party, (cap, rights), trust))? {
            Some((kind, fds)) => self.tell(party, Tell::Endpoint(EndpointSpec { endpoint, port, kind }), fds),
            // Told when the link is connected.
            None => {
                let joining = self.joins.get_mut(&capability.object);
                joining.into_iter().for_each(|j| j.waiting.push((endpoint, party, port.clone())));
            }
        }
        Ok(Answer::Done)
    }

    fn mapped(&mut self, by: Party, endpoint: EndpointId) {
        let thing = self.things.values_mut().find(|t| t.endpoints.iter().any(|e| e.id == endpoint && e.party == by));
        let Some(thing) = thing else { return };
        match thing.mapped(endpoint) {
            Ok(halves) => {
                for (party, endpoint, fds) in halves {
                    self.tell(party, Tell::Complete { endpoint }, fds);
                }
            }
            Err(_) => thing.end(State::Revoked),
        }
    }

    fn revoke(&mut self, by: Party, cap: Cap) -> Result<Answer> {
        let gone = self.tree.revoke(cap, by)?;
        let count = gone.len();
        self.withdraw(gone, None);
        Ok(Answer::Revoked { count })
    }

    /// Takes away what was configured by capabilities that are gone. `dead` needs no asking.
    fn withdraw(&mut self, gone: Vec<(Cap, Capability)>, dead: Option<Party>) {
        for (cap, capability) in gone {
            let Some(thing) = self.things.get_mut(&capability.object) else { continue };
            // A channel without one of its ends is none; a memory stays for the others.
            let channel = thing.has_two_ends();
            let of_cap = |e: &Endpoint| e.cap == cap && Some(e.party) != dead;
            let mut asked = Vec::new();
            if thing.endpoints.iter().any(of_cap) {
                let all = thing.endpoints.iter().filter(|e| !e.gone && (channel || of_cap(e)));
                asked.extend(all.map(|e| (e.party, e.id)));
                if channel {
                    thing.end(State::Revoked);
                }
            }
            if capability.parent.is_none() {
                thing.ended = true;
            }
            for (party, endpoint) in asked {
                self.tell(party, Tell::Release { endpoint }, Vec::new());
                if let Some(peer) = self.peers.get_mut(&party).filter(|p| p.child.is_some()) {
                    peer.deadline.get_or_insert_with(|| Instant::now() + GRACE);
                }
            }
        }
        self.sweep();
    }

    /// A party says that it has unmapped an endpoint. A device's word is checked.
    fn unmapped(&mut self, by: Party, endpoint: EndpointId) {
        let pid = self.peers.get(&by).and_then(|p| p.child.as_ref()).map(|(child, _)| child.id());
        let mut lied = false;
        for thing in self.things.values_mut() {
            if let Some(own) = thing.endpoints.iter_mut().find(|e| e.id == endpoint && e.party == by) {
                lied = pid.is_some_and(|pid| still_maps(pid, &thing.inodes));
                own.gone = !lied;
            }
        }
        if lied {
            self.kill(by, "it kept memory mapped that was revoked");
            return;
        }
        let waits = |t: &Thing| t.ended && t.endpoints.iter().any(|e| e.party == by && !e.gone);
        if !self.things.values().any(waits)
            && let Some(peer) = self.peers.get_mut(&by)
        {
            peer.deadline = None;
        }
        self.sweep();
    }

    /// Forgets what nobody has and nobody can get.
    fn sweep(&mut self) {
        let tree = &mut self.tree;
        self.things.retain(|object, thing| {
            let keep = !(thing.ended && thing.is_free());
            if !keep {
                tree.drop_object(*object);
            }
            keep
        });
        let things = &self.things;
        self.joins.retain(|object, _| things.get(object).is_some_and(|thing| !thing.ended));
    }

    pub(super) fn kill(&mut self, party: Party, why: &str) {
        if let Some(peer) = self.peers.get_mut(&party).filter(|p| p.child.is_some()) {
            peer.verdict.get_or_insert_with(|| why.to_owned());
        }
        self.finish_off(party);
    }

    pub(super) fn finish_off(&mut self, party: Party) {
        if let Some(peer) = self.peers.get_mut(&party)
            && let Some((_, pidfd)) = &peer.child
        {
            peer.deadline = None;
            // It may be dead already, which is what is wanted.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// A device's process has ended: all it had is free, and who was connected to it is told.
    pub(super) fn buried(&mut self, party: Party) {
        let Some(mut peer) = self.peers.remove(&party) else { return };
        let status = peer.child.as_mut().map(|(child, _)| child.wait());
        let how = match (status, peer.verdict) {
            (_, Some(verdict)) => format!("killed: {verdict}"),
            (Some(Ok(status)), None) => status.to_string(),
            (_, None) => "unknown".into(),
        };
        for thing in self.things.values_mut() {
            let mut side = None;
            for own in thing.endpoints.iter_mut().filter(|e| e.party == party) {
                own.gone = true;
                side = Some(own.rights);
            }
            match side {
                Some(Rights::SEND) => thing.end(State::SenderGone),
                Some(_) => thing.end(State::ReceiverGone),
                None => {}
            }
        }
        let gone = self.tree.drop_party(party);
        self.withdraw(gone, Some(party));
        self.tell(Party::APPLICATION, Tell::Event(Event::Ended { device: party, how }), Vec::new());
    }

    /// The application has gone, or the controller must end.
    pub(super) fn end(&mut self) {
        for thing in self.things.values_mut() {
            thing.end(State::ControllerGone);
        }
        for peer in self.peers.values_mut() {
            if let Some((child, pidfd)) = &mut peer.child {
                let _ = pidfd_send_signal(&*pidfd, Signal::KILL);
                let _ = child.wait();
            }
        }
    }

    /// Sends, or keeps it for when the party reads again. Who never reads is given up.
    pub(super) fn tell(&mut self, party: Party, tell: Tell, fds: Vec<OwnedFd>) {
        let Some(peer) = self.peers.get_mut(&party) else { return };
        peer.waiting.push_back((tell, fds));
        peer.flush();
        if peer.waiting.len() > MOST_WAITING {
            if peer.child.is_some() {
                self.kill(party, "it does not read what it is told");
            } else {
                // Of an application that does not read, the oldest news are forgotten, never an answer.
                let news = peer.waiting.iter().position(|(t, _)| matches!(t, Tell::Event(_)));
                news.map(|at| peer.waiting.remove(at));
            }
        }
    }

    fn status(&self) -> Status {
        let devices = self.peers.iter().filter_map(|(party, peer)| {
            let (child, _) = peer.child.as_ref()?;
            Some((*party, peer.name.clone(), child.id()))
        });
        let releasing = |t: &Thing| t.endpoints.iter().filter(|e| t.ended && !e.gone).count();
        Status {
            pid: std::process::id(),
            devices: devices.collect(),
            objects: self.things.len(),
            bytes: self.things.values().map(|t| t.bytes).sum(),
            capabilities: self.tree.len(),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count()),
            releasing: self.things.values().map(releasing).sum(),
        }
    }
}

impl Peer {
    fn new(socket: OwnedFd, name: String, child: Option<(Child, OwnedFd)>) -> Peer {
        Peer { socket, name, child, waiting: VecDeque::new(), deadline: None, verdict: None }
    }

    /// Sends what waits, as far as it is taken.
    pub(super) fn flush(&mut self) {
        while let Some((tell, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match packet::send(self.socket.as_fd(), tell, &fds) {
                Err(e) if e.kind() == ErrorKind::Busy => return,
                // Who has gone is found by its process or its socket.
                _ => drop(self.waiting.pop_front()),
            }
        }
    }
}

/// Whether a process has any of these memories mapped. What cannot be looked at counts as mapped.
fn still_maps(pid: u32, inodes: &[u64]) -> bool {
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return true };
    let of_ours = |line: &str| {
        let inode = line.split_ascii_whitespace().nth(4).and_then(|i| i.parse().ok());
        line.contains("/memfd:") && inode.is_some_and(|inode| inodes.contains(&inode))
    };
    maps.lines().any(of_ours)
}
