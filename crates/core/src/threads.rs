//! Starting threads. No other code of the library does it.
//!
//! The kernel may refuse a thread at any time (`RLIMIT_NPROC`, the `pids` controller of a
//! container, no memory for a stack). So starting one returns a [`Result`], and the caller fails
//! with the error or does the work on a thread that it has. The standard library's `thread::spawn`
//! and `Scope::spawn` panic instead, so `clippy.toml` disallows them. A crate opts in with
//! `#![cfg_attr(not(test), deny(clippy::disallowed_methods))]`.
//!
//! The threads take no signal. A program may block a signal in its own threads, to read it from a
//! descriptor (`signalfd`) or to wait for it (`sigwait`). If a thread of the library took it, the
//! default action would end the program. So each thread starts with all signals blocked, but those
//! that tell of a fault of the thread itself (`SIGSEGV`, `SIGBUS`, `SIGILL`, `SIGFPE`, `SIGTRAP`,
//! `SIGSYS`), and `SIGPROF`, with which a profiler samples each thread. Callbacks that run on such
//! a thread find them blocked, too. A program that the library starts by [`start_program`] has the
//! mask of the thread that called the library; one that a callback starts must set its own.
//!
//! Unsafe code: threads that borrow are joined before the borrow may end (`with_helpers`). Masks of
//! signals are read and set. A function runs in a copy of the process before it becomes another
//! program.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::process::{Child, Command};

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode, Panicked};
use crate::process::OwningProcess;
use crate::sync::thread;
use crate::thread_role;

/// The bytes of a thread's name that the kernel keeps.
const NAME_BYTES: usize = 15;

/// Signals that tell a thread of its own fault. Blocked, they would end the process without the
/// handler that a program may have for them.
const OF_FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// The signal of profilers, which is sent to the thread that runs.
const OF_PROFILERS: i32 = libc::SIGPROF;

std::thread_local! {
    /// In a thread of the library, the signals that are blocked in the programs that it starts.
    static MASK_OF_PROGRAMS: Cell<Option<libc::sigset_t>> = const { Cell::new(None) };
    /// The number of the thread, 0 before it was asked for. Without a destructor, so that it is
    /// known in the handlers of `atexit`.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// The number of a thread of this process. No other thread has it, also after the thread's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(u64);

impl ThreadNumber {
    /// The calling thread's. (`std::thread::current` panics in the handlers of `atexit`, if the
    /// thread that called `exit` is not one that the standard library has a record of.)
    #[inline]
    pub fn here() -> ThreadNumber {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        ThreadNumber(NUMBER.with(|number| {
            if number.get() == 0 {
                number.set(LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1);
            }
            number.get()
        }))
    }
}

/// While it lives, this thread has the signals blocked that a new thread is to have blocked.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> BlockedSignals {
        // SAFETY: a set of signals is a field of numbers, for which zeros are a value.
        let mut asked: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = asked;
        // Models and interpreters have no signals.
        if cfg!(not(any(shuttle, miri))) {
            // SAFETY: both sets are live variables. The calls fail only for signals that do not
            // exist.
            unsafe {
                libc::sigfillset(&raw mut asked);
                for signal in OF_FAULTS.into_iter().chain([OF_PROFILERS]) {
                    libc::sigdelset(&raw mut asked, signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const asked, &raw mut before);
            }
        }
        BlockedSignals { before }
    }

    /// What is blocked in a program that the new thread starts.
    fn of_programs(&self) -> libc::sigset_t {
        MASK_OF_PROGRAMS.get().unwrap_or(self.before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if cfg!(not(any(shuttle, miri))) {
            set_blocked(&self.before);
        }
    }
}

/// Sets the signals that are blocked in this thread. It may be called between `fork` and `exec`.
fn set_blocked(signals: &libc::sigset_t) {
    // SAFETY: the set is live, and was filled by the system.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::from_ref(signals), std::ptr::null_mut()) };
}

/// Starts a program, with the signals blocked that were so in the thread that called the library.
///
/// # Errors
/// As [`Command::spawn`].
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn start_program(command: &mut Command) -> std::io::Result<Child> {
    if let Some(mask) = MASK_OF_PROGRAMS.get()
        && cfg!(not(any(shuttle, miri)))
    {
        let set = move || {
            set_blocked(&mask);
            Ok(())
        };
        // SAFETY: the function makes one system call, which is allowed between `fork` and `exec`,
        // and takes no memory.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, set) };
    }
    command.spawn()
}

/// Starts a thread.
///
/// # Errors
/// `System` with the errno where the kernel refuses a thread. `work` did not run then.
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let blocked = BlockedSignals::new();
    let mask = blocked.of_programs();
    let work = move || {
        MASK_OF_PROGRAMS.set(Some(mask));
        work()
    };
    let thread = thread::Builder::new().name(kept(name)).spawn(work).map_err(|e| refused(name, e))?;
    Ok(JoinHandle { thread, owner: OwningProcess::here() })
}

