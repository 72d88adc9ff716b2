//! Devices that attack: each is a body in a locked-down process, and must fail without harming
//! others.
//!
//! This program is also the controller and the devices, so it has its own `main` and runs the tests
//! itself.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

mod attacker;
mod scene;

use std::process::ExitCode;

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::device::DeviceRole;
use datapipes_fabric::file::{FileClient, Mode, Piece};
use datapipes_fabric::placement::{DeviceGraph, Placement};
use datapipes_fabric::process;
use datapipes_testkit::{run_tests, tests};
use scene::attack::*;
use scene::*;
use serde_json::json;

fn main() -> ExitCode {
    if let Some(code) = process::enter(&attacker::functions()) {
        return code;
    }
    run_tests(tests![
        no_system_call_beyond_moving_bytes,
        nothing_runs_on_that_was_started_before_the_lock_down,
        what_is_mapped_for_reading_stays_so,
        a_forged_sender_page_is_not_believed,
        a_forged_receiver_page_is_not_believed,
        nobody_configures_an_end_at_another,
        a_forged_end_is_not_taken_for_the_result,
        the_seals_hold_without_any_lock_down,
        overwriting_after_send_changes_no_copy,
        a_flood_of_descriptors_or_of_packets_harms_the_flooder_alone,
        nonsense_over_the_control_socket_ends_its_author_alone,
        what_only_the_application_may_ask_is_refused_to_devices,
        a_device_that_lies_about_unmapping_is_killed,
        a_device_that_dies_before_it_has_its_end_leaves_nobody_waiting,
        there_is_no_event_descriptor_to_block,
        descriptors_of_the_wrong_type_fail_their_own_device,
        a_storage_device_gives_no_more_than_was_asked_for,
    ])
}

fn no_system_call_beyond_moving_bytes() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let controller = session.controller_pid();
    let (_, mut receiver) = launch(&mut session, "system-calls", json!({ "controller": controller }));
    let answers = told(&mut receiver);
    let answers = answers.as_object().unwrap();
    assert!(answers.len() > 40, "{answers:?}");
    for (call, errno) in answers {
        let expected = if call == "clone3" { libc::ENOSYS } else { libc::EPERM };
        assert_eq!(errno.as_i64(), Some(expected.into()), "{call} was let through, or failed for another reason");
    }
    bystander.stays_well(&mut session);
}

fn nothing_runs_on_that_was_started_before_the_lock_down() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    for (how, what) in [("thread", "a thread"), ("process", "a process"), ("orphan", "a process")] {
        let device = session.launch("leaving", attack("leaving", json!({ "how": how })), &[]).unwrap();
        let e = session.ready(device, LONG).unwrap_err().to_string();
        assert!(e.contains(what) && e.contains("would not be locked down"), "{how}: {e}");
    }
    let device = session.launch("leaving", attack("leaving", json!({ "how": "nothing" })), &[]).unwrap();
    assert!(session.ready(device, LONG).unwrap().seccomp);
    bystander.stays_well(&mut session);
}

fn what_is_mapped_for_reading_stays_so() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    // There is one channel in each direction. The attacker takes its raw packets from the control
    // socket.
    let (device, mut receiver) = launch(&mut session, "pages", json!({}));
    for (rights, own) in [(Rights::SEND, Rights::RECEIVE), (Rights::RECEIVE, Rights::SEND)] {
        let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
        let given = session.delegate(cap, device.0, rights).unwrap();
        session.activate(given, &format!("theirs {rights:?}"), rights, Trust::Copy).unwrap();
        session.activate(cap, &format!("ours {rights:?}"), own, Trust::Copy).unwrap();
        let answers = told(&mut receiver);
        for (attempt, outcome) in answers.as_object().unwrap() {
            assert_ne!(outcome, "done", "{attempt} of {rights:?}: {answers:?}");
        }
        assert!(answers.as_object().unwrap().len() >= 12, "{answers:?}");
    }
    bystander.stays_well(&mut session);
}

