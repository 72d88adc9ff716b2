//! Memory endpoints and the file protocol, with real processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::os::fd::OwnedFd;

use datapipes_core::{Draft, ErrorKind};
use datapipes_fabric::capability::{Party, Rights};
use datapipes_fabric::channel::{Shape, Trust};
use datapipes_fabric::device::Role;
use datapipes_fabric::file::{FileClient, Mode};
use datapipes_fabric::placement::{Flow, Graph, Placement};
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
    // It is sealed by now: no writer comes after the first reader.
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
    let mut graph = Graph::new(Shape::new(3, 8 << 10), Trust::Copy);
    let device = graph.device("storage", Role::Files, given);
    graph.connect(Graph::APPLICATION, device).unwrap();
    graph.connect(device, Graph::APPLICATION).unwrap();
    let mut flow = graph.start(session, placement).unwrap();
    let requests = flow.take_sender(0).unwrap().with_patience(LONG);
    let blocks = flow.take_receiver(0).unwrap().with_patience(LONG);
    (flow, FileClient::new(requests, blocks))
}

#[test]
fn files_are_read_and_published_block_by_block_under_every_placement() {
    let dir = scratch("files");
    let mut session = session();
    let data = bytes(11, 100_001);
    std::fs::write(dir.join("in"), &data).unwrap();
    std::fs::write(dir.join("empty"), []).unwrap();
    for placement in Placement::ALL {
        let out = dir.join(format!("out-{placement:?}"));
        let draft = Draft::beside(&out).unwrap();
        let target = draft.ssd().file().cached_fd().try_clone_to_owned().unwrap();
        let given = vec![reader(&dir.join("in")), reader(&dir.join("empty")), target];
        let (flow, mut client) = storage(&mut session, given, placement);
        // Opened twice, the first time not read to its end: what was read ahead does not come later.
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
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_storage_device_that_dies_leaves_nothing_under_the_name() {
    let dir = scratch("dies");
    let mut session = session();
    let out = dir.join("out");
    let draft = Draft::beside(&out).unwrap();
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
    std::fs::remove_dir_all(&dir).unwrap();
}
