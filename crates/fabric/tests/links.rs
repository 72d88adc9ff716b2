//! Channels over sockets: the same devices and the same application over them, and graphs that span
//! two controllers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{DeviceEvent, Encryption, Key, LinkSpec, Program, Session};
use datapipes_fabric::placement::{DeviceGraph, Flow, Placement};
use datapipes_fabric::transport::{Receiver, Sender};
use datapipes_testkit::joined;
use rustix::process::{Pid, Signal, kill_process};
use scene::*;

const SHAPE: ChannelShape = ChannelShape::new(4, 64 << 10);

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Sends all data and receives what comes back.
fn there_and_back(mut sender: Sender, mut receiver: Receiver, data: &[u8]) -> Vec<u8> {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (n, part) in data.chunks(SHAPE.block_bytes).enumerate() {
                sender.send(part, Head { words: [n as u64; 4], end: false }).unwrap();
            }
            sender.finish([9; 4]).unwrap();
        });
        let (mut back, mut count) = (Vec::new(), 0);
        loop {
            let block = receiver.receive().unwrap();
            if block.head().end {
                block.done().unwrap();
                return back;
            }
            assert_eq!(block.head().words, [count; 4]);
            count += 1;
            back.extend_from_slice(&block);
            block.done().unwrap();
        }
    })
}

fn ends(flow: &mut Flow) -> (Sender, Receiver) {
    (flow.take_sender(0).unwrap().with_patience(LONG), flow.take_receiver(0).unwrap().with_patience(LONG))
}

#[test]
fn bytes_are_the_same_over_every_carrier_under_every_placement() {
    let mut session = session();
    let before = session.status().unwrap();
    let data = bytes(1, 700_001);
    let expected: Vec<u8> = data.iter().map(|b| b ^ 42).collect();
    for carrier in connections("bytes by UCX") {
        for placement in Placement::ALL {
            let mut graph = DeviceGraph::new(SHAPE, Trust::Copy).over(carrier);
            let one = graph.device("one", transform_with("xor", serde_json::json!({"key": 42})), Vec::new());
            let two = graph.device("two", transform("crc32"), Vec::new());
            for (from, to) in [(DeviceGraph::APPLICATION, one), (one, two), (two, DeviceGraph::APPLICATION)] {
                graph.connect(from, to).unwrap();
            }
            let mut flow = graph.start(&mut session, placement).unwrap();
            let (sender, receiver) = ends(&mut flow);
            assert!(there_and_back(sender, receiver, &data) == expected, "{carrier:?} {placement:?}");
            let report = flow.report(&mut session, two, LONG).unwrap();
            assert_eq!(report.crc, Some(crc32fast::hash(&expected)));
            flow.end(&mut session).unwrap();
            nothing_is_left(&mut session, &before);
        }
    }
}

/// A sender's death is not taken for the end of its stream.
#[test]
fn a_stream_that_is_cut_short_is_told_from_one_that_ended() {
    let mut session = session();
    let before = session.status().unwrap();
    for carrier in connections("a stream by UCX that is cut short") {
        let mut graph = DeviceGraph::new(SHAPE, Trust::Copy).over(carrier);
        let node = graph.device("victim", transform("forward"), Vec::new());
        graph.connect(DeviceGraph::APPLICATION, node).unwrap();
        graph.connect(node, DeviceGraph::APPLICATION).unwrap();
        let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
        let (mut sender, mut receiver) = ends(&mut flow);
        sender.send(b"one", Head::default()).unwrap();
        receiver.receive().unwrap().done().unwrap();
        let device = flow.device(node).unwrap().0;
        let pid = session.status().unwrap().devices.iter().find(|d| d.0 == device).unwrap().2;
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Device, "{carrier:?}");
        drop((sender, receiver));
        flow.end(&mut session).unwrap();
        nothing_is_left(&mut session, &before);
    }
}

