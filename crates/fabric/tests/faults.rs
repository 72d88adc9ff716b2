//! Peers that die, stop or are cut off, wherever a block is at that moment. Waits must end, errors
//! must name the cause, received blocks must be right, and nothing may be left.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::time::Duration;

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::{Party, Rights};
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{DeviceEvent, Session};
use datapipes_fabric::placement::{DeviceGraph, DeviceNode, Flow, Placement};
use datapipes_testkit::child::in_child;
use datapipes_testkit::{bounded, joined};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use scene::*;

fn pid_of(session: &mut Session, device: Party) -> Pid {
    let status = session.status().unwrap();
    let (_, _, pid) = status.devices.iter().find(|(party, ..)| *party == device).unwrap();
    Pid::from_raw(*pid as i32).unwrap()
}

fn chain(session: &mut Session, placement: Placement) -> (Flow, [DeviceNode; 2]) {
    let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
    let one = graph.device("one", transform("forward"), Vec::new());
    let two = graph.device("two", transform("forward"), Vec::new());
    for (from, to) in [(DeviceGraph::APPLICATION, one), (one, two), (two, DeviceGraph::APPLICATION)] {
        graph.connect(from, to).unwrap();
    }
    (graph.start(session, placement).unwrap(), [one, two])
}

/// Sends numbered blocks until that fails. Returns the kind of the error.
fn send_until_error(sender: &mut datapipes_fabric::transport::Sender) -> ErrorKind {
    for n in 0u64.. {
        if let Err(e) = sender.send(&bytes(n, 3000), Head { words: [n; 4], end: false }) {
            return e.kind();
        }
    }
    unreachable!("an endless loop")
}

/// Receives until that fails, and checks each block. Returns the number of blocks, and the kind of
/// the error.
fn receive_until_error(receiver: &mut datapipes_fabric::transport::Receiver) -> (u64, ErrorKind) {
    for n in 0.. {
        match receiver.receive() {
            Ok(block) => {
                assert_eq!(
                    (block.head().words[0], &*block),
                    (n, &bytes(n, 3000)[..]),
                    "a block is whole, and in its place"
                );
                block.done().unwrap();
            }
            Err(e) => return (n, e.kind()),
        }
    }
    unreachable!("an endless loop")
}

#[test]
fn a_device_that_is_killed_at_any_time_ends_both_its_neighbours() {
    let mut session = session();
    let before = session.status().unwrap();
    for placement in Placement::ALL {
        for (victim, delay_us) in [(0, 0), (0, 2000), (1, 0), (1, 300), (1, 5000)] {
            let (mut flow, nodes) = chain(&mut session, placement);
            let device = flow.device(nodes[victim]).unwrap();
            let pid = pid_of(&mut session, device.0);
            let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
            let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
            let sending = std::thread::spawn(move || send_until_error(&mut sender));
            let receiving = std::thread::spawn(move || receive_until_error(&mut receiver));
            std::thread::sleep(Duration::from_micros(delay_us));
            kill_process(pid, Signal::KILL).unwrap();
            let sent = joined(sending);
            let (_, received) = joined(receiving);
            assert_eq!(sent, ErrorKind::Device, "{placement:?} {victim}");
            // It ended by its death, or because a party in between noticed that and closed.
            assert!(
                matches!(received, ErrorKind::Device | ErrorKind::EndOfFile),
                "{placement:?} {victim}: {received:?}"
            );
            let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device: d, how } if *d == device.0 && how.contains("9"));
            session.event_where(LONG, of_it).unwrap();
            flow.end(&mut session).unwrap();
            nothing_is_left(&mut session, &before);
        }
    }
}

#[test]
fn a_stopped_device_is_waited_for_no_longer_than_said_and_revocation_frees_what_it_has() {
    let mut session = session();
    let before = session.status().unwrap();
    let (mut flow, nodes) = chain(&mut session, Placement::DistributedResourceSide);
    let device = flow.device(nodes[1]).unwrap();
    let pid = pid_of(&mut session, device.0);
    let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
    let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
    sender.send(&bytes(0, 3000), Head::default()).unwrap();
    receiver.receive().unwrap().done().unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    sender.set_patience(Patience::up_to(Duration::from_millis(200)));
    receiver.set_patience(Patience::up_to(Duration::from_millis(200)));
    assert_eq!(send_until_error(&mut sender), ErrorKind::Busy);
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Busy);
    // It continues where it was: the wait lost nothing.
    kill_process(pid, Signal::CONT).unwrap();
    receiver.set_patience(LONG);
    sender.set_patience(LONG);
    for n in 0..3 {
        let block = receiver.receive().unwrap();
        assert_eq!(&*block, &bytes(n, 3000)[..]);
        block.done().unwrap();
    }
    // While it is stopped for good it cannot give back what is revoked, so it is ended.
    kill_process(pid, Signal::STOP).unwrap();
    let cap = flow.capabilities()[1];
    session.revoke(cap).unwrap();
    let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Ended { device: d, .. } if *d == device.0);
    let DeviceEvent::Ended { how, .. } = session.event_where(LONG, of_it).unwrap() else { unreachable!() };
    assert!(how.contains("did not give back"), "{how}");
    drop((sender, receiver));
    flow.end(&mut session).unwrap();
    nothing_is_left(&mut session, &before);
}

