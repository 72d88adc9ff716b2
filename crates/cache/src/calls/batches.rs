//! The thread of a reader that makes batches of reads, one after the other, for their futures
//! ([`gather_future`](super::gather_future)).

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use datapipes_core::{Error, ErrorKind, Result};

use crate::fine::FineGrained;
use crate::miss::gather::{Gathered, Gathering, Read};
use crate::sync::{Arc, Condvar, Mutex, wake_all};

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
pub(super) type Outcome = std::result::Result<(Vec<u8>, Gathered), Box<dyn Any + Send>>;

/// A batch whose misses the thread reads.
pub(super) struct Job {
    pub(super) progress: Mutex<Progress>,
}

#[derive(Default)]
pub(super) struct Progress {
    /// Taken by the thread when it begins, or by a future that is dropped before that.
    pub(super) work: Option<Work>,
    pub(super) outcome: Option<Outcome>,
    pub(super) waker: Option<Waker>,
}

/// The state of a batch.
pub(super) struct Work {
    /// Keeps the file open.
    pub(super) fine: FineGrained,
    pub(super) reads: Vec<Read>,
    pub(super) out: Vec<u8>,
    pub(super) gathering: Gathering,
}

impl Work {
    /// Looks up reads until some are missing. Returns false where all reads were hits.
    pub(super) fn look_up(&mut self) -> bool {
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

    pub(super) fn end(self) -> (Vec<u8>, Gathered) {
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
    pub(super) fn hand(self: &Arc<Batches>, job: Arc<Job>, may_wait: usize) -> Result<()> {
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
