//! SIGKILL and SIGSTOP before and after every step of the protocol, for the sender, the receiver
//! and the controller.
//!
//! The victim halts by itself exactly where it is to be hit (by a body of this program, which
//! therefore has its own `main`), so nothing depends on time. Waits must end, errors must name the
//! cause, blocks must be whole, other channels must not be affected, and nothing may be left.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use datapipes_core::{ErrorKind, Result};
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{ControllerStatus, DeviceEvent, Program, Session};
use datapipes_fabric::device::{Body, DeviceArguments, DeviceChannels, DeviceRole, Functions};
use datapipes_fabric::placement::{DeviceGraph, DeviceNode, Flow, Placement};
use datapipes_fabric::process;
use datapipes_fabric::transport::{Carrier, Receiver, Sender, Step};
use datapipes_testkit::{joined, run_tests, tests};
use rustix::process::{Pid, Signal, kill_process};
use scene::*;

const LEN: usize = 3000;
const SOON: Patience = Patience::up_to(Duration::from_millis(30));

/// The points where the victim is hit, in the order of a block's steps.
const POINTS: [(Step, &str); 11] = [
    (Step::Process, "before"),
    (Step::Credit, "before"),
    (Step::Credit, "after"),
    (Step::Push, "before"),
    (Step::Push, "half"),
    (Step::Push, "after"),
    (Step::Process, "after"),
    (Step::Notify, "before"),
    (Step::Notify, "after"),
    (Step::Reply, "before"),
    (Step::Reply, "after"),
];

/// Whether the victim has sent its block on at a point, and whether it has replied to the one it
/// got.
fn done_by(point: usize) -> (bool, bool) {
    (point >= 8, point >= 10)
}

/// Forwards blocks, and halts at one point of block number 1 until it is released.
struct Stepper {
    point: (Step, String),
    socket: UnixStream,
}

impl Stepper {
    fn at(&mut self, number: u64, step: Step, when: &str) {
        if number == 1 && self.point.0 == step && self.point.1 == when {
            self.socket.write_all(b"h").unwrap();
            self.socket.read_exact(&mut [0]).unwrap();
        }
    }
}

impl Body for Stepper {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            let (head, len) = (block.head(), block.len());
            let number = head.words[0];
            self.at(number, Step::Process, "before");
            self.at(number, Step::Credit, "before");
            let mut grant = stage.outlets[0].grant()?;
            self.at(number, Step::Credit, "after");
            self.at(number, Step::Push, "before");
            grant.bytes()[..len / 2].copy_from_slice(&block[..len / 2]);
            self.at(number, Step::Push, "half");
            grant.bytes()[len / 2..len].copy_from_slice(&block[len / 2..]);
            self.at(number, Step::Push, "after");
            self.at(number, Step::Process, "after");
            self.at(number, Step::Notify, "before");
            grant.send(len, head)?;
            self.at(number, Step::Notify, "after");
            self.at(number, Step::Reply, "before");
            block.done()?;
            self.at(number, Step::Reply, "after");
        }
        Ok(())
    }
}

/// Forwards blocks, each after a delay.
struct Slow(Duration);

impl Body for Slow {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            std::thread::sleep(self.0);
            if block.head().end {
                stage.end(block, None, None)?;
            } else {
                stage.outlets[0].forward(&block, block.head())?;
                block.done()?;
            }
        }
        Ok(())
    }
}

fn functions() -> Functions {
    let slow = |arguments: &DeviceArguments, _| -> Result<Box<dyn Body>> {
        let arguments: serde_json::Value = arguments.parse()?;
        Ok(Box::new(Slow(Duration::from_millis(arguments["ms"].as_u64().unwrap()))))
    };
    Functions::default().with_body("slow", slow).with_body("stepper", |arguments, given| {
        let arguments: serde_json::Value = arguments.parse()?;
        let step = serde_json::from_value(arguments["step"].clone()).unwrap();
        let point = (step, arguments["when"].as_str().unwrap().to_owned());
        Ok(Box::new(Stepper { point, socket: given.into_iter().next().unwrap().into() }))
    })
}

fn main() -> ExitCode {
    if let Some(code) = process::enter(&functions()) {
        return code;
    }
    run_tests(tests![
        a_device_killed_at_any_step,
        a_device_stopped_at_any_step,
        a_stopped_device_whose_channel_is_revoked,
        a_controller_killed_at_any_step,
        a_controller_stopped_at_any_step,
        a_stage_that_is_slower_than_patience_ends_the_same_under_every_placement,
        a_session_ends_in_time_though_its_controller_is_stopped,
    ])
}

