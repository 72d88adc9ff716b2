//! Threads of the library start here, and nowhere else.
//!
//! The kernel may refuse a thread at any time (`RLIMIT_NPROC`, the `pids` controller of a
//! container, no memory for a stack), so starting one gives a [`Result`]: the caller fails with it,
//! or does the work on a thread that it has. The standard library's `thread::spawn` and
//! `Scope::spawn` panic instead, so `clippy.toml` disallows them; a crate opts in with
//! `#![cfg_attr(not(test), deny(clippy::disallowed_methods))]`.
//!
//! Unsafe code: threads that borrow are joined before what they borrow may end (`with_helpers`).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{ForeignCode, Panicked};
use crate::process::OwningProcess;
use crate::sync::thread;

/// Bytes of a thread's name that the kernel keeps.
const NAME_BYTES: usize = 15;

/// Starts a thread.
///
/// # Errors
/// `System` with the errno where the kernel gives no thread; `work` was not run.
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(kept(name)).spawn(work).map_err(|e| refused(name, &e))
}

/// Starts a thread that may borrow what outlives the scope.
///
/// # Errors
/// As [`spawn`].
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<std::thread::ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new().name(kept(name)).spawn_scoped(scope, work).map_err(|e| refused(name, &e))
}

/// Threads that borrow from who started them, for as long as [`with_helpers`] runs.
pub(crate) struct Helpers<'env> {
    threads: Vec<std::thread::JoinHandle<()>>,
    owner: OwningProcess,
    /// Invariant, as the scope of the standard library: what they borrow may not be taken to live
    /// shorter.
    env: PhantomData<&'env mut &'env ()>,
}

/// Runs `work`, which may start threads that borrow what outlives this call, and returns when those
/// have ended.
///
/// As [`std::thread::scope`], but for a child that `work` makes by `fork`: it does not have the
/// threads, and does not wait for them. (The standard library's scope would, for ever.)
pub(crate) fn with_helpers<'env, R>(work: impl FnOnce(&mut Helpers<'env>) -> R) -> R {
    // Its drop joins them, also where `work` panics; nobody else can have it, to leak it.
    let mut helpers = Helpers { threads: Vec::new(), owner: OwningProcess::here(), env: PhantomData };
    work(&mut helpers)
}

impl<'env> Helpers<'env> {
    /// Starts a thread.
    ///
    /// # Errors
    /// As [`spawn`].
    pub(crate) fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'env) -> Result<()> {
        let builder = std::thread::Builder::new().name(kept(name));
        // SAFETY: what the thread borrows outlives 'env, which outlives the call of `with_helpers`,
        // and that does not return before the thread was joined by the drop of `Helpers`, or is of
        // a child, which does not have the thread.
        let thread = unsafe { builder.spawn_unchecked(work) }.map_err(|e| refused(name, &e))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            if self.owner.is_here() {
                // Foreign code that panicked in it was caught; were it ours, the others are waited
                // for all the same.
                let _ = thread.join().map_err(|payload| Panicked::of(ForeignCode::Thread, payload));
            } else {
                std::mem::forget(thread);
            }
        }
    }
}

/// Waits for a thread's end.
///
/// # Errors
/// The panic by which it ended.
pub fn join<T>(thread: thread::JoinHandle<T>) -> Result<T, Panicked> {
    thread.join().map_err(|payload| Panicked::of(ForeignCode::Thread, payload))
}

/// The part of a name that the kernel keeps. A byte 0 would make the standard library panic.
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
fn refused(name: &str, e: &std::io::Error) -> Error {
    let error = Error::new(ErrorKind::System, "start", format!("the thread `{}`", kept(name)));
    match e.raw_os_error() {
        Some(errno) => error.errno(errno),
        None => error,
    }
    .advice("raise the limit on threads (`ulimit -u`, pids.max of the container), or stop others")
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_what_the_kernel_keeps() {
        assert_eq!(kept("dp-coord"), "dp-coord");
        assert_eq!(kept("a\0b"), "ab");
        assert_eq!(kept("0123456789abcdef"), "0123456789abcde");
        // 14 bytes and a letter of two: it is left out whole.
        assert_eq!(kept("0123456789abcd\u{e4}"), "0123456789abcd");
    }

    #[test]
    fn a_thread_runs_and_its_panic_is_told() {
        assert_eq!(join(spawn("one", || 7).unwrap()).unwrap(), 7);
        let panicked = join(spawn("two", || -> () { panic!("number {}", 3) }).unwrap()).unwrap_err();
        assert_eq!(panicked.message(), "number 3");
        let sum = std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "nul\0", || 1 + 1).unwrap();
            thread.join().unwrap()
        });
        assert_eq!(sum, 2);
    }
}
