//! Calls of code that is not ours: callbacks, wakers, closures of graphs, iterators, destructors of
//! the caller's values.
//!
//! Such code may panic, block, call back into the library, or fork. Two things are done about it,
//! here for every place:
//!
//! * [`call`] catches a panic and says what it was. The caller of `call` goes on: it tells
//!   everybody else their outcome, and counts the panic where a person will look ([`Panics`]). The
//!   program's panic hook has printed it by then.
//! * What must not be called in the middle of our own work is put into an *outbox* of the thread,
//!   and called when the thread has finished it: no lock of ours is held then, and whatever was
//!   complete has been told. So foreign code may call any function of the library, and a chain of
//!   100,000 callbacks is a loop and not a recursion.
//!
//! ```text
//! hold() ... deliver, deliver, later(wake) ... drop(hold): the outermost?  call what is in the outbox, one after another
//!                                                         within a call?   leave it to the loop that made the call
//! ```
//!
//! With `panic = "abort"` there is nothing to catch, and the program ends with the panic, as
//! everywhere.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use serde::Serialize;

use crate::error::{Error, ErrorKind};
use crate::process::{OwningProcess, PerProcess};
use crate::sync::{Arc, thread_local};

pub(crate) mod reentry;

/// What was called. The list of the places is in docs/runtime.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ForeignCode {
    /// A callback that is told of a transfer.
    Callback,
    /// A waker of a future.
    Waker,
    /// A closure of a graph, of a stage that computes.
    Compute,
    /// A closure of a graph that says what to move.
    Span,
    /// A destructor of a value that the library kept for its caller.
    Destructor,
    /// A mover of a backend.
    Mover,
    /// Somebody who watches a file.
    Watch,
    /// The storage of a log.
    Storage,
    /// The work of a thread.
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
            ForeignCode::Watch => "a watch of a file",
            ForeignCode::Storage => "the storage of a log",
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
    /// The panic of a payload, which is dropped. Its destructor is foreign code, too.
    pub(crate) fn of(what: ForeignCode, payload: Box<dyn Any + Send>) -> Panicked {
        ALL.fetch_add(1, Ordering::Relaxed);
        let message = match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "(its payload is no text)".to_owned(),
        };
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            // A payload that panics when it is dropped, and may give another: that one is left.
            std::mem::forget(another);
        }
        Panicked { what, message }
    }

    /// What panicked.
    pub fn what(&self) -> ForeignCode {
        self.what
    }

    /// Its message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error for whoever waits for what the foreign code should have done.
    pub fn error(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Panicked, operation, self.to_string())
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked: {}", self.what, self.message)
    }
}

/// Panics that were caught in this process.
static ALL: AtomicU64 = AtomicU64::new(0);

/// How many panics of foreign code the library has caught in this process, wherever they are
/// reported.
pub fn panics() -> u64 {
    ALL.load(Ordering::Relaxed)
}

/// Calls foreign code. A panic ends it, and is given to the caller, who must tell somebody of it.
///
/// No lock may be held that the foreign code could want, and what it leaves half done must be
/// nobody else's: the closure is taken to be unwind safe.
///
/// # Errors
/// The panic.
pub fn call<R>(what: ForeignCode, f: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| Panicked::of(what, payload))
}

/// The panics of the foreign code that somebody called: how many, and the first.
#[derive(Debug, Default)]
pub struct Panics {
    count: AtomicU64,
    first: OnceLock<String>,
    number: u32,
}

/// Those of this process, by number. What is complete when it is started knows no runtime, for a
/// reference would cost it more than it takes; a number costs nothing, and is looked up where there
/// was a panic.
static NUMBERED: PerProcess<Mutex<BTreeMap<u32, Weak<Panics>>>> = PerProcess::new();

fn numbered() -> MutexGuard<'static, BTreeMap<u32, Weak<Panics>>> {
    NUMBERED.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Panics {
    /// One that is found by its number.
    pub(crate) fn with_number() -> Arc<Panics> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        // After four thousand million runtimes it would begin again; 0 is nobody's.
        let number = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let panics = Arc::new(Panics { count: AtomicU64::new(0), first: OnceLock::new(), number });
        numbered().insert(number, Arc::downgrade(&panics));
        panics
    }

    /// Its number; 0 for one that has none.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Counts one.
    pub fn note(&self, panicked: &Panicked) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // The first stays.
        let _ = self.first.set(panicked.to_string());
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What the first one said.
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

/// Counts a panic where it belongs.
fn note(panicked: &Panicked, number: u32) {
    let panics = numbered().get(&number).and_then(Weak::upgrade);
    if let Some(panics) = panics {
        panics.note(panicked);
    }
}

