//! The submit path and the completion path of every pipe with a queue.
//!
//! ```text
//! submit: lease the bytes in memory -> job -> mover           any thread
//! wait:   mine done?  return it
//!         nobody completing?  I do: mover.complete(wait), file the results, wake the others
//!         otherwise sleep until the one who completes wakes me
//! ```
//!
//! A result is either filed under a token, for the blocking flavor, or delivered to a [`PartSink`],
//! for the runtime, which moves parts of transfers. Whoever completes delivers, after the lock is
//! let go.
//!
//! A child that was made by `fork` shares the mover's ring and its registrations with its parent,
//! and may have a copy of a lock that a thread held which it does not have. So it neither asks nor
//! locks nor drops the mover.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::BorrowedFd;

use crate::backend::{CompletionNotifier, Counters, Job, JobCompletion, QueuedMover};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode, Panicked, reentry};
use crate::memory::{Access, MemoryRange, RawLease};
use crate::process::{DroppedHere, OwningProcess};
use crate::span::Span;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Who hears that a part is done.
pub(crate) trait PartSink: Send + Sync {
    /// The part of `len` bytes at `at` of its transfer is done; called once a part, by whoever
    /// completes.
    fn part_done(&self, at: u64, len: u64, result: Result<()>);

    /// All that was done at once has been told.
    fn deliveries_done(&self);
}

/// A piece of a transfer: where it lies in it, and what moves.
pub(crate) struct Part {
    pub(crate) at: u64,
    pub(crate) span: Span,
    pub(crate) source: Option<RawLease>,
    pub(crate) target: Option<RawLease>,
    pub(crate) sink: Arc<dyn PartSink>,
    pub(crate) notifier: Option<Arc<CompletionNotifier>>,
}

/// A part that is done and not yet delivered.
type Delivery = (Arc<dyn PartSink>, u64, u64, Result<()>);

enum Slot {
    Pending,
    /// Its handle was dropped: the result is of interest to nobody.
    Forgotten,
    Finished(Result<()>),
    /// To be delivered rather than filed.
    Part {
        sink: Arc<dyn PartSink>,
        at: u64,
        len: u64,
    },
}

#[derive(Default)]
struct QueueState {
    slots: HashMap<u64, Slot>,
    /// How many of them are parts.
    parts: usize,
    /// Results that came from the mover.
    results_received: u64,
    /// Threads that are handing parts to the mover, which may not have them yet.
    submitting: usize,
    completing: bool,
    /// It sleeps until something is done.
    waiting: bool,
    /// Threads that deliver what they took from the mover.
    delivering: usize,
    /// The coordinator came while somebody was completing: what is left afterwards needs its
    /// attention.
    wanted: bool,
    /// The mover is lost, with this: whoever brings parts hears it at once.
    broken: Option<(ErrorKind, String)>,
    /// Threads that sleep on `filed`: waking nobody costs a system call too.
    sleepers: usize,
    scratch: Vec<JobCompletion>,
    deliveries: Vec<Delivery>,
}

pub(crate) struct Queue {
    mover: DroppedHere<Box<dyn QueuedMover>>,
    owner: OwningProcess,
    source: Option<MemoryRange>,
    target: Option<MemoryRange>,
    next: AtomicU64,
    results: Mutex<QueueState>,
    filed: Condvar,
}

impl Queue {
    pub(crate) fn new(mover: Box<dyn QueuedMover>, source: Option<MemoryRange>, target: Option<MemoryRange>) -> Self {
        Queue {
            mover: DroppedHere::new(mover),
            owner: OwningProcess::here(),
            source,
            target,
            next: AtomicU64::new(1),
            results: Mutex::new(QueueState::default()),
            filed: Condvar::new(),
        }
    }

    /// Leases and submits; the token is for [`wait`](Self::wait).
    pub(crate) fn submit(&self, span: Span) -> Result<u64> {
        let (source, target) = self.collect_and_lease(span)?;
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let mut results = self.lock();
        results.check_mover()?;
        results.slots.insert(token, Slot::Pending);
        drop(results);
        let job = Job { token, span, source, target, notifier: None };
        let within = reentry::enter_queue(self.address(), false);
        let outcome = guard::call(ForeignCode::Mover, || self.mover.submit(job).map_err(|(_job, error)| error));
        drop(within);
        let outcome = outcome.unwrap_or_else(|panicked| Err(self.mark_broken(&panicked)));
        outcome.inspect_err(|_| _ = self.lock().slots.remove(&token))?;
        Ok(token)
    }

