//! The same devices and the same application code under all three placements, with real processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::os::fd::OwnedFd;

use datapipes_core::{AtomicFile, ErrorKind};
use datapipes_fabric::channel::{ChannelShape, Head, Trust};
use datapipes_fabric::control::Session;
use datapipes_fabric::device::{DevicePlace, DeviceRole, Spread};
use datapipes_fabric::placement::{DeviceGraph, Flow, Placement};
use datapipes_testkit::joined;
use scene::*;

/// Application -> xor -> checksum -> application: Figure 1 of the paper.
fn figure_1(
    session: &mut Session,
    shape: ChannelShape,
    trust: Trust,
    placement: Placement,
) -> (Flow, [datapipes_fabric::placement::DeviceNode; 2]) {
    let mut graph = DeviceGraph::new(shape, trust);
    let yellow = graph.device("yellow", transform_with("xor", serde_json::json!({"key": 42})), Vec::new());
    let pink = graph.device("pink", transform("crc32"), Vec::new());
    for (from, to) in [(DeviceGraph::APPLICATION, yellow), (yellow, pink), (pink, DeviceGraph::APPLICATION)] {
        graph.connect(from, to).unwrap();
    }
    (graph.start(session, placement).unwrap(), [yellow, pink])
}

/// Acts as the application, for any placement. Returns what came back.
fn stream(flow: &mut Flow, data: &[u8], block: usize) -> Vec<u8> {
    let (mut sender, mut receiver) = (flow.take_sender(0).unwrap(), flow.take_receiver(0).unwrap());
    sender.set_patience(LONG);
    receiver.set_patience(LONG);
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            for (n, part) in data.chunks(block).enumerate() {
                sender.send(part, Head { words: [n as u64, 7, 8, 9], end: false }).unwrap();
            }
            sender.finish([1, 2, 3, 4]).unwrap();
        });
        let (mut back, mut count) = (Vec::new(), 0);
        loop {
            let arrived = receiver.receive().unwrap();
            if arrived.head().end {
                assert_eq!(arrived.head().words, [1, 2, 3, 4]);
                arrived.done().unwrap();
                break;
            }
            assert_eq!(arrived.head().words, [count, 7, 8, 9]);
            count += 1;
            back.extend_from_slice(&arrived);
            arrived.done().unwrap();
        }
        sending.join().unwrap();
        back
    })
}

#[test]
fn bytes_words_and_ends_are_the_same_under_every_placement() {
    let mut session = session();
    let before = session.status().unwrap();
    let data = bytes(1, 3_000_001);
    let expected: Vec<u8> = data.iter().map(|b| b ^ 42).collect();
    for (shape, trust) in [
        (ChannelShape::new(1, 4096), Trust::Copy),
        (ChannelShape::new(4, 64 << 10), IN_PLACE),
        (ChannelShape { checked: true, ..ChannelShape::new(2, 1 << 20) }, IN_PLACE_CHECKED),
        (ChannelShape::new(3, 4 << 20), Trust::Copy),
    ] {
        let data = if shape.block_bytes == 4096 { &data[..100_001] } else { &data[..] };
        for placement in Placement::ALL {
            let (mut flow, [yellow, pink]) = figure_1(&mut session, shape, trust, placement);
            let back = stream(&mut flow, data, shape.block_bytes);
            assert!(back == expected[..data.len()], "{placement:?} {shape:?}");
            let report = flow.report(&mut session, pink, LONG).unwrap();
            assert_eq!(report.crc, Some(crc32fast::hash(&expected[..data.len()])), "{placement:?}");
            assert_eq!(flow.report(&mut session, yellow, LONG).unwrap().bytes_out, data.len() as u64);
            flow.end(&mut session).unwrap();
            nothing_is_left(&mut session, &before);
        }
    }
}