/// Shared memory, and what a connection goes over.
fn carriers() -> Vec<Carrier> {
    [vec![Carrier::SharedMemory], connections("steps by UCX")].concat()
}

/// The mapped memories of channels, and the descriptors of this process.
fn own() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (maps.matches("/memfd:fabric").count(), std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// A stream through a victim that has reached its point with block 1, and a bystander's stream.
struct Scene {
    name: String,
    flow: Flow,
    sender: Sender,
    receiver: Receiver,
    victim: Pid,
    party: datapipes_fabric::capability::Party,
    socket: UnixStream,
    bystander: (Flow, Sender, Receiver),
}

fn ends(flow: &mut Flow) -> (Sender, Receiver) {
    (flow.take_sender(0).unwrap().with_patience(LONG), flow.take_receiver(0).unwrap().with_patience(LONG))
}

fn through(graph: &mut DeviceGraph, device: DeviceNode) {
    graph.connect(DeviceGraph::APPLICATION, device).unwrap();
    graph.connect(device, DeviceGraph::APPLICATION).unwrap();
}

fn send(sender: &mut Sender, n: u64) {
    sender.send(&bytes(n, LEN), Head { words: [n; 4], end: false }).unwrap();
}

fn receive(receiver: &mut Receiver, n: u64, name: &str) {
    let block = receiver.receive().unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!((block.head().words[0], &*block), (n, &bytes(n, LEN)[..]), "{name}: a block is whole");
    block.done().unwrap();
}

impl Scene {
    fn new(session: &mut Session, carrier: Carrier, point: usize) -> Scene {
        let (step, when) = POINTS[point];
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy).over(carrier);
        let arguments = DeviceArguments::of(&serde_json::json!({"step": step, "when": when})).unwrap();
        let role = DeviceRole::Custom { name: "stepper".into(), arguments };
        let node = graph.device("victim", role, vec![OwnedFd::from(theirs)]);
        through(&mut graph, node);
        let mut flow = graph.start(session, Placement::DistributedResourceSide).unwrap();
        let mut other = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy).over(carrier);
        let beside = other.device("bystander", transform("forward"), Vec::new());
        through(&mut other, beside);
        let mut other = other.start(session, Placement::DistributedResourceSide).unwrap();
        let (ours, theirs) = ends(&mut other);
        let party = flow.device(node).unwrap().0;
        let status = session.status().unwrap();
        let pid = status.devices.iter().find(|(p, ..)| *p == party).unwrap().2;
        let victim = Pid::from_raw(pid as i32).unwrap();
        let (mut sender, mut receiver) = ends(&mut flow);
        let name = format!("{carrier:?}, {when} {step:?}");
        send(&mut sender, 0);
        receive(&mut receiver, 0, &name);
        send(&mut sender, 1);
        socket.read_exact(&mut [0]).unwrap();
        Scene { name, flow, sender, receiver, victim, party, socket, bystander: (other, ours, theirs) }
    }

    /// Checks that the other channels still work.
    fn others_are_well(&mut self) {
        let (_, sender, receiver) = &mut self.bystander;
        for n in 10..13 {
            send(sender, n);
            receive(receiver, n, &self.name);
        }
    }

    fn end(self, session: &mut Session, before: &ControllerStatus) {
        let Scene { flow, sender, receiver, bystander: (other, ours, theirs), .. } = self;
        drop((sender, receiver, ours, theirs));
        flow.end(session).unwrap();
        other.end(session).unwrap();
        nothing_is_left(session, before);
    }
}

fn own_session() -> Session {
    Session::start(&Program::This).unwrap()
}

fn a_device_killed_at_any_step() {
    let mut session = own_session();
    let (before, mine) = (session.status().unwrap(), own());
    for carrier in carriers() {
        for (point, at) in POINTS.iter().enumerate() {
            let mut scene = Scene::new(&mut session, carrier, point);
            let (sent, replied) = done_by(point);
            kill_process(scene.victim, Signal::KILL).unwrap();
            // The waits are long, so the death ends them.
            if !replied {
                let e = scene.sender.drain().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Device, "{}: {e}", scene.name);
                assert!(e.to_string().contains("receiver of the channel has died"), "{}: {e}", scene.name);
            }
            if sent {
                receive(&mut scene.receiver, 1, &scene.name);
            }
            let e = scene.receiver.receive().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Device, "{}: {e}", scene.name);
            assert!(e.to_string().contains("sender of the channel has died"), "{}: {e}", scene.name);
            let party = scene.party;
            let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device, how } if *device == party && how.contains('9'));
            session.event_where(LONG, of_it).unwrap();
            // A sender whose block was replied to before learns it with the next block.
            let e = scene.sender.send(b"x", Head::default()).and_then(|()| scene.sender.drain()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Device, "{}: {e}", scene.name);
            scene.others_are_well();
            scene.end(&mut session, &before);
            assert_eq!(own(), mine, "{carrier:?} {at:?}: this process kept something");
        }
    }
}

