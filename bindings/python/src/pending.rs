//! Transfers that were started: futures for threads, and for event loops by a descriptor.
//!
//! ```text
//! thread of the runtime:  outcome into `Op`, wake its waiters, number into the notifier, eventfd
//! thread of Python:       result(), or the loop's reader of the notifier
//! ```
//!
//! A loop that has nothing else under way at a file watches the ring itself (`watched`).
//!
//! Threads of the runtime never call Python and never wait for its lock. So a transfer in flight
//! cannot hang an interpreter that ends, and nothing of Python is dropped by such a thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datapipes::locks::{Condvar, Mutex};
use datapipes::process::OwningProcess;
use datapipes::{ConnectOptions, Constraints, Error, ErrorKind, Runtime, RuntimePipe, Span};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::errors::{attached, detached, detached_at, to_py_at};
use crate::foreign::{self, Bytes, Place, take_left};
use crate::kept::{KeptPipes, Staged};
use crate::machine;
use crate::notifier::{Notifier, Told};
use crate::opened::{Opened, available};
use crate::turn;
use crate::watched::{self, WatchedPipe};

/// How often a waiter looks for signals (Ctrl-C).
const SIGNALS: Duration = Duration::from_millis(50);

/// The runtime of this process. This lock and the next are taken only by holders of the
/// interpreter's lock.
enum Running {
    NotYet,
    Here(Arc<Runtime>, OwningProcess),
    /// The interpreter ends.
    Ended(OwningProcess),
}

static RUNTIME: Mutex<Running> = Mutex::new(Running::NotYet);

/// What transfers need until their results are taken, by their numbers. The lock is taken only by
/// holders of the interpreter's lock, and is free again before code of Python runs.
static UNDER_WAY: Mutex<BTreeMap<u64, Parts>> = Mutex::new(BTreeMap::new());

/// The numbers of those that nobody waits for any more. They keep their bytes until they are done.
static ABANDONED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Returns the runtime, and starts it for the first transfer of a process.
fn runtime(py: Python<'_>) -> PyResult<Arc<Runtime>> {
    let known = || match &*RUNTIME.lock() {
        Running::Here(runtime, owner) if owner.is_here() => Ok(Some(runtime.clone())),
        Running::Ended(owner) if owner.is_here() => {
            let error = Error::new(ErrorKind::Unavailable, "read", "the interpreter ends");
            Err(error.with_advice("use `readinto`, which blocks"))
        }
        _ => Ok(None),
    };
    if let Some(runtime) = attached(py, known)? {
        return Ok(runtime);
    }
    // It is made without either lock. Where another thread was quicker, its runtime is used.
    let made = detached(py, || Ok(Arc::new(Runtime::start(machine())?)))?;
    if let Some(quicker) = attached(py, known)? {
        py.detach(move || drop(made));
        return Ok(quicker);
    }
    let before = std::mem::replace(&mut *RUNTIME.lock(), Running::Here(made.clone(), OwningProcess::here()));
    // The parent's, in a child: dropping it does nothing there.
    drop(before);
    Ok(made)
}

/// Waits for all transfers in flight, and ends the runtime's threads: before the interpreter ends.
#[pyfunction]
pub(crate) fn _shutdown(py: Python<'_>) {
    let before = std::mem::replace(&mut *RUNTIME.lock(), Running::Ended(OwningProcess::here()));
    py.detach(move || {
        if let Running::Here(runtime, owner) = before
            && owner.is_here()
        {
            runtime.drain();
            drop(runtime);
        }
    });
    sweep_left(py);
}

/// Lets go of what nobody waits for and is done. Every call that may start a transfer does it.
pub(crate) fn sweep(py: Python<'_>) {
    watched::poll_all();
    if take_left() {
        sweep_left(py);
    }
}

fn sweep_left(py: Python<'_>) {
    let done: Vec<Parts> = {
        let mut under_way = UNDER_WAY.lock();
        let mut abandoned = ABANDONED.lock();
        let is_done = |number: &u64| under_way.get(number).is_none_or(Parts::is_done);
        let done: Vec<u64> = abandoned.extract_if(.., |number| is_done(number)).collect();
        if !abandoned.is_empty() {
            foreign::leave();
        }
        done.into_iter().filter_map(|number| under_way.remove(&number)).collect()
    };
    done.into_iter().for_each(|parts| parts.end(py));
    foreign::sweep(py);
}

