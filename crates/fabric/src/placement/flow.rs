//! A running graph.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};

use super::graph::{DeviceGraph, DeviceSpec, Edge};
use super::{Choice, DeviceNode, Placement, Stop, Wire, Wiring};
use crate::capability::{Cap, Party, Rights};
use crate::channel::{Patience, ReceiveMode};
use crate::control::{Device, DeviceEvent, Session};
use crate::device::{DeviceRole, StreamReport, relay};
use crate::transport::{Receiver, Sender};

/// The time limit for starting a device and for configuring a channel.
const START: Patience = Patience::seconds(30);

/// Running devices, and the application's ends of their channels.
pub struct Flow {
    /// The placement. For `Auto` it is the chosen one.
    pub placement: Placement,
    /// The reasons for the choice, if the placement was `Auto`.
    pub choice: Option<Choice>,
    wiring: Wiring,
    devices: Vec<Device>,
    hub: Option<Device>,
    /// The capabilities of the channels, by wire.
    caps: Vec<Cap>,
    senders: Vec<Option<Sender>>,
    receivers: Vec<Option<Receiver>>,
    relays: Vec<threads::JoinHandle<Result<(u64, u64)>>>,
}

impl Flow {
    pub(super) fn start(
        graph: DeviceGraph,
        session: &mut Session,
        placement: Placement,
        choice: Option<Choice>,
    ) -> Result<Flow> {
        let wiring = Wiring::new(&graph.edges(), placement);
        let (devices, caps, senders, receivers, relays) = Default::default();
        let mut flow = Flow { placement, choice, wiring, devices, hub: None, caps, senders, receivers, relays };
        let (edges, links) = (graph.edges, graph.links);
        let started = flow.launch(session, graph.devices).and_then(|()| flow.connect(session, &edges, &links));
        if let Err(e) = started {
            // A failed start leaves nothing behind.
            let _ = flow.end(session);
            return Err(e);
        }
        Ok(flow)
    }

    /// Takes the application's n-th sending end, in the order of the edges that begin there.
    /// Returns None if it was taken already.
    pub fn take_sender(&mut self, n: usize) -> Option<Sender> {
        self.senders.get_mut(n)?.take()
    }

    /// Takes the application's n-th receiving end, in the order of the edges that end there.
    /// Returns None if it was taken already.
    pub fn take_receiver(&mut self, n: usize) -> Option<Receiver> {
        self.receivers.get_mut(n)?.take()
    }

