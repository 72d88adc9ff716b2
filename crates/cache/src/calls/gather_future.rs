//! Many reads as one future.
//!
//! ```text
//! first poll: hits are copied on the polling thread; none is missing?  ready
//! otherwise:  a thread of the reader's makes the misses as `gather` does, and wakes the future
//! ```
//! A transfer of a runtime for each miss costs more than the miss. A batch wakes two threads,
//! whatever its size.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use datapipes_core::{Error, ErrorKind, Result};

use super::asynchronous::{AsyncReader, Shared};
use super::batches::{Job, Progress, Work};
use super::gather::{check, sum};
use crate::fine::FineGrained;
use crate::miss::gather::{Gathered, Gathering, Read};
use crate::sync::{Arc, Mutex, drop_waker};

/// A batch of reads in progress. It yields the buffer, filled, and the result of each read.
pub struct GatherFuture {
    /// Keeps the reader, and so its thread.
    shared: Arc<Shared>,
    step: Step,
}

enum Step {
    Begin { fine: FineGrained, reads: Result<Vec<Read>>, out: Vec<u8> },
    Waiting(Arc<Job>),
    Over,
}

impl AsyncReader {
    /// Reads `len` bytes at each offset into `out`, as one future: the asynchronous
    /// [`FineGrained::gather`]. It yields `out`, and what became of each read.
    ///
    /// Nothing happens until the future is polled. The first poll copies what is cached. The rest
    /// is read by a thread of this reader, one batch after the other: several readers read several
    /// batches at the same time. A waker that blocks, blocks that thread. Dropping the future
    /// cancels a batch that has not begun; one that has begun is finished, and its bytes are
    /// cached.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not `offsets.len() * len` bytes long. `Busy` where the limit
    /// of waiting futures is reached. Errors of single reads are in [`Gathered`].
    pub fn gather(&self, offsets: Vec<u64>, len: usize, out: Vec<u8>) -> GatherFuture {
        let reads = check(offsets.len().checked_mul(len), out.len())
            .map(|()| offsets.iter().enumerate().map(|(i, &offset)| Read { offset, len, out_at: i * len }).collect());
        self.batch(reads, out)
    }

    /// As [`gather`](Self::gather), for reads of any lengths: (offset, length) each.
    ///
    /// # Errors
    /// `InvalidInput` where the length of `out` is not the sum of all lengths. Others as
    /// [`gather`](Self::gather).
    pub fn gather_ranges(&self, ranges: Vec<(u64, usize)>, out: Vec<u8>) -> GatherFuture {
        let reads = check(sum(&ranges), out.len()).map(|()| {
            let mut out_at = 0;
            let read = |&(offset, len): &(u64, usize)| {
                let read = Read { offset, len, out_at };
                out_at += len;
                read
            };
            ranges.iter().map(read).collect()
        });
        self.batch(reads, out)
    }

    fn batch(&self, reads: Result<Vec<Read>>, out: Vec<u8>) -> GatherFuture {
        GatherFuture { shared: self.0.clone(), step: Step::Begin { fine: self.0.fine.clone(), reads, out } }
    }
}

impl GatherFuture {
    /// Looks into the cache. Returns None where the rest was handed to the thread.
    fn begin(
        &mut self,
        fine: FineGrained,
        reads: Vec<Read>,
        out: Vec<u8>,
        context: &Context<'_>,
    ) -> Result<Option<(Vec<u8>, Gathered)>> {
        let mut work = Work { fine, reads, out, gathering: Gathering::default() };
        if !work.look_up() {
            return Ok(Some(work.end()));
        }
        // The waker is there before the thread is, so that it is woken for certain.
        let progress = Progress { work: Some(work), outcome: None, waker: Some(context.waker().clone()) };
        let job = Arc::new(Job { progress: Mutex::new(progress) });
        self.step = Step::Waiting(job.clone());
        let handed = self.shared.batches.hand(job, self.shared.may_wait);
        handed.map(|()| None)
    }
}

impl Future for GatherFuture {
    type Output = Result<(Vec<u8>, Gathered)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.inner.owner.check("gather")?;
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Begin { fine, reads, out } => match self.begin(fine, reads?, out, context).transpose() {
                Some(outcome) => {
                    self.step = Step::Over;
                    Poll::Ready(outcome)
                }
                None => Poll::Pending,
            },
            Step::Waiting(job) => {
                // Wakers are foreign code: none is cloned or dropped under the lock.
                let waker = context.waker().clone();
                let mut progress = job.progress.lock();
                if let Some(outcome) = progress.outcome.take() {
                    drop(progress);
                    drop_waker(waker);
                    return Poll::Ready(Ok(outcome.unwrap_or_else(|panic| resume_unwind(panic))));
                }
                let before = progress.waker.replace(waker);
                drop(progress);
                before.into_iter().for_each(drop_waker);
                self.step = Step::Waiting(job);
                Poll::Pending
            }
            Step::Over => Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, "gather", "this future has ended"))),
        }
    }
}

impl Drop for GatherFuture {
    fn drop(&mut self) {
        // A forked child does not take part in its parent's cache.
        if let Step::Waiting(job) = &self.step
            && self.shared.inner.owner.is_here()
        {
            let mut progress = job.progress.lock();
            let (work, waker) = (progress.work.take(), progress.waker.take());
            drop(progress);
            drop(work);
            waker.into_iter().for_each(drop_waker);
        }
    }
}