/// What a child of `fork` does first: it lets go of the objects that transfers of the parent fill.
/// It has copies of them.
#[pyfunction]
pub(crate) fn _after_fork_in_child(py: Python<'_>) {
    watched::forget_parents();
    NOT_DONE.store(0, Ordering::Relaxed);
    let parents = std::mem::take(&mut *UNDER_WAY.lock());
    ABANDONED.lock().clear();
    parents.into_values().for_each(Parts::forsake);
    foreign::sweep(py);
}

/// The outcome of a transfer, set once, by a thread of the runtime or by the loop that watches it.
pub(crate) struct Op {
    outcome: Mutex<Outcome>,
    done: Condvar,
    owner: OwningProcess,
    /// By this number a notifier names it. No other of the process has it.
    pub(crate) number: u64,
}

/// Transfers of this process that have no outcome yet.
static NOT_DONE: AtomicUsize = AtomicUsize::new(0);

/// The number of the next transfer.
static NEXT: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Outcome {
    result: Option<Result<(), Arc<Error>>>,
    /// Loops that hear of it once it is there.
    told: Vec<Arc<Told>>,
    /// Threads that wait for it: waking nobody costs a system call, too.
    waiting: usize,
}

impl Op {
    fn new() -> Arc<Op> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NOT_DONE.fetch_add(1, Ordering::Relaxed);
        Arc::new(Op { outcome: Mutex::default(), done: Condvar::new(), owner: OwningProcess::here(), number })
    }

    pub(crate) fn set(&self, result: datapipes::Result<()>) {
        let mut outcome = self.outcome.lock();
        if outcome.result.replace(result.map_err(Arc::new)).is_none() {
            NOT_DONE.fetch_sub(1, Ordering::Relaxed);
        }
        if outcome.waiting > 0 {
            self.done.notify_all();
        }
        let told = std::mem::take(&mut outcome.told);
        drop(outcome);
        told.iter().for_each(|told| told.tell(self.number));
    }

    /// Lets a loop hear of the outcome, now if it is there already.
    fn tell(&self, told: Arc<Told>) {
        let mut outcome = self.outcome.lock();
        if outcome.result.is_none() {
            outcome.told.push(told);
            return;
        }
        drop(outcome);
        told.tell(self.number);
    }

    /// In a child of `fork` nothing is ever done, and nobody may look.
    fn is_done(&self) -> bool {
        self.owner.is_here() && self.outcome.lock().result.is_some()
    }

    fn outcome(&self) -> Option<Result<(), Arc<Error>>> {
        self.outcome.lock().result.clone()
    }

    /// Returns the outcome if it is there within this time.
    fn wait(&self, patience: Duration) -> Option<Result<(), Arc<Error>>> {
        let mut outcome = self.outcome.lock();
        outcome.waiting += 1;
        let waited = self.done.wait_timeout_while(outcome, patience, |outcome| outcome.result.is_none());
        let mut outcome = waited.0;
        outcome.waiting -= 1;
        outcome.result.clone()
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        // It was not started; or it is the parent's, which a child does not count.
        if self.owner.is_here() && self.outcome.get_mut().result.is_none() {
            NOT_DONE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What carries out a transfer.
#[allow(dead_code)] // It is held, not looked at.
enum Carrier {
    /// A pipe that the file keeps.
    Kept(Arc<Staged>),
    /// A pipe of its own.
    Own(RuntimePipe),
    /// The pipe that an event loop watches itself.
    Watched(Arc<WatchedPipe>),
}

/// What a transfer needs until it is done.
struct Parts {
    op: Arc<Op>,
    carrier: Option<Carrier>,
    bytes: Bytes,
}

impl Parts {
    /// Whether it is done. What only a loop watches is asked, for the loop may be gone.
    fn is_done(&self) -> bool {
        if let (Some(Carrier::Watched(pipe)), true) = (&self.carrier, self.op.owner.is_here()) {
            pipe.poll_beside_the_loop();
        }
        self.op.is_done()
    }

    /// Lets go of the pipe, then of the bytes.
    fn end(self, py: Python<'_>) {
        let Parts { carrier, bytes, .. } = self;
        match carrier {
            // The file keeps it.
            Some(Carrier::Watched(pipe)) if Arc::strong_count(&pipe) > 1 => drop(pipe),
            None => {}
            carrier => py.detach(move || drop(carrier)),
        }
        bytes.end(py);
    }

    /// As [`end`](Self::end), in a child of the process that started the transfer.
    fn forsake(self) {
        let Parts { carrier, bytes, .. } = self;
        std::mem::forget(carrier);
        bytes.forsake();
    }
}

/// A transfer that was started. It goes on whatever becomes of this object, and keeps its buffer
/// until it is done.
#[pyclass(frozen, weakref, module = "datapipes", name = "Pending")]
pub(crate) struct Pending {
    op: Arc<Op>,
    len: u64,
    path: Arc<Path>,
}

impl Pending {
    pub(crate) fn is_done(&self) -> bool {
        self.op.is_done()
    }

    /// What is left of a read that is over already.
    pub(crate) fn done_at_once(len: u64, opened: &Opened) -> Pending {
        let op = Op::new();
        op.set(Ok(()));
        Pending { op, len, path: opened.path.clone() }
    }
}

/// Starts to fill bytes from `offset` of a file. Where there are none, the notifier hears of it at
/// once.
pub(crate) fn start(
    py: Python<'_>,
    opened: &Opened,
    offset: u64,
    bytes: Bytes,
    notifier: Option<&Notifier>,
) -> PyResult<Pending> {
    let (ssd, target) = (&opened.ssd, bytes.place());
    let (len, rest) = attached(py, || {
        let Some(target) = target else { return Ok((0, None)) };
        let len = available(ssd, offset, target.len())?;
        Ok((len, if len == 0 { None } else { Some(target.first(len)?) }))
    })?;
    let op = Op::new();
    match rest {
        Some(target) => {
            let carrier = Some(carry_out(py, opened, (offset, &target), &op, notifier)?);
            drop(target);
            UNDER_WAY.lock().insert(op.number, Parts { op: op.clone(), carrier, bytes });
        }
        None => {
            op.set(Ok(()));
            if let Some(notifier) = notifier {
                op.tell(notifier.share(py)?);
            }
        }
    }
    Ok(Pending { op, len, path: opened.path.clone() })
}

/// Starts a transfer that was not done at once.
fn carry_out(
    py: Python<'_>,
    opened: &Opened,
    (offset, place): (u64, &Place),
    op: &Arc<Op>,
    notifier: Option<&Notifier>,
) -> PyResult<Carrier> {
    let tell = notifier.map(|notifier| notifier.share(py)).transpose()?;
    if let (Some(told), Place::Host(target)) = (&tell, place)
        && WatchedPipe::is_for(target)
        && let Some(watched) = watched_pipe(py, opened, told)?
        && attached(py, || watched.start(offset, target, op))?
    {
        // This read is one of those.
        if NOT_DONE.load(Ordering::Relaxed) == 1 && turn::may_hold() {
            watched.look();
        }
        return Ok(Carrier::Watched(watched));
    }
    if let Some(tell) = tell {
        op.tell(tell);
    }
    let sink = op.clone();
    let finish = move |result: datapipes::Result<()>| sink.set(result);
    let runtime = runtime(py)?;
    let (ssd, len) = (&opened.ssd, place.len());
    let (Some(size), Place::Host(target)) = (KeptPipes::size_for(len), place) else {
        return detached_at(py, &opened.path, || {
            let options = ConnectOptions::default().constraints(Constraints::default().typical_len(len));
            let pipe = runtime.connect_with(ssd, place.locator(), &options)?;
            pipe.transfer(Span { source: offset, target: 0, len })?.on_done(finish);
            Ok(Carrier::Own(pipe))
        });
    };
    let staged = match opened.kept.get(size) {
        Some(staged) => staged,
        None => {
            let made = detached_at(py, &opened.path, || Staged::connect(&runtime, ssd, size))?;
            opened.kept.keep(size, made)
        }
    };
    detached_at(py, &opened.path, move || {
        staged.read(offset, target, Box::new(finish))?;
        Ok(Carrier::Kept(staged))
    })
}

/// The pipe of a file that a loop watches itself, if there can be one.
fn watched_pipe(py: Python<'_>, opened: &Opened, told: &Arc<Told>) -> PyResult<Option<Arc<WatchedPipe>>> {
    if let Some(known) = opened.kept.watched_by(told) {
        return Ok(known);
    }
    let made = detached_at(py, &opened.path, || WatchedPipe::connect(&opened.ssd, told))?;
    Ok(opened.kept.keep_watched(told, made))
}

#[pymethods]
impl Pending {
    /// Waits, at most `timeout` seconds, and returns the number of bytes.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        attached(py, || self.op.owner.check("wait"))?;
        let until = timeout.map(|seconds| {
            let patience = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
            Instant::now().checked_add(patience)
        });
        let outcome = loop {
            // Where it is there, no other thread needs to run meanwhile.
            if let Some(outcome) = self.op.outcome() {
                break outcome;
            }
            let rest = match until {
                Some(Some(until)) => until.saturating_duration_since(Instant::now()),
                _ => SIGNALS,
            };
            let op = &self.op;
            if let Some(outcome) = detached(py, || Ok(op.wait(rest.min(SIGNALS))))? {
                break outcome;
            }
            if rest.is_zero() {
                return Err(PyTimeoutError::new_err("the transfer is not done yet"));
            }
            py.check_signals()?;
            // What handles a signal may fork, and return here in the child.
            attached(py, || self.op.owner.check("wait"))?;
        };
        let parts = UNDER_WAY.lock().remove(&self.op.number);
        if let Some(parts) = parts {
            parts.end(py);
        }
        outcome.map(|()| self.len).map_err(|error| to_py_at(py, &error, Some(&self.path)))
    }

    /// Whether `result` would return at once.
    fn done(&self) -> bool {
        !self.op.owner.is_here() || self.op.is_done()
    }

    /// The exception of the transfer once it is done, or None.
    #[pyo3(signature = (timeout = None))]
    fn exception<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.result(py, timeout) {
            Ok(_) => Ok(None),
            Err(error) if error.is_instance_of::<PyTimeoutError>(py) && !self.done() => Err(error),
            Err(error) => Ok(Some(error.into_value(py).into_bound(py).into_any())),
        }
    }

    /// Waits for it in an event loop: by the loop's descriptor, without a thread that polls. Several
    /// tasks may wait for one transfer; one that is cancelled leaves it to the others.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let awaited = slf.py().import("datapipes._aio")?.call_method1("awaited", (slf,))?;
        awaited.call_method0("__await__")
    }

    /// Lets a notifier hear of it, now if it is done already.
    fn _tell(&self, py: Python<'_>, notifier: &Notifier) -> PyResult<()> {
        attached(py, || self.op.owner.check("wait"))?;
        self.op.tell(notifier.share(py)?);
        Ok(())
    }

    /// By this number a notifier names it.
    #[getter]
    fn _number(&self) -> u64 {
        self.op.number
    }

    fn __repr__(&self) -> String {
        format!("<datapipes.Pending of {} bytes, {}>", self.len, if self.done() { "done" } else { "under way" })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.op.owner.is_here() {
            // The transfer is the parent's.
            return;
        }
        let number = self.op.number;
        let parts = {
            let mut under_way = UNDER_WAY.lock();
            match under_way.get(&number).map(Parts::is_done) {
                Some(true) => under_way.remove(&number),
                Some(false) => {
                    ABANDONED.lock().push(number);
                    foreign::leave();
                    None
                }
                None => None,
            }
        };
        if let Some(parts) = parts {
            // An object is dropped with the interpreter's lock held.
            let _ = Python::try_attach(|py| parts.end(py));
        }
    }
}