    /// Submits parts, together; those that the mover refuses are delivered with its error.
    pub(crate) fn submit_parts(&self, parts: impl IntoIterator<Item = Part>) {
        let mut jobs = VecDeque::new();
        // What is put off is called when all is told, and the lock let go.
        let _within = reentry::enter_queue(self.address(), true);
        let mut results = self.lock();
        for part in parts {
            let token = self.next.fetch_add(1, Ordering::Relaxed);
            results.slots.insert(token, Slot::Part { sink: part.sink, at: part.at, len: part.span.len });
            results.parts += 1;
            jobs.push_back(Job {
                token,
                span: part.span,
                source: part.source,
                target: part.target,
                notifier: part.notifier,
            });
        }
        if results.broken.is_some() {
            // Their leases go before anybody hears of it.
            drop(jobs);
            fail_outstanding(&mut results);
            return drop(self.deliver(results));
        }
        results.submitting += 1;
        drop(results);
        loop {
            let outcome = guard::call(ForeignCode::Mover, || self.mover.submit_all(&mut jobs));
            let error = match outcome {
                Ok(Ok(())) => break,
                Ok(Err(error)) => error,
                Err(panicked) => {
                    // Which of them it has nobody knows. Their leases go before anybody hears of
                    // it.
                    jobs.clear();
                    self.mark_broken(&panicked);
                    break;
                }
            };
            let Some(refused) = jobs.pop_front() else { break };
            let mut results = self.lock();
            record_result(&mut results, JobCompletion { token: refused.token, result: Err(error) });
            // Its leases go before anybody hears of it.
            drop(refused);
            drop(self.deliver(results));
        }
        if !self.owner.is_here() {
            return guard::abandon();
        }
        let mut results = self.lock();
        results.submitting -= 1;
        // One who leads may have found nothing at the mover.
        self.wake(&results);
    }

    /// Leases the bytes of a span. Where they are busy, it may be a transfer that is done, of which
    /// nobody took note yet.
    pub(crate) fn leases(&self, span: Span) -> Result<(Option<RawLease>, Option<RawLease>)> {
        let source = lease(self.source.as_ref(), span.source, span.len, Access::Read)?;
        let target = lease(self.target.as_ref(), span.target, span.len, Access::Write)?;
        Ok((source, target))
    }

    /// As [`leases`](Self::leases), and where bytes are busy, the caller first takes note of what
    /// is done: a transfer of this pipe whose handle was dropped may be. Where a coordinator takes
    /// note of that, it must not be done here.
    pub(crate) fn collect_and_lease(&self, span: Span) -> Result<(Option<RawLease>, Option<RawLease>)> {
        self.leases(span).or_else(|e| match e.kind() {
            ErrorKind::Busy => {
                self.try_drive()?;
                self.leases(span)
            }
            _ => Err(e),
        })
    }

    pub(crate) fn wait(&self, token: u64) -> Result<()> {
        self.owner.check("wait")?;
        let mut results = self.lock();
        loop {
            match results.slots.get(&token) {
                Some(Slot::Finished(_)) => match results.slots.remove(&token) {
                    Some(Slot::Finished(result)) => return result,
                    _ => unreachable!("the slot was just seen to be finished"),
                },
                Some(Slot::Pending) => {}
                Some(Slot::Forgotten | Slot::Part { .. }) | None => {
                    return Err(Error::new(ErrorKind::InvalidInput, "wait", format!("no transfer has token {token}")));
                }
            }
            if results.completing {
                self.check_reentry()?;
                results = self.sleep(results);
            } else {
                results = self.complete(results, 1)?;
            }
        }
    }

    /// Completes, or sleeps while another thread does, until the condition holds. It must be one
    /// that the delivery of parts makes true. True if parts are left behind that the coordinator
    /// wanted to look after.
    pub(crate) fn drive(&self, until: impl Fn() -> bool) -> Result<bool> {
        self.drive_batch(1, until)
    }

    /// As [`lead`](Self::drive), asking the mover for about `least` results at a time.
    pub(crate) fn drive_batch(&self, least: usize, until: impl Fn() -> bool) -> Result<bool> {
        self.owner.check("wait")?;
        let mut results = self.lock();
        if !until() {
            self.check_reentry()?;
        }
        while !until() {
            // Without parts at the mover, somebody is delivering the last ones.
            if results.completing || results.parts == 0 {
                results = self.sleep(results);
                continue;
            }
            let came = results.results_received;
            results = self.complete(results, least)?;
            // The mover had nothing, because those that are counted are still on their way to it.
            if results.results_received == came && results.submitting > 0 && !results.completing && !until() {
                results = self.sleep(results);
            }
        }
        Ok(std::mem::take(&mut results.wanted) && results.parts > 0)
    }

    /// Takes what is done, without blocking, unless another thread is at it. True as for
    /// [`lead`](Self::drive).
    pub(crate) fn try_drive(&self) -> Result<bool> {
        self.owner.check("complete")?;
        let results = self.lock();
        if results.completing {
            return Ok(false);
        }
        let mut results = self.complete(results, 0)?;
        Ok(std::mem::take(&mut results.wanted) && results.parts > 0)
    }