fn a_forged_sender_page_is_not_believed() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let before = session.status().unwrap().objects;
    for forgery in attacker::SENDER_FORGERIES {
        let (device, mut results) = launch(&mut session, "forging-sender", json!({ "forgery": forgery }));
        let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
        let given = session.delegate(cap, device.0, Rights::SEND).unwrap();
        let port = format!("ours-{forgery}");
        session.activate(given, "theirs", Rights::SEND, Trust::Copy).unwrap();
        session.activate(cap, &port, Rights::RECEIVE, IN_PLACE).unwrap();
        let mut receiver = session.receiver(&port, LONG).unwrap().with_patience(LONG);
        assert_eq!(told(&mut results), "forged");
        let held = (*forgery == "held").then(|| receiver.receive().unwrap());
        let e = receiver.receive().map(|b| b.done()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{forgery}: {e}");
        assert!(held.is_none() || e.to_string().contains("still being processed"), "{e}");
        assert_eq!(
            receiver.receive().unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{forgery}: once broken it stays broken"
        );
        session.stop(device).unwrap();
    }
    assert!(session.status().unwrap().objects >= before);
    bystander.stays_well(&mut session);
}

fn a_forged_receiver_page_is_not_believed() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    for forgery in attacker::RECEIVER_FORGERIES {
        let (device, mut results) = launch(&mut session, "forging-receiver", json!({ "forgery": forgery }));
        let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
        let given = session.delegate(cap, device.0, Rights::RECEIVE).unwrap();
        let port = format!("ours-{forgery}");
        session.activate(given, "theirs", Rights::RECEIVE, Trust::Copy).unwrap();
        session.activate(cap, &port, Rights::SEND, Trust::Copy).unwrap();
        let mut sender = session.sender(&port, LONG).unwrap().with_patience(LONG);
        sender.send(b"one block", Head::default()).unwrap();
        assert_eq!(told(&mut results), "forged");
        let e = sender.drain().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{forgery}: {e}");
        session.stop(device).unwrap();
    }
    bystander.stays_well(&mut session);
}

/// A device that may delegate gives another device an end of a channel, and tries to configure it
/// there: as an end that trusts blindly, or under a name that the other knows.
fn nobody_configures_an_end_at_another() {
    let mut session = own_session();
    let (device, mut results) = launch(&mut session, "vouching", json!({}));
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    session.delegate(cap, device.0, Rights::RECEIVE.and(Rights::DELEGATE)).unwrap();
    let answers = told(&mut results);
    for answer in answers.as_array().unwrap() {
        assert!(answer.as_str().unwrap().contains("activates only capabilities that it holds itself"), "{answers:?}");
    }
    assert_eq!(answers.as_array().unwrap().len(), 3);
}

/// A device offers the application an end, under the name of a port where the application awaits a
/// result.
fn a_forged_end_is_not_taken_for_the_result() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, mut results) = launch(&mut session, "forging-result", json!({}));
    let cap = session.channel(ChannelShape::new(1, 64)).unwrap();
    let given = session.delegate(cap, device.0, Rights::SEND.and(Rights::RECEIVE).and(Rights::DELEGATE)).unwrap();
    let answer = told(&mut results);
    assert!(answer.as_str().unwrap().contains("activates only capabilities that it holds itself"), "{answer:?}");
    // Nothing appears at that name, however long the wait, and the name stays free for the
    // application.
    let soon = Patience::up_to(std::time::Duration::from_millis(200));
    assert_eq!(session.receiver("result", soon).unwrap_err().kind(), ErrorKind::Busy);
    session.revoke(given).unwrap();
    let real = session.channel(ChannelShape::new(1, 64)).unwrap();
    session.activate(real, "result", Rights::RECEIVE, Trust::Copy).unwrap();
    // A second end under a used name is refused, whoever asks.
    let again = session.channel(ChannelShape::new(1, 64)).unwrap();
    let e = session.activate(again, "result", Rights::RECEIVE, Trust::Copy).unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("in use"), "{e}");
    bystander.stays_well(&mut session);
}

