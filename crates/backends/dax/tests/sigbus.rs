//! A `SIGBUS` that does not concern the library has the effect that it would have without it. Each
//! case is its own process: this program again, with the case in its environment.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use datapipes_core::{Dram, ErrorKind, Span};
use scene::{Scene, machine};

const VARIABLE: &str = "DATAPIPES_SIGBUS_CASE";
const LEN: u64 = 64 << 10;
/// The exit status of a child whose own handler was called.
const HANDLED: i32 = 42;
/// The exit status of a child that survived.
const LIVED: i32 = 43;

fn child(case: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "act_as_a_child", "--ignored", "--test-threads=1"])
        .env(VARIABLE, case)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn without_a_handler_of_its_own_the_process_ends_by_the_signal() {
    for case in ["default touch", "default send", "as it comes touch", "ignore touch"] {
        let status = child(case);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{case}: {status}");
    }
}

#[test]
fn a_handler_that_was_there_before_is_reached() {
    for case in ["handler touch", "handler send", "plain touch", "plain send"] {
        assert_eq!(child(case).code(), Some(HANDLED), "{case}");
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored_and_transfers_are_answered_under_every_action() {
    assert_eq!(child("ignore send").code(), Some(LIVED));
    for before in ["as it comes", "default", "handler", "plain", "ignore"] {
        assert_eq!(child(&format!("{before} nothing")).code(), Some(LIVED), "{before}");
    }
}

extern "C" fn with_information(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let passed = !info.is_null() && !context.is_null();
    // SAFETY: it ends the process at once, which a handler may do.
    unsafe { libc::_exit(if passed { HANDLED } else { 1 }) }
}

extern "C" fn plain(signal: libc::c_int) {
    // SAFETY: as above.
    unsafe { libc::_exit(if signal == libc::SIGBUS { HANDLED } else { 1 }) }
}

fn set_action(handler: usize, flags: libc::c_int) {
    // SAFETY: all zeros is a valid value of the structure; the handlers have the signatures that
    // the flags require.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Sets the previous action, has a transfer meet a missing page, which must be an error, and then
/// does what the case says.
#[test]
#[ignore = "run by its parent, which says what to do"]
fn act_as_a_child() {
    let case = std::env::var(VARIABLE).expect("its parent names the case");
    let (before, then) = case.rsplit_once(' ').unwrap();
    match before {
        "handler" => set_action(with_information as *const () as usize, libc::SA_SIGINFO),
        "plain" => set_action(plain as *const () as usize, 0),
        "ignore" => set_action(libc::SIG_IGN, 0),
        "default" => set_action(libc::SIG_DFL, 0),
        // The standard library has a handler of its own, for stack overflows.
        _ => assert_eq!(before, "as it comes"),
    }
    let (scene, machine) = (Scene::new("child"), machine());
    let (pmem, dram) = (scene.pmem(LEN), Dram::allocate(LEN as usize).unwrap());
    let down = machine.connect(&pmem, &dram).unwrap();
    scene.set_len(0);
    let _ = std::fs::remove_file(&scene.path); // The process may end without dropping anything.
    let e = down.transfer(Span { source: 0, target: 0, len: LEN }).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    match then {
        "touch" => {
            // By an access of this program's own: those of the library are handled.
            assert_eq!(pmem.read(4096, &mut [0]).unwrap_err().kind(), ErrorKind::Device);
            // SAFETY: the address is mapped; that its page is missing is under test.
            println!("{}", unsafe { pmem.memory().address().add(4096).read_volatile() });
        }
        "send" => {
            // SAFETY: this sends a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        _ => {}
    }
    std::process::exit(LIVED);
}
