//! Links by UCX: bridges that are killed, what is left of them, how much may be under way, and
//! links between two controllers. The tests of all carriers (`links`, `steps`, the contract of
//! transports) run over UCX as well. All are skipped where UCX is not installed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::{Cap, Rights};
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{
    DeviceEvent, Encryption, Key, LinkCarrier, LinkSpec, Program, Session, UcxLinkOptions,
};
use datapipes_fabric::placement::{DeviceGraph, Placement};
use datapipes_fabric::transport::{Carrier, Receiver, Sender};
use datapipes_testkit::bounded;
use rustix::process::{Pid, Signal, kill_process};
use scene::*;

const SHAPE: ChannelShape = ChannelShape::new(4, 64 << 10);

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// The bridges of a controller.
fn bridges_of(session: &Session) -> Vec<Pid> {
    let parent = session.controller_pid();
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_bridge = String::from_utf8_lossy(&command).contains("--fabric-bridge");
        (of == parent && is_bridge).then(|| Pid::from_raw(pid)).flatten()
    };
    std::fs::read_dir("/proc").unwrap().filter_map(of).collect()
}

/// The System V segments that were made by processes of this list, or by their bridges.
fn segments_of(processes: &[Pid]) -> usize {
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let made_by = |line: &str| line.split_whitespace().nth(4).and_then(|pid| pid.parse::<i32>().ok());
    let number = |pid: &Pid| pid.as_raw_nonzero().get();
    table.lines().filter_map(made_by).filter(|pid| processes.iter().any(|p| number(p) == *pid)).count()
}

fn ends_of(session: &mut Session, cap: Cap) -> (Sender, Receiver) {
    session.activate(cap, "out", Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    let sender = session.sender("out", LONG).unwrap().with_patience(LONG);
    (sender, session.receiver("in", LONG).unwrap().with_patience(LONG))
}

fn one_block(sender: &mut Sender, receiver: &mut Receiver, data: &[u8]) {
    sender.send(data, Head { words: [data.len() as u64; 4], end: false }).unwrap();
    let block = receiver.receive().unwrap();
    assert!(*block == *data && block.head().words == [data.len() as u64; 4], "{} bytes", data.len());
    block.done().unwrap();
}

#[test]
fn blocks_of_all_sizes_and_many_of_them_arrive_and_nothing_is_left() {
    const TEST: &str = "blocks of all sizes by UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let before = session.status().unwrap();
        for checked in [false, true] {
            let shape = ChannelShape { checked, ..ChannelShape::new(3, 5 << 20) };
            let cap = session.channel_over(shape, Carrier::Ucx).unwrap();
            let bridges = bridges_of(&session);
            assert_eq!((bridges.len(), session.status().unwrap().bridges), (2, 2));
            assert!(segments_of(&bridges) > 0, "the bridges have queues in shared memory");
            for bridge in &bridges {
                let status = std::fs::read_to_string(format!("/proc/{}/status", bridge.as_raw_nonzero())).unwrap();
                assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
                assert!(!status.contains("Uid:\t0\t"), "a bridge is not root: {status}");
            }
            let (mut sender, mut receiver) = ends_of(&mut session, cap);
            std::thread::scope(|scope| {
                let lengths = [0, 1, 2, 63, 64, 65, 4097, 65_535, 65_537, 1_000_003, 5 << 20];
                let all = (0..400).map(move |n| lengths[n % 7]).chain(lengths);
                let sent = all.clone();
                scope.spawn(move || {
                    for (n, len) in sent.enumerate() {
                        sender.send(&bytes(n as u64, len), Head { words: [n as u64; 4], end: false }).unwrap();
                    }
                    sender.finish([7; 4]).unwrap();
                });
                for (n, len) in all.enumerate() {
                    let block = receiver.receive().unwrap();
                    assert!(*block == bytes(n as u64, len)[..], "block {n} of {len} bytes");
                    block.done().unwrap();
                }
                let last = receiver.receive().unwrap();
                assert!(last.head().end && last.head().words == [7; 4]);
                last.done().unwrap();
                assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
            });
            // Both bridges end by themselves, and have counted the bytes.
            drop(receiver);
            let after = settles(&mut session, |s| s.bridges == 0);
            assert!(after.bridges == 0 && after.bridged_bytes > 6_000_000, "{after:?}");
            session.revoke(cap).unwrap();
            nothing_is_left(&mut session, &before);
            assert_eq!((bridges_of(&session).len(), segments_of(&bridges)), (0, 0));
        }
    });
}

