//! Calls of foreign code: callbacks, wakers, closures of graphs, iterators, destructors of the
//! caller's values.
//!
//! Such code may panic, block, call back into the library, or fork. Two mechanisms here deal with
//! that for the whole library:
//!
//! * [`call`] catches a panic and returns it as a value. Its caller goes on: it reports the other
//!   results, and counts the panic where a person will look ([`Panics`]). The program's panic hook
//!   has printed the panic by then.
//! * Foreign code that must not run in the middle of the library's own work goes into an *outbox*
//!   of the thread. It is called when that work is done: then no lock of the library is held, and
//!   all results so far have been reported. So foreign code may call any function of the library,
//!   and a chain of 100,000 callbacks is a loop, not a recursion.
//!
//! ```text
//! defer_calls() ... call_or_defer(wake), ... drop:
//!     within a foreign call?   leave the outbox to the loop that made the call
//!     the outermost deferral?  make the calls in the outbox, in order
//! ```
//!
//! With `panic = "abort"` nothing can be caught, and the program ends with the panic.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use std::task::Waker;

use crate::locks::{Mutex, MutexGuard};
use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::process::{OwningProcess, PerProcess};
use crate::sync::{Arc, thread_local};

pub(crate) mod reentry;
mod thread_end;

/// The kind of foreign code that was called. docs/runtime.md lists the places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ForeignCode {
    /// A callback that is told the result of a transfer.
    Callback,
    /// The waker of a future.
    Waker,
    /// A closure of a graph, in a stage that computes.
    Compute,
    /// A closure of a graph that returns the span to move.
    Span,
    /// The destructor of a value that the library kept for its caller.
    Destructor,
    /// The mover of a backend.
    Mover,
    /// An observer of a file.
    WriteObserver,
    /// The storage of a log.
    Storage,
    /// A share for the threads of a runtime.
    ThreadShare,
    /// The function that a thread runs.
    Thread,
}

impl fmt::Display for ForeignCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ForeignCode::Callback => "a callback",
            ForeignCode::Waker => "a waker",
            ForeignCode::Compute => "a closure that computes",
            ForeignCode::Span => "a closure that names a span",
            ForeignCode::Destructor => "a destructor",
            ForeignCode::Mover => "a mover",
            ForeignCode::WriteObserver => "an observer of a file",
            ForeignCode::Storage => "the storage of a log",
            ForeignCode::ThreadShare => "a share for threads",
            ForeignCode::Thread => "a thread",
        })
    }
}

/// A panic that was caught: what panicked, and with which message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    what: ForeignCode,
    message: String,
}

impl Panicked {
    /// Takes the payload of a panic and drops it. Its destructor is foreign code too.
    pub(crate) fn of(what: ForeignCode, payload: Box<dyn Any + Send>) -> Panicked {
        ALL.fetch_add(1, Ordering::Relaxed);
        let message = match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "(its payload is not text)".to_owned(),
        };
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // The payload panicked when it was dropped, and the new payload might too, so that one
            // is leaked.
            std::mem::forget(another);
        }
        Panicked { what, message }
    }

    /// The kind of code that panicked.
    pub fn what(&self) -> ForeignCode {
        self.what
    }

    /// The message of the panic.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Makes the error for a caller that waits for the work of the foreign code.
    pub fn error(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Panicked, operation, self.to_string())
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked: {}", self.what, self.message)
    }
}

/// The number of panics that were caught in this process.
static ALL: AtomicU64 = AtomicU64::new(0);

/// Returns how many panics of foreign code the library has caught in this process, wherever they
/// are reported.
pub fn panics() -> u64 {
    ALL.load(Ordering::Relaxed)
}

/// Calls foreign code. A panic ends the call and is returned to the caller, who must report it.
///
/// The caller must hold no lock that the foreign code could need. The closure is taken to be unwind
/// safe: nobody else may use what it leaves half done.
///
/// # Errors
/// The panic of the foreign code.
pub fn call<R>(what: ForeignCode, f: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Panicked::of(what, payload))
}

/// The panics of foreign code that one owner called: their number, and the first message.
#[derive(Debug, Default)]
pub struct Panics {
    count: AtomicU64,
    first: OnceLock<String>,
    number: u32,
}