/// Starts a thread that may borrow values that outlive the scope.
///
/// # Errors
/// As [`spawn`].
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, T>> {
    let blocked = BlockedSignals::new();
    let mask = blocked.of_programs();
    let work = move || {
        MASK_OF_PROGRAMS.set(Some(mask));
        work()
    };
    std::thread::Builder::new().name(kept(name)).spawn_scoped(scope, work).map_err(|e| refused(name, e))
}

/// A thread that was started by [`spawn`], for [`join`].
pub struct JoinHandle<T> {
    thread: thread::JoinHandle<T>,
    owner: OwningProcess,
}

impl<T> JoinHandle<T> {
    /// Whether its function has returned. In a child that was made by `fork` it never will.
    #[cfg(not(shuttle))]
    pub fn is_finished(&self) -> bool {
        self.owner.is_here() && self.thread.is_finished()
    }

    /// Whether the calling thread is it.
    #[cfg(not(shuttle))]
    pub(crate) fn is_this(&self) -> bool {
        let thread = std::os::unix::thread::JoinHandleExt::as_pthread_t(&self.thread);
        // SAFETY: the thread was not joined or detached, so its identifier is valid.
        unsafe { libc::pthread_equal(thread, libc::pthread_self()) != 0 }
    }

    /// Whether the calling thread is it.
    #[cfg(shuttle)]
    pub(crate) fn is_this(&self) -> bool {
        self.thread.thread().id() == thread::current().id()
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}

/// Why a thread gives no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NoResult {
    /// Its function panicked.
    Panicked(Panicked),
    /// It belongs to another process, which made this one by `fork`.
    Forked,
    /// It is the thread that asks.
    Itself,
}

impl NoResult {
    /// Makes the error for a caller that waits for the work of the thread: `Panicked`, `Forked`, or
    /// `InvalidInput` in the thread itself.
    pub fn error(&self, operation: &'static str) -> Error {
        match self {
            NoResult::Panicked(panicked) => panicked.error(operation),
            NoResult::Forked => Error::new(ErrorKind::Forked, operation, self.to_string()),
            NoResult::Itself => Error::new(ErrorKind::InvalidInput, operation, self.to_string()),
        }
    }
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoResult::Panicked(panicked) => panicked.fmt(f),
            NoResult::Forked => f.write_str("the thread belongs to the parent process"),
            NoResult::Itself => f.write_str("the thread would wait for itself"),
        }
    }
}

/// Threads that borrow from their starter, for as long as [`with_helpers`] runs.
pub(crate) struct Helpers<'env> {
    threads: Vec<std::thread::JoinHandle<()>>,
    owner: OwningProcess,
    /// Invariant in 'env, as in the standard library's scope: the borrow must not be shortened.
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `work`, which may start threads that borrow values that outlive this call. Returns when
/// those threads have ended.
///
/// It differs from [`std::thread::scope`] in a child that `work` makes by `fork`: the child lacks
/// the threads and does not wait for them. (The standard library's scope would wait for ever.)
pub(crate) fn with_helpers<'env, R>(work: impl FnOnce(&mut Helpers<'env>) -> R) -> R {
    // The drop of `helpers` joins them, even if `work` panics. `work` only borrows it, so it cannot
    // leak it.
    let mut helpers = Helpers { threads: Vec::new(), owner: OwningProcess::here(), env: PhantomData };
    work(&mut helpers)
}

