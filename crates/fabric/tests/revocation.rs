//! The access of a device to a memory or a channel after its revocation, if it does all it can to
//! keep it.
//!
//! This program is also the controller and the devices, so it has its own `main` and runs the tests
//! itself.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

mod attacker;
mod scene;

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use attacker::revoked::{FORGED, MEMORY_BYTES, READERS, SECRET, WRITERS};
use datapipes_core::ErrorKind;
use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Patience, Trust};
use datapipes_fabric::control::{Program, Session};
use datapipes_fabric::process;
use datapipes_fabric::transport::{Carrier, Receiver};
use datapipes_testkit::{run_tests, tests};
use scene::attack::*;
use scene::*;
use serde_json::json;

fn main() -> ExitCode {
    if let Some(code) = process::enter(&attacker::functions()) {
        return code;
    }
    run_tests(tests![
        no_reader_sees_what_is_written_after_its_revocation,
        no_writer_shows_anything_after_its_revocation,
        no_descriptor_is_passed_on_to_another_device,
        what_is_written_into_a_credit_after_revocation_nobody_sees,
        two_devices_keep_no_memory_between_them,
        an_honest_device_gives_back_and_lives_on,
        an_honest_device_below_a_path_of_any_bytes_lives_on,
    ])
}

const BOTH: Rights = Rights::READ.and(Rights::WRITE);

/// Whether a spy has reported the secret. It waits longer than an honest device may take.
fn betrayed(results: &mut Receiver) -> bool {
    results.set_patience(Patience::up_to(Duration::from_millis(1500)));
    while let Ok(block) = results.receive() {
        let told = block.windows(SECRET.len()).any(|w| w == SECRET);
        block.done().unwrap();
        if told {
            return true;
        }
    }
    false
}

fn no_reader_sees_what_is_written_after_its_revocation() {
    for how in READERS {
        let mut session = own_session();
        let bystander = Bystander::new(&mut session);
        // The endpoints are: bystander, two channels with four endpoints; results, two; the
        // application's own, one; then the reader's.
        let (device, mut results) = launch(&mut session, "keeping", json!({"how": how, "endpoint": 8}));
        let cap = session.memory(MEMORY_BYTES).unwrap();
        session.activate(cap, "own", BOTH, Trust::Copy).unwrap();
        let own = session.shared_memory("own", LONG).unwrap();
        own.write(0, b"public").unwrap();
        let reads = session.delegate(cap, device.0, Rights::READ).unwrap();
        session.activate(reads, "theirs", Rights::READ, Trust::Copy).unwrap();
        assert_eq!(told(&mut results), "has it", "{how}");
        if *how == "queue" {
            std::thread::sleep(Duration::from_millis(400));
        }
        session.revoke(reads).unwrap();
        own.write(0, SECRET).unwrap();
        assert!(!betrayed(&mut results), "{how}: the device read what was written after the revocation");
        bystander.stays_well(&mut session);
    }
}

