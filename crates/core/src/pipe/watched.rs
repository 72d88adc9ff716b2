//! Movers into files, and into memory that is a file, that tell the file's observers what they are
//! about to write, and when it is over.
#![deny(clippy::arithmetic_side_effects)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;

use crate::backend::{Chunked, Counters, InlineMover, Job, JobCompletion, Mover, QueuedMover};
use crate::error::{Error, Result};
use crate::locator::{Endpoint, WriteObservers};
use crate::span::Span;
use crate::sync::{Arc, Mutex, MutexGuard};

/// The mover, with the file's observers told of what it does, if the target is a file.
pub(super) fn watched(mover: Mover, target: &Endpoint) -> Mover {
    let Some((watchers, begins_at)) = target.watched_target() else { return mover };
    let told = Told { watchers: watchers.clone(), begins_at };
    match mover {
        Mover::Inline(inner) => Mover::Inline(Box::new(WatchedInline { inner, told })),
        Mover::Queued(inner) => {
            Mover::Queued(Box::new(WatchedQueue { inner, told, changes: Mutex::new(HashMap::new()) }))
        }
    }
}

/// Who is told, and where in the file the target begins.
struct Told {
    watchers: Arc<WriteObservers>,
    begins_at: u64,
}

impl Told {
    /// What of the file a span changes.
    fn range(&self, span: Span) -> std::ops::Range<u64> {
        let start = self.begins_at.saturating_add(span.target);
        start..start.saturating_add(span.len)
    }
}

struct WatchedInline {
    inner: Box<dyn InlineMover>,
    told: Told,
}

impl InlineMover for WatchedInline {
    fn transfer(&self, span: Span) -> Result<()> {
        self.told.watchers.write_observed(self.told.range(span), || self.inner.transfer(span))
    }

    fn parts(&self) -> Option<&dyn Chunked> {
        self.inner.parts().map(|_| self as &dyn Chunked)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

impl Chunked for WatchedInline {
    fn transfer_part(&self, part: &mut Job, whole: u64) -> Result<()> {
        match self.inner.parts() {
            Some(parts) => {
                self.told.watchers.write_observed(self.told.range(part.span), || parts.transfer_part(part, whole))
            }
            None => self.transfer(part.span),
        }
    }
}

struct WatchedQueue {
    inner: Box<dyn QueuedMover>,
    told: Told,
    /// The changes of the jobs under way, by token.
    changes: Mutex<HashMap<u64, u64>>,
}

impl WatchedQueue {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.changes.lock()
    }

    fn begin(&self, job: &Job) {
        let number = self.told.watchers.begin(self.told.range(job.span));
        self.lock().insert(job.token, number);
    }

    fn end(&self, token: u64) {
        let number = self.lock().remove(&token);
        if let Some(number) = number {
            self.told.watchers.end(number);
        }
    }
}

impl QueuedMover for WatchedQueue {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        self.begin(&job);
        self.inner.submit(job).inspect_err(|(job, _)| self.end(job.token))
    }

    fn submit_all(&self, jobs: &mut VecDeque<Job>) -> Result<()> {
        jobs.iter().for_each(|job| self.begin(job));
        let outcome = self.inner.submit_all(jobs);
        // What was not taken is not under way: it comes again, or is given up.
        jobs.iter().for_each(|job| self.end(job.token));
        outcome
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event()
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let before = done.len();
        let outcome = self.inner.complete(wait, done);
        done.iter().skip(before).for_each(|d| self.end(d.token));
        outcome
    }

    fn complete_several(&self, least: usize, done: &mut Vec<JobCompletion>) -> Result<()> {
        let before = done.len();
        let outcome = self.inner.complete_several(least, done);
        done.iter().skip(before).for_each(|d| self.end(d.token));
        outcome
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

impl Drop for WatchedQueue {
    fn drop(&mut self) {
        // Of a queue that broke, jobs never came back: what they may have written is not under way
        // for ever.
        let left: Vec<u64> = self.lock().drain().map(|(_, number)| number).collect();
        left.into_iter().for_each(|number| self.told.watchers.end(number));
    }
}