#[test]
fn devices_are_fully_locked_down_here() {
    let mut session = session();
    let device = session.launch("idle", transform("forward"), &[]).unwrap();
    let confined = session.ready(device, LONG).unwrap();
    assert!(confined.seccomp && confined.unprivileged, "{confined:?}");
    if confined.landlock != "fully" {
        println!("SKIPPED: Landlock: this kernel enforces it {}", confined.landlock);
    }
    // A device that cannot be made does not start, and tells the reason.
    let missing = session.launch("missing", transform("rot13"), &[]).unwrap();
    assert_eq!(session.ready(missing, LONG).unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn a_file_goes_through_decompression_into_a_file_that_appears_whole() {
    let dir = scratch();
    let mut session = session();
    let data: Vec<u8> = (0..400_000u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
    std::fs::write(dir.join("in"), &data).unwrap();
    for placement in Placement::ALL {
        let out = dir.join(format!("out-{placement:?}"));
        let draft = AtomicFile::create(&out).unwrap();
        let target: OwnedFd = draft.ssd().file().cached_fd().try_clone_to_owned().unwrap();
        // Blocks of the source leave room for bytes that compression may add.
        let (small, large) = (ChannelShape::new(3, 64 << 10), ChannelShape::new(3, 80 << 10));
        let mut graph = DeviceGraph::new(large, Trust::Copy);
        let place = DevicePlace::File { descriptor: 0, direct: None, offset: 0, len: None };
        let source = graph.device(
            "source",
            DeviceRole::Source { place: place.clone(), sum: true },
            vec![reader(&dir.join("in"))],
        );
        let pack = graph.device("pack", transform("lz4-compress"), Vec::new());
        let unpack = graph.device("unpack", transform("lz4-decompress"), Vec::new());
        let sink = graph.device("sink", DeviceRole::Sink { place }, vec![target]);
        graph.connect_with(source, pack, small, Trust::Copy).unwrap();
        graph.connect(pack, unpack).unwrap();
        graph.connect_with(unpack, sink, small, IN_PLACE).unwrap();
        let flow = graph.start(&mut session, placement).unwrap();
        let report = flow.report(&mut session, sink, LONG).unwrap();
        assert_eq!((report.bytes_in, report.crc), (data.len() as u64, Some(crc32fast::hash(&data))), "{placement:?}");
        assert!(!out.exists(), "nothing has a name before it is published");
        draft.publish(report.bytes_in).unwrap();
        assert!(std::fs::read(&out).unwrap() == data);
        let read = flow.report(&mut session, source, LONG).unwrap();
        assert_eq!((read.bytes_in, read.bytes_out, read.crc), (report.bytes_in, report.bytes_in, report.crc));
        let packed = flow.report(&mut session, pack, LONG).unwrap();
        assert!(packed.bytes_out < packed.bytes_in / 2);
        flow.end(&mut session).unwrap();
    }
}

#[test]
fn network_ingest_sends_what_arrives_until_the_peer_ends() {
    let data = bytes(3, 700_000);
    for whole_blocks in [false, true] {
        let (back, lens) = ingested(&data, whole_blocks);
        assert!(back == data, "whole blocks: {whole_blocks}");
        if whole_blocks {
            assert!(lens.len() == 22 && lens[..21].iter().all(|len| *len == 32 << 10), "{lens:?}");
        }
    }
}

/// Sends the bytes over a connection. Returns the output, and the lengths of its blocks.
fn ingested(data: &[u8], whole_blocks: bool) -> (Vec<u8>, Vec<usize>) {
    use std::io::Write;
    let mut session = session();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = data.to_vec();
    let peer = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        for part in sent.chunks(10_000) {
            stream.write_all(part).unwrap();
        }
    });
    let (socket, _) = listener.accept().unwrap();
    let mut graph = DeviceGraph::new(ChannelShape::new(4, 32 << 10), Trust::Copy);
    let place = DevicePlace::Socket { descriptor: 0, whole_blocks };
    let ingest = graph.device("ingest", DeviceRole::Source { place, sum: false }, vec![socket.into()]);
    let sum = graph.device("sum", transform("crc32"), Vec::new());
    graph.connect(ingest, sum).unwrap();
    graph.connect(sum, DeviceGraph::APPLICATION).unwrap();
    let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
    let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
    let (mut back, mut lens) = (Vec::new(), Vec::new());
    loop {
        let block = receiver.receive().unwrap();
        back.extend_from_slice(&block);
        lens.extend(Some(block.len()).filter(|len| *len > 0));
        let end = block.head().end;
        block.done().unwrap();
        if end {
            break;
        }
    }
    joined(peer);
    drop(receiver);
    flow.end(&mut session).unwrap();
    (back, lens)
}

/// The pipes are non-blocking, as others may have set them. Two streams go into one pipe, which is
/// closed when both have ended.
#[test]
fn streams_are_read_to_their_end_and_written_to_the_last_one() {
    use std::io::{Read, Write};
    let mut session = session();
    let data = [bytes(5, 900_000), bytes(6, 300_000)];
    for placement in Placement::ALL {
        for whole_blocks in [false, true] {
            let mut graph = DeviceGraph::new(ChannelShape::new(2, 32 << 10), Trust::Copy);
            let (mut back, into) = std::io::pipe().unwrap();
            rustix::io::ioctl_fionbio(&into, true).unwrap();
            let place = DevicePlace::Stream { descriptor: 0, whole_blocks: false };
            let sink = graph.device("sink", DeviceRole::Sink { place }, vec![into.into()]);
            let mut writers = Vec::new();
            for part in &data {
                let (out_of, writer) = std::io::pipe().unwrap();
                rustix::io::ioctl_fionbio(&out_of, true).unwrap();
                let place = DevicePlace::Stream { descriptor: 0, whole_blocks };
                let role = DeviceRole::Source { place, sum: true };
                let source = graph.device("source", role, vec![out_of.into()]);
                graph.connect(source, sink).unwrap();
                writers.push((writer, part));
            }
            let flow = graph.start(&mut session, placement).unwrap();
            let all = std::thread::scope(|scope| {
                for (mut writer, part) in writers {
                    scope.spawn(move || part.chunks(7_000).for_each(|chunk| writer.write_all(chunk).unwrap()));
                }
                let mut all = Vec::new();
                back.read_to_end(&mut all).unwrap();
                all
            });
            let mut counts = [0usize; 256];
            data.iter().flatten().for_each(|byte| counts[usize::from(*byte)] += 1);
            all.iter().for_each(|byte| counts[usize::from(*byte)] -= 1);
            assert!(all.len() == 1_200_000 && counts.iter().all(|n| *n == 0), "{placement:?} {whole_blocks}");
            let report = flow.report(&mut session, sink, LONG).unwrap();
            assert_eq!((report.bytes_in, report.crc), (1_200_000, Some(crc32fast::hash(&all))));
            flow.end(&mut session).unwrap();
        }
    }
}

#[test]
fn a_graph_fans_out_and_in() {
    let mut session = session();
    for placement in Placement::ALL {
        for spread in [Spread::Turns, Spread::All] {
            let mut graph = DeviceGraph::new(ChannelShape::new(2, 16 << 10), Trust::Copy);
            let function = |function: &str, spread| DeviceRole::Transform {
                function: function.into(),
                arguments: Default::default(),
                spread,
            };
            let split = graph.device("split", function("forward", spread), Vec::new());
            let workers: Vec<_> = (0..3).map(|_| graph.device("worker", transform("forward"), Vec::new())).collect();
            let join = graph.device("join", transform("forward"), Vec::new());
            graph.connect(DeviceGraph::APPLICATION, split).unwrap();
            for worker in &workers {
                graph.connect(split, *worker).unwrap();
                graph.connect(*worker, join).unwrap();
            }
            graph.connect(join, DeviceGraph::APPLICATION).unwrap();
            let mut flow = graph.start(&mut session, placement).unwrap();
            let (mut sender, mut receiver) = (flow.take_sender(0).unwrap(), flow.take_receiver(0).unwrap());
            sender.set_patience(LONG);
            receiver.set_patience(LONG);
            const BLOCKS: u64 = 30;
            let mut seen = std::thread::scope(|scope| {
                scope.spawn(move || {
                    for n in 0..BLOCKS {
                        sender.send(&n.to_le_bytes(), Head { words: [n; 4], end: false }).unwrap();
                    }
                    sender.finish([0; 4]).unwrap();
                });
                let mut seen = Vec::new();
                loop {
                    let block = receiver.receive().unwrap();
                    if block.head().end {
                        block.done().unwrap();
                        break seen;
                    }
                    assert_eq!(*block, block.head().words[0].to_le_bytes());
                    seen.push(block.head().words[0]);
                    block.done().unwrap();
                }
            });
            seen.sort_unstable();
            let copies = if spread == Spread::All { 3 } else { 1 };
            let expected: Vec<u64> = (0..BLOCKS).flat_map(|n| std::iter::repeat_n(n, copies)).collect();
            assert_eq!(seen, expected, "{placement:?} {spread:?}");
            flow.end(&mut session).unwrap();
        }
    }
}

#[test]
fn auto_chooses_and_explains() {
    let mut session = session();
    let (mut flow, _) = figure_1(&mut session, ChannelShape::new(2, 64 << 10), Trust::Copy, Placement::Auto);
    let choice = flow.choice.clone().unwrap();
    assert_eq!((choice.placement, choice.estimates.len()), (flow.placement, 3));
    assert!(choice.to_string().contains("measured here"), "{choice}");
    let data = bytes(5, 200_000);
    let back = stream(&mut flow, &data, 64 << 10);
    assert!(back.iter().zip(&data).all(|(a, b)| *a == b ^ 42) && back.len() == data.len());
    flow.end(&mut session).unwrap();
}

/// A transform that fails tells upstream at once, under every placement, and the application learns
/// the reason.
#[test]
fn a_failure_in_the_middle_reaches_both_ends_and_the_application() {
    let mut session = session();
    for placement in Placement::ALL {
        let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
        let first = graph.device("first", transform("forward"), Vec::new());
        let second = graph.device("unpack", transform("lz4-decompress"), Vec::new());
        for (from, to) in [(DeviceGraph::APPLICATION, first), (first, second), (second, DeviceGraph::APPLICATION)] {
            graph.connect(from, to).unwrap();
        }
        let mut flow = graph.start(&mut session, placement).unwrap();
        let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
        let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
        let garbage = [&100u32.to_le_bytes()[..], &[0xFF; 50]].concat();
        let failed = (0..100).find_map(|_| sender.send(&garbage, Head::default()).and_then(|()| sender.drain()).err());
        let kind = failed.unwrap().kind();
        assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Device), "{placement:?}: {kind:?}");
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile, "{placement:?}");
        let e = flow.report(&mut session, second, LONG).unwrap_err();
        assert!(e.to_string().contains("decompress"), "{e}");
        drop((sender, receiver));
        flow.end(&mut session).unwrap();
    }
}
