//! Starting threads. No other code of the library does it.
//!
//! The kernel may refuse a thread at any time (`RLIMIT_NPROC`, the `pids` controller of a
//! container, no memory for a stack). So starting one returns a [`Result`], and the caller fails
//! with the error or does the work on a thread that it has. The standard library's `thread::spawn`
//! and `Scope::spawn` panic instead, so `clippy.toml` disallows them. A crate opts in with
//! `#![cfg_attr(not(test), deny(clippy::disallowed_methods))]`.
//!
//! Unsafe code: threads that borrow are joined before the borrow may end (`with_helpers`).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{ForeignCode, Panicked};
use crate::process::OwningProcess;
use crate::sync::thread;

/// The bytes of a thread's name that the kernel keeps.
const NAME_BYTES: usize = 15;

/// Starts a thread.
///
/// # Errors
/// `System` with the errno where the kernel refuses a thread. `work` did not run then.
#[allow(clippy::disallowed_methods)] // This is the function that others are to use.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(kept(name)).spawn(work).map_err(|e| refused(name, e))
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
    std::thread::Builder::new().name(kept(name)).spawn_scoped(scope, work).map_err(|e| refused(name, e))
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

/// Waits until a thread ends.
///
/// # Errors
/// The panic that ended the thread.
pub fn join<T>(thread: thread::JoinHandle<T>) -> Result<T, Panicked> {
    thread.join().map_err(|payload| Panicked::of(ForeignCode::Thread, payload))
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
    fn a_thread_runs_and_its_panic_is_reported() {
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