/// A credit is a buffer of the receiver, with bridges in between as without.
#[test]
fn a_sender_has_no_more_credits_than_the_channel() {
    const TEST: &str = "credits by UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let cap = session.channel_over(ChannelShape::new(2, 100), Carrier::Ucx).unwrap();
        let (mut sender, mut receiver) = ends_of(&mut session, cap);
        sender.set_patience(Patience::up_to(Duration::from_millis(200)));
        for n in 0..2u64 {
            sender.send(&bytes(n, 100), Head::default()).unwrap();
        }
        assert_eq!(sender.send(b"x", Head::default()).unwrap_err().kind(), ErrorKind::Busy);
        let (one, two) = (receiver.receive().unwrap(), receiver.receive().unwrap());
        assert_eq!(sender.send(b"x", Head::default()).unwrap_err().kind(), ErrorKind::Busy);
        assert!(*one == bytes(0, 100)[..] && *two == bytes(1, 100)[..]);
        two.done().unwrap();
        sender.set_patience(LONG);
        sender.send(b"x", Head::default()).unwrap();
        one.done().unwrap();
        receiver.receive().unwrap().done().unwrap();
        sender.drain().unwrap();
    });
}

/// Sends and receives until both ends have failed. Returns the kinds of the errors.
fn until_errors(mut sender: Sender, mut receiver: Receiver) -> (ErrorKind, ErrorKind) {
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            for n in 0u64.. {
                if let Err(e) = sender.send(&bytes(n, 30_000), Head { words: [n; 4], end: false }) {
                    return e.kind();
                }
            }
            unreachable!("an endless loop")
        });
        let mut next = 0;
        let received = loop {
            match receiver.receive() {
                Ok(block) => {
                    assert!(*block == bytes(next, 30_000)[..], "a block is whole, and in its place");
                    next += 1;
                    block.done().unwrap();
                }
                Err(e) => break e.kind(),
            }
        };
        // The other end learns it by itself, and not from the drop of this one.
        let sent = sending.join().unwrap();
        drop(receiver);
        (sent, received)
    })
}

#[test]
fn a_bridge_that_is_killed_ends_both_ends_and_no_other_link() {
    const TEST: &str = "a bridge by UCX that is killed";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let before = session.status().unwrap();
        for victim in 0..2 {
            for delay_ms in [0, 5, 50] {
                let cap = session.channel_over(SHAPE, Carrier::Ucx).unwrap();
                let bridges = bridges_of(&session);
                assert_eq!(bridges.len(), 2);
                let (sender, receiver) = ends_of(&mut session, cap);
                let beside = session.channel_over(SHAPE, Carrier::Ucx).unwrap();
                session.activate(beside, "beside out", Rights::SEND, Trust::Copy).unwrap();
                session.activate(beside, "beside in", Rights::RECEIVE, Trust::Copy).unwrap();
                let mut other = session.sender("beside out", LONG).unwrap().with_patience(LONG);
                let mut others = session.receiver("beside in", LONG).unwrap().with_patience(LONG);
                let moving = std::thread::spawn(move || until_errors(sender, receiver));
                std::thread::sleep(Duration::from_millis(delay_ms));
                kill_process(bridges[victim], Signal::KILL).unwrap();
                // The patience of both ends is much longer: the death ends their waits.
                assert_eq!(moving.join().unwrap(), (ErrorKind::Device, ErrorKind::Device), "{victim} {delay_ms}");
                let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Link { cap: c, error: Some(_) } if *c == cap);
                let DeviceEvent::Link { error, .. } = session.event_where(LONG, of_it).unwrap() else { unreachable!() };
                assert!(error.as_deref().unwrap_or_default().contains("bridge"), "{error:?}");
                one_block(&mut other, &mut others, b"still here");
                drop((other, others));
                session.revoke(cap).unwrap();
                session.revoke(beside).unwrap();
                nothing_is_left(&mut session, &before);
                assert_eq!((bridges_of(&session).len(), segments_of(&bridges)), (0, 0));
            }
        }
    });
}

