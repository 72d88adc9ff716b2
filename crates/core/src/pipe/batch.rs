//! Many short transfers of one pipe, submitted together and taken as they come.
#![deny(clippy::arithmetic_side_effects)]

use std::collections::VecDeque;

use super::queue::{Part, PartSink, Queue};
use super::{Body, Pipe};
use crate::error::{Error, Result};
use crate::process::OwningProcess;
use crate::span::Span;
use crate::sync::{Arc, Mutex, MutexGuard};

/// A transfer of a batch that is done: its tag, and how it went.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished {
    /// What the caller called it.
    pub tag: u64,
    /// Success means all bytes.
    pub result: Result<()>,
}

/// What came back and was not taken yet.
#[derive(Default)]
struct Arrivals(Mutex<VecDeque<Finished>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Finished>> {
        self.0.lock()
    }
}

impl PartSink for Arrivals {
    fn part_done(&self, at: u64, _len: u64, result: Result<()>) {
        self.lock().push_back(Finished { tag: at, result });
    }

    fn deliveries_done(&self) {}
}

/// Transfers of one pipe that are submitted in groups, each group with one call to the device, and
/// completed in any order.
///
/// ```no_run
/// # fn main() -> datapipes_core::Result<()> {
/// # let pipe: datapipes_core::Pipe = todo!();
/// use datapipes_core::Span;
/// let mut batch = pipe.batch();
/// batch.submit((0..64).map(|i| (i, Span { source: i * 8192, target: i * 512, len: 512 })));
/// while let Some(finished) = batch.next()? {
///     finished.result?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// A batch that is dropped waits for what it started. In a child made by `fork` it takes nothing,
/// and `next` says `Forked`.
pub struct Batch<'a> {
    pipe: &'a Pipe,
    arrivals: Arc<Arrivals>,
    under_way: usize,
    owner: OwningProcess,
}

impl Pipe {
    /// An empty batch.
    pub fn batch(&self) -> Batch<'_> {
        Batch { pipe: self, arrivals: Arc::new(Arrivals::default()), under_way: 0, owner: OwningProcess::here() }
    }
}

impl Batch<'_> {
    /// Starts transfers, each with a tag by which it comes back. One that cannot be started comes
    /// back with its error. Where the route has no queue, they are carried out here, one after the
    /// other. Where the iterator panics, what it gave before is not started, but on a route without
    /// a queue, and the batch goes on with what it had.
    pub fn submit(&mut self, transfers: impl IntoIterator<Item = (u64, Span)>) {
        if !self.owner.is_here() {
            // A thread of the parent's may hold the lock of what arrived.
            return;
        }
        // Where this thread does not get the pipe's share, each transfer is refused with the
        // reason.
        let lent = self.pipe.lend();
        let (Body::Queued(queue), Ok(_)) = (&self.pipe.body, &lent) else {
            for (tag, span) in transfers {
                let result = self.pipe.transfer(span);
                self.arrivals.lock().push_back(Finished { tag, result });
                self.under_way = self.under_way.saturating_add(1);
            }
            return;
        };
        // The iterator is the caller's and may panic: what it gave is counted when it is submitted,
        // and what was not, with its leases, goes with the panic.
        let mut parts = Vec::new();
        for (tag, span) in transfers {
            match self.pipe.check(span).and_then(|span| queue.collect_and_lease(span.span())) {
                Ok((source, target)) => {
                    let sink = self.arrivals.clone();
                    parts.push(Part { at: tag, span, source, target, sink, notifier: None });
                }
                Err(error) => {
                    self.arrivals.lock().push_back(Finished { tag, result: Err(error) });
                    self.under_way = self.under_way.saturating_add(1);
                }
            }
        }
        if !parts.is_empty() {
            self.under_way = self.under_way.saturating_add(parts.len());
            queue.submit_parts(parts);
        }
    }

    /// Transfers that have not been taken yet.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// The next that is done; waits for one. None when all have been taken.
    ///
    /// # Errors
    /// Only where the queue itself is broken; what is under way is then lost, and counted as taken.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Finished>> {
        self.wait_for(1)?;
        Ok(self.try_next())
    }

    /// Waits until something is done; where the device can say so, until about `least` are. Returns
    /// at once if nothing is under way, or something is done already.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn wait_for(&mut self, least: usize) -> Result<()> {
        self.owner.check("take what is done")?;
        if let Body::Queued(queue) = &self.pipe.body
            && self.under_way > 0
        {
            // Who finds something done waits for nothing: entering and leaving the group would be
            // paid for each item.
            let waits = self.arrivals.lock().is_empty();
            let share = self.pipe.share.as_ref().filter(|_| waits);
            let _lent = share.and_then(|share| share.lend_if_possible());
            let least = least.clamp(1, self.under_way);
            self.drive(queue, least).inspect_err(|_| self.under_way = 0)?;
        }
        Ok(())
    }

    /// One that is known to be done, without asking the device.
    pub fn try_next(&mut self) -> Option<Finished> {
        if !self.owner.is_here() {
            return None;
        }
        let finished = self.arrivals.lock().pop_front()?;
        self.under_way = self.under_way.saturating_sub(1);
        Some(finished)
    }

    fn drive(&self, queue: &Queue, least: usize) -> Result<(), Error> {
        queue.drive_batch(least, || !self.arrivals.lock().is_empty()).map(|_| ())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.next() {}
    }
}
