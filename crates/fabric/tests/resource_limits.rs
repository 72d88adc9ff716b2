//! Devices that take more than their share of memory, threads, standard error and the controller's
//! time.
//!
//! This program is also the controller and the devices, so it has its own `main` and runs the tests
//! itself.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

mod attacker;
mod scene;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::ChannelShape;
use datapipes_fabric::control::{DeviceEvent, DeviceLimits, Program, Session};
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
        memory_is_charged_and_bounded,
        page_tables_are_charged_and_bounded,
        threads_are_bounded,
        limits_hold_where_no_group_can_be_made,
        standard_error_is_a_pipe_of_the_controllers_labelled_and_bounded,
        what_a_device_says_last_explains_its_end,
        a_chain_of_delegations_comes_to_an_end_and_costs_others_nothing,
        a_flood_of_asks_with_many_mappings_delays_nobody,
        no_event_is_lost_when_another_device_floods,
    ])
}

fn limits() -> DeviceLimits {
    DeviceLimits::default().memory_bytes(96 << 20).threads(6)
}

fn memory_is_charged_and_bounded() {
    let mut session = own_session();
    memory_is_bounded(&mut session);
}

fn memory_is_bounded(session: &mut Session) {
    let bystander = Bystander::new(session);
    let (device, mut results) = launch_within(session, "eating", json!({"how": "shared"}), limits());
    // Memory that no process's figures show cannot be had at all.
    assert_eq!(told(&mut results), json!({"errno": libc::EPERM, "taken": 0}));
    let status = session.status().unwrap();
    let charge = status.charges.iter().find(|c| c.device == device.0.0).unwrap();
    // The limit includes the needs of its one channel, with 4 blocks of 64 KiB. Without a group it
    // also includes stacks, and addresses that are not counted.
    let of_process = if charge.by.starts_with("limits of the process") { 6 * (8 << 20) + (1 << 30) } else { 0 };
    let limit = (96 << 20) + (256 << 10) + of_process;
    assert_eq!((charge.memory_limit_bytes, charge.threads, charge.threads_limit), (limit, 1, 6), "{charge:?}");
    assert!(charge.memory_bytes > 0 && charge.memory_bytes < 64 << 20, "{charge:?}");
    // Written memory counts also when it is not writable any more.
    for how in ["private", "protected"] {
        let (device, mut results) = launch_within(session, "eating", json!({ "how": how }), limits());
        let taken = results.receive().ok().map(|block| serde_json::from_slice::<serde_json::Value>(&block).unwrap());
        match taken {
            // Its group ended it.
            None => {
                let how = end_of(session, device);
                assert!(how.contains("needed more than") && how.contains("bytes of memory"), "{how}");
            }
            // The limit of the process refused further memory.
            Some(taken) => {
                let bytes = taken["taken"].as_u64().unwrap();
                assert!(taken["errno"] == libc::ENOMEM && bytes < limit, "{how}: {taken}");
                let status = session.status().unwrap();
                let charge = status.charges.iter().find(|c| c.device == device.0.0).unwrap();
                assert!(charge.memory_bytes >= bytes, "{how}: {charge:?}");
                session.stop(device).unwrap();
            }
        }
    }
    bystander.stays_well(session);
}

/// Page tables of mappings that are only read are not private memory.
fn page_tables_are_charged_and_bounded() {
    let mut session = own_session();
    page_tables_are_bounded(&mut session);
}

fn page_tables_are_bounded(session: &mut Session) {
    let bystander = Bystander::new(session);
    let (device, mut results) = launch_within(session, "tabling", json!({}), limits());
    let Ok(block) = results.receive() else {
        let how = end_of(session, device);
        assert!(how.contains("needed more than") && how.contains("bytes of memory"), "{how}");
        return bystander.stays_well(session);
    };
    let taken: serde_json::Value = serde_json::from_slice(&block).unwrap();
    let (addresses, tables) = (taken["addresses"].as_u64().unwrap(), taken["tables"].as_u64().unwrap());
    assert!(addresses < 2 << 30 && (100..2000).contains(&tables), "{taken}");
    let status = session.status().unwrap();
    let charge = status.charges.iter().find(|c| c.device == device.0.0).unwrap();
    assert!(charge.memory_bytes >= tables * 4096 && charge.memory_bytes < charge.memory_limit_bytes, "{charge:?}");
    block.done().unwrap();
    bystander.stays_well(session);
}

fn threads_are_bounded() {
    let mut session = own_session();
    many_threads_are_refused(&mut session);
    let one = limits().threads(1);
    let (_, mut results) = launch_within(&mut session, "multiplying", json!({}), one);
    assert_eq!(told(&mut results), 0);
}

fn many_threads_are_refused(session: &mut Session) {
    let bystander = Bystander::new(session);
    let (device, mut results) = launch_within(session, "multiplying", json!({}), limits());
    assert_eq!(told(&mut results), 5, "five more than the one it begins with");
    let status = session.status().unwrap();
    let charge = status.charges.iter().find(|c| c.device == device.0.0).unwrap();
    assert_eq!((charge.threads, charge.threads_limit), (6, 6), "{charge:?}");
    bystander.stays_well(session);
}

/// Starts a controller of this program by a script.
fn session_by(dir: &Path, script: &str) -> Session {
    let program = std::env::current_exe().unwrap();
    let path = dir.join("controller");
    std::fs::write(&path, format!("#!/bin/sh\n{}\n", script.replace("PROGRAM", &program.display().to_string())))
        .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Session::start(&Program::At(path)).unwrap()
}

