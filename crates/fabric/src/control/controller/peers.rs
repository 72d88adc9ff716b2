//! The parties that talk to the controller: the application, and the devices with their processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::Instant;

use datapipes_core::ErrorKind;
use rustix::process::{Signal, pidfd_send_signal};

use crate::capability::Party;
use crate::control::devices::audit::Audit;
use crate::control::devices::quota::{Needs, Quota};
use crate::control::devices::stderr::DeviceStderr;
use crate::control::packet;
use crate::control::packet::MAX_DESCRIPTORS;
use crate::control::protocol::{Answer, DEVICE_DESCRIPTORS, DeviceEvent, EndpointId, Tell};

/// The most packets that wait for a device that does not read.
const MAX_WAITING: usize = 256;
/// The most reports of one device that wait for an application that does not read. A further one
/// replaces that device's oldest.
const MAX_REPORTS: usize = 64;

/// A party that talks to the controller.
pub(crate) struct Peer {
    pub(crate) socket: OwnedFd,
    pub(crate) name: String,
    /// None for the application.
    pub(crate) device: Option<DeviceProcess>,
    waiting: VecDeque<(Tell, Vec<OwnedFd>)>,
    /// The names of its endpoints.
    pub(crate) ports: BTreeSet<String>,
    /// Its endpoints, with what each needs.
    pub(crate) endpoints: BTreeMap<EndpointId, Needs>,
    /// The endpoints that it was told to give back, and when.
    pub(crate) asked: BTreeMap<EndpointId, Instant>,
    /// The endpoints of `asked` that it claims to have given back.
    pub(crate) claimed: BTreeSet<EndpointId>,
    pub(crate) audit: Option<Audit>,
    /// The time when its end of the socket was closed.
    pub(crate) hung_up: Option<Instant>,
}

/// The process of a device.
pub(crate) struct DeviceProcess {
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
    pub(crate) stderr: DeviceStderr,
    pub(crate) quota: Quota,
    /// Whether it has locked itself down.
    pub(crate) is_ready: bool,
    /// The number of its open descriptors beside those of its ends.
    pub(crate) descriptors: usize,
    /// The reason why it was killed, if it was.
    pub(crate) verdict: Option<String>,
}

/// The number of descriptors of every device: standard input, output and error, and its control
/// socket.
pub(crate) const OWN_DESCRIPTORS: usize = 4;

impl DeviceProcess {
    /// Notes the device's report of its open descriptors. Without a report the given ones count.
    pub(crate) fn opened(&mut self, descriptors: usize) {
        if descriptors > 0 {
            self.descriptors = descriptors.min(DEVICE_DESCRIPTORS);
        }
    }

    /// Whether there is room for this number of further descriptors, and for those of a packet that
    /// brings memory to map. A packet without room ends the device.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        self.descriptors + descriptors + MAX_DESCRIPTORS <= DEVICE_DESCRIPTORS
    }

    /// Kills the device. It may be dead already.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// The result of telling a party something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It was sent, or waits.
    Well,
    /// Too many packets wait, because the party does not read.
    TooMuch,
}

impl Peer {
    pub(crate) fn new(socket: OwnedFd, name: String, device: Option<DeviceProcess>) -> Peer {
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

    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(|device| device.pidfd.as_fd())
    }

    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends a message, or keeps it until the party reads again.
    ///
    /// An application that does not read loses the oldest reports of a device that sends many. It
    /// never loses an answer, the readiness of a device, the end of a device or link, or messages
    /// of other devices.
    pub(crate) fn tell(&mut self, tell: Tell, fds: Vec<OwnedFd>) -> Told {
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

    /// Sends waiting messages as far as the socket takes them.
    pub(crate) fn flush(&mut self) {
        while let Some((tell, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match packet::send(self.socket.as_fd(), tell, &fds) {
                Err(e) if e.kind() == ErrorKind::Busy => return,
                // Whoever asked must hear something: the next answer would be taken for this one.
                Err(e) if e.kind() == ErrorKind::OutOfRange && matches!(tell, Tell::Answer(_)) => {
                    self.waiting.pop_front();
                    self.waiting.push_front((Tell::Answer(Answer::refused(&e)), Vec::new()));
                }
                // A party that has gone is noticed by its process or its socket.
                _ => drop(self.waiting.pop_front()),
            }
        }
    }

    /// Drops unsent messages of an endpoint. Returns whether its holder has never heard of it.
    pub(crate) fn unsay(&mut self, id: EndpointId) -> bool {
        let first = |tell: &Tell| matches!(tell, Tell::Endpoint(spec) if spec.endpoint == id);
        let second = |tell: &Tell| matches!(tell, Tell::Complete { endpoint } if *endpoint == id);
        let unheard = self.waiting.iter().any(|(tell, _)| first(tell));
        self.waiting.retain(|(tell, _)| !first(tell) && !second(tell));
        unheard
    }

    /// Forgets an endpoint that was removed.
    pub(crate) fn forget(&mut self, id: EndpointId, port: &str) {
        self.endpoints.remove(&id);
        self.asked.remove(&id);
        self.claimed.remove(&id);
        self.ports.remove(port);
        self.allow();
    }

    /// The sum of what its endpoints need.
    pub(crate) fn needs(&self) -> Needs {
        self.endpoints.values().fold(Needs::default(), |sum, needs| sum.and(*needs))
    }

    /// Adjusts its limits to the needs of its endpoints.
    pub(crate) fn allow(&mut self) {
        let needs = self.needs();
        if let Some(device) = &mut self.device {
            device.quota.set_needs(device.child.id(), needs);
        }
    }
}