impl<'env> Helpers<'env> {
    /// Starts a thread.
    ///
    /// # Errors
    /// As [`spawn`].
    pub(crate) fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'env) -> Result<()> {
        let blocked = BlockedSignals::new();
        let mask = blocked.of_programs();
        let work = move || {
            MASK_OF_PROGRAMS.set(Some(mask));
            work();
        };
        let builder = std::thread::Builder::new().name(kept(name));
        // SAFETY: what the thread borrows outlives 'env, which outlives the call of `with_helpers`.
        // That call returns only after the drop of `Helpers` joined the thread, or in a child,
        // which does not have the thread.
        let thread = unsafe { builder.spawn_unchecked(work) }.map_err(|e| refused(name, e))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            if self.owner.is_here() {
                // A panic of foreign code was caught in the thread. After a panic of ours, the
                // other threads are joined all the same.
                let _ = thread.join().map_err(|payload| Panicked::of(ForeignCode::Thread, payload));
            } else {
                std::mem::forget(thread);
            }
        }
    }
}

/// Waits until a thread ends. Within foreign code, others do meanwhile what the calling thread was
/// to do for a runtime, as in every wait of the library.
///
/// # Errors
/// The panic that ended the thread. `Forked` and `Itself` at once, where a wait would never end:
/// in a child of the process that started the thread, and in the thread itself (in a handler of
/// `atexit`, after foreign code there called `exit`).
pub fn join<T>(handle: JoinHandle<T>) -> Result<T, NoResult> {
    if !handle.owner.is_here() {
        // Its memory is the parent's thread's, too, as far as the C library knows here.
        std::mem::forget(handle.thread);
        return Err(NoResult::Forked);
    }
    if handle.is_this() {
        return Err(NoResult::Itself);
    }
    guard::run_deferred_before_sleep();
    if !handle.owner.is_here() {
        // What was deferred forked, and this is the child.
        std::mem::forget(handle.thread);
        return Err(NoResult::Forked);
    }
    let sleeps = thread_role::sleeps();
    let outcome = handle.thread.join();
    drop(sleeps);
    outcome.map_err(|payload| NoResult::Panicked(Panicked::of(ForeignCode::Thread, payload)))
}

/// Returns the part of a name that the kernel keeps. A zero byte would make the standard library
/// panic, so it is left out.
fn kept(name: &str) -> String {
    let mut kept = String::with_capacity(NAME_BYTES);
    for c in name.chars().filter(|c| *c != '\0') {
        if kept.len() + c.len_utf8() > NAME_BYTES {
            break;
        }
        kept.push(c);
    }
    kept
}

#[cold]
fn refused(name: &str, e: std::io::Error) -> Error {
    let error = Error::new(ErrorKind::System, "start", format!("the thread `{}`", kept(name)));
    match e.raw_os_error() {
        Some(errno) => error.with_errno(errno),
        None => error.with_source(e),
    }
    .with_advice("raise the limit on threads (`ulimit -u`, pids.max of the container), or stop others")
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_to_the_length_that_the_kernel_keeps() {
        assert_eq!(kept("dp-coord"), "dp-coord");
        assert_eq!(kept("a\0b"), "ab");
        assert_eq!(kept("0123456789abcdef"), "0123456789abcde");
        // The name has 14 bytes and a letter of two bytes, which is left out whole.
        assert_eq!(kept("0123456789abcd\u{e4}"), "0123456789abcd");
    }

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let (give, given) = std::sync::mpsc::channel::<JoinHandle<()>>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn("itself", move || {
            let waited = join(given.recv().unwrap()).unwrap_err();
            tell.send(waited.error("wait").kind()).unwrap();
        });
        give.send(thread.unwrap()).unwrap();
        assert_eq!(told.recv().unwrap(), ErrorKind::InvalidInput);
    }

    #[test]
    fn a_number_belongs_to_one_thread() {
        let here = ThreadNumber::here();
        assert_eq!(here, ThreadNumber::here());
        assert_ne!(here, join(spawn("other", ThreadNumber::here).unwrap()).unwrap());
    }

    #[test]
    fn a_thread_runs_and_its_panic_is_reported() {
        assert_eq!(join(spawn("one", || 7).unwrap()).unwrap(), 7);
        match join(spawn("two", || -> () { panic!("number {}", 3) }).unwrap()).unwrap_err() {
            NoResult::Panicked(panicked) => assert_eq!(panicked.message(), "number 3"),
            other => panic!("{other}"),
        }
        let sum = std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "nul\0", || 1 + 1).unwrap();
            thread.join().unwrap()
        });
        assert_eq!(sum, 2);
    }
}