#[test]
fn a_revoked_link_has_no_bridges_any_more() {
    const TEST: &str = "a link by UCX that is revoked";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let before = session.status().unwrap();
        let cap = session.channel_over(SHAPE, Carrier::Ucx).unwrap();
        let bridges = bridges_of(&session);
        let (mut sender, mut receiver) = ends_of(&mut session, cap);
        one_block(&mut sender, &mut receiver, b"before");
        sender.send(b"under way", Head::default()).unwrap();
        let waits = std::thread::spawn(move || {
            let _ = receiver.receive().map(drop);
            receiver.receive().unwrap_err().kind()
        });
        session.revoke(cap).unwrap();
        assert_eq!((bridges_of(&session).len(), segments_of(&bridges)), (0, 0), "when the call returns");
        assert_eq!(waits.join().unwrap(), ErrorKind::PermissionDenied);
        assert_eq!(sender.send(b"after", Head::default()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        drop(sender);
        nothing_is_left(&mut session, &before);
    });
}

#[test]
fn bridges_end_with_their_controller() {
    const TEST: &str = "bridges by UCX without their controller";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let cap = session.channel_over(SHAPE, Carrier::Ucx).unwrap();
        let bridges = bridges_of(&session);
        let (mut sender, mut receiver) = ends_of(&mut session, cap);
        one_block(&mut sender, &mut receiver, b"before");
        kill_process(Pid::from_raw(session.controller_pid() as i32).unwrap(), Signal::KILL).unwrap();
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Unavailable);
        let runs = |pid: &Pid| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
        };
        while bridges.iter().any(runs) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(segments_of(&bridges), 0);
    });
}

/// The loader finds a file by UCX's name that is no library.
#[test]
fn without_ucx_a_link_is_refused_and_the_package_is_named() {
    let folder = scratch();
    for name in ["libucs.so.0", "libucp.so.0"] {
        std::fs::write(folder.join(name), "no library").unwrap();
    }
    let Program::At(program) = program() else { unreachable!() };
    let script = folder.join("program");
    let folder = folder.join("");
    let text = format!("#!/bin/sh\nLD_LIBRARY_PATH={} exec {} \"$@\"\n", folder.display(), program.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut session = Session::start(&Program::At(script)).unwrap();
    let before = session.status().unwrap();
    let e = session.channel_over(SHAPE, Carrier::Ucx).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("libucx0"), "{e}");
    let mut graph = DeviceGraph::new(SHAPE, Trust::Copy).over(Carrier::Ucx);
    let node = graph.device("one", transform("forward"), Vec::new());
    graph.connect(DeviceGraph::APPLICATION, node).unwrap();
    graph.connect(node, DeviceGraph::APPLICATION).unwrap();
    let e = graph.start(&mut session, Placement::DistributedResourceSide).map(drop).unwrap_err();
    assert!(e.kind() == ErrorKind::Unavailable && e.to_string().contains("libucx0"), "{e}");
    nothing_is_left(&mut session, &before);
    // Everything else works.
    assert!(session.channel_over(SHAPE, Carrier::UnixSocket).is_ok());
}

/// An answer that comes when the bridges have met is not that to another request.
#[test]
fn an_impatient_application_gets_the_right_answers() {
    const TEST: &str = "an impatient application and UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        session.set_patience(Patience::up_to(Duration::from_millis(1)));
        let e = session.channel_over(SHAPE, Carrier::Ucx).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        session.set_patience(LONG);
        let first = session.channel(SHAPE).unwrap();
        let status = session.status().unwrap();
        assert_eq!((status.objects, status.bridges), (2, 2), "{status:?}");
        assert_eq!(session.revoke(first).unwrap(), 1);
        assert_eq!(session.status().unwrap().objects, 1);
    });
}

fn trusted(session: &mut Session) {
    session.ucx_links(&UcxLinkOptions::default().trusted_network(true)).unwrap();
}

