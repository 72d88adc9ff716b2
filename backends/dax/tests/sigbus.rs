//! A `SIGBUS` that is none of the library's takes the course it would have taken without it. Each
//! case is a process of its own: this program once more, told by its environment what to do.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use datapipes_core::{Dram, ErrorKind, Span};
use scene::{Scene, machine};

const VARIABLE: &str = "DATAPIPES_SIGBUS_CASE";
const LEN: u64 = 64 << 10;
/// How a child ends whose own handler was reached.
const HANDLED: i32 = 42;
/// How a child ends that lived on.
const LIVED: i32 = 43;

fn child(case: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "act_as_a_child", "--test-threads=1"])
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
    // SAFETY: ends the process at once, which a handler may do.
    unsafe { libc::_exit(if passed { HANDLED } else { 1 }) }
}

extern "C" fn plain(signal: libc::c_int) {
    // SAFETY: as above.
    unsafe { libc::_exit(if signal == libc::SIGBUS { HANDLED } else { 1 }) }
}

fn set_action(handler: usize, flags: libc::c_int) {
    // SAFETY: all zeros is a value of the structure; the handlers have the form that the flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Sets the action that was there before, has a transfer meet a page that is gone, which must be an
/// error, and then does what it is told. Passes at once where it is not told anything.
#[test]
fn act_as_a_child() {
    let Ok(case) = std::env::var(VARIABLE) else { return };
    let (before, then) = case.rsplit_once(' ').unwrap();
    match before {
        "handler" => set_action(with_information as *const () as usize, libc::SA_SIGINFO),
        "plain" => set_action(plain as *const () as usize, 0),
        "ignore" => set_action(libc::SIG_IGN, 0),
        "default" => set_action(libc::SIG_DFL, 0),
        // The standard library has a handler of its own, for stacks at their end.
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
            // By an access of this program's own: those of the library are answered.
            assert_eq!(pmem.read(4096, &mut [0]).unwrap_err().kind(), ErrorKind::Device);
            // SAFETY: the address is mapped; that its page is gone is under test.
            println!("{}", unsafe { pmem.memory().address().add(4096).read_volatile() });
        }
        "send" => {
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        _ => {}
    }
    std::process::exit(LIVED);
}