fn stopped(pid: Pid) {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    while !std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" T") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn a_device_stopped_at_any_step() {
    let mut session = own_session();
    let (before, mine) = (session.status().unwrap(), own());
    for carrier in carriers() {
        for point in 0..POINTS.len() {
            let mut scene = Scene::new(&mut session, carrier, point);
            let (sent, replied) = done_by(point);
            kill_process(scene.victim, Signal::STOP).unwrap();
            stopped(scene.victim);
            scene.socket.write_all(b"g").unwrap();
            scene.sender.set_patience(SOON);
            if !replied {
                let e = scene.sender.drain().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Busy, "{}: {e}", scene.name);
                assert!(e.to_string().contains("no credit came back"), "{e}");
            }
            if sent {
                // It may be under way still.
                scene.receiver.set_patience(LONG);
                receive(&mut scene.receiver, 1, &scene.name);
            }
            scene.receiver.set_patience(SOON);
            let e = scene.receiver.receive().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy, "{}: {e}", scene.name);
            scene.others_are_well();
            kill_process(scene.victim, Signal::CONT).unwrap();
            scene.sender.set_patience(LONG);
            scene.receiver.set_patience(LONG);
            if !sent {
                receive(&mut scene.receiver, 1, &scene.name);
            }
            send(&mut scene.sender, 2);
            receive(&mut scene.receiver, 2, &scene.name);
            scene.sender.drain().unwrap();
            scene.end(&mut session, &before);
        }
    }
    assert_eq!(own(), mine, "this process kept something");
}

fn a_stopped_device_whose_channel_is_revoked() {
    let mut session = own_session();
    let (before, mine) = (session.status().unwrap(), own());
    for (carrier, point) in [(Carrier::SharedMemory, 2), (Carrier::SharedMemory, 8), (Carrier::TcpLoopback, 4)] {
        let mut scene = Scene::new(&mut session, carrier, point);
        kill_process(scene.victim, Signal::STOP).unwrap();
        for cap in scene.flow.capabilities().to_vec() {
            session.revoke(cap).unwrap();
        }
        let kinds = (scene.sender.drain().unwrap_err().kind(), scene.receiver.receive().unwrap_err().kind());
        assert_eq!(kinds, (ErrorKind::PermissionDenied, ErrorKind::PermissionDenied), "{}", scene.name);
        let party = scene.party;
        let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device, .. } if *device == party);
        let DeviceEvent::Ended { how, .. } = session.event_where(LONG, of_it).unwrap() else { unreachable!() };
        assert!(how.contains("did not give back"), "{how}");
        scene.others_are_well();
        scene.end(&mut session, &before);
    }
    assert_eq!(own(), mine, "this process kept something");
}

fn gone(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |s| s.rsplit(')').next().unwrap().starts_with(" Z"))
}

fn controller(session: &Session) -> Pid {
    Pid::from_raw(session.controller_pid() as i32).unwrap()
}