#[test]
fn revocation_cuts_a_channel_with_blocks_under_way_and_no_other() {
    let mut session = session();
    let before = session.status().unwrap();
    for placement in Placement::ALL {
        let (mut cut, _) = chain(&mut session, placement);
        let (mut kept, _) = chain(&mut session, placement);
        let ends = |flow: &mut Flow| {
            (flow.take_sender(0).unwrap().with_patience(LONG), flow.take_receiver(0).unwrap().with_patience(LONG))
        };
        let ((mut sender, mut receiver), (mut other, mut others)) = (ends(&mut cut), ends(&mut kept));
        let sending = std::thread::spawn(move || send_until_error(&mut sender));
        let receiving = std::thread::spawn(move || receive_until_error(&mut receiver));
        std::thread::sleep(Duration::from_millis(3));
        for cap in cut.capabilities().to_vec() {
            session.revoke(cap).unwrap();
        }
        // Each of its two ends was cut off itself, or was told about a neighbour that was.
        let ended = |kind| matches!(kind, ErrorKind::PermissionDenied | ErrorKind::Device | ErrorKind::EndOfFile);
        assert!(ended(joined(sending)) && ended(joined(receiving).1), "{placement:?}");
        for n in 0..20 {
            other.send(&bytes(n, 4096), Head::default()).unwrap();
            let block = others.receive().unwrap();
            assert_eq!(&*block, &bytes(n, 4096)[..]);
            block.done().unwrap();
        }
        drop((other, others));
        // Devices that gave back what was revoked live on.
        assert!(session.status().unwrap().devices.len() >= 4);
        cut.end(&mut session).unwrap();
        kept.end(&mut session).unwrap();
        nothing_is_left(&mut session, &before);
    }
}

