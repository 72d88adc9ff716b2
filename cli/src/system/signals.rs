//! Signals: they ask the running work to stop, the work cleans up, and then the process dies of the
//! signal, as its parent expects.
//!
//! Unsafe: this module installs a handler. The handler loads and stores atomics, which a handler
//! may do, and calls what POSIX allows in one; it reaches the work through a `OnceLock` that was
//! filled before the handler was installed.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use datapipes::locks::Mutex;
use datapipes::{Error, ErrorKind, threads};
use datapipes_sort::Control;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The signal that arrived first, 0 for none; with [`OF_TERMINAL`] if the terminal sent it. Both
/// are one value, because a thread may look while the handler runs on another one.
static ARRIVED: AtomicI32 = AtomicI32::new(0);
/// What the terminal sends goes to all programs there.
const OF_TERMINAL: i32 = 1 << 8;
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

/// A handler that is told who sent the signal.
type SignalHandler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler of this module. A signal that the parent chose to ignore stays ignored,
/// unless `even_ignored`.
fn install(signal: libc::c_int, handler: SignalHandler, even_ignored: bool) {
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
        new.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&mut new.sa_mask);
        libc::sigaction(signal, &new, std::ptr::null_mut());
    }
}

/// Whether SIGTSTP came.
static STOP_IS_ASKED: AtomicBool = AtomicBool::new(false);

/// Catches SIGTSTP, for a command that has something to give back before it stops. It asks
/// [`stop_is_asked`] now and then.
pub(crate) fn catch_stop() {
    install(libc::SIGTSTP, note_stop, false);
}

extern "C" fn note_stop(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    STOP_IS_ASKED.store(true, SeqCst);
}

/// Whether SIGTSTP came since this was asked last.
pub(crate) fn stop_is_asked() -> bool {
    STOP_IS_ASKED.swap(false, SeqCst)
}

extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid structure for as long as it runs.
    let is_of_kernel = unsafe { info.as_ref() }.is_some_and(|info| info.si_code == libc::SI_KERNEL);
    // Other signals of the kernel, such as those of limits, may be for this process alone.
    let is_of_terminal = is_of_kernel && [libc::SIGINT, libc::SIGQUIT].contains(&signal);
    let value = if is_of_terminal { signal | OF_TERMINAL } else { signal };
    let first = ARRIVED.compare_exchange(0, value, SeqCst, SeqCst).is_ok();
    if let Some(control) = WORK.get() {
        control.stop();
    }
    wake();
    if !first {
        // Asked twice, or out of patience: at once.
        die_of_signal();
    } else if WAITS_FOR_STREAMS.load(SeqCst) {
        // The clock needs no thread, which might not start. It rings here again.
        // SAFETY: alarm may be called in a handler.
        unsafe { libc::alarm(PATIENCE) };
    }
}

/// An event that the handler writes to, -1 for none.
static EVENT: AtomicI32 = AtomicI32::new(-1);
/// What is to be done once a signal has asked to stop.
static ACTS: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// Lets a thread do something once a signal has asked to stop: for work that waits for something
/// that does not look at [`arrived`].
///
/// # Errors
/// Where the kernel has no event or no thread for it.
pub(crate) fn when_asked(act: impl FnOnce() + Send + 'static) -> datapipes::Result<()> {
    let mut acts = ACTS.lock();
    if EVENT.load(SeqCst) < 0 {
        let event = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|e| Error::os("open", e.raw_os_error(), "an event for signals"))?;
        let event = Arc::new(event);
        let waited = event.clone();
        threads::spawn("signals", move || {
            // What is added when a signal was there before wakes it, too.
            loop {
                match rustix::io::read(&*waited, &mut [0u8; 8]) {
                    Err(Errno::INTR) => {}
                    Err(_) => return,
                    Ok(_) => {
                        let acts = std::mem::take(&mut *ACTS.lock());
                        acts.into_iter().for_each(|act| act());
                    }
                }
            }
        })?;
        // The process keeps it to its end, as the handler may write to it at any time.
        EVENT.store(event.as_raw_fd(), SeqCst);
        std::mem::forget(event);
    }
    acts.push(Box::new(act));
    drop(acts);
    if arrived() {
        wake();
    }
    Ok(())
}