/// The [`Panics`] of this process, by number. A transfer that is complete when it is started holds
/// no reference to its runtime, which would cost more than the transfer. A number costs nothing and
/// is looked up only after a panic.
static NUMBERED: PerProcess<Mutex<BTreeMap<u32, Weak<Panics>>>> = PerProcess::new();

fn numbered() -> MutexGuard<'static, BTreeMap<u32, Weak<Panics>>> {
    NUMBERED.get(Mutex::default).lock()
}

impl Panics {
    /// Makes one that can be found by its number.
    pub(crate) fn with_number() -> Arc<Panics> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // The numbers begin again after 2^32 runtimes. No runtime has the number 0.
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let panics = Arc::new(Panics { count: AtomicU64::new(0), first: OnceLock::new(), number });
        numbered().insert(number, Arc::downgrade(&panics));
        panics
    }

    /// Its number, or 0 if it has none.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Counts a panic.
    pub fn note(&self, panicked: &Panicked) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // Only the first message is kept.
        let _ = self.first.set(panicked.to_string());
    }

    /// How many panics there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The message of the first panic.
    pub fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if self.number > 0 {
            numbered().remove(&self.number);
        }
    }
}

/// Counts a panic with the [`Panics`] of this number.
fn note(panicked: &Panicked, number: u32) {
    let panics = numbered().get(&number).and_then(Weak::upgrade);
    if let Some(panics) = panics {
        panics.note(panicked);
    }
}

/// Foreign code to be called when the thread has finished its own work.
pub(crate) enum Call {
    /// Wakes a task.
    Wake(Waker),
    /// Drops a value of the caller.
    Drop(Box<dyn Any + Send>),
    /// Calls a callback.
    Run(Box<dyn FnOnce() + Send>),
}

impl Call {
    fn make(self) -> Result<(), Panicked> {
        match self {
            Call::Wake(waker) => call(ForeignCode::Waker, || waker.wake()),
            Call::Drop(value) => call(ForeignCode::Destructor, || drop(value)),
            Call::Run(callback) => call(ForeignCode::Callback, callback),
        }
    }
}

/// A call, and the number of the [`Panics`] that count its panic.
type Entry = (Call, u32);

struct Outbox {
    entries: VecDeque<Entry>,
    /// How many operations of the library the thread is in the middle of.
    holds: usize,
    /// How many nested calls of foreign code the thread is within.
    depth: usize,
    /// How many operations the thread carries out by foreign code ([`reentry`]).
    middles: usize,
    /// Calls to be made when `middles` is 0.
    put_off: VecDeque<Entry>,
}

impl Outbox {
    const fn new() -> Outbox {
        Outbox { entries: VecDeque::new(), holds: 0, depth: 0, middles: 0, put_off: VecDeque::new() }
    }

    /// Returns whether a call may be made now. If so, the thread counts as within it.
    fn enter(&mut self) -> bool {
        let is_now = self.holds == 0 && self.depth == 0 && self.entries.is_empty();
        self.depth += usize::from(is_now);
        is_now
    }
}

/// How many nested calls one thread may be within. There is more than one only where foreign code
/// blocks in the library, which makes other calls meanwhile. Beyond the limit, calls wait.
const MAX_DEPTH: usize = 16;

thread_local! {
    /// It has no destructor. `exit` runs the destructors of a thread's variables before the
    /// handlers of `atexit`, which may be within foreign code: what the thread is in the middle of
    /// must be known there.
    static OUTBOX: ManuallyDrop<RefCell<Outbox>> = const { ManuallyDrop::new(RefCell::new(Outbox::new())) };
}

/// Whether the thread is in the middle of nothing. Within foreign code it does not end: it is in
/// `exit`, and goes on.
fn is_free() -> bool {
    with(|outbox| outbox.depth == 0 && outbox.middles == 0).unwrap_or(true)
}

/// Frees the outbox's memory when the thread ends.
fn free_at_end() {
    thread_end::call(|| {
        if is_free() {
            drop(with(|outbox| (std::mem::take(&mut outbox.entries), std::mem::take(&mut outbox.put_off))));
        }
    });
}

/// Returns `None` in a model whose thread is over.
fn with<R>(f: impl FnOnce(&mut Outbox) -> R) -> Option<R> {
    OUTBOX.try_with(|outbox| f(&mut outbox.borrow_mut())).ok()
}

/// While it exists, the thread makes no calls by [`call_or_defer`].
#[must_use]
pub(crate) struct CallDeferral(());

