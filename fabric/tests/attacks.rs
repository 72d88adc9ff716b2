//! Devices that attack: each is a body of its own in a locked-down process, and must fail without harm to others.
//!
//! This program is also the controller and the devices, so it has a `main` of its own and runs the tests by itself.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

mod attacker;
mod scene;

use std::process::ExitCode;

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{Head, Patience, Shape, Trust};
use datapipes_fabric::control::{Device, Event, Program, Session};
use datapipes_fabric::device::Role;
use datapipes_fabric::placement::{Flow, Graph, Placement};
use datapipes_fabric::process;
use datapipes_fabric::transport::Receiver;
use scene::*;
use serde_json::{Value, json};

fn main() -> ExitCode {
    if let Some(code) = process::enter(&attacker::functions()) {
        return code;
    }
    let tests: &[(&str, fn())] = &[
        ("no_system_call_beyond_moving_bytes", no_system_call_beyond_moving_bytes),
        ("what_is_mapped_for_reading_stays_so", what_is_mapped_for_reading_stays_so),
        ("a_forged_sender_page_is_not_believed", a_forged_sender_page_is_not_believed),
        ("a_forged_receiver_page_is_not_believed", a_forged_receiver_page_is_not_believed),
        ("nobody_vouches_for_a_sender_in_another_s_name", nobody_vouches_for_a_sender_in_another_s_name),
        ("the_seals_hold_without_any_lock_down", the_seals_hold_without_any_lock_down),
        ("overwriting_after_send_changes_no_copy", overwriting_after_send_changes_no_copy),
        ("a_descriptor_flood_ends_the_flooder_alone", a_descriptor_flood_ends_the_flooder_alone),
        (
            "nonsense_over_the_control_socket_ends_its_author_alone",
            nonsense_over_the_control_socket_ends_its_author_alone,
        ),
        (
            "what_only_the_application_may_ask_is_refused_to_devices",
            what_only_the_application_may_ask_is_refused_to_devices,
        ),
        ("a_device_that_lies_about_unmapping_is_killed", a_device_that_lies_about_unmapping_is_killed),
        ("there_is_no_event_descriptor_to_block", there_is_no_event_descriptor_to_block),
        ("descriptors_of_the_wrong_type_fail_their_own_device", descriptors_of_the_wrong_type_fail_their_own_device),
    ];
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let chosen: Vec<_> =
        tests.iter().filter(|(name, _)| filter.as_ref().is_none_or(|f| name.contains(f.as_str()))).collect();
    if std::env::args().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let passed = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    println!(
        "\ntest result: {}. {} passed; {failed} failed\n",
        if failed == 0 { "ok" } else { "FAILED" },
        chosen.len() - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

fn own_session() -> Session {
    Session::start(&Program::This).unwrap()
}

fn attack(name: &str, arguments: Value) -> Role {
    Role::Custom { name: name.into(), arguments }
}

/// An honest stream beside the attacker, which must not suffer.
struct Bystander(Option<Flow>);

impl Bystander {
    fn new(session: &mut Session) -> Bystander {
        let mut graph = Graph::new(Shape::new(2, 4096), Trust::Copy);
        let device = graph.device("bystander", transform("forward"), Vec::new());
        graph.connect(Graph::APPLICATION, device).unwrap();
        graph.connect(device, Graph::APPLICATION).unwrap();
        Bystander(Some(graph.start(session, Placement::DistributedResourceSide).unwrap()))
    }

    fn stays_well(mut self, session: &mut Session) {
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

/// A device with a body of `attacker`, which tells what happened over a channel to the application.
fn launch(session: &mut Session, name: &str, arguments: Value) -> (Device, Receiver) {
    let device = session.launch(name, attack(name, arguments), &[]).unwrap();
    let confined = session.ready(device, LONG).unwrap();
    assert!(confined.seccomp);
    let cap = session.channel(Shape::new(4, 64 << 10)).unwrap();
    let port = format!("{name}-{}", device.0.0);
    let sends = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(sends, &port, Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, &port, Rights::RECEIVE, Trust::Copy).unwrap();
    session.run(device, &[], std::slice::from_ref(&port)).unwrap();
    let receiver = session.receiver(&port, LONG).unwrap().with_patience(LONG);
    (device, receiver)
}

fn told(receiver: &mut Receiver) -> Value {
    let block = receiver.receive().unwrap();
    let value = serde_json::from_slice(&block).unwrap();
    block.done().unwrap();
    value
}

fn end_of(session: &mut Session, device: Device) -> String {
    let of_it = |e: &Event| matches!(e, Event::Ended { device: d, .. } if *d == device.0);
    let Event::Ended { how, .. } = session.event_where(LONG, of_it).unwrap() else { unreachable!() };
    how
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

fn what_is_mapped_for_reading_stays_so() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    // One channel in each direction, whose raw packets the attacker takes from its control socket.
    let (device, mut receiver) = launch(&mut session, "pages", json!({}));
    for (rights, own) in [(Rights::SEND, Rights::RECEIVE), (Rights::RECEIVE, Rights::SEND)] {
        let cap = session.channel(Shape::new(2, 4096)).unwrap();
        let given = session.delegate(cap, device.0, rights).unwrap();
        session.activate(given, "theirs", rights, Trust::Copy).unwrap();
        session.activate(cap, "ours", own, Trust::Copy).unwrap();
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
        let cap = session.channel(Shape::new(2, 4096)).unwrap();
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
        let cap = session.channel(Shape::new(2, 4096)).unwrap();
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

/// A device that may delegate gives another an end of a channel, and says that its sender is trusted.
fn nobody_vouches_for_a_sender_in_another_s_name() {
    let mut session = own_session();
    let (device, mut results) = launch(&mut session, "vouching", json!({}));
    let cap = session.channel(Shape::new(2, 4096)).unwrap();
    session.delegate(cap, device.0, Rights::RECEIVE.and(Rights::DELEGATE)).unwrap();
    let answers = told(&mut results);
    let said = |at: usize| answers[at].as_str().unwrap().to_owned();
    assert!(said(0).contains("says that a sender is trusted"), "{answers:?}");
    assert!(said(1).contains("says that a sender is trusted"), "{answers:?}");
    assert!(said(2).contains("done"), "{answers:?}");
}

/// What a process that is not locked down, and has all rights of its user, can do to memory that is not its own to write: this
/// one does it, by way of /proc, to what each of application, controller and devices has mapped.
fn the_seals_hold_without_any_lock_down() {
    let mut session = own_session();
    let mut graph = Graph::new(Shape::new(2, 4096), Trust::Copy);
    let device = graph.device("device", transform("forward"), Vec::new());
    graph.connect(Graph::APPLICATION, device).unwrap();
    graph.connect(device, Graph::APPLICATION).unwrap();
    let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
    let mut sender = flow.take_sender(0).unwrap().with_patience(LONG);
    let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
    // When a block has come through, everybody has mapped all.
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
            // What is mapped for reading cannot be made writable either.
            assert!(own.iter().all(|at| attacker::cannot_be_made_writable(usize::from_str_radix(at, 16).unwrap())));
        }
    }
    if tried > 0 {
        // Two channels: four memories of each at the application and at the device, one at the controller.
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
    let cap = session.channel(Shape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(given, "theirs", Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, "ours", Rights::RECEIVE, Trust::Copy).unwrap();
    let mut receiver = session.receiver("ours", LONG).unwrap().with_patience(LONG);
    let block = receiver.receive().unwrap();
    assert_eq!(&*block, &[1; 4096]);
    // It overwrites again and again from now on, and says when it has.
    assert_eq!(told(&mut results), "overwritten");
    assert_eq!(&*block, &[1; 4096], "what was received changed under its receiver");
    block.done().unwrap();
}

fn a_descriptor_flood_ends_the_flooder_alone() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, _results) = launch(&mut session, "flooding", json!({}));
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
    // Its own channel, and nothing else, has come.
    assert_eq!(session.status().unwrap().capabilities, capabilities + 2);
    bystander.stays_well(&mut session);
}

fn a_device_that_lies_about_unmapping_is_killed() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, mut results) = launch(&mut session, "lying", json!({}));
    let cap = session.channel(Shape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::SEND).unwrap();
    session.activate(given, "theirs", Rights::SEND, Trust::Copy).unwrap();
    session.activate(cap, "ours", Rights::RECEIVE, Trust::Copy).unwrap();
    assert_eq!(told(&mut results), "mapped");
    session.revoke(given).unwrap();
    let how = end_of(&mut session, device);
    assert!(how.contains("kept memory mapped"), "{how}");
    bystander.stays_well(&mut session);
}

fn there_is_no_event_descriptor_to_block() {
    // A program may have descriptors that its children inherit; devices must not.
    let (_one, two) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&two, rustix::io::FdFlags::empty()).unwrap();
    let mut session = own_session();
    let (mut flow, device) = {
        let mut graph = Graph::new(Shape::new(2, 4096), Trust::Copy);
        let node = graph.device("device", transform("forward"), Vec::new());
        graph.connect(Graph::APPLICATION, node).unwrap();
        graph.connect(node, Graph::APPLICATION).unwrap();
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
    // The control socket (twice), standard output and error; memories are closed once they are mapped.
    assert!(!open.iter().any(|to| to.contains("anon_inode") || to.contains("memfd")), "{open:?}");
    // What this process had open without close-on-exec is not among them.
    assert!(open.len() <= 4, "{open:?}");
}

fn descriptors_of_the_wrong_type_fail_their_own_device() {
    use datapipes_fabric::device::Place;
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let place = Place::File { descriptor: 0, direct: None, offset: 0, len: None };
    let directory = std::fs::File::open(std::env::temp_dir()).unwrap();
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let write_only = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    for fd in [directory.into(), std::os::fd::OwnedFd::from(pipe), write_only.into()] {
        let mut graph = Graph::new(Shape::new(2, 4096), Trust::Copy);
        let source = graph.device("source", Role::Source { place: place.clone(), sum: false }, vec![fd]);
        graph.connect(source, Graph::APPLICATION).unwrap();
        let mut flow = graph.start(&mut session, Placement::DistributedResourceSide).unwrap();
        let mut receiver = flow.take_receiver(0).unwrap().with_patience(LONG);
        assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::EndOfFile);
        let e = flow.report(&mut session, source, LONG).unwrap_err();
        assert!(e.to_string().contains("read"), "{e}");
        drop(receiver);
        flow.end(&mut session).unwrap();
    }
    let missing = session.launch("missing", Role::Source { place, sum: false }, &[]).unwrap();
    assert_eq!(session.ready(missing, Patience::default()).unwrap_err().kind(), ErrorKind::Device);
    bystander.stays_well(&mut session);
}
