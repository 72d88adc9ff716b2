//! Launching attacking devices, and honest ones beside them, which must not suffer.

use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Trust};
use datapipes_fabric::control::{Device, DeviceEvent, DeviceLimits, Program, Session};
use datapipes_fabric::device::{DeviceArguments, DeviceRole};
use datapipes_fabric::placement::{DeviceGraph, Flow, Placement};
use datapipes_fabric::transport::Receiver;
use serde_json::Value;

use super::*;

pub(crate) fn own_session() -> Session {
    Session::start(&Program::This).unwrap()
}

pub(crate) fn attack(name: &str, arguments: Value) -> DeviceRole {
    DeviceRole::Custom { name: name.into(), arguments: DeviceArguments::of(&arguments).unwrap() }
}

/// An honest stream beside the attacker, which must not suffer.
pub(crate) struct Bystander(Option<Flow>);

impl Bystander {
    pub(crate) fn new(session: &mut Session) -> Bystander {
        let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
        let device = graph.device("bystander", transform("forward"), Vec::new());
        graph.connect(DeviceGraph::APPLICATION, device).unwrap();
        graph.connect(device, DeviceGraph::APPLICATION).unwrap();
        Bystander(Some(graph.start(session, Placement::DistributedResourceSide).unwrap()))
    }

    pub(crate) fn stays_well(mut self, session: &mut Session) {
        let mut flow = self.0.take().unwrap();
        let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
        let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
        for n in 0..10 {
            sender.send(&bytes(n, 4096), Head::default()).unwrap();
            let block = receiver.receive().unwrap();
            assert_eq!(&*block, &bytes(n, 4096)[..]);
            block.done().unwrap();
        }
        drop((sender, receiver));
        flow.end(session).unwrap();
    }
}

/// Launches a device with a body of `attacker`, which reports over a channel to the application.
pub(crate) fn launch(session: &mut Session, name: &str, arguments: Value) -> (Device, Receiver) {
    launch_within(session, name, arguments, DeviceLimits::default())
}

/// As [`launch`], with other limits.
pub(crate) fn launch_within(
    session: &mut Session,
    name: &str,
    arguments: Value,
    limits: DeviceLimits,
) -> (Device, Receiver) {
    let device = session.launch_within(name, attack(name, arguments), &[], limits).unwrap();
    let confined = session.ready(device, LONG).unwrap();
    assert!(confined.seccomp);
    let cap = session.channel(ChannelShape::new(4, 64 << 10)).unwrap();
    let port = format!("{name}-{}", device.0.0);
    let sends = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(sends, &port, Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, &port, Rights::RECEIVE, Trust::Copy).unwrap();
    session.run(device, &[], std::slice::from_ref(&port)).unwrap();
    let receiver = session.receiver(&port, LONG).unwrap().with_patience(LONG);
    (device, receiver)
}

pub(crate) fn told(receiver: &mut Receiver) -> Value {
    let block = receiver.receive().unwrap();
    let value = serde_json::from_slice(&block).unwrap();
    block.done().unwrap();
    value
}

pub(crate) fn end_of(session: &mut Session, device: Device) -> String {
    let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device: d, .. } if *d == device.0);
    let DeviceEvent::Ended { how, .. } = session.event_where(LONG, of_it).unwrap() else { unreachable!() };
    how
}