/// Two machines: A has the application and a device, B has another device between two links.
struct Machines {
    a: Flow,
    b: Flow,
    sum: datapipes_fabric::placement::DeviceNode,
}

fn spanning(a: &mut Session, b: &mut Session, at: SocketAddr, placement: Placement) -> Machines {
    let key = Key::random().unwrap();
    let (there_b, there) = b.offer(SHAPE, Rights::RECEIVE, at, &key).unwrap();
    let (back_b, back) = b.offer(SHAPE, Rights::SEND, at, &key).unwrap();
    let there_a = a.join(SHAPE, Rights::SEND, there, &key).unwrap();
    let back_a = a.join(SHAPE, Rights::RECEIVE, back, &key).unwrap();
    for (session, link) in [(&mut *a, there_a), (b, there_b)] {
        session.joined(link, LONG).unwrap();
    }
    let mut graph = DeviceGraph::new(SHAPE, Trust::Copy);
    let xor = graph.device("xor", transform_with("xor", serde_json::json!({"key": 42})), Vec::new());
    let (out, back) = (graph.elsewhere(there_a), graph.elsewhere(back_a));
    graph.connect(DeviceGraph::APPLICATION, xor).unwrap();
    graph.connect(xor, out).unwrap();
    assert!(graph.connect(DeviceGraph::APPLICATION, out).is_err(), "one link is one channel");
    graph.connect(back, DeviceGraph::APPLICATION).unwrap();
    let mut other = DeviceGraph::new(SHAPE, Trust::Copy);
    let sum = other.device("sum", transform("crc32"), Vec::new());
    let (from, to) = (other.elsewhere(there_b), other.elsewhere(back_b));
    other.connect(from, sum).unwrap();
    other.connect(sum, to).unwrap();
    Machines { b: other.start(b, placement).unwrap(), a: graph.start(a, placement).unwrap(), sum }
}

fn a_stream_spans(a: &mut Session, b: &mut Session, at: SocketAddr, placement: Placement) {
    let (before_a, before_b) = (a.status().unwrap(), b.status().unwrap());
    let data = bytes(7, 500_003);
    let expected: Vec<u8> = data.iter().map(|b| b ^ 42).collect();
    let mut machines = spanning(a, b, at, placement);
    let (sender, receiver) = ends(&mut machines.a);
    assert!(there_and_back(sender, receiver, &data) == expected, "{placement:?}");
    let report = machines.b.report(b, machines.sum, LONG).unwrap();
    assert_eq!((report.bytes_in, report.crc), (data.len() as u64, Some(crc32fast::hash(&expected))));
    machines.a.end(a).unwrap();
    machines.b.end(b).unwrap();
    nothing_is_left(a, &before_a);
    nothing_is_left(b, &before_b);
}

#[test]
fn a_graph_spans_two_controllers_under_every_placement() {
    let (mut a, mut b) = (session(), session());
    for placement in Placement::ALL {
        a_stream_spans(&mut a, &mut b, anywhere(), placement);
    }
}