fn no_writer_shows_anything_after_its_revocation() {
    for how in WRITERS {
        let mut session = own_session();
        let (device, mut results) = launch(&mut session, "forging-later", json!({ "how": how }));
        let cap = session.memory(MEMORY_BYTES).unwrap();
        session.activate(cap, "own", BOTH, Trust::Copy).unwrap();
        let own = session.shared_memory("own", LONG).unwrap();
        let writes = session.delegate(cap, device.0, BOTH).unwrap();
        session.activate(writes, "theirs", BOTH, Trust::Copy).unwrap();
        assert_eq!(told(&mut results), "has it", "{how}");
        session.revoke(writes).unwrap();
        own.write(0, b"honest").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        session.activate(cap, "read", Rights::READ, Trust::Copy).unwrap();
        let read = session.shared_memory("read", LONG).unwrap();
        own.write(0, b"honest").unwrap();
        for _ in 0..200 {
            let mut seen = [0; 6];
            read.read(0, &mut seen).unwrap();
            assert_ne!(seen, FORGED, "{how}: the device wrote after its revocation");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The first device has a memory, and a channel to the second over a Unix socket. The first is dead
/// when the secret is written.
fn no_descriptor_is_passed_on_to_another_device() {
    let mut session = own_session();
    let (first, mut of_first) = launch(&mut session, "passing-on", json!({}));
    let (second, mut of_second) = launch(&mut session, "taking", json!({}));
    let memory = session.memory(MEMORY_BYTES).unwrap();
    session.activate(memory, "own", BOTH, Trust::Copy).unwrap();
    let own = session.shared_memory("own", LONG).unwrap();
    let channel = session.channel_over(ChannelShape::new(1, 64), Carrier::UnixSocket).unwrap();
    let receives = session.delegate(channel, second.0, Rights::RECEIVE).unwrap();
    session.activate(receives, "in", Rights::RECEIVE, Trust::Copy).unwrap();
    assert_eq!(told(&mut of_second), "listens");
    let reads = session.delegate(memory, first.0, Rights::READ).unwrap();
    session.activate(reads, "memory", Rights::READ, Trust::Copy).unwrap();
    assert_eq!(told(&mut of_first), "has it");
    let sends = session.delegate(channel, first.0, Rights::SEND).unwrap();
    session.activate(sends, "out", Rights::SEND, Trust::Copy).unwrap();
    let errno = told(&mut of_first);
    session.stop(first).unwrap();
    end_of(&mut session, first);
    own.write(0, SECRET).unwrap();
    assert!(!betrayed(&mut of_second), "a device without any capability read the memory");
    assert_eq!(errno, libc::EPERM, "passing a descriptor on was let through");
}

/// The application has memory of a block when it revokes the channel, and continues to write there.
fn what_is_written_into_a_credit_after_revocation_nobody_sees() {
    let mut session = own_session();
    let (device, mut results) = launch(&mut session, "peeking", json!({}));
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    let given = session.delegate(cap, device.0, Rights::RECEIVE).unwrap();
    session.activate(given, "theirs", Rights::RECEIVE, Trust::Copy).unwrap();
    session.activate(cap, "ours", Rights::SEND, Trust::Copy).unwrap();
    let mut sender = session.sender("ours", LONG).unwrap();
    assert_eq!(told(&mut results), "has it");
    let mut grant = sender.grant().unwrap();
    grant.bytes()[..6].copy_from_slice(b"public");
    session.revoke(cap).unwrap();
    assert_eq!(&grant.bytes()[..6], b"public", "what was written stays as it was");
    grant.bytes()[..6].copy_from_slice(SECRET);
    assert!(!betrayed(&mut results), "the device read what was written after the revocation");
    assert_eq!(grant.send(6, Head::default()).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

fn two_devices_keep_no_memory_between_them() {
    let mut session = own_session();
    let (one, mut of_one) = launch(&mut session, "colluding", json!({"sends": true}));
    let (two, mut of_two) = launch(&mut session, "colluding", json!({"sends": false}));
    let cap = session.channel(ChannelShape::new(2, 4096)).unwrap();
    for (device, rights) in [(one, Rights::SEND), (two, Rights::RECEIVE)] {
        let given = session.delegate(cap, device.0, rights).unwrap();
        session.activate(given, "between", rights, Trust::Copy).unwrap();
    }
    assert_eq!((told(&mut of_one), told(&mut of_two)), (json!("has it"), json!("has it")));
    session.revoke(cap).unwrap();
    for device in [one, two] {
        let how = end_of(&mut session, device);
        assert!(how.contains("it kept a descriptor"), "{how}");
    }
}

/// While it has not given the memory back, the status shows it.
fn an_honest_device_gives_back_and_lives_on() {
    gives_back_and_lives_on(own_session());
}

/// The program's path is in the map that is inspected.
fn an_honest_device_below_a_path_of_any_bytes_lives_on() {
    let folder = scratch();
    let dir = folder.join(std::ffi::OsStr::from_bytes(b"\xff\xfe here"));
    std::fs::create_dir_all(&dir).unwrap();
    let program = dir.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    gives_back_and_lives_on(Session::start(&Program::At(program)).unwrap());
}

fn gives_back_and_lives_on(mut session: Session) {
    let (device, mut results) = launch(&mut session, "honest", json!({}));
    let cap = session.memory(MEMORY_BYTES).unwrap();
    let reads = session.delegate(cap, device.0, Rights::READ).unwrap();
    session.activate(reads, "theirs", Rights::READ, Trust::Copy).unwrap();
    assert_eq!(told(&mut results), "has it");
    let pid = session.status().unwrap().devices[0].2;
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    // A stopped device cannot give anything back.
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    session.set_patience(Patience::up_to(Duration::from_millis(100)));
    assert_eq!(session.revoke(reads).unwrap_err().kind(), ErrorKind::Busy);
    session.set_patience(LONG);
    assert_eq!(session.status().unwrap().releasing, 1, "a memory counts as well");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(told(&mut results), "PermissionDenied");
    assert_eq!(told(&mut results), "lives");
    assert_eq!(settles(&mut session, |s| s.releasing == 0).releasing, 0);
    // If it is asked while it runs, it answers in time.
    let again = session.delegate(cap, device.0, Rights::READ).unwrap();
    session.activate(again, "more", Rights::READ, Trust::Copy).unwrap();
    assert_eq!(session.revoke(again).unwrap(), 1);
    assert_eq!(told(&mut results), "lives");
    assert_eq!(session.status().unwrap().devices.len(), 1);
}