    /// As [`poke`](Self::try_drive), but where another thread is at it without sleeping, or
    /// delivers what it found, this waits for it: what it has looked at may be older than this
    /// call. One that sleeps at the mover wakes up for whatever is done, and has the coordinator
    /// look after what is left when it goes.
    pub(crate) fn try_drive_synced(&self) -> Result<bool> {
        self.owner.check("complete")?;
        let mut results = self.lock();
        let may_wait = self.check_reentry().is_ok();
        while may_wait && (results.completing && !results.waiting || results.delivering > 0) {
            results = self.sleep(results);
        }
        if results.completing {
            // It may be on its way back.
            results.wanted = true;
            return Ok(false);
        }
        let mut results = self.complete(results, 0)?;
        Ok(std::mem::take(&mut results.wanted) && results.parts > 0)
    }

    /// As [`poke`](Self::try_drive), for the coordinator: true if parts are left for it to look
    /// after. Where another thread is at it, that thread will see to it that they are.
    pub(crate) fn drive_for_coordinator(&self) -> Result<bool> {
        self.owner.check("complete")?;
        let mut results = self.lock();
        if results.completing {
            results.wanted = true;
            return Ok(false);
        }
        let mut results = self.complete(results, 0)?;
        results.wanted = false;
        Ok(results.parts > 0)
    }

    /// Whether parts are at the mover.
    pub(crate) fn has_parts(&self) -> bool {
        self.lock().parts > 0
    }

    /// The mover's event.
    pub(crate) fn event(&self) -> Option<BorrowedFd<'_>> {
        self.mover.event()
    }

    pub(crate) fn is_done(&self, token: u64) -> bool {
        if !self.owner.is_here() {
            // `wait` says so, at once.
            return true;
        }
        let mut results = self.lock();
        if !results.completing && matches!(results.slots.get(&token), Some(Slot::Pending)) {
            match self.complete(results, 0) {
                Ok(r) => results = r,
                // A broken queue: `wait` will say so, at once.
                Err(_) => return true,
            }
        }
        !matches!(results.slots.get(&token), Some(Slot::Pending))
    }

    pub(crate) fn forget(&self, token: u64) {
        if !self.owner.is_here() {
            return;
        }
        let mut results = self.lock();
        match results.slots.get_mut(&token) {
            Some(slot @ Slot::Pending) => *slot = Slot::Forgotten,
            Some(Slot::Finished(_)) => drop(results.slots.remove(&token)),
            Some(Slot::Forgotten | Slot::Part { .. }) | None => {}
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.mover.counters()
    }

    /// This queue, among what a thread is in the middle of.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether this thread is at the mover.
    pub(crate) fn is_within(&self) -> bool {
        reentry::is_within(self.address())
    }

    /// Foreign code that the mover calls may not wait for the mover.
    fn check_reentry(&self) -> Result<()> {
        if !self.is_within() {
            return Ok(());
        }
        let why = "it was called by what this pipe's own mover calls, which goes on when that returns";
        Err(Error::new(ErrorKind::InvalidInput, "wait", why)
            .with_advice("leave the wait to another thread, or to a callback"))
    }

    /// Asks the mover for what is done, files and delivers it; waits for about `least`. The lock is
    /// not held meanwhile.
    fn complete<'a>(&'a self, results: MutexGuard<'a, QueueState>, least: usize) -> Result<MutexGuard<'a, QueueState>> {
        let within = reentry::enter_queue(self.address(), results.parts > 0);
        let outcome = self.complete_within(results, least);
        if within.is_quiet() {
            return outcome;
        }
        let results = outcome.map(drop);
        drop(within);
        // What was called may have forked, and a child does not look at the lock.
        self.owner.check("complete")?;
        results.map(|()| self.lock())
    }

    fn complete_within<'a>(
        &'a self,
        mut results: MutexGuard<'a, QueueState>,
        least: usize,
    ) -> Result<MutexGuard<'a, QueueState>> {
        results.check_mover()?;
        results.completing = true;
        results.waiting = least > 0;
        let mut done = std::mem::take(&mut results.scratch);
        drop(results);
        let wait = least > 0;
        let outcome = guard::call(ForeignCode::Mover, || match least {
            0 | 1 => self.mover.complete(wait, &mut done),
            several => self.mover.complete_several(several, &mut done),
        });
        let outcome = outcome.unwrap_or_else(|panicked| Err(panicked.error("complete")));
        if let Err(forked) = self.owner.check("complete") {
            guard::abandon();
            return Err(forked);
        }
        let mut results = self.lock();
        results.completing = false;
        // Who submits wakes everybody; before that there is nothing to lead.
        let is_early = wait && outcome.is_ok() && done.is_empty() && results.submitting > 0;
        results.results_received += done.len() as u64;
        for d in done.drain(..) {
            record_result(&mut results, d);
        }
        results.scratch = done;
        if let Err(error) = &outcome {
            // The queue is broken: no part will come back. Their leases stay with the mover.
            results.broken = Some((error.kind(), error.to_string()));
            fail_outstanding(&mut results);
        }
        if !is_early {
            self.wake(&results);
        }
        let results = self.deliver(results);
        outcome.and(results)
    }

    /// Delivers what was filed for sinks, without the lock.
    ///
    /// # Errors
    /// `Forked` where what was called meanwhile forked, and this is the child.
    fn deliver<'a>(&'a self, mut results: MutexGuard<'a, QueueState>) -> Result<MutexGuard<'a, QueueState>> {
        if results.deliveries.is_empty() {
            return Ok(results);
        }
        let mut deliveries = std::mem::take(&mut results.deliveries);
        results.delivering += 1;
        drop(results);
        // What is not ours is called when all is told, and those who lead until a delivery were
        // woken.
        let hold = guard::defer_calls();
        let mut told: Vec<Arc<dyn PartSink>> = Vec::with_capacity(deliveries.len());
        for (sink, at, len, result) in deliveries.drain(..) {
            sink.part_done(at, len, result);
            told.push(sink);
        }
        for sink in told {
            sink.deliveries_done();
        }
        let mut results = self.lock();
        results.delivering -= 1;
        if results.deliveries.is_empty() {
            results.deliveries = deliveries;
        }
        // For those who lead until a delivery.
        self.wake(&results);
        drop(results);
        drop(hold);
        self.owner.check("complete")?;
        Ok(self.lock())
    }

    /// The mover panicked: it is not asked any more, and whoever has a part at it hears that.
    #[cold]
    fn mark_broken(&self, panicked: &Panicked) -> Error {
        let error = panicked.error("submit");
        let mut results = self.lock();
        results.broken = Some((error.kind(), error.to_string()));
        fail_outstanding(&mut results);
        self.wake(&results);
        drop(self.deliver(results));
        error
    }

    fn sleep<'a>(&self, mut results: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        results.sleepers += 1;
        let mut results = self.filed.wait(results);
        results.sleepers -= 1;
        results
    }

    fn wake(&self, results: &MutexGuard<'_, QueueState>) {
        if results.sleepers > 0 {
            self.filed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // The lock is not held while foreign code runs, so a poisoned one guards a state that is
        // whole.
        self.results.lock()
    }
}

