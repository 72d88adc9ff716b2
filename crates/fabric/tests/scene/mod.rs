//! Helpers of the tests with real processes.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub(crate) mod attack;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datapipes_fabric::channel::{Patience, Trust};
use datapipes_fabric::control::{ControllerStatus, Program, Session};
use datapipes_fabric::device::{DeviceArguments, DeviceRole};
use datapipes_fabric::transport::Carrier;
use datapipes_testkit::TempFolder;
use datapipes_ucx::Ucx;

/// It is long, so that no test fails on a slow machine.
pub(crate) const LONG: Patience = Patience::seconds(60);

/// Every sender of tests that use it belongs to this crate, or none of its bytes are looked at.
#[allow(unsafe_code)]
// SAFETY: see above.
pub(crate) const IN_PLACE: Trust = unsafe { Trust::in_place() };
#[allow(unsafe_code)]
// SAFETY: as above.
pub(crate) const IN_PLACE_CHECKED: Trust = unsafe { Trust::in_place_checked() };

pub(crate) fn program() -> Program {
    Program::At(PathBuf::from(env!("CARGO_BIN_EXE_fabric-device")))
}

pub(crate) fn session() -> Session {
    Session::start(&program()).unwrap()
}

/// Whether UCX is there; says so where it is not.
pub(crate) fn has_ucx(test: &str) -> bool {
    match Ucx::installed() {
        Ok(_) => true,
        Err(why) => {
            println!("SKIPPED: {test}: {why}");
            false
        }
    }
}

/// What a connection within a machine goes over: sockets, and UCX where that is installed.
pub(crate) fn connections(test: &str) -> Vec<Carrier> {
    let sockets = vec![Carrier::UnixSocket, Carrier::TcpLoopback];
    if has_ucx(test) { [sockets, vec![Carrier::Ucx]].concat() } else { sockets }
}

pub(crate) fn transform(function: &str) -> DeviceRole {
    transform_with(function, serde_json::Value::Null)
}

pub(crate) fn transform_with(function: &str, arguments: serde_json::Value) -> DeviceRole {
    let arguments = DeviceArguments::of(&arguments).unwrap();
    DeviceRole::Transform { function: function.into(), arguments, spread: Default::default() }
}

/// Returns bytes that differ from their neighbours.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn scratch() -> TempFolder {
    TempFolder::new().unwrap()
}

pub(crate) fn reader(path: &std::path::Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

/// Waits until the controller's status is as wanted, because a process's resources are freed after
/// its end.
pub(crate) fn settles(session: &mut Session, wanted: impl Fn(&ControllerStatus) -> bool) -> ControllerStatus {
    let since = Instant::now();
    loop {
        let status = session.status().unwrap();
        if wanted(&status) || since.elapsed() > LONG.limit {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn nothing_is_left(session: &mut Session, before: &ControllerStatus) {
    let after = settles(session, |s| s.objects == 0 && s.devices.is_empty() && s.descriptors == before.descriptors);
    assert_eq!((after.objects, after.bytes, after.capabilities, after.releasing), (0, 0, 0, 0), "{after:?}");
    assert_eq!((after.devices.len(), after.descriptors), (0, before.descriptors), "{after:?}");
}