fn by_ucx(side: Rights, encryption: Encryption) -> LinkSpec {
    LinkSpec::new(SHAPE, side).encryption(encryption).carrier(LinkCarrier::Ucx)
}

/// Two sessions with a link from the first to the second.
fn linked(encryption: Encryption) -> (Session, Session, [Cap; 2]) {
    let (mut a, mut b) = (session(), session());
    trusted(&mut a);
    trusted(&mut b);
    let caps = link(&mut a, &mut b, encryption);
    (a, b, caps)
}

fn link(a: &mut Session, b: &mut Session, encryption: Encryption) -> [Cap; 2] {
    let key = Key::random().unwrap();
    let (offered, address) = b.offer_link(by_ucx(Rights::RECEIVE, encryption), anywhere(), &key).unwrap();
    let joins = a.join_link(by_ucx(Rights::SEND, encryption), address, &key).unwrap();
    a.activate(joins, "out", Rights::SEND, Trust::Copy).unwrap();
    a.joined(joins, LONG).unwrap();
    b.joined(offered, LONG).unwrap();
    b.activate(offered, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    [joins, offered]
}

fn ends_across(a: &mut Session, b: &mut Session) -> (Sender, Receiver) {
    (a.sender("out", LONG).unwrap().with_patience(LONG), b.receiver("in", LONG).unwrap().with_patience(LONG))
}

#[test]
fn a_link_between_two_controllers_goes_by_ucx_sealed_or_not() {
    const TEST: &str = "links by UCX between controllers";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        for encryption in [Encryption::On, Encryption::Off] {
            let (mut a, mut b) = (session(), session());
            let before = (a.status().unwrap(), b.status().unwrap());
            trusted(&mut a);
            trusted(&mut b);
            let [joins, offered] = link(&mut a, &mut b, encryption);
            assert_eq!((bridges_of(&a).len(), bridges_of(&b).len()), (1, 1));
            let (mut sender, mut receiver) = ends_across(&mut a, &mut b);
            for len in [0, 1, 77, 4096, 65_535, 64 << 10] {
                one_block(&mut sender, &mut receiver, &bytes(len as u64, len));
            }
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for n in 0..200u64 {
                        sender.send(&bytes(n, 64 << 10), Head { words: [n; 4], end: false }).unwrap();
                    }
                    sender.finish([9; 4]).unwrap();
                });
                for n in 0..200 {
                    let block = receiver.receive().unwrap();
                    assert!(*block == bytes(n, 64 << 10)[..], "{encryption:?}: block {n}");
                    block.done().unwrap();
                }
                receiver.receive().unwrap().done().unwrap();
                assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
            });
            drop(receiver);
            for session in [&mut a, &mut b] {
                assert_eq!(settles(session, |s| s.bridges == 0).bridges, 0);
                // A link that ended well is no loss.
                let e = session.event_where(Patience::NONE, |e| matches!(e, DeviceEvent::Link { .. })).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Busy);
            }
            a.revoke(joins).unwrap();
            b.revoke(offered).unwrap();
            nothing_is_left(&mut a, &before.0);
            nothing_is_left(&mut b, &before.1);
        }
    });
}