/// A controller without rights cannot make groups. Then the limits of processes apply.
fn limits_hold_where_no_group_can_be_made() {
    let dir = scratch();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let can = format!("{user} test -x {}", std::env::current_exe().unwrap().display());
    if !std::process::Command::new("sh").args(["-c", &can]).status().is_ok_and(|s| s.success()) {
        println!("SKIPPED: limits_hold_where_no_group_can_be_made: this program cannot be run as another user");
        return;
    }
    let mut session = session_by(&dir, &format!("exec {user} PROGRAM \"$@\""));
    memory_is_bounded(&mut session);
    page_tables_are_bounded(&mut session);
    let charges = session.status().unwrap().charges;
    assert!(charges.iter().all(|c| c.by.starts_with("limits of the process")), "{charges:?}");
    let probe = session.launch("probe", attack("multiplying", json!({})), &[]).unwrap();
    let confined = session.ready(probe, LONG).unwrap();
    if confined.threads.starts_with("not bounded") {
        println!("SKIPPED: threads without a group: {}", confined.threads);
    } else {
        many_threads_are_refused(&mut session);
    }
    drop(session);
}

fn standard_error_is_a_pipe_of_the_controllers_labelled_and_bounded() {
    let dir = scratch();
    let shown = dir.join("shown");
    let mut session = session_by(&dir, &format!("exec PROGRAM \"$@\" 2> {}", shown.display()));
    let bystander = Bystander::new(&mut session);
    let (_, mut results) = launch(&mut session, "speaking", json!({}));
    // Standard error is a pipe's writing end: it cannot be read or shut down.
    assert_eq!(told(&mut results), json!({"read": libc::EBADF, "shutdown": libc::ENOTSOCK}));
    bystander.stays_well(&mut session);
    drop(session);
    let text = std::fs::read_to_string(&shown).unwrap();
    assert!(text.lines().all(|line| line.starts_with("device speaking: ")), "{text}");
    assert!(text.contains("device speaking: line 7 xxx") && text.contains("more were not shown)"), "{text}");
    assert!(text.len() < 200 << 10 && !text.contains('\x1b'), "{} bytes", text.len());
}

fn what_a_device_says_last_explains_its_end() {
    let dir = scratch();
    // Its words go to a file: who looks for a failure looks for "panicked".
    let shown = dir.join("shown");
    let mut session = session_by(&dir, &format!("exec PROGRAM \"$@\" 2> {}", shown.display()));
    let (device, _results) = launch(&mut session, "panicking", json!({}));
    let how = end_of(&mut session, device);
    assert!(how.contains("exit status: 101") && how.contains("the reason why"), "{how}");
    drop(session);
    let text = std::fs::read_to_string(&shown).unwrap();
    assert!(text.contains("device panicking: the reason why"), "{text}");
}

fn a_chain_of_delegations_comes_to_an_end_and_costs_others_nothing() {
    let mut session = own_session();
    let bystander = Bystander::new(&mut session);
    let (device, mut results) = launch(&mut session, "chaining", json!({}));
    let cap = session.channel(ChannelShape::new(1, 64)).unwrap();
    let all = Rights::SEND.and(Rights::RECEIVE).and(Rights::DELEGATE);
    session.delegate(cap, device.0, all).unwrap();
    let links = told(&mut results).as_u64().unwrap();
    assert_eq!(links, 1024, "as many as one device may make");
    let since = Instant::now();
    // The count includes the own capability, the device's, and all that the device made from it.
    assert_eq!(session.revoke(cap).unwrap() as u64, links + 2);
    println!("revoking a chain of {links}: {:?}", since.elapsed());
    bystander.stays_well(&mut session);
}

fn a_flood_of_asks_with_many_mappings_delays_nobody() {
    for how in ["asks", "long"] {
        let mut session = own_session();
        let bystander = Bystander::new(&mut session);
        let (_, mut results) = launch(&mut session, "pestering", json!({ "how": how }));
        let mappings = told(&mut results).as_u64().unwrap() * 2;
        assert!(mappings > 10_000, "{mappings}");
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let since = Instant::now();
                session.status().unwrap();
                since.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("{how}, {mappings} mappings: an ask takes {:?}, 99 of 100 {:?}", times[100], times[198]);
        bystander.stays_well(&mut session);
    }
}

fn no_event_is_lost_when_another_device_floods() {
    let mut session = own_session();
    let (loud, _of_loud) = launch(&mut session, "reporting", json!({}));
    let honest = session.launch("honest", transform("forward"), &[]).unwrap();
    // The pause is long enough to fill all queues.
    std::thread::sleep(std::time::Duration::from_millis(300));
    session.stop(honest).unwrap();
    let since = Instant::now();
    while since.elapsed() < std::time::Duration::from_millis(300) {
        session.attend().unwrap();
    }
    session.ready(honest, LONG).unwrap();
    end_of(&mut session, honest);
    let of_loud = |e: &DeviceEvent| matches!(e, DeviceEvent::Report { device, .. } if *device == loud.0);
    session.event_where(LONG, of_loud).unwrap();
    session.stop(loud).unwrap();
    end_of(&mut session, loud);
    let (twice, _of_twice) = launch(&mut session, "always-ready", json!({}));
    let how = end_of(&mut session, twice);
    assert!(how.contains("it was ready before"), "{how}");
}