impl QueueState {
    /// A mover that panicked is not called again.
    fn check_mover(&self) -> Result<()> {
        match &self.broken {
            Some((ErrorKind::Panicked, text)) => Err(Error::relayed(ErrorKind::Panicked, text.clone())),
            _ => Ok(()),
        }
    }
}

/// Puts a result where it belongs.
fn record_result(results: &mut QueueState, done: JobCompletion) {
    match results.slots.get_mut(&done.token) {
        Some(slot @ Slot::Pending) => *slot = Slot::Finished(done.result),
        _ => {
            if let Some(Slot::Part { sink, at, len }) = results.slots.remove(&done.token) {
                results.parts -= 1;
                results.deliveries.push((sink, at, len, done.result));
            }
        }
    }
}

/// Of a queue that is broken no part comes back.
fn fail_outstanding(results: &mut QueueState) {
    let Some((kind, text)) = results.broken.clone() else { return };
    let lost: Vec<u64> =
        results.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Part { .. })).map(|(t, _)| *t).collect();
    for token in lost {
        record_result(results, JobCompletion { token, result: Err(Error::new(kind, "complete", text.clone())) });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        // Forgotten transfers may still be in flight: the device must be quiet before the mover
        // goes. Parts keep their queue alive, so there are none.
        let mut done = Vec::new();
        loop {
            let before = done.len();
            if self.lock().check_mover().is_err() {
                break;
            }
            let outcome = guard::call(ForeignCode::Mover, || self.mover.complete(true, &mut done));
            if !matches!(outcome, Ok(Ok(()))) || done.len() == before {
                break;
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.owner.is_here() {
            return f.write_str("Queue(of the parent)");
        }
        write!(f, "Queue({} transfers)", self.lock().slots.len())
    }
}

pub(crate) fn lease(range: Option<&MemoryRange>, at: u64, len: u64, access: Access) -> Result<Option<RawLease>> {
    let Some(range) = range else { return Ok(None) };
    let out_of_range = || {
        Error::new(
            ErrorKind::OutOfRange,
            "transfer",
            format!("{len} bytes at {at} of a place of {} bytes", range.len()),
        )
    };
    let at = usize::try_from(at).map_err(|_| out_of_range())?;
    let len_here = usize::try_from(len).map_err(|_| out_of_range())?;
    range.range(at, len_here).map_err(|_| out_of_range())?.raw_lease(access).map(Some)
}