#[test]
fn a_graph_spans_two_controllers_by_ucx() {
    const TEST: &str = "a graph over two controllers by UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let (mut a, mut b) = (session(), session());
        let before = (a.status().unwrap(), b.status().unwrap());
        trusted(&mut a);
        trusted(&mut b);
        let data = bytes(7, 700_003);
        let expected: Vec<u8> = data.iter().map(|byte| byte ^ 42).collect();
        for placement in Placement::ALL {
            let key = Key::random().unwrap();
            let encryption = Encryption::On;
            let (there_b, there) = b.offer_link(by_ucx(Rights::RECEIVE, encryption), anywhere(), &key).unwrap();
            let (back_b, back) = b.offer_link(by_ucx(Rights::SEND, encryption), anywhere(), &key).unwrap();
            let there_a = a.join_link(by_ucx(Rights::SEND, encryption), there, &key).unwrap();
            let back_a = a.join_link(by_ucx(Rights::RECEIVE, encryption), back, &key).unwrap();
            let mut graph = DeviceGraph::new(SHAPE, Trust::Copy);
            let xor = graph.device("xor", transform_with("xor", serde_json::json!({"key": 42})), Vec::new());
            let (out, back) = (graph.elsewhere(there_a), graph.elsewhere(back_a));
            graph.connect(DeviceGraph::APPLICATION, xor).unwrap();
            graph.connect(xor, out).unwrap();
            graph.connect(back, DeviceGraph::APPLICATION).unwrap();
            let mut other = DeviceGraph::new(SHAPE, Trust::Copy);
            let sum = other.device("sum", transform("crc32"), Vec::new());
            let (from, to) = (other.elsewhere(there_b), other.elsewhere(back_b));
            other.connect(from, sum).unwrap();
            other.connect(sum, to).unwrap();
            let flow_b = other.start(&mut b, placement).unwrap();
            let mut flow_a = graph.start(&mut a, placement).unwrap();
            let mut sender = flow_a.take_sender(0).unwrap().with_patience(LONG);
            let mut receiver = flow_a.take_receiver(0).unwrap().with_patience(LONG);
            let mut came = Vec::new();
            std::thread::scope(|scope| {
                let data = &data;
                scope.spawn(move || {
                    data.chunks(SHAPE.block_bytes).for_each(|part| sender.send(part, Head::default()).unwrap());
                    sender.finish([1; 4]).unwrap();
                });
                loop {
                    let block = receiver.receive().unwrap();
                    came.extend_from_slice(&block);
                    let end = block.head().end;
                    block.done().unwrap();
                    if end {
                        break;
                    }
                }
            });
            assert!(came == expected, "{placement:?}");
            assert_eq!(flow_b.report(&mut b, sum, LONG).unwrap().crc, Some(crc32fast::hash(&expected)));
            drop(receiver);
            flow_a.end(&mut a).unwrap();
            flow_b.end(&mut b).unwrap();
            nothing_is_left(&mut a, &before.0);
            nothing_is_left(&mut b, &before.1);
        }
    });
}

/// Whatever takes one side away, the other machine is told within the patience of a test.
#[test]
fn the_end_of_one_side_reaches_the_other_machine() {
    const TEST: &str = "the end of one side of a link by UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        for cause in ["bridge of the sender", "bridge of the receiver", "revoked", "controller"] {
            let (mut a, mut b, [joins, offered]) = linked(Encryption::On);
            let (mut sender, mut receiver) = ends_across(&mut a, &mut b);
            one_block(&mut sender, &mut receiver, b"before");
            let all: Vec<Pid> = [bridges_of(&a), bridges_of(&b)].concat();
            match cause {
                "bridge of the sender" => kill_process(all[0], Signal::KILL).unwrap(),
                "bridge of the receiver" => kill_process(all[1], Signal::KILL).unwrap(),
                "revoked" => drop(a.revoke(joins).unwrap()),
                _ => kill_process(Pid::from_raw(a.controller_pid() as i32).unwrap(), Signal::KILL).unwrap(),
            }
            assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Device, "{cause}");
            let lost = sender.send(b"after", Head::default()).and_then(|()| sender.drain().map(drop)).unwrap_err();
            let expected = match cause {
                "revoked" => ErrorKind::PermissionDenied,
                "controller" => ErrorKind::Unavailable,
                _ => ErrorKind::Device,
            };
            assert_eq!(lost.kind(), expected, "{cause}: {lost}");
            let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Link { cap, error: Some(_) } if *cap == offered);
            b.event_where(LONG, of_it).unwrap();
            assert_eq!(settles(&mut b, |s| s.bridges == 0).bridges, 0, "{cause}");
            drop((sender, receiver));
            b.revoke(offered).unwrap();
        }
    });
}