/// Memory that a process may not write is safe from one that is not locked down and has all rights
/// of its user. This process attacks, through /proc, the mappings of application, controller and
/// devices.
fn the_seals_hold_without_any_lock_down() {
    let mut session = own_session();
    let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
    let device = graph.device("device", transform("forward"), Vec::new());
    graph.connect(DeviceGraph::APPLICATION, device).unwrap();
    graph.connect(device, DeviceGraph::APPLICATION).unwrap();
    let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
    let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
    let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
    // When a block has come through, all parties have mapped everything.
    sender.send(b"first", Head::default()).unwrap();
    receiver.receive().unwrap().done().unwrap();
    let status = session.status().unwrap();
    let mut tried = 0;
    for pid in [std::process::id(), session.controller_pid(), status.devices[0].2] {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        for line in maps.lines().filter(|l| l.contains("/memfd:fabric")) {
            let (range, access) = line.split_once(' ').unwrap();
            match attacker::write_through(&format!("/proc/{pid}/map_files/{range}")) {
                Ok(attempts) => {
                    assert!(attempts.iter().all(|(_, refused)| *refused), "process {pid}, {access}: {attempts:?}");
                    tried += attempts.len();
                }
                Err(errno) => {
                    println!("SKIPPED: writing through /proc/{pid}/map_files: it cannot be opened: errno {errno}");
                }
            }
        }
        if pid == std::process::id() {
            let own = maps.lines().filter(|l| l.contains("/memfd:fabric") && l.contains(" r--s"));
            let own: Vec<_> = own.map(|l| l.split_once('-').unwrap().0.to_owned()).collect();
            assert!(own.len() >= 5, "{maps}");
            // Read-only mappings cannot be made writable either.
            assert!(own.iter().all(|at| attacker::cannot_be_made_writable(usize::from_str_radix(at, 16).unwrap())));
        }
    }
    if tried > 0 {
        // Two channels: four memories of each at the application and at the device, and one at the
        // controller.
        assert_eq!(tried, 5 * 18);
    }
    for n in 0..4 {
        sender.send(&bytes(n, 4096), Head::default()).unwrap();
        let block = receiver.receive().unwrap();
        assert_eq!(&*block, &bytes(n, 4096)[..]);
        block.done().unwrap();
    }
    drop((sender, receiver));
    flow.end(&mut session).unwrap();
}

fn overwriting_after_send_changes_no_copy() {
    let mut session = own_session();
    let (device, mut results) = launch(&mut session, "overwriting", json!({}));
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(given, "theirs", Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, "ours", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut receiver = session.receiver("ours", LONG).unwrap().with_patience(LONG);
    let block = receiver.receive().unwrap();
    assert_eq!(&*block, &[1; 4096]);
    // It overwrites repeatedly from now on, and reports when it has.
    assert_eq!(told(&mut results), "overwritten");
    assert_eq!(&*block, &[1; 4096], "what was received changed under its receiver");
    block.done().unwrap();
}

fn a_flood_of_descriptors_or_of_packets_harms_the_flooder_alone() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, mut results) = launch(&mut session, "flooding", json!({}));
    assert_eq!(told(&mut results), libc::EPERM, "descriptors were sent");
    let how = end_of(&mut session, device);
    assert!(how.contains("broke the control protocol"), "{how}");
    assert!(session.status().unwrap().descriptors < 64);
    bystander.stays_well(&mut session);
}

fn nonsense_over_the_control_socket_ends_its_author_alone() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    for nonsense in ["{", "null", r#"{"mapped":{"endpoint":-1}}"#, "huge"] {
        let (device, _results) = launch(&mut session, "nonsense", json!({ "text": nonsense }));
        let how = end_of(&mut session, device);
        assert!(how.contains("broke the control protocol"), "{nonsense}: {how}");
    }
    bystander.stays_well(&mut session);
}

fn what_only_the_application_may_ask_is_refused_to_devices() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let capabilities = session.status().unwrap().capabilities;
    let (_, mut receiver) = launch(&mut session, "asking", json!({}));
    let answers = told(&mut receiver);
    for answer in answers.as_array().unwrap() {
        assert!(answer.as_str().unwrap().contains("refused"), "{answers:?}");
    }
    assert_eq!(answers.as_array().unwrap().len(), 9, "{answers:?}");
    // Only its own channel has come.
    assert_eq!(session.status().unwrap().capabilities, capabilities + 2);
    bystander.stays_well(&mut session);
}

fn a_device_that_lies_about_unmapping_is_killed() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, mut results) = launch(&mut session, "lying", json!({}));
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(given, "theirs", Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, "ours", Rights::RECEIVE, Trust::Copy).unwrap();
    assert_eq!(told(&mut results), "mapped");
    session.revoke(given).unwrap();
    let how = end_of(&mut session, device);
    assert!(how.contains("it kept"), "{how}");
    bystander.stays_well(&mut session);
}