/// Each controller takes away its own end. The other machine is told that the end has gone, and not
/// that the stream ended.
#[test]
fn a_revoked_link_is_dead_on_both_machines_and_nothing_else_is() {
    let (mut a, mut b) = (session(), session());
    let (before_a, before_b) = (a.status().unwrap(), b.status().unwrap());
    let mut cut = spanning(&mut a, &mut b, anywhere(), Placement::DistributedResourceSide);
    let mut kept = spanning(&mut a, &mut b, anywhere(), Placement::DistributedResourceSide);
    let (mut sender, mut receiver) = ends(&mut cut.a);
    sender.send(b"one", Head::default()).unwrap();
    receiver.receive().unwrap().done().unwrap();
    // The path is application -> xor -> link. The capability is that of the second wire, from which
    // the device has its own.
    a.revoke(cut.a.capabilities()[1]).unwrap();
    let e = cut.b.report(&mut b, cut.sum, LONG).unwrap_err();
    assert!(e.to_string().contains("the other side has gone"), "{e}");
    // The device on this machine learns it with its next block, and closes.
    let failed =
        (0..100).find_map(|_| sender.send(b"two", Head::default()).and_then(|()| sender.drain().map(|_| ())).err());
    assert_eq!(failed.unwrap().kind(), ErrorKind::Device);
    // The device on the other machine gave up its work, and closed downstream properly.
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
    let (sender_2, receiver_2) = ends(&mut kept.a);
    let data = bytes(3, 200_000);
    assert!(there_and_back(sender_2, receiver_2, &data).len() == data.len());
    drop((sender, receiver));
    for flow in [cut.a, kept.a] {
        flow.end(&mut a).unwrap();
    }
    for flow in [cut.b, kept.b] {
        flow.end(&mut b).unwrap();
    }
    nothing_is_left(&mut a, &before_a);
    nothing_is_left(&mut b, &before_b);
}