#[test]
fn only_a_trusted_network_is_used_and_both_sides_mean_the_same_carrier() {
    const TEST: &str = "consent to links by UCX";
    let (mut a, mut b) = (session(), session());
    let before = (a.status().unwrap(), b.status().unwrap());
    let key = Key::random().unwrap();
    let spec = by_ucx(Rights::RECEIVE, Encryption::On);
    for options in [None, Some(UcxLinkOptions::default())] {
        if let Some(options) = options {
            b.ucx_links(&options).unwrap();
        }
        let e = b.offer_link(spec, anywhere(), &key).unwrap_err();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("trusted"), "{e}");
        let e = b.join_link(spec, (Ipv4Addr::LOCALHOST, 9).into(), &key).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    }
    nothing_is_left(&mut b, &before.1);
    if !has_ucx(TEST) {
        return;
    }
    trusted(&mut a);
    trusted(&mut b);
    let (offered, address) = b.offer_link(spec, anywhere(), &key).unwrap();
    // A joiner that means TCP.
    let tcp = a.join_link(LinkSpec::new(SHAPE, Rights::SEND), address, &key).unwrap();
    let e = a.joined(tcp, LONG).unwrap_err();
    assert!(e.kind() == ErrorKind::Device && e.to_string().contains("carrier"), "{e}");
    a.revoke(tcp).unwrap();
    // A device that is not there.
    a.ucx_links(&UcxLinkOptions::default().trusted_network(true).devices("none7".to_owned())).unwrap();
    let wrong = a.join_link(by_ucx(Rights::SEND, Encryption::On), address, &key).unwrap();
    assert_eq!(a.joined(wrong, LONG).unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(b.joined(offered, LONG).unwrap_err().kind(), ErrorKind::Device);
    a.revoke(wrong).unwrap();
    b.revoke(offered).unwrap();
    nothing_is_left(&mut a, &before.0);
    nothing_is_left(&mut b, &before.1);
}

/// A bridge that is stopped holds its link back, and nothing else: the controller answers, and the
/// revocation ends it.
#[test]
fn a_stopped_bridge_is_waited_for_no_longer_than_said() {
    const TEST: &str = "a stopped bridge";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let mut session = session();
        let before = session.status().unwrap();
        let cap = session.channel_over(SHAPE, Carrier::Ucx).unwrap();
        let bridges = bridges_of(&session);
        let (mut sender, mut receiver) = ends_of(&mut session, cap);
        one_block(&mut sender, &mut receiver, b"before");
        kill_process(bridges[0], Signal::STOP).unwrap();
        sender.set_patience(Patience::up_to(Duration::from_millis(100)));
        receiver.set_patience(Patience::up_to(Duration::from_millis(100)));
        let since = Instant::now();
        while sender.send(&bytes(1, 64 << 10), Head::default()).is_ok() {
            assert!(since.elapsed() < LONG.limit);
        }
        assert_eq!(session.status().unwrap().bridges, 2);
        // It goes on where it was.
        kill_process(bridges[0], Signal::CONT).unwrap();
        receiver.set_patience(LONG);
        let block = receiver.receive().unwrap();
        assert!(*block == bytes(1, 64 << 10)[..]);
        block.done().unwrap();
        kill_process(bridges[1], Signal::STOP).unwrap();
        session.revoke(cap).unwrap();
        assert!(bridges_of(&session).is_empty());
        drop((sender, receiver));
        nothing_is_left(&mut session, &before);
    });
}

/// A stranger at the port of an offer of a link by UCX is cut off as at any other.
#[test]
fn an_offer_is_not_used_up_by_strangers() {
    const TEST: &str = "strangers at an offer of a link by UCX";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let (mut a, mut b) = (session(), session());
        trusted(&mut a);
        trusted(&mut b);
        let key = Key::random().unwrap();
        let (offered, address) = b.offer_link(by_ucx(Rights::RECEIVE, Encryption::On), anywhere(), &key).unwrap();
        let mut strangers: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stranger in &mut strangers {
            std::io::Write::write_all(stranger, &[0x41; 64]).unwrap();
        }
        let other = a.join_link(by_ucx(Rights::SEND, Encryption::On), address, &Key::random().unwrap()).unwrap();
        assert_eq!(a.joined(other, LONG).unwrap_err().kind(), ErrorKind::Device);
        assert!(bridges_of(&a).is_empty() && bridges_of(&b).is_empty());
        let link = a.join_link(by_ucx(Rights::SEND, Encryption::On), address, &key).unwrap();
        a.joined(link, LONG).unwrap();
        b.joined(offered, LONG).unwrap();
    });
}
