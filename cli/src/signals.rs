//! Signals: they ask the running work to stop, the work cleans up, and then the process dies of the signal, as its parent
//! expects.
//!
//! Unsafe: this module installs a handler. The handler loads and stores atomics only, which a handler may do; it reaches
//! the work through a `OnceLock` that was filled before the handler was installed.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use datapipes_sort::Control;

use crate::outcome::interrupted;

/// The signal that arrived, 0 for none.
static ARRIVED: AtomicI32 = AtomicI32::new(0);
static WORK: OnceLock<Control> = OnceLock::new();
/// How long the work may take to stop by itself. It may be waiting for a terminal that says nothing: then there is
/// nothing on disk under a name, and the process can simply end.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What the work may have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// Disks and processors only: it stops soon when asked.
    Places,
    /// Terminals and other programs, which may say nothing for ever.
    Streams,
}

/// Catches SIGINT, SIGTERM and SIGHUP from here on and returns what they stop. Those that the parent chose to ignore
/// (`nohup`) stay ignored. Called once, by the command that works.
pub(crate) fn catch(waits_for: WaitsFor) -> Control {
    let control = WORK.get_or_init(Control::default).clone();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: sigaction is given a zeroed structure to fill, and then one that is fully set; the handler is a function
        // of the right signature that only touches atomics (see the module).
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut old) != 0 || old.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigemptyset(&mut new.sa_mask);
            libc::sigaction(signal, &new, std::ptr::null_mut());
        }
    }
    if waits_for == WaitsFor::Streams {
        std::thread::spawn(watch);
    }
    control
}

extern "C" fn handle(signal: libc::c_int) {
    let first = ARRIVED.compare_exchange(0, signal, SeqCst, SeqCst).is_ok();
    if let Some(control) = WORK.get() {
        control.stop();
    }
    if !first {
        // Asked twice: at once.
        die_of(signal);
    }
}

/// Whether a signal asked to stop.
pub(crate) fn arrived() -> bool {
    ARRIVED.load(SeqCst) != 0
}

/// An error where a signal asked to stop.
pub(crate) fn check(operation: &'static str) -> datapipes::Result<()> {
    if arrived() { Err(interrupted(operation)) } else { Ok(()) }
}

/// Ends the process where the work does not stop: it waits for something that may never come.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(50));
        if arrived() {
            std::thread::sleep(PATIENCE);
            die_of_signal();
        }
    }
}

/// Dies of the signal that arrived, if one did.
pub(crate) fn die_of_signal() {
    match ARRIVED.load(SeqCst) {
        0 => {}
        signal => die_of(signal),
    }
}

/// Dies of a signal, so that the parent sees it.
pub(crate) fn die_of(signal: libc::c_int) {
    // SAFETY: signal and raise may be called in any state; the default action of these signals ends the process. The
    // signal is unblocked first, for a handler runs with its own signal blocked.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
}