/// Foreign code that is to be called when the thread has finished its own work.
pub(crate) enum Call {
    /// Wakes a task.
    Wake(Waker),
    /// Drops a value of the caller's.
    Drop(Box<dyn Any + Send>),
    /// Tells a callback.
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

/// A call, and the number of who counts its panic.
type Entry = (Call, u32);

#[derive(Default)]
struct Outbox {
    entries: VecDeque<Entry>,
    /// Pieces of our own work that this thread is in the middle of.
    holds: usize,
    /// Calls of foreign code that this thread is within.
    depth: usize,
    /// Pieces of work that it carries out by foreign code ([`reentry`]).
    middles: usize,
    /// To be called when there are none.
    put_off: VecDeque<Entry>,
}

impl Outbox {
    /// Whether a call may be made now; if so, the thread is within it.
    fn enter(&mut self) -> bool {
        let is_now = self.holds == 0 && self.depth == 0 && self.entries.is_empty();
        self.depth += usize::from(is_now);
        is_now
    }
}

/// Calls that one thread may be within: more than one only where foreign code blocks in the
/// library, which calls others meanwhile. Beyond that they wait until one of those returns.
const MAX_DEPTH: usize = 16;

thread_local! {
    static OUTBOX: RefCell<Outbox> = RefCell::new(Outbox::default());
}

/// None while the thread ends and its outbox is gone.
fn with<R>(f: impl FnOnce(&mut Outbox) -> R) -> Option<R> {
    OUTBOX.try_with(|outbox| f(&mut outbox.borrow_mut())).ok()
}

/// While it is held, the thread calls no foreign code by [`call_or_defer`].
#[must_use]
pub(crate) struct CallDeferral(());

/// Says that the thread is in the middle of something.
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

/// Calls foreign code as soon as the thread is in the middle of nothing: now, if it is not. A panic
/// of it is counted by the
/// [`Panics`] of this number; by nobody but the process for 0.
pub(crate) fn call_or_defer(call: Call, counts: u32) {
    let mut entry = Some((call, counts));
    let is_now = with(|outbox| {
        let is_now = outbox.enter();
        if !is_now {
            outbox.entries.extend(entry.take());
        }
        is_now
    });
    if let Some((call, counts)) = entry {
        make((call, counts));
        leave(is_now);
    }
}

/// As [`call_or_defer`], for a callback, which needs no memory of its own where it is called now.
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

/// A call that was made at once is over: what it put aside follows. None where the thread ends and
/// has no outbox.
fn leave(is_now: Option<bool>) {
    let left = with(|outbox| {
        outbox.depth -= usize::from(is_now == Some(true));
        !outbox.entries.is_empty()
    });
    if left == Some(true) {
        run_deferred(1);
    }
}

/// A value of the caller's that is kept for as long as something lives. Its destructor may do
/// anything: it is called when the thread that drops it is in the middle of nothing.
pub(crate) struct DeferredDrop(Option<Box<dyn Any + Send + Sync>>);

impl DeferredDrop {
    /// Keeps a value.
    pub(crate) fn new(value: Box<dyn Any + Send + Sync>) -> DeferredDrop {
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

/// For a thread that is about to sleep within the library: what it has put aside is called now,
/// though it was called by foreign code itself, for others may wait for it.
pub(crate) fn run_deferred_before_sleep() {
    let held = with(|outbox| std::mem::take(&mut outbox.holds)).unwrap_or(0);
    run_deferred(MAX_DEPTH);
    with(|outbox| outbox.holds = held);
}

/// This is a child that was forked in the middle of something: what is to be called is the parent's
/// to call.
pub(crate) fn abandon() {
    with(|outbox| {
        std::mem::take(&mut outbox.entries).into_iter().for_each(std::mem::forget);
        std::mem::take(&mut outbox.put_off).into_iter().for_each(std::mem::forget);
    });
}

/// Makes the calls of the outbox, unless the thread is in the middle of something or within `most`
/// calls.
fn run_deferred(most: usize) {
    let owner = OwningProcess::here();
    let next = || {
        with(|outbox| {
            let may = outbox.holds == 0 && outbox.depth < most;
            let entry = if may { outbox.entries.pop_front() } else { None };
            outbox.depth += usize::from(entry.is_some());
            entry
        })
    };
    while let Some(Some(entry)) = next() {
        make(entry);
        with(|outbox| outbox.depth -= 1);
        if !owner.is_here() {
            // The call forked, and this is the child: the others are the parent's to make.
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