fn a_device_that_dies_before_it_has_its_end_leaves_nobody_waiting() {
    let mut session = own_session();
    for (theirs, ours) in [(Rights::SEND, Rights::RECEIVE), (Rights::RECEIVE, Rights::SEND)] {
        let (device, _results) = launch(&mut session, "silent", json!({}));
        let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
        let given = session.delegate(cap, device.0, theirs).unwrap();
        let port = format!("ours {ours:?}");
        session.activate(given, "theirs", theirs, Trust::Copy).unwrap();
        session.activate(cap, &port, ours, Trust::Copy).unwrap();
        session.stop(device).unwrap();
        let e = match ours {
            Rights::SEND => session.sender(&port, LONG).unwrap().send(b"x", Head::default()).unwrap_err(),
            _ => session.receiver(&port, LONG).unwrap().receive().map(|block| block.done()).unwrap_err(),
        };
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("has died"), "{e}");
    }
}

fn there_is_no_event_descriptor_to_block() {
    // A program may have descriptors that its children inherit. Devices must not have them.
    let (_one, two) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&two, rustix::io::FdFlags::empty()).unwrap();
    let mut session = own_session();
    let (mut flow, device) = {
        let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
        let node = graph.device("device", transform("forward"), Vec::new());
        graph.connect(DeviceGraph::APPLICATION, node).unwrap();
        graph.connect(node, DeviceGraph::APPLICATION).unwrap();
        let flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
        let device = flow.device(node).unwrap();
        (flow, device)
    };
    let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
    sender.send(b"x", Head::default()).unwrap();
    sender.drain().unwrap();
    let status = session.status().unwrap();
    let pid = status.devices.iter().find(|(party, ..)| *party == device.0).unwrap().2;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<String> =
        open.map(|e| std::fs::read_link(e.unwrap().path()).unwrap().display().to_string()).collect();
    // They are the control socket, /dev/null as standard input and output, and a pipe as standard
    // error. Memories are closed once they are mapped.
    assert!(!open.iter().any(|to| to.contains("anon_inode") || to.contains("memfd")), "{open:?}");
    // Descriptors that this process has open without close-on-exec are not among them.
    assert_eq!(open.len(), 4, "{open:?}");
    let of = |what: &str| open.iter().filter(|to| to.starts_with(what)).count();
    assert_eq!((of("/dev/null"), of("socket:"), of("pipe:")), (2, 1, 1), "{open:?}");
}

fn descriptors_of_the_wrong_type_fail_their_own_device() {
    use datapipes_fabric::device::DevicePlace;
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let place = DevicePlace::File { descriptor: 0, direct: None, offset: 0, len: None };
    let directory = std::fs::File::open(std::env::temp_dir()).unwrap();
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let write_only = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    for fd in [directory.into(), std::os::fd::OwnedFd::from(pipe), write_only.into()] {
        let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
        let source = graph.device("source", DeviceRole::Source { place: place.clone(), sum: false }, vec![fd]);
        graph.connect(source, DeviceGraph::APPLICATION).unwrap();
        let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
        let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
        let e = flow.report(&mut session, source, LONG).unwrap_err();
        assert!(e.to_string().contains("read"), "{e}");
        drop(receiver);
        flow.end(&mut session).unwrap();
    }
    let missing = session.launch("missing", DeviceRole::Source { place, sum: false }, &[]).unwrap();
    assert_eq!(session.ready(missing, Patience::default()).unwrap_err().kind(), ErrorKind::Device);
    bystander.stays_well(&mut session);
}

/// A client of files copies what it gets to where it asked for it, so a block is never longer.
fn a_storage_device_gives_no_more_than_was_asked_for() {
    let mut session = own_session();
    let mut graph = DeviceGraph::new(ChannelShape::new(2, 4096), Trust::Copy);
    let device = graph.device("storage", attack("overfilling", json!({})), Vec::new());
    graph.connect(DeviceGraph::APPLICATION, device).unwrap();
    graph.connect(device, DeviceGraph::APPLICATION).unwrap();
    let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
    let requests = flow.take_sender(0).unwrap().with_patience(LONG);
    let mut client = FileClient::new(requests, flow.take_receiver(0).unwrap().with_patience(LONG));
    client.open(0, Mode::Read).unwrap();
    assert_eq!(client.read_at(100, 4096).unwrap().len(), 4096);
    for len in [7, 10, 0] {
        let e = client.read_at(100, len).map(|block| block.len()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        let mut target = vec![0; len];
        let into = |_, bytes: &[u8]| {
            target.copy_from_slice(bytes);
            Ok(())
        };
        let e = client.read_each(&[Piece { at: 5, len }], into).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    }
    drop(client);
    flow.end(&mut session).unwrap();
}