/// Wakes the thread of [`when_asked`]. It may be called in a handler.
fn wake() {
    let event = EVENT.load(SeqCst);
    if event >= 0 {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the descriptor stays open to the end of the process; write may be called in a
        // handler, and the buffer has as many bytes as is said. The number of an error is that of
        // this thread, which a handler must leave as it was.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::write(event, one.as_ptr().cast(), one.len());
            *errno = before;
        }
    }
}

/// What a signal leaves as it was, or does not, in words: for whoever presses Ctrl-C.
static UNDONE: Mutex<String> = Mutex::new(String::new());
/// Whether that is to be said where no terminal is, too.
static IS_FOR_ALL: AtomicBool = AtomicBool::new(false);

/// Whether the signal that arrived was sent by the terminal, and so to what this process has
/// started as well.
pub(crate) fn is_of_terminal() -> bool {
    ARRIVED.load(SeqCst) & OF_TERMINAL != 0
}

/// The number of the signal that arrived, 0 for none.
fn number() -> i32 {
    ARRIVED.load(SeqCst) & !OF_TERMINAL
}

/// Says what will have been undone when a signal has stopped the work.
pub(crate) fn undo_says(words: impl Into<String>) {
    *UNDONE.lock() = words.into();
    IS_FOR_ALL.store(false, SeqCst);
}

/// Does the same for what is not as it was, or may not be: that is said where no terminal is, too.
#[cfg(feature = "object")]
pub(crate) fn undo_warns(words: impl Into<String>) {
    *UNDONE.lock() = words.into();
    IS_FOR_ALL.store(true, SeqCst);
}

/// What was done for good before the work of which `undo_says` speaks.
static DONE_BEFORE: Mutex<String> = Mutex::new(String::new());

/// Says what was done for good, before words of what follows: that is said where no terminal is,
/// too.
pub(crate) fn undo_says_first(words: impl Into<String>) {
    undo_says("");
    *DONE_BEFORE.lock() = words.into();
}

/// Whether what a signal left is to be said where no terminal is, too.
pub(crate) fn warns() -> bool {
    IS_FOR_ALL.load(SeqCst) || !DONE_BEFORE.lock().is_empty()
}

/// Whether a signal is a usual end of the work.
static IS_USUAL_END: AtomicBool = AtomicBool::new(false);

/// Says that a signal is a usual end of the command, which then ends as it would without one: for
/// what goes on until somebody stops it, and for what runs another program and passes the signal
/// on.
pub(crate) fn is_usual_end() {
    IS_USUAL_END.store(true, SeqCst);
}

/// What is to be said of a signal that came when it could undo nothing any more; `None` without
/// one, and where a signal is a usual end. The process dies of it all the same: who sent it to a
/// loop of commands does not want the next one.
pub(crate) fn late(command: &str) -> Option<String> {
    let name = name()?;
    let is_usual = IS_USUAL_END.load(SeqCst);
    (!is_usual).then(|| format!("dpipe {command}: {name} came when the work was done; it is complete\n"))
}

/// The signal that arrived, in words.
fn name() -> Option<&'static str> {
    match number() {
        0 => None,
        libc::SIGINT => Some("Ctrl-C"),
        libc::SIGTERM => Some("SIGTERM"),
        libc::SIGHUP => Some("SIGHUP"),
        libc::SIGQUIT => Some("SIGQUIT"),
        _ => Some("a signal"),
    }
}

/// What was undone after the signal that arrived, as a line for people; `None` without a signal.
/// `is_clean`: whether nothing was left. Not to be called in a handler.
pub(crate) fn undone(command: &str, is_clean: bool) -> Option<String> {
    let name = name()?;
    let words = UNDONE.lock();
    let words = match words.as_str() {
        "" if is_clean => "; nothing half-written was left behind".to_owned(),
        "" => String::new(),
        words => format!("; {words}"),
    };
    let before = DONE_BEFORE.lock();
    let before = if before.is_empty() { String::new() } else { format!("; {before}") };
    Some(format!("dpipe {command}: stopped by {name}{before}{words}\n"))
}

/// Whether a signal asked to stop.
pub(crate) fn arrived() -> bool {
    number() != 0
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
    match number() {
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
