//! Memory endpoints and the file protocol, with real processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::os::fd::{AsFd, OwnedFd};

use datapipes_core::{AtomicFile, ErrorKind};
use datapipes_fabric::capability::{Party, Rights};
use datapipes_fabric::channel::{ChannelShape, Trust};
use datapipes_fabric::device::DeviceRole;
use datapipes_fabric::file::{FileClient, Mode, Piece};
use datapipes_fabric::placement::{DeviceGraph, Flow, Placement};
use datapipes_fabric::transport::Carrier;
use scene::*;

#[test]
fn a_memory_has_its_writers_first_and_its_readers_never_write() {
    let mut session = session();
    let before = session.status().unwrap();
    let cap = session.memory(10_000).unwrap();
    let readers = session.delegate(cap, Party::APPLICATION, Rights::READ).unwrap();
    let kind = |r: datapipes_core::Result<()>| r.unwrap_err().kind();
    let write = Rights::READ.and(Rights::WRITE);
    assert_eq!(kind(session.activate(readers, "w", write, Trust::Copy)), ErrorKind::PermissionDenied);
    assert_eq!(kind(session.activate(cap, "w", Rights::SEND, Trust::Copy)), ErrorKind::PermissionDenied);
    session.activate(cap, "w", write, Trust::Copy).unwrap();
    let writer = session.shared_memory("w", LONG).unwrap();
    session.activate(readers, "r", Rights::READ, Trust::Copy).unwrap();
    let reader = session.shared_memory("r", LONG).unwrap();
    // It is sealed by now: no writer may come after the first reader.
    assert_eq!(kind(session.activate(cap, "w2", write, Trust::Copy)), ErrorKind::PermissionDenied);
    writer.write(9_990, &[7; 10]).unwrap();
    let mut bytes = [0; 12];
    reader.read(9_988, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_eq!(kind(reader.write(0, &[1])), ErrorKind::PermissionDenied);
    assert_eq!(kind(writer.write(9_991, &[0; 10])), ErrorKind::OutOfRange);
    assert_eq!(kind(reader.read(usize::MAX, &mut bytes)), ErrorKind::OutOfRange);
    assert_eq!(session.revoke(cap).unwrap(), 2);
    drop((writer, reader));
    nothing_is_left(&mut session, &before);
}

fn storage(
    session: &mut datapipes_fabric::control::Session,
    given: Vec<OwnedFd>,
    placement: Placement,
) -> (Flow, FileClient) {
    let mut graph = DeviceGraph::new(ChannelShape::new(3, 8 << 10), Trust::Copy);
    let device = graph.device("storage", DeviceRole::Files, given);
    graph.connect(DeviceGraph::APPLICATION, device).unwrap();
    graph.connect(device, DeviceGraph::APPLICATION).unwrap();
    let mut flow = graph.start(session, placement).unwrap();
    let requests = flow.take_sender(0).unwrap().with_patience(LONG);
    let blocks = flow.take_receiver(0).unwrap().with_patience(LONG);
    (flow, FileClient::new(requests, blocks))
}

#[test]
fn files_are_read_and_published_block_by_block_under_every_placement() {
    let dir = scratch();
    let mut session = session();
    let data = bytes(11, 100_001);
    std::fs::write(dir.join("in"), &data).unwrap();
    std::fs::write(dir.join("empty"), []).unwrap();
    for placement in Placement::ALL {
        let out = dir.join(format!("out-{placement:?}"));
        let draft = AtomicFile::create(&out).unwrap();
        let target = draft.ssd().file().cached_fd().try_clone_to_owned().unwrap();
        let given = vec![reader(&dir.join("in")), reader(&dir.join("empty")), target];
        let (flow, mut client) = storage(&mut session, given, placement);
        // The file is opened twice, and the first time not read to its end. Blocks that were read
        // ahead must not appear later.
        for whole in [false, true] {
            assert_eq!(client.open(0, Mode::Read).unwrap(), data.len() as u64);
            let mut read = Vec::new();
            while let Some(block) = client.next_in().unwrap() {
                read.extend_from_slice(&block);
                block.done().unwrap();
                if !whole {
                    break;
                }
            }
            assert!(data.starts_with(&read) && (!whole || read.len() == data.len()), "{placement:?}");
        }
        assert_eq!(client.open(1, Mode::Read).unwrap(), 0);
        assert!(client.next_in().unwrap().is_none());
        assert_eq!(client.open(7, Mode::Read).unwrap_err().kind(), ErrorKind::Device);
        client.open(2, Mode::Write).unwrap();
        for part in data.chunks(8 << 10) {
            let mut next = client.next_out().unwrap();
            next.bytes()[..part.len()].copy_from_slice(part);
            next.send(part.len()).unwrap();
        }
        assert!(!out.exists(), "half-written, and under its name");
        assert_eq!(client.publish(draft).unwrap(), data.len() as u64);
        assert!(std::fs::read(&out).unwrap() == data, "{placement:?}");
        drop(client);
        flow.end(&mut session).unwrap();
    }
}

#[test]
fn a_storage_device_that_dies_leaves_nothing_under_the_name() {
    let dir = scratch();
    let mut session = session();
    let out = dir.join("out");
    let draft = AtomicFile::create(&out).unwrap();
    let target = draft.ssd().file().cached_fd().try_clone_to_owned().unwrap();
    let (flow, mut client) = storage(&mut session, vec![target], Placement::DistributedResourceSide);
    client.open(0, Mode::Write).unwrap();
    let mut next = client.next_out().unwrap();
    next.bytes().fill(1);
    next.send(8 << 10).unwrap();
    let pid = session.status().unwrap().devices[0].2;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    assert_eq!(client.publish(draft).unwrap_err().kind(), ErrorKind::Device);
    drop(client);
    flow.end(&mut session).unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// A storage device with many clients, each with a channel to it and one back.
fn storage_of_many(
    session: &mut datapipes_fabric::control::Session,
    given: Vec<OwnedFd>,
    placement: Placement,
    clients: usize,
) -> (Flow, Vec<FileClient>) {
    let mut graph = DeviceGraph::new(ChannelShape::new(2, 4 << 10), Trust::Copy);
    let device = graph.device("storage", DeviceRole::Files, given);
    for _ in 0..clients {
        graph.connect(DeviceGraph::APPLICATION, device).unwrap();
    }
    for _ in 0..clients {
        graph.connect(device, DeviceGraph::APPLICATION).unwrap();
    }
    let mut flow = graph.start(session, placement).unwrap();
    let client = |n: usize| {
        let requests = flow.take_sender(n).unwrap().with_patience(LONG);
        FileClient::new(requests, flow.take_receiver(n).unwrap().with_patience(LONG))
    };
    let clients = (0..clients).map(client).collect();
    (flow, clients)
}

#[test]
fn each_client_of_a_storage_device_has_its_own_file_and_place_in_it() {
    let dir = scratch();
    let mut session = session();
    const CLIENTS: usize = 4;
    let files: Vec<Vec<u8>> = (0..CLIENTS as u64).map(|n| bytes(n + 40, 60_000 + 777 * n as usize)).collect();
    for (n, data) in files.iter().enumerate() {
        std::fs::write(dir.join(n.to_string()), data).unwrap();
    }
    for placement in Placement::ALL {
        let given = (0..CLIENTS).map(|n| reader(&dir.join(n.to_string()))).collect();
        let (flow, mut clients) = storage_of_many(&mut session, given, placement, CLIENTS + 1);
        // One client requests as many blocks as it may, and takes none. No other client waits for
        // it.
        let mut idle = clients.pop().unwrap();
        idle.open(0, Mode::Read).unwrap();
        let held = idle.next_in().unwrap().unwrap();
        std::thread::scope(|scope| {
            for (n, mut client) in clients.into_iter().enumerate() {
                let files = &files;
                scope.spawn(move || {
                    // Each has its own order of files, so that no two are at the same position at a
                    // time.
                    for turn in 0..CLIENTS {
                        let file = (n + turn) % CLIENTS;
                        assert_eq!(client.open(file as u64, Mode::Read).unwrap(), files[file].len() as u64);
                        let mut read = Vec::new();
                        while let Some(block) = client.next_in().unwrap() {
                            read.extend_from_slice(&block);
                            block.done().unwrap();
                        }
                        assert!(read == files[file], "client {n}, file {file}, {placement:?}");
                    }
                });
            }
        });
        assert_eq!(&*held, &files[0][..4 << 10]);
        held.done().unwrap();
        drop(idle);
        flow.end(&mut session).unwrap();
    }
}

/// Reads and writes at offsets are compared with a vector. Every message has the seed.
#[test]
fn files_are_read_and_written_at_any_offset() {
    let dir = scratch();
    let mut session = session();
    let seed = datapipes_testkit::seed(0x5eed);
    for placement in Placement::ALL {
        let mut state = seed | 1;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let path = dir.join(format!("{placement:?}"));
        let mut twin = bytes(seed, 50_000);
        std::fs::write(&path, &twin).unwrap();
        let both = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (flow, mut client) = storage(&mut session, vec![both.into()], placement);
        client.open(0, Mode::ReadWrite).unwrap();
        let mut end = 0;
        for step in 0..200 {
            let (at, len) = (next(60_000), next(8 << 10) as usize + 1);
            if next(3) == 0 {
                let data = bytes(next(1 << 40), len);
                let mut out = client.out_at(at).unwrap();
                out.bytes()[..len].copy_from_slice(&data);
                out.send(len).unwrap();
                let to = at as usize + len;
                twin.resize(twin.len().max(to), 0);
                twin[at as usize..to].copy_from_slice(&data);
                end = end.max(to as u64);
            } else {
                let block = client.read_at(at, len).unwrap();
                let expected = twin.get(at as usize..twin.len().min(at as usize + len)).unwrap_or_default();
                assert!(*block == *expected, "step {step}, {len} bytes at {at}, seed {seed:#x}, {placement:?}");
                block.done().unwrap();
            }
        }
        let pieces: Vec<Piece> = (0..40).map(|_| Piece { at: next(60_000), len: next(3_000) as usize }).collect();
        let mut seen = 0;
        client
            .read_each(&pieces, |n, bytes| {
                let Piece { at, len } = pieces[n];
                let expected = twin.get(at as usize..twin.len().min(at as usize + len)).unwrap_or_default();
                assert!(n == seen && *bytes == *expected, "piece {n}, {len} bytes at {at}, seed {seed:#x}");
                seen += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!((seen, client.commit().unwrap()), (40, end), "seed {seed:#x}");
        assert!(std::fs::read(&path).unwrap() == twin);
        // Impossible requests fail, and the device continues.
        let kind = |r: datapipes_core::Result<_>| r.map(|_: ()| ()).unwrap_err().kind();
        assert_eq!(kind(client.read_at(0, 1).map(|b| b.done().unwrap())), ErrorKind::Device, "nothing is open");
        client.open(0, Mode::Read).unwrap();
        assert_eq!(kind(client.read_at(u64::MAX - 3, 8).map(|b| b.done().unwrap())), ErrorKind::Device);
        assert_eq!(kind(client.read_at(0, 9 << 10).map(|b| b.done().unwrap())), ErrorKind::OutOfRange);
        assert_eq!(kind(client.commit().map(|_| ())), ErrorKind::Device, "opened for reading");
        // A dropped block is not a failure of the next one.
        drop(client.read_at(0, 1).unwrap());
        let block = client.read_at(7, 3).unwrap();
        assert_eq!(&*block, &twin[7..10]);
        block.done().unwrap();
        let mut out = client.out_at(u64::MAX).unwrap();
        out.bytes()[0] = 1;
        out.send(1).unwrap();
        // The result of a write is reported later.
        let e = (0..100).find_map(|_| client.open(0, Mode::Read).err());
        assert_eq!(e.map(|e| e.kind()), Some(ErrorKind::Device));
        drop(client);
        flow.end(&mut session).unwrap();
    }
}

/// Blocks are requested ahead. Whatever else is asked for in between, the next block is the one
/// after the last that was taken, and a sequential write goes where the last one ended.
#[test]
fn reads_and_writes_at_offsets_do_not_move_the_next_block() {
    let dir = scratch();
    let mut session = session();
    const BLOCK: usize = 8 << 10;
    let data = bytes(23, 9 * BLOCK + 123);
    for placement in Placement::ALL {
        let path = dir.join(format!("{placement:?}"));
        std::fs::write(&path, &data).unwrap();
        let mut data = data.clone();
        let both = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (flow, mut client) = storage(&mut session, vec![both.into()], placement);
        client.open(0, Mode::ReadWrite).unwrap();
        let (mut read, mut turn) = (Vec::new(), 0);
        while let Some(block) = client.next_in().unwrap() {
            read.extend_from_slice(&block);
            block.done().unwrap();
            match turn % 3 {
                0 => client.read_at(50_000, 10).unwrap().done().unwrap(),
                1 => {
                    let pieces = [0u64, 100, 40_000, 7].map(|at| Piece { at, len: BLOCK });
                    let refused = || datapipes_core::Error::new(ErrorKind::InvalidInput, "read", "enough");
                    client.read_each(&pieces, |n, _| if n == 1 { Err(refused()) } else { Ok(()) }).unwrap_err();
                }
                _ => {
                    // It writes what is there already.
                    let at = turn / 3 * 100;
                    let mut out = client.next_out().unwrap();
                    out.bytes()[..100].copy_from_slice(&data[at..at + 100]);
                    out.send(100).unwrap();
                    // The next block was requested already.
                    let at = read.len() + 10;
                    data[at..at + 50].fill(turn as u8);
                    let mut out = client.out_at(at as u64).unwrap();
                    out.bytes()[..50].fill(turn as u8);
                    out.send(50).unwrap();
                }
            }
            turn += 1;
        }
        assert!(read == data, "{placement:?}: {} bytes of {}", read.len(), data.len());
        client.commit().unwrap();
        assert!(std::fs::read(&path).unwrap() == data, "{placement:?}");
        drop(client);
        flow.end(&mut session).unwrap();
    }
}

/// A file can fail with the errno by which a channel reports its revocation.
#[test]
fn a_file_that_refuses_a_write_is_the_failure_of_that_write() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let mut session = session();
    for placement in Placement::ALL {
        for (seal, at) in [(SealFlags::WRITE, 0), (SealFlags::GROW, 16 << 10)] {
            let file = memfd_create("refuses", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            assert_eq!(rustix::io::pwrite(&file, &[7; 16 << 10], 0).unwrap(), 16 << 10);
            fcntl_add_seals(&file, seal).unwrap();
            let (flow, mut client) = storage(&mut session, vec![file], placement);
            client.open(0, Mode::ReadWrite).unwrap();
            client.out_at(at).unwrap().send(10).unwrap();
            let e = client.commit().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Device, "{e}");
            client.open(0, Mode::Read).unwrap();
            let block = client.next_in().unwrap().unwrap();
            assert_eq!(&*block, &[7; 8 << 10], "{placement:?}");
            block.done().unwrap();
            drop(client);
            flow.end(&mut session).unwrap();
        }
    }
}

#[test]
fn a_device_gets_no_more_sockets_than_it_has_room_for() {
    let dir = scratch();
    std::fs::write(dir.join("file"), "served to all").unwrap();
    let mut session = session();
    let file = reader(&dir.join("file"));
    let device = session.launch("storage", DeviceRole::Files, &[file.as_fd()]).unwrap();
    session.ready(device, LONG).unwrap();
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    let refused = loop {
        let n = ins.len();
        let mut connect = |port: &str, theirs: Rights, ours: Rights| {
            let cap = session.channel_over(ChannelShape::new(2, 4096), Carrier::UnixSocket)?;
            let given = session.delegate(cap, device.0, theirs)?;
            session.activate(given, port, theirs, Trust::Copy)?;
            session.activate(cap, port, ours, Trust::Copy)
        };
        let (asks, blocks) = (format!("asks-{n}"), format!("blocks-{n}"));
        let connected = connect(&asks, Rights::RECEIVE, Rights::SEND);
        match connected.and_then(|()| connect(&blocks, Rights::SEND, Rights::RECEIVE)) {
            Ok(()) => (ins.push(asks), outs.push(blocks)),
            Err(e) => break e,
        };
    };
    assert!(refused.kind() == ErrorKind::NoSpace && refused.to_string().contains("over sockets"), "{refused}");
    assert!(ins.len() >= 20, "{}", ins.len());
    // There is room for channels over shared memory.
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::RECEIVE).unwrap();
    session.activate(given, "more", Rights::RECEIVE, Trust::Copy).unwrap();
    // All channels that have come so far are served.
    session.run(device, &ins, &outs).unwrap();
    let mut clients = Vec::new();
    for (asks, blocks) in ins.iter().zip(&outs) {
        let requests = session.sender(asks, LONG).unwrap().with_patience(LONG);
        let blocks = session.receiver(blocks, LONG).unwrap().with_patience(LONG);
        let mut client = FileClient::new(requests, blocks);
        assert_eq!(client.open(0, Mode::Read).unwrap(), 13);
        clients.push(client);
    }
    for client in &mut clients {
        let block = client.next_in().unwrap().unwrap();
        assert_eq!(&*block, b"served to all");
        block.done().unwrap();
    }
    drop(clients);
}