#[test]
fn a_controller_that_dies_is_told_from_an_end_on_the_other_machine() {
    let (mut a, mut b) = (session(), session());
    let before = a.status().unwrap();
    let mut machines = spanning(&mut a, &mut b, anywhere(), Placement::DistributedResourceSide);
    let (mut sender, mut receiver) = ends(&mut machines.a);
    sender.send(b"one", Head::default()).unwrap();
    receiver.receive().unwrap().done().unwrap();
    kill_process(Pid::from_raw(b.controller_pid() as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(machines.b.end(&mut b).unwrap_err().kind(), ErrorKind::Unavailable);
    drop((sender, receiver));
    machines.a.end(&mut a).unwrap();
    nothing_is_left(&mut a, &before);
}

/// A joiner with slow first messages is behind many silent connections from another address.
#[test]
fn silent_strangers_do_not_push_out_a_slow_joiner() {
    let (mut a, mut b) = (session(), session());
    let key = Key::random().unwrap();
    let (offered, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let link = a.join(SHAPE, Rights::SEND, proxy.local_addr().unwrap(), &key).unwrap();
    let (mut near, _) = proxy.accept().unwrap();
    let mut far = TcpStream::connect(address).unwrap();
    let other = std::net::Ipv4Addr::new(127, 0, 0, 2).into();
    let stranger = || {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &std::net::SocketAddr::new(other, 0)).unwrap();
        connect(&socket, &address).unwrap();
        socket
    };
    let silent: Vec<_> = (0..300).map(|_| stranger()).collect();
    // Connections are handled in order of arrival, so this waits for the last one, which is
    // refused.
    let mut last = TcpStream::connect(address).unwrap();
    last.write_all(&[0x41; 64]).unwrap();
    assert_eq!(last.read(&mut [0; 64]).unwrap_or(0), 0);
    // These are the joiner's first message, the answer, and the joiner's confirmation.
    let mut words = [0; 48];
    near.read_exact(&mut words).unwrap();
    far.write_all(&words).unwrap();
    far.read_exact(&mut words).unwrap();
    near.write_all(&words).unwrap();
    let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let back = std::thread::spawn(move || drop(std::io::copy(&mut far, &mut near)));
    let there = std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
    a.joined(link, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    drop((a, b, silent));
    joined(back);
    joined(there);
}

#[test]
fn only_a_joiner_with_key_shape_and_opposite_side_gets_in() {
    let (mut a, mut b) = (session(), session());
    let (before_a, before_b) = (a.status().unwrap(), b.status().unwrap());
    let (key, other_key) = (Key::random().unwrap(), Key::random().unwrap());
    let mut mixed = *key.bytes();
    mixed[31] ^= 1;
    let (offered, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
    // Silent strangers, more than are kept, delay nobody.
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut noisy = TcpStream::connect(address).unwrap();
    noisy.write_all(&[0x41; 64]).unwrap();
    assert_eq!(noisy.read(&mut [0; 64]).unwrap_or(0), 0, "a stranger gets no answer");
    let larger = ChannelShape::new(4, 128 << 10);
    for (shape, side, key) in
        [(SHAPE, Rights::SEND, &other_key), (SHAPE, Rights::RECEIVE, &key), (larger, Rights::SEND, &key)]
    {
        let link = a.join(shape, side, address, key).unwrap();
        let e = a.joined(link, LONG).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("another key"), "{e}");
        a.revoke(link).unwrap();
    }
    // This one knows what to show, but not what it must be shown.
    let (fake, fake_address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &Key::new(mixed)).unwrap();
    let link = a.join(SHAPE, Rights::SEND, fake_address, &key).unwrap();
    let e = a.joined(link, LONG).unwrap_err();
    assert!(e.to_string().contains("another key"), "{e}");
    a.revoke(link).unwrap();
    b.revoke(fake).unwrap();
    // No channel has come of all this. The right joiner gets in.
    assert_eq!(
        b.event_where(Patience::NONE, |e| matches!(e, DeviceEvent::Link { cap, .. } if *cap == offered))
            .unwrap_err()
            .kind(),
        ErrorKind::Busy
    );
    let link = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
    a.joined(link, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    a.activate(link, "out", Rights::SEND, Trust::Copy).unwrap();
    // Another controller has the other end.
    let e = a.activate(link, "in", Rights::RECEIVE, Trust::Copy).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    b.activate(offered, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut sender = a.sender("out", LONG).unwrap().with_patience(LONG);
    let mut receiver = b.receiver("in", LONG).unwrap().with_patience(LONG);
    sender.send(b"hello", Head::default()).unwrap();
    let block = receiver.receive().unwrap();
    assert_eq!(&*block, b"hello");
    block.done().unwrap();
    sender.drain().unwrap();
    // Nobody listens any more, so nobody can be reached.
    assert!(TcpStream::connect(address).is_err());
    let late = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
    assert_eq!(a.joined(late, LONG).unwrap_err().kind(), ErrorKind::Device);
    drop((sender, receiver, silent));
    for link in [link, late] {
        a.revoke(link).unwrap();
    }
    b.revoke(offered).unwrap();
    nothing_is_left(&mut a, &before_a);
    nothing_is_left(&mut b, &before_b);
}

/// An attacker on the path: it passes bytes on in both directions, keeps a copy of them, and
/// changes one if it is told to.
struct Eavesdropper {
    address: SocketAddr,
    thread: std::thread::JoinHandle<[Vec<u8>; 2]>,
}

impl Eavesdropper {
    /// Makes one on the path to an address. `changes` is the index of the byte to change in that
    /// direction.
    fn before(to: SocketAddr, changes: Option<usize>) -> Eavesdropper {
        let listener = std::net::TcpListener::bind(anywhere()).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(to).unwrap();
            let (back, near_2, far_2) =
                (near.try_clone().unwrap(), near.try_clone().unwrap(), far.try_clone().unwrap());
            let there = std::thread::spawn(move || carry(near, far, changes));
            let back = carry(far_2, back, None);
            drop(near_2);
            [joined(there), back]
        });
        Eavesdropper { address, thread }
    }

    /// The bytes sent there, and the bytes sent back.
    fn heard(self) -> [Vec<u8>; 2] {
        joined(self.thread)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, changes: Option<usize>) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if let Some(at) = changes.and_then(|at| at.checked_sub(all.len())).filter(|at| *at < n) {
            buffer[at] ^= 1;
        }
        all.extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
    all
}

const SAID: &[u8] = b"a sentence that nobody else should be able to read on its way";

/// Sends one block from one machine to the other, through an attacker on the path.
fn past(
    eavesdropper: impl FnOnce(SocketAddr) -> Eavesdropper,
    encryption: Encryption,
) -> (Vec<u8>, Result<(), ErrorKind>) {
    let (mut a, mut b) = (session(), session());
    let key = Key::random().unwrap();
    let spec = |side| LinkSpec::new(SHAPE, side).encryption(encryption);
    let (offered, address) = b.offer_link(spec(Rights::RECEIVE), anywhere(), &key).unwrap();
    let eavesdropper = eavesdropper(address);
    let link = a.join_link(spec(Rights::SEND), eavesdropper.address, &key).unwrap();
    a.joined(link, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    a.activate(link, "out", Rights::SEND, Trust::Copy).unwrap();
    b.activate(offered, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut sender = a.sender("out", LONG).unwrap().with_patience(LONG);
    let mut receiver = b.receiver("in", LONG).unwrap().with_patience(LONG);
    sender.send(SAID, Head::default()).unwrap();
    let came = match receiver.receive() {
        Ok(block) => {
            assert_eq!(&*block, SAID);
            block.done().unwrap();
            sender.drain().unwrap();
            Ok(())
        }
        Err(e) => Err(e.kind()),
    };
    drop((sender, receiver));
    a.revoke(link).unwrap();
    b.revoke(offered).unwrap();
    drop((a, b));
    let [there, back] = eavesdropper.heard();
    // Neither side ever shows the key or a part of it.
    for shown in [&there, &back] {
        assert!(key.bytes().chunks(8).all(|part| !shown.windows(8).any(|w| w == part)), "part of the key was shown");
    }
    (there, came)
}

#[test]
fn between_machines_nobody_reads_or_changes_what_is_sent() {
    let reads = |shown: &[u8]| shown.windows(SAID.len()).any(|w| w == SAID);
    let (there, came) = past(|to| Eavesdropper::before(to, None), Encryption::On);
    assert!(came.is_ok() && !reads(&there), "what was sent can be read on the way");
    // The bytes are not encrypted if both sides chose that.
    let (there, came) = past(|to| Eavesdropper::before(to, None), Encryption::Off);
    assert!(came.is_ok() && reads(&there));
    // After 64 bytes of handshake, the changed byte is in the hello, in the header of the block, in
    // its bytes, or in its seal.
    for at in [64, 64 + 79, 64 + 80 + 5, 64 + 160 + 3, 64 + 160 + SAID.len() + 2] {
        let (_, came) = past(|to| Eavesdropper::before(to, Some(at)), Encryption::On);
        assert_eq!(came, Err(ErrorKind::Corrupt), "byte {at} was changed on the way");
    }
}

/// Recorded messages are useless, and only a party with the key uses up an offer.
#[test]
fn what_was_recorded_opens_no_link_and_uses_up_no_offer() {
    let (mut a, mut b) = (session(), session());
    let (before_a, before_b) = (a.status().unwrap(), b.status().unwrap());
    let key = Key::random().unwrap();
    // A fake listener records what a joiner sends.
    let listener = std::net::TcpListener::bind(anywhere()).unwrap();
    let wrong = a.join(SHAPE, Rights::SEND, listener.local_addr().unwrap(), &key).unwrap();
    let (mut trap, _) = listener.accept().unwrap();
    let mut first = [0; 48];
    trap.read_exact(&mut first).unwrap();
    drop(trap);
    assert_eq!(a.joined(wrong, LONG).unwrap_err().kind(), ErrorKind::Device);
    a.revoke(wrong).unwrap();
    let (offered, address) = b.offer(SHAPE, Rights::RECEIVE, anywhere(), &key).unwrap();
    // When it is replayed to the true controller, it is answered, but the answer cannot be
    // confirmed.
    let mut echo = TcpStream::connect(address).unwrap();
    echo.write_all(&first).unwrap();
    let mut answer = [0; 48];
    echo.read_exact(&mut answer).unwrap();
    // The second time it is not even answered.
    let mut again = TcpStream::connect(address).unwrap();
    again.write_all(&first).unwrap();
    assert_eq!(again.read(&mut [0; 1]).unwrap_or(0), 0, "what was said before is answered again");
    // A wrong confirmation cuts off its author, and nobody else.
    echo.write_all(&[7; 16]).unwrap();
    assert_eq!(echo.read(&mut [0; 1]).unwrap_or(0), 0);
    let is_of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Link { cap, .. } if *cap == offered);
    assert_eq!(b.event_where(Patience::NONE, is_of_it).unwrap_err().kind(), ErrorKind::Busy);
    // Many connections that are silent after a recorded first message do not displace the holder of
    // the key.
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let link = a.join(SHAPE, Rights::SEND, address, &key).unwrap();
    a.joined(link, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    drop(silent);
    a.revoke(link).unwrap();
    b.revoke(offered).unwrap();
    nothing_is_left(&mut a, &before_a);
    nothing_is_left(&mut b, &before_b);
}

/// A side with encryption and one without do not agree.
#[test]
fn a_link_is_not_talked_out_of_its_encryption() {
    let (mut a, mut b) = (session(), session());
    let key = Key::random().unwrap();
    for (ours, theirs) in [(Encryption::On, Encryption::Off), (Encryption::Off, Encryption::On)] {
        let spec = |encryption, side| LinkSpec::new(SHAPE, side).encryption(encryption);
        let (offered, address) = b.offer_link(spec(theirs, Rights::RECEIVE), anywhere(), &key).unwrap();
        let link = a.join_link(spec(ours, Rights::SEND), address, &key).unwrap();
        assert_eq!(a.joined(link, LONG).unwrap_err().kind(), ErrorKind::Device);
        a.revoke(link).unwrap();
        b.revoke(offered).unwrap();
    }
}

/// A network namespace of this test, removed when this is dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {}", arguments.join(" "), said.trim())) }
}

/// Makes two namespaces connected by a pair of virtual interfaces.
fn two_machines() -> Result<[Namespace; 2], String> {
    let pid = std::process::id();
    let names = [format!("fabric-a-{pid}"), format!("fabric-b-{pid}")];
    ip(&["netns", "add", &names[0]])?;
    let a = Namespace(names[0].clone());
    ip(&["netns", "add", &names[1]])?;
    let b = Namespace(names[1].clone());
    let (one, two) = (format!("fa{pid}"), format!("fb{pid}"));
    ip(&["link", "add", &one, "netns", &a.0, "type", "veth", "peer", "name", &two, "netns", &b.0])?;
    for (namespace, device, address) in [(&a.0, &one, "10.213.0.1/24"), (&b.0, &two, "10.213.0.2/24")] {
        ip(&["-n", namespace, "addr", "add", address, "dev", device])?;
        ip(&["-n", namespace, "link", "set", device, "up"])?;
    }
    Ok([a, b])
}

/// Starts a controller and its devices in the network of the namespace.
fn session_in(namespace: &Namespace, dir: &std::path::Path) -> Session {
    let Program::At(program) = program() else { unreachable!() };
    let script = dir.join(&namespace.0);
    let text = format!("#!/bin/sh\nexec ip netns exec {} {} \"$@\"\n", namespace.0, program.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    Session::start(&Program::At(script)).unwrap()
}

#[test]
fn a_graph_spans_two_network_namespaces() {
    let [a, b] = match two_machines() {
        Ok(machines) => machines,
        Err(why) => {
            println!("SKIPPED: a graph over two network namespaces: {why}");
            return;
        }
    };
    let dir = scratch();
    let (mut one, mut two) = (session_in(&a, &dir), session_in(&b, &dir));
    let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(namespace(one.controller_pid()), namespace(two.controller_pid()));
    assert_ne!(namespace(one.controller_pid()), namespace(std::process::id()));
    for placement in Placement::ALL {
        a_stream_spans(&mut one, &mut two, "10.213.0.2:0".parse().unwrap(), placement);
    }
    drop((one, two));
}