/// Defers foreign calls of this thread until the guard is dropped.
pub(crate) fn defer_calls() -> CallDeferral {
    with(|outbox| outbox.holds += 1);
    CallDeferral(())
}

impl Drop for CallDeferral {
    fn drop(&mut self) {
        let due = with(|outbox| {
            outbox.holds -= 1;
            outbox.holds == 0 && outbox.depth == 0 && !outbox.entries.is_empty()
        });
        if due == Some(true) {
            run_deferred(1);
        }
    }
}

/// Calls foreign code as soon as the thread is in the middle of no operation, at once if it can. A
/// panic is counted by the [`Panics`] of this number; for 0 only the process counts it.
pub(crate) fn call_or_defer(call: Call, counts: u32) {
    let mut entry = Some((call, counts));
    let is_now = with(|outbox| {
        let is_now = outbox.enter();
        if !is_now {
            outbox.entries.extend(entry.take());
        }
        is_now
    });
    if entry.is_none() {
        free_at_end();
    }
    if let Some((call, counts)) = entry {
        make((call, counts));
        leave(is_now);
    }
}

/// As [`call_or_defer`], for a callback. It allocates nothing where the callback is called at once.
pub(crate) fn call_or_defer_callback(callback: impl FnOnce() + Send + 'static, counts: u32) {
    match with(Outbox::enter) {
        Some(false) => call_or_defer(Call::Run(Box::new(callback)), counts),
        is_now => {
            if let Err(panicked) = call(ForeignCode::Callback, callback) {
                note(&panicked, counts);
            }
            leave(is_now);
        }
    }
}

/// Ends a call that was made at once, and makes the calls that it deferred. `None` means that the
/// thread has no outbox, which happens in a model alone.
fn leave(is_now: Option<bool>) {
    let left = with(|outbox| {
        outbox.depth -= usize::from(is_now == Some(true));
        !outbox.entries.is_empty()
    });
    if left == Some(true) {
        run_deferred(1);
    }
}

/// A value of the caller that is kept until this is dropped. Its destructor may do anything, so it
/// runs when the dropping thread is in the middle of no operation.
#[doc(hidden)] // For the other crates of Data Pipes.
pub struct DeferredDrop(Option<Box<dyn Any + Send + Sync>>);

impl DeferredDrop {
    /// Keeps a value.
    pub fn new(value: Box<dyn Any + Send + Sync>) -> DeferredDrop {
        DeferredDrop(Some(value))
    }
}

impl Drop for DeferredDrop {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            call_or_defer(Call::Drop(value), 0);
        }
    }
}

/// Whether this thread is within a call of foreign code.
pub(crate) fn is_in_foreign_code() -> bool {
    with(|outbox| outbox.depth > 0) == Some(true)
}

/// Prepares a thread to sleep within the library: the calls that it deferred are made now, even
/// within foreign code, because others may wait for them.
pub(crate) fn run_deferred_before_sleep() {
    let held = with(|outbox| std::mem::take(&mut outbox.holds)).unwrap_or(0);
    run_deferred(MAX_DEPTH);
    with(|outbox| outbox.holds = held);
}

/// Forgets all deferred calls, in a child that was forked in the middle of an operation. The parent
/// makes them.
pub(crate) fn abandon() {
    with(|outbox| {
        std::mem::take(&mut outbox.entries).into_iter().for_each(std::mem::forget);
        std::mem::take(&mut outbox.put_off).into_iter().for_each(std::mem::forget);
    });
}

/// Makes the calls of the outbox, unless the thread is in the middle of an operation or within
/// `most` calls.
fn run_deferred(most: usize) {
    let owner = OwningProcess::here();
    let next = || {
        with(|outbox| {
            let may = outbox.holds == 0 && outbox.depth < most;
            let entry = if may { outbox.entries.pop_front() } else { None };
            outbox.depth += usize::from(entry.is_some());
            if outbox.entries.is_empty() && thread_end::is_over() {
                outbox.entries = VecDeque::new();
            }
            entry
        })
    };
    while let Some(Some(entry)) = next() {
        make(entry);
        with(|outbox| outbox.depth -= 1);
        if !owner.is_here() {
            // The call forked and this is the child. The parent makes the remaining calls.
            abandon();
        }
    }
}

fn make((call, counts): Entry) {
    if let Err(panicked) = call.make() {
        note(&panicked, counts);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