    /// Returns the device of a node.
    ///
    /// # Errors
    /// `InvalidInput` for the application, or for a node of another graph.
    pub fn device(&self, node: DeviceNode) -> Result<Device> {
        let device = node.0.checked_sub(1).and_then(|at| self.devices.get(at));
        device
            .copied()
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "find", "the node is not a device of this flow"))
    }

    /// Returns the wires, for display and for tests.
    pub fn wiring(&self) -> &Wiring {
        &self.wiring
    }

    /// Returns the capabilities of the channels, by wire. Revoking one cuts its wire.
    pub fn capabilities(&self) -> &[Cap] {
        &self.caps
    }

    /// Waits for a device's next report on a stream.
    ///
    /// # Errors
    /// `Busy` when the patience is over. `Device` where the device ended, or its stream failed.
    pub fn report(&self, session: &mut Session, node: DeviceNode, patience: Patience) -> Result<StreamReport> {
        let device = self.device(node)?.0;
        let of_it = |e: &DeviceEvent| match e {
            DeviceEvent::Report { device: d, .. } | DeviceEvent::Ended { device: d, .. } => *d == device,
            DeviceEvent::Ready { .. } | DeviceEvent::Link { .. } => false,
        };
        match session.event_where(patience, of_it)? {
            DeviceEvent::Report { report, .. } => match &report.error {
                None => Ok(report),
                Some(failure) => Err(Error::new(ErrorKind::Device, "stream", failure.text.clone())),
            },
            other => Err(Error::new(ErrorKind::Device, "stream", format!("the device is gone: {other:?}"))),
        }
    }

    /// Stops everything: revokes channels and stops devices. Ends that were taken fail with
    /// `PermissionDenied`.
    ///
    /// # Errors
    /// `Unavailable` where the controller has ended, and with it its devices.
    pub fn end(mut self, session: &mut Session) -> Result<()> {
        self.senders.clear();
        self.receivers.clear();
        let mut outcome = Ok(());
        for cap in self.caps.drain(..) {
            match session.revoke(cap) {
                // It was revoked before.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => outcome = outcome.and(other.map(|_| ())),
            }
        }
        // The relays end because their channels ended just now. Where a channel could not be
        // revoked, they end with it, at the latest with the session.
        let have_ended = outcome.as_ref().map_or_else(|e| e.kind() == ErrorKind::Unavailable, |()| true);
        for relay in self.relays.drain(..).filter(|_| have_ended) {
            let _ = threads::join(relay);
        }
        for device in self.devices.drain(..).chain(self.hub.take()) {
            match session.stop(device) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => outcome = outcome.and(Err(e)),
                Ok(()) => {
                    let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device: d, .. } if *d == device.0);
                    outcome = outcome.and(session.event_where(START, of_it).map(|_| ()));
                }
            }
        }
        // This confirms the memory that was unmapped here.
        outcome.and(session.attend())
    }

    /// Launches all processes concurrently, and waits until they have locked themselves down.
    fn launch(&mut self, session: &mut Session, devices: Vec<DeviceSpec>) -> Result<()> {
        for spec in devices {
            let given: Vec<_> = spec.given.iter().map(AsFd::as_fd).collect();
            self.devices.push(session.launch(&spec.name, spec.role, &given)?);
        }
        if self.wiring.has_hub() {
            self.hub = Some(session.launch("resource-side CPU", DeviceRole::Hub, &[])?);
        }
        for device in self.devices.iter().chain(&self.hub) {
            session.ready(*device, START)?;
        }
        Ok(())
    }

    fn connect(&mut self, session: &mut Session, edges: &[Edge], links: &[Cap]) -> Result<()> {
        static FLOWS: AtomicU64 = AtomicU64::new(0);
        let number = FLOWS.fetch_add(1, Ordering::Relaxed);
        let port = |wire: usize, end: &str| format!("{number}.{wire}.{end}");
        for (at, wire) in self.wiring.wires.clone().into_iter().enumerate() {
            let Edge { shape, trust, carrier, .. } = edges[wire.edge];
            let cap = match (wire.from, wire.to) {
                (Stop::Elsewhere(link), _) | (_, Stop::Elsewhere(link)) => links[link],
                _ => session.channel_over(shape, carrier)?,
            };
            self.caps.push(cap);
            // A relay does not look at the bytes, so it needs no copy for protection from a sender
            // that changes them.
            let trust = if wire.relayed { ReceiveMode::Carried } else { trust.into() };
            self.give(session, cap, wire.from, &port(at, "out"), Rights::SEND, trust)?;
            self.give(session, cap, wire.to, &port(at, "in"), Rights::RECEIVE, trust)?;
        }
        for (at, device) in self.devices.iter().enumerate() {
            self.let_run(session, *device, Stop::Device(at), &port)?;
        }
        if let Some(hub) = self.hub {
            self.let_run(session, hub, Stop::Hub, &port)?;
        }
        let own = |at: &usize| !self.wiring.carries_on(*at);
        for at in self.wiring.from(Stop::Application).into_iter().filter(own).collect::<Vec<_>>() {
            self.senders.push(Some(session.sender(&port(at, "out"), START)?));
        }
        for at in self.wiring.to(Stop::Application) {
            let receiver = session.receiver(&port(at, "in"), START)?;
            if self.wiring.wires[at].relayed {
                let (mut receiver, mut sender) = (receiver, session.sender(&port(at + 1, "out"), START)?);
                self.relays.push(threads::spawn("relay", move || relay(&mut receiver, &mut sender))?);
            } else {
                self.receivers.push(Some(receiver));
            }
        }
        Ok(())
    }

    /// Gives an end of a channel to a stop: delegates it with that right alone, and activates it.
    fn give(
        &self,
        session: &mut Session,
        cap: Cap,
        to: Stop,
        port: &str,
        rights: Rights,
        trust: ReceiveMode,
    ) -> Result<()> {
        let party = match to {
            // Another controller gives this end.
            Stop::Elsewhere(_) => return Ok(()),
            Stop::Application => Party::APPLICATION,
            Stop::Device(at) => self.devices[at].0,
            Stop::Hub => self.hub.map_or(Party::APPLICATION, |hub| hub.0),
        };
        let cap = if party == Party::APPLICATION { cap } else { session.delegate(cap, party, rights)? };
        session.activate_with_mode(cap, port, rights, trust)
    }

    fn let_run(
        &self,
        session: &mut Session,
        device: Device,
        stop: Stop,
        port: &dyn Fn(usize, &str) -> String,
    ) -> Result<()> {
        let ins: Vec<String> = self.wiring.to(stop).into_iter().map(|at| port(at, "in")).collect();
        let outs: Vec<String> = self.wiring.from(stop).into_iter().map(|at| port(at, "out")).collect();
        session.run(device, &ins, &outs)
    }
}

impl std::fmt::Display for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} -> {:?}", self.from, self.to)
    }
}
