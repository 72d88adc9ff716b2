//! Signals: they ask the running work to stop, the work cleans up, and then the process dies of the
//! signal, as its parent expects.
//!
//! Unsafe: this module installs a handler. The handler loads and stores atomics, which a handler
//! may do, and calls what POSIX allows in one; it reaches the work through a `OnceLock` that was
//! filled before the handler was installed.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use datapipes::locks::Mutex;
use datapipes::{Error, ErrorKind};
use datapipes_sort::Control;

/// The signal that arrived, 0 for none.
static ARRIVED: AtomicI32 = AtomicI32::new(0);
static WORK: OnceLock<Control> = OnceLock::new();
/// Whether the work may wait for ever.
static WAITS_FOR_STREAMS: AtomicBool = AtomicBool::new(false);
/// How long the work may take to stop by itself, in seconds. It may be waiting for a terminal that
/// says nothing, or for whoever does not read its output: then there is nothing on disk under a
/// name, and the process can simply end.
const PATIENCE: libc::c_uint = 1;
/// What ends a program and can be caught: as GNU sort has it, but for SIGPIPE, which is an error of
/// a write.
const ENDING: [libc::c_int; 10] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGALRM,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGPOLL,
];

/// The things that the work may have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// Disks and processors only: it stops soon when asked.
    Places,
    /// Terminals and other programs, which may say nothing for ever.
    Streams,
}

/// Catches signals that end a program from here on and returns what they stop. Those that the
/// parent chose to ignore (`nohup`) stay ignored. Called once, by the command that works.
pub(crate) fn catch(waits_for: WaitsFor) -> Control {
    let control = WORK.get_or_init(Control::default).clone();
    WAITS_FOR_STREAMS.store(waits_for == WaitsFor::Streams, SeqCst);
    for signal in ENDING {
        // The clock is ours: see `handle`.
        install(signal, handle, signal == libc::SIGALRM);
    }
    if waits_for == WaitsFor::Streams {
        unblock(libc::SIGALRM);
    }
    control
}

/// To be called before a child is started: a parent may have chosen to ignore SIGCHLD, and then the
/// kernel leaves nothing of a child to wait for. GNU sort does the same.
pub(crate) fn keep_children() {
    // SAFETY: signal may be called in any state; no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Lets signals that end a program, and that the parent does not ignore, do nothing to this
/// process. What it starts has them as usual again: a handler, unlike a signal that is ignored,
/// does not outlast the start of another program.
pub(crate) fn outlive() {
    ENDING.into_iter().for_each(|signal| install(signal, nothing, false));
}

/// Installs a handler of this module. A signal that the parent chose to ignore stays ignored,
/// unless `even_ignored`.
fn install(signal: libc::c_int, handler: extern "C" fn(libc::c_int), even_ignored: bool) {
    // SAFETY: sigaction is given a zeroed structure to fill, and then one that is fully set; the
    // handlers of this module only touch atomics and call what may be called in one (see there).
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        let known = libc::sigaction(signal, std::ptr::null(), &mut old) == 0;
        if !known || old.sa_sigaction == libc::SIG_IGN && !even_ignored {
            return;
        }
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as libc::sighandler_t;
        libc::sigemptyset(&mut new.sa_mask);
        libc::sigaction(signal, &new, std::ptr::null_mut());
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

extern "C" fn handle(signal: libc::c_int) {
    let first = ARRIVED.compare_exchange(0, signal, SeqCst, SeqCst).is_ok();
    if let Some(control) = WORK.get() {
        control.stop();
    }
    if !first {
        // Asked twice, or out of patience: at once.
        die_of_signal();
    } else if WAITS_FOR_STREAMS.load(SeqCst) {
        // The clock needs no thread, which might not start. It rings here again.
        // SAFETY: alarm may be called in a handler.
        unsafe { libc::alarm(PATIENCE) };
    }
}

/// What a signal leaves as it was, or does not, in words: for whoever presses Ctrl-C.
static UNDONE: Mutex<String> = Mutex::new(String::new());

/// Says what will have been undone when a signal has stopped the work.
pub(crate) fn undo_says(words: impl Into<String>) {
    *UNDONE.lock() = words.into();
}

/// What was undone after the signal that arrived, as a line for people; `None` without a signal.
/// Not to be called in a handler.
pub(crate) fn undone(command: &str) -> Option<String> {
    let name = match ARRIVED.load(SeqCst) {
        0 => return None,
        libc::SIGINT => "Ctrl-C",
        libc::SIGTERM => "SIGTERM",
        libc::SIGHUP => "SIGHUP",
        libc::SIGQUIT => "SIGQUIT",
        _ => "a signal",
    };
    let words = UNDONE.lock();
    let words = if words.is_empty() { "nothing half-written was left behind" } else { words.as_str() };
    Some(format!("dpipe {command}: stopped by {name}; {words}\n"))
}

/// Whether a signal asked to stop.
pub(crate) fn arrived() -> bool {
    ARRIVED.load(SeqCst) != 0
}

/// The error of a signal that arrived.
pub(crate) fn interrupted(operation: &'static str) -> Error {
    Error::new(ErrorKind::Interrupted, operation, "a signal arrived; nothing was left behind")
}

/// An error where a signal asked to stop.
pub(crate) fn check(operation: &'static str) -> datapipes::Result<()> {
    if arrived() { Err(interrupted(operation)) } else { Ok(()) }
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
    // SAFETY: signal may be called in any state, a handler too.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // A handler runs with its own signal blocked.
    unblock(signal);
    // SAFETY: raise, too; the default action of these signals ends the process.
    unsafe { libc::raise(signal) };
}

fn unblock(signal: libc::c_int) {
    // SAFETY: the set is ours, and sigemptyset fills it before it is read; all three may be called
    // in a handler.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}