#[test]
fn revoking_a_device_s_capability_takes_away_what_it_delegated() {
    let mut session = session();
    let before = session.status().unwrap();
    let a = session.launch("a", transform("forward"), &[]).unwrap();
    let b = session.launch("b", transform("forward"), &[]).unwrap();
    session.ready(a, LONG).unwrap();
    session.ready(b, LONG).unwrap();
    let cap = session.channel(ChannelShape::new(1, 64)).unwrap();
    let given = session.delegate(cap, a.0, Rights::SEND.and(Rights::DELEGATE)).unwrap();
    let kind = |r: datapipes_core::Result<_>| r.map(|_| ()).unwrap_err().kind();
    // The application does not hold the child, so it cannot delegate it. It commands the child, so
    // it can revoke it.
    assert_eq!(kind(session.delegate(given, b.0, Rights::SEND).map(|_| 0)), ErrorKind::PermissionDenied);
    assert_eq!(
        kind(session.activate(given, "x", Rights::RECEIVE, Trust::Copy).map(|_| 0)),
        ErrorKind::PermissionDenied
    );
    session.activate(given, "x", Rights::SEND, Trust::Copy).unwrap();
    assert_eq!(kind(session.activate(cap, "y", Rights::SEND, Trust::Copy).map(|_| 0)), ErrorKind::Busy);
    session.activate(cap, "z", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut receiver = session.receiver("z", LONG).unwrap().with_patience(LONG);
    assert_eq!(session.revoke(given).unwrap(), 1);
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(kind(session.revoke(given)), ErrorKind::NotFound);
    drop(receiver);
    session.revoke(cap).unwrap();
    session.stop(a).unwrap();
    session.stop(b).unwrap();
    nothing_is_left(&mut session, &before);
}

fn gone(pid: u32) -> bool {
    // A process that has ended and was not waited for is gone, too.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |s| s.rsplit(')').next().unwrap().starts_with(" Z"))
}

fn wait_for(what: impl Fn() -> bool) -> bool {
    (0..6000).any(|_| {
        what() || {
            std::thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

#[test]
fn the_controller_s_death_is_that_of_its_devices_and_is_told_to_the_application() {
    let mut session = session();
    let (mut flow, _) = chain(&mut session, Placement::DistributedResourceSide);
    let pids: Vec<u32> = session.status().unwrap().devices.iter().map(|d| d.2).collect();
    let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
    let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
    let sending = std::thread::spawn(move || send_until_error(&mut sender));
    let receiving = std::thread::spawn(move || receive_until_error(&mut receiver));
    kill_process(Pid::from_raw(session.controller_pid() as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(joined(sending), ErrorKind::Unavailable);
    assert_eq!(joined(receiving).1, ErrorKind::Unavailable);
    assert_eq!(session.status().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(wait_for(|| pids.iter().all(|pid| gone(*pid))), "a device outlived its controller");
    assert_eq!(flow.end(&mut session).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn the_end_of_the_session_is_that_of_controller_and_devices() {
    let mut session = session();
    let (_flow, _) = chain(&mut session, Placement::CentralResourceSide);
    let mut pids: Vec<u32> = session.status().unwrap().devices.iter().map(|d| d.2).collect();
    assert_eq!(pids.len(), 3);
    pids.push(session.controller_pid());
    drop(session);
    assert!(wait_for(|| pids.iter().all(|pid| gone(*pid))), "something outlived its session");
}

/// The application has no room for the descriptors of an end. The call that meets this says so, and
/// the answer to it, which comes later, is not taken for the answer to another request.
#[test]
fn an_answer_that_nobody_awaits_any_more_is_not_that_of_the_next_request() {
    in_child(&|| {
        let mut session = session();
        let shape = ChannelShape::new(2, 4096);
        let cap = session.channel(shape).unwrap();
        let before = getrlimit(Resource::Nofile);
        let room = std::fs::File::open("/dev/null").unwrap();
        let next_free = u64::from(std::os::fd::AsRawFd::as_raw_fd(&room).unsigned_abs());
        drop(room);
        setrlimit(Resource::Nofile, Rlimit { current: Some(next_free), ..before }).unwrap();
        let e = session.activate(cap, "ours", Rights::RECEIVE, Trust::Copy).unwrap_err();
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        assert_eq!(session.status().unwrap().objects, 1);
        let others = [session.channel(shape).unwrap(), session.channel(shape).unwrap()];
        assert!(!others.contains(&cap) && others[0] != others[1], "{cap:?}, {others:?}");
        // The end that did not arrive is gone with its capability, and its name is free again.
        session.revoke(cap).unwrap();
        session.activate(others[0], "ours", Rights::RECEIVE, Trust::Copy).unwrap();
        session.activate(others[0], "theirs", Rights::SEND, Trust::Copy).unwrap();
        let mut receiver = session.receiver("ours", LONG).unwrap();
        session.sender("theirs", LONG).unwrap().send(b"a block", Head::default()).unwrap();
        assert_eq!(&*receiver.receive().unwrap(), b"a block");
    });
}

/// A controller that is stopped revokes nothing, so the relays of the application go on: nobody
/// waits for them.
#[test]
fn the_end_of_a_flow_does_not_wait_for_a_stopped_controller() {
    for placement in Placement::ALL {
        let mut session = session();
        let (mut flow, _) = chain(&mut session, placement);
        // Nobody closes the channels.
        let held = (flow.take_sender(0).unwrap(), flow.take_receiver(0).unwrap());
        session.set_patience(Patience::up_to(Duration::from_millis(20)));
        let controller = Pid::from_raw(session.controller_pid() as i32).unwrap();
        kill_process(controller, Signal::STOP).unwrap();
        let (mut session, ended) = bounded("the end of a flow", move || {
            let ended = flow.end(&mut session);
            (session, ended)
        });
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Busy, "{}", placement.name());
        // It does later what it was asked to do.
        kill_process(controller, Signal::CONT).unwrap();
        session.set_patience(LONG);
        drop(held);
        let after = settles(&mut session, |s| s.objects == 0 && s.devices.is_empty());
        assert_eq!((after.objects, after.devices.len()), (0, 0), "{}: {after:?}", placement.name());
    }
}

/// The names of the devices alone are longer than a packet.
#[test]
fn a_status_of_many_devices_with_long_names_is_whole() {
    let mut session = session();
    let before = session.status().unwrap();
    let names: Vec<String> = (0..40).map(|n| format!("{n:03}{}", "\u{1}".repeat(252))).collect();
    for name in &names {
        session.launch(name, transform("forward"), &[]).unwrap();
    }
    let status = session.status().unwrap();
    assert!(status.devices.iter().map(|(_, name, _)| name).eq(&names), "{} devices", status.devices.len());
    assert!(status.charges.iter().map(|c| c.device).eq(status.devices.iter().map(|d| d.0.0)));
    for (party, ..) in status.devices {
        session.stop(datapipes_fabric::control::Device(party)).unwrap();
    }
    nothing_is_left(&mut session, &before);
}

/// The kernel would give the pages, and kill processes for them.
#[test]
fn more_memory_than_there_is_is_refused() {
    let mut session = session();
    let before = session.status().unwrap();
    let error = session.memory(1 << 40).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    nothing_is_left(&mut session, &before);
}

/// An application of another version asks for something that this controller does not know.
#[test]
fn a_request_that_is_not_understood_is_refused() {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
    for packet in ["{", r#"{"nothing":{}}"#, r#""no such request""#] {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fabric-device"));
        let mut controller = command.arg("--fabric-controller").stdin(theirs).spawn().unwrap();
        drop(command);
        send(&ours, packet.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let socket = ours.try_clone().unwrap();
        let answer = bounded("an answer", move || {
            let mut buffer = [0; 4096];
            let (got, _) = recv(&socket, &mut buffer, RecvFlags::empty()).unwrap();
            String::from_utf8_lossy(&buffer[..got]).into_owned()
        });
        assert!(answer.contains("refused") && answer.contains("Corrupt"), "{packet}: {answer}");
        drop(ours);
        datapipes_testkit::ended(&mut controller);
    }
}
