//! Many reads as one future.
//!
//! ```text
//! first poll: hits are copied on the polling thread; none is missing?  ready
//! otherwise:  a thread of the reader's makes the misses as `gather` does, and wakes the future
//! ```
//! A transfer of a runtime for each miss costs more than the miss. A batch costs two wake-ups of
//! threads, whatever its size.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use datapipes_core::{Error, ErrorKind, Result};

use super::gather::{check, sum};
use crate::fine::FineGrained;
use crate::miss::gather::{Gathered, Gathering, Read};
use crate::sync::{Arc, Condvar, Mutex, drop_waker, wake_all};

/// The batches of a reader that wait for its thread, which is started with the first one.
pub(super) struct Batches {
    queue: Mutex<Queue>,
    come: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    has_thread: bool,
    /// Whether the reader is gone, so that no further batch comes.
    over: bool,
}

/// What a batch's thread returns: the bytes and the result, or the panic of the user's check.
type Outcome = std::result::Result<(Vec<u8>, Gathered), Box<dyn Any + Send>>;

/// A batch whose misses the thread reads.
struct Job {
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// Taken by the thread when it begins, or by a future that is dropped before that.
    work: Option<Work>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The state of a batch.
struct Work {
    /// Keeps the file open.
    fine: FineGrained,
    reads: Vec<Read>,
    out: Vec<u8>,
    gathering: Gathering,
}

impl Work {
    /// Looks up reads until some are missing. Returns false where all reads were hits.
    fn look_up(&mut self) -> bool {
        let Work { fine, reads, out, gathering } = self;
        let read = |i: usize| reads[i];
        while gathering.look_up(&fine.0, reads.len(), &read, out) {
            if gathering.has_misses() {
                return true;
            }
        }
        false
    }

    /// Reads what is missing, and the rest of the batch.
    fn finish(mut self) -> (Vec<u8>, Gathered) {
        loop {
            let Work { fine, reads, out, gathering } = &mut self;
            let read = |i: usize| reads[i];
            gathering.fetch(&fine.0, &read, out);
            if !self.look_up() {
                return self.end();
            }
        }
    }

    fn end(self) -> (Vec<u8>, Gathered) {
        (self.out, self.gathering.end())
    }
}

impl Job {
    /// Makes the batch, unless its future was dropped, and wakes the future.
    fn run(&self) {
        let Some(work) = self.progress.lock().work.take() else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| work.finish()));
        let mut progress = self.progress.lock();
        progress.outcome = Some(outcome);
        let waker = progress.waker.take();
        drop(progress);
        wake_all(waker);
    }
}

impl Batches {
    pub(super) fn new() -> Arc<Batches> {
        Arc::new(Batches { queue: Mutex::default(), come: Condvar::new() })
    }

    /// Hands a batch to the thread.
    ///
    /// # Errors
    /// `Busy` where `may_wait` batches wait. `System` where the kernel refuses a thread.
    fn hand(self: &Arc<Batches>, job: Arc<Job>, may_wait: usize) -> Result<()> {
        let mut queue = self.queue.lock();
        if queue.jobs.len() > may_wait {
            let context = format!("{may_wait} batches are waiting for their turn");
            return Err(Error::new(ErrorKind::Busy, "gather", context)
                .with_advice("gather with fewer futures at once, or let more wait"));
        }
        if !queue.has_thread {
            let own = self.clone();
            datapipes_core::threads::spawn("fine-gather", move || own.serve())?;
            queue.has_thread = true;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.come.notify_one();
        Ok(())
    }

    /// Makes batches until the reader is gone and none is left.
    fn serve(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                drop(job);
                queue = self.queue.lock();
            } else if queue.over {
                return;
            } else {
                queue = self.come.wait(queue);
            }
        }
    }

    /// Ends the thread after the batches that were handed to it.
    pub(super) fn end(&self) {
        self.queue.lock().over = true;
        self.come.notify_all();
    }
}

/// A batch of reads in progress. It yields the buffer, filled, and the result of each read.
pub struct GatherFuture {
    /// Keeps the reader, and so its thread.
    shared: Arc<super::asynchronous::Shared>,
    step: Step,
}

enum Step {
    Begin { fine: FineGrained, reads: Result<Vec<Read>>, out: Vec<u8> },
    Waiting(Arc<Job>),
    Over,
}

impl super::asynchronous::AsyncReader {
    /// Reads `len` bytes at each offset into `out`, as one future: the asynchronous
    /// [`FineGrained::gather`]. It costs little more than that, where as many futures of
    /// [`read`](Self::read) cost twice as much. It yields `out`, and what became of each read.
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
