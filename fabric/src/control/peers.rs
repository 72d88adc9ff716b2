//! Whom the controller speaks with: the application, and the devices with their processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Instant;

use datapipes_core::ErrorKind;
use rustix::process::{Signal, pidfd_send_signal};

use super::audit::Audit;
use super::packet;
use super::packet::MAX_DESCRIPTORS;
use super::protocol::{DEVICE_DESCRIPTORS, DeviceEvent, EndpointId, Tell};
use super::quota::{Needs, Quota};
use super::stderr::DeviceStderr;
use crate::capability::Party;

/// Packets that wait for a device that does not read.
const MAX_WAITING: usize = 256;
/// Reports of one device that wait for an application that does not read; the oldest of that device
/// makes room.
const MAX_REPORTS: usize = 64;

/// Who speaks with the controller.
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    pub(super) name: String,
    /// None for the application.
    pub(super) device: Option<DeviceProcess>,
    waiting: VecDeque<(Tell, Vec<OwnedFd>)>,
    /// The names of its endpoints.
    pub(super) ports: BTreeSet<String>,
    /// Its endpoints, with what each needs.
    pub(super) endpoints: BTreeMap<EndpointId, Needs>,
    /// What it was told to give back, and when.
    pub(super) asked: BTreeMap<EndpointId, Instant>,
    /// What of that it says it has given back.
    pub(super) claimed: BTreeSet<EndpointId>,
    pub(super) audit: Option<Audit>,
    /// When its end of the socket was closed.
    pub(super) hung_up: Option<Instant>,
}

/// The process of a device.
pub(super) struct DeviceProcess {
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) stderr: DeviceStderr,
    pub(super) quota: Quota,
    /// It has locked itself down.
    pub(super) is_ready: bool,
    /// Descriptors that it has open beside its ends.
    pub(super) descriptors: usize,
    /// Why it was killed, if it was.
    pub(super) verdict: Option<String>,
}

/// Descriptors of every device: standard input, output and error, and its control socket.
pub(super) const OWN_DESCRIPTORS: usize = 4;

impl DeviceProcess {
    /// It says how many descriptors it has open; one that says nothing has what it was given.
    pub(super) fn opened(&mut self, descriptors: usize) {
        if descriptors > 0 {
            self.descriptors = descriptors.min(DEVICE_DESCRIPTORS);
        }
    }

    /// Whether there is room for so many more descriptors that it keeps, and for those of a packet
    /// that brings memory to be mapped: one that finds none is the end of the device.
    pub(super) fn has_room(&self, descriptors: usize) -> bool {
        self.descriptors + descriptors + MAX_DESCRIPTORS <= DEVICE_DESCRIPTORS
    }

    /// It may be dead already, which is what is wanted.
    pub(super) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// What became of something that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was sent, or waits.
    Well,
    /// It waits behind too much: who it is for does not read.
    TooMuch,
}

impl Peer {
    pub(super) fn new(socket: OwnedFd, name: String, device: Option<DeviceProcess>) -> Peer {
        Peer {
            socket,
            name,
            device,
            waiting: VecDeque::new(),
            ports: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            asked: BTreeMap::new(),
            claimed: BTreeSet::new(),
            audit: None,
            hung_up: None,
        }
    }

    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(|device| device.pidfd.as_fd())
    }

    pub(super) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends it, or keeps it for when the party reads again.
    ///
    /// An application that does not read loses the oldest reports of a device that makes many;
    /// never an answer, nor that a device is ready, a device or a link at its end, or anything of
    /// another device.
    pub(super) fn tell(&mut self, tell: Tell, fds: Vec<OwnedFd>) -> Told {
        let reports = match &tell {
            Tell::Event(DeviceEvent::Report { device, .. }) => Some(*device),
            _ => None,
        };
        self.waiting.push_back((tell, fds));
        self.flush();
        if let Some(device) = reports {
            self.forget_reports(device);
        }
        if self.device.is_some() && self.waiting.len() > MAX_WAITING { Told::TooMuch } else { Told::Well }
    }

    fn forget_reports(&mut self, device: Party) {
        let of_it =
            |(tell, _): &(Tell, _)| matches!(tell, Tell::Event(DeviceEvent::Report { device: d, .. }) if *d == device);
        if self.waiting.iter().filter(|waiting| of_it(waiting)).count() > MAX_REPORTS {
            let oldest = self.waiting.iter().position(of_it);
            oldest.map(|at| self.waiting.remove(at));
        }
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

    /// Takes back what was not sent yet of an endpoint; whether its holder has never heard of it.
    pub(super) fn unsay(&mut self, id: EndpointId) -> bool {
        let first = |tell: &Tell| matches!(tell, Tell::Endpoint(spec) if spec.endpoint == id);
        let second = |tell: &Tell| matches!(tell, Tell::Complete { endpoint } if *endpoint == id);
        let unheard = self.waiting.iter().any(|(tell, _)| first(tell));
        self.waiting.retain(|(tell, _)| !first(tell) && !second(tell));
        unheard
    }

    /// An endpoint of it is no more.
    pub(super) fn forget(&mut self, id: EndpointId, port: &str) {
        self.endpoints.remove(&id);
        self.asked.remove(&id);
        self.claimed.remove(&id);
        self.ports.remove(port);
        self.allow();
    }

    /// What its endpoints need together.
    pub(super) fn needs(&self) -> Needs {
        self.endpoints.values().fold(Needs::default(), |sum, needs| sum.and(*needs))
    }

    /// Adjusts its limits to what its endpoints need.
    pub(super) fn allow(&mut self) {
        let needs = self.needs();
        if let Some(device) = &mut self.device {
            device.quota.set_needs(device.child.id(), needs);
        }
    }
}
