//! The submit path and the completion path of every pipe with a queue.
//!
//! ```text
//! submit: lease the bytes in memory -> job -> mover           any thread
//! wait:   mine done?  return it
//!         nobody completing?  I do: mover.complete(wait), file the results, wake the others
//!         otherwise sleep until the one who completes wakes me
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{Counters, Done, Job, Queued};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Access, MemoryRange, RawLease};
use crate::span::Span;

enum Slot {
    Pending,
    /// Its handle was dropped: the result is of interest to nobody.
    Forgotten,
    Finished(Result<()>),
}

#[derive(Default)]
struct Results {
    slots: HashMap<u64, Slot>,
    completing: bool,
    scratch: Vec<Done>,
}

pub(crate) struct Queue {
    mover: Box<dyn Queued>,
    source: Option<MemoryRange>,
    target: Option<MemoryRange>,
    next: AtomicU64,
    results: Mutex<Results>,
    filed: Condvar,
}

impl Queue {
    pub(crate) fn new(mover: Box<dyn Queued>, source: Option<MemoryRange>, target: Option<MemoryRange>) -> Self {
        Queue {
            mover,
            source,
            target,
            next: AtomicU64::new(1),
            results: Mutex::new(Results::default()),
            filed: Condvar::new(),
        }
    }

    /// Leases and submits; the token is for [`wait`](Self::wait).
    pub(crate) fn submit(&self, span: Span) -> Result<u64> {
        let (source, target) = match self.leases(span) {
            Err(e) if e.kind() == ErrorKind::Busy => {
                // A transfer of this pipe whose handle was dropped may be done, with nobody to take note of it.
                let results = self.lock();
                if !results.completing {
                    drop(self.complete(results, false)?);
                }
                self.leases(span)?
            }
            leases => leases?,
        };
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().slots.insert(token, Slot::Pending);
        if let Err((_job, error)) = self.mover.submit(Job { token, span, source, target }) {
            self.lock().slots.remove(&token);
            return Err(error);
        }
        Ok(token)
    }

    fn leases(&self, span: Span) -> Result<(Option<RawLease>, Option<RawLease>)> {
        let source = lease(self.source.as_ref(), span.source, span.len, Access::Read)?;
        let target = lease(self.target.as_ref(), span.target, span.len, Access::Write)?;
        Ok((source, target))
    }

    pub(crate) fn wait(&self, token: u64) -> Result<()> {
        let mut results = self.lock();
        loop {
            match results.slots.get(&token) {
                Some(Slot::Finished(_)) => match results.slots.remove(&token) {
                    Some(Slot::Finished(result)) => return result,
                    _ => unreachable!("the slot was just seen to be finished"),
                },
                Some(Slot::Pending) => {}
                Some(Slot::Forgotten) | None => {
                    return Err(Error::new(ErrorKind::InvalidInput, "wait", format!("no transfer has token {token}")));
                }
            }
            if results.completing {
                results = self.filed.wait(results).unwrap_or_else(PoisonError::into_inner);
            } else {
                results = self.complete(results, true)?;
            }
        }
    }

    pub(crate) fn is_done(&self, token: u64) -> bool {
        let mut results = self.lock();
        if !results.completing && matches!(results.slots.get(&token), Some(Slot::Pending)) {
            match self.complete(results, false) {
                Ok(r) => results = r,
                // A broken queue: `wait` will say so, at once.
                Err(_) => return true,
            }
        }
        !matches!(results.slots.get(&token), Some(Slot::Pending))
    }

    pub(crate) fn forget(&self, token: u64) {
        let mut results = self.lock();
        match results.slots.get_mut(&token) {
            Some(slot @ Slot::Pending) => *slot = Slot::Forgotten,
            Some(Slot::Finished(_)) => drop(results.slots.remove(&token)),
            Some(Slot::Forgotten) | None => {}
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.mover.counters()
    }

    /// Asks the mover for what is done and files it. The lock is not held meanwhile.
    fn complete<'a>(&'a self, mut results: MutexGuard<'a, Results>, wait: bool) -> Result<MutexGuard<'a, Results>> {
        results.completing = true;
        let mut done = std::mem::take(&mut results.scratch);
        drop(results);
        let outcome = self.mover.complete(wait, &mut done);
        let mut results = self.lock();
        results.completing = false;
        for d in done.drain(..) {
            match results.slots.get_mut(&d.token) {
                Some(slot @ Slot::Pending) => *slot = Slot::Finished(d.result),
                _ => drop(results.slots.remove(&d.token)),
            }
        }
        results.scratch = done;
        self.filed.notify_all();
        outcome.map(|()| results)
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        // The lock is never held while foreign code runs, so a poisoned one guards a state that is whole.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Forgotten transfers may still be in flight: the device must be quiet before the mover goes.
        let mut done = Vec::new();
        loop {
            let before = done.len();
            if self.mover.complete(true, &mut done).is_err() || done.len() == before {
                break;
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} transfers)", self.lock().slots.len())
    }
}

fn lease(range: Option<&MemoryRange>, at: u64, len: u64, access: Access) -> Result<Option<RawLease>> {
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