fn a_controller_killed_at_any_step() {
    let mine = own();
    for carrier in carriers() {
        for (point, at) in POINTS.iter().enumerate() {
            let mut session = own_session();
            let mut scene = Scene::new(&mut session, carrier, point);
            let devices = session.status().unwrap().devices;
            let (sent, replied) = done_by(point);
            // What a bridge has not delivered yet ends with it, and it ends with its controller.
            let came_before = sent && carrier == Carrier::Ucx;
            if came_before {
                receive(&mut scene.receiver, 1, &scene.name);
            }
            kill_process(controller(&session), Signal::KILL).unwrap();
            if !replied {
                let e = scene.sender.drain().unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{}: {e}", scene.name);
                assert!(e.to_string().contains("controller has ended"), "{e}");
            }
            if sent && !came_before {
                receive(&mut scene.receiver, 1, &scene.name);
            }
            let e = scene.receiver.receive().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{}: {e}", scene.name);
            assert_eq!(session.status().unwrap_err().kind(), ErrorKind::Unavailable);
            while !devices.iter().all(|(.., pid)| gone(*pid)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop((scene, session));
            assert_eq!(own(), mine, "{carrier:?} {at:?}: this process kept something");
        }
    }
}

/// The controller is not on the data path: while it is stopped, blocks continue to flow, and
/// requests to it wait no longer than their patience.
fn a_controller_stopped_at_any_step() {
    let mine = own();
    let mut session = own_session();
    let before = session.status().unwrap();
    for carrier in carriers() {
        for point in 0..POINTS.len() {
            let mut scene = Scene::new(&mut session, carrier, point);
            let (pid, objects) = (controller(&session), session.status().unwrap().objects);
            kill_process(pid, Signal::STOP).unwrap();
            stopped(pid);
            scene.socket.write_all(b"g").unwrap();
            receive(&mut scene.receiver, 1, &scene.name);
            send(&mut scene.sender, 2);
            receive(&mut scene.receiver, 2, &scene.name);
            scene.sender.drain().unwrap();
            session.set_patience(SOON);
            assert_eq!(session.status().unwrap_err().kind(), ErrorKind::Busy, "{}", scene.name);
            session.set_patience(LONG);
            kill_process(pid, Signal::CONT).unwrap();
            // A late answer is not taken for another one.
            let cap = session.channel(ChannelShape::new(1, 64)).unwrap();
            assert_eq!(session.status().unwrap().objects, objects + 1);
            session.revoke(cap).unwrap();
            scene.others_are_well();
            scene.end(&mut session, &before);
        }
    }
    drop(session);
    assert_eq!(own(), mine, "this process kept something");
}

/// A party with less patience than a stage needs gets an error and tries again. The result is the
/// same under all placements, however slow the stage is. With `FABRIC_SLOW_MS=12000` or `35000`
/// this takes minutes and ends in the same way.
fn a_stage_that_is_slower_than_patience_ends_the_same_under_every_placement() {
    let ms = std::env::var("FABRIC_SLOW_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(120u64);
    let impatient = Patience::up_to(Duration::from_millis(ms / 6));
    let mut session = own_session();
    let before = session.status().unwrap();
    for carrier in carriers() {
        for placement in Placement::ALL {
            let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy).over(carrier);
            let first = graph.device("first", transform("forward"), Vec::new());
            let role = DeviceRole::Custom {
                name: "slow".into(),
                arguments: DeviceArguments::of(&serde_json::json!({ "ms": ms })).unwrap(),
            };
            let slow = graph.device("slow", role, Vec::new());
            let last = graph.device("last", transform("forward"), Vec::new());
            for (from, to) in
                [(DeviceGraph::APPLICATION, first), (first, slow), (slow, last), (last, DeviceGraph::APPLICATION)]
            {
                graph.connect(from, to).unwrap();
            }
            let mut flow = graph.start(&mut session, placement).unwrap();
            let (mut sender, mut receiver) = ends(&mut flow);
            sender.set_patience(impatient);
            receiver.set_patience(impatient);
            const BLOCKS: u64 = 4;
            let receiving = std::thread::spawn(move || {
                let (mut came, mut waits) = (Vec::new(), 0);
                loop {
                    match receiver.receive() {
                        Ok(block) => {
                            let end = block.head().end;
                            came.push(block.to_vec());
                            block.done().unwrap();
                            if end {
                                return (came, waits);
                            }
                        }
                        Err(e) if e.kind() == ErrorKind::Busy => waits += 1,
                        Err(e) => panic!("{carrier:?} {placement:?}: {e}"),
                    }
                }
            });
            let again = |call: &mut dyn FnMut() -> Result<()>| {
                while let Err(e) = call() {
                    assert_eq!(e.kind(), ErrorKind::Busy, "{carrier:?} {placement:?}: {e}");
                }
            };
            for n in 0..BLOCKS {
                again(&mut || sender.send(&bytes(n, LEN), Head { words: [n; 4], end: false }));
            }
            again(&mut || sender.send(&[], Head { words: [0; 4], end: true }));
            again(&mut || sender.drain().map(|_| ()));
            let (came, waits) = joined(receiving);
            let expected: Vec<_> = (0..BLOCKS).map(|n| bytes(n, LEN)).chain([Vec::new()]).collect();
            assert!(came == expected && waits > 0, "{carrier:?} {placement:?}: {} blocks, {waits} waits", came.len());
            drop(sender);
            flow.end(&mut session).unwrap();
            nothing_is_left(&mut session, &before);
        }
    }
}

fn a_session_ends_in_time_though_its_controller_is_stopped() {
    let mine = own();
    let mut session = own_session();
    let scene = Scene::new(&mut session, Carrier::SharedMemory, 0);
    let (pid, devices) = (controller(&session), session.status().unwrap().devices);
    kill_process(pid, Signal::STOP).unwrap();
    stopped(pid);
    drop((scene, session));
    // It has ended, and so have its devices. Nothing of it is left here.
    assert!(gone(pid.as_raw_nonzero().get().cast_unsigned()));
    while !devices.iter().all(|(.., pid)| gone(*pid)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(own(), mine, "this process kept something");
}
