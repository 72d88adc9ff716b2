//! A job whose leases end when no request touches its bytes any more.
//!
//! A request that failed may still be known to a connection that is being closed. So the job is
//! held by all that may touch its bytes, tasks and bodies of requests, and it is done when the last
//! of them lets go.
//!
//! This module's unsafe code promises: bytes are read and written only where the job's lease
//! permits it, within its length, and while the lease is held. Ranges that are written at once do
//! not overlap: they are pieces of one span.
#![allow(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use datapipes_core::backend::{Job, JobCompletion};
use datapipes_core::locks::Mutex;
use datapipes_core::memory::{Access, MemoryRange, RawLease, guarded};
use datapipes_core::{Error, ErrorKind, Result, Span};

use super::completions::Completions;

#[derive(Default)]
struct Outcome {
    /// Pieces that were moved, at least in part: where each begins in the span, and bytes moved.
    moved: Vec<(u64, u64)>,
    error: Option<Error>,
}

/// A job on its way.
pub(super) struct LeasedJob {
    /// `None` only while it is dropped.
    job: Option<Job>,
    span: Span,
    outcome: Mutex<Outcome>,
    completions: Arc<Completions>,
}

impl LeasedJob {
    /// Takes a job whose memory end is leased.
    #[allow(clippy::result_large_err)] // The job comes back whole.
    pub(super) fn admit(job: Job, completions: &Arc<Completions>) -> std::result::Result<Arc<LeasedJob>, (Job, Error)> {
        let leased = match (&job.source, &job.target) {
            (Some(lease), None) => lease.len() as u64 == job.span.len,
            (None, Some(lease)) => lease.len() as u64 == job.span.len && lease.access() == Access::Write,
            _ => false,
        };
        if !leased {
            let error = Error::new(ErrorKind::InvalidInput, "transfer", "a job without the lease of its memory");
            return Err((job, error));
        }
        completions.admitted();
        let span = job.span;
        let (outcome, completions) = (Mutex::new(Outcome::default()), completions.clone());
        Ok(Arc::new(LeasedJob { job: Some(job), span, outcome, completions }))
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    pub(super) fn completions(&self) -> &Completions {
        &self.completions
    }

    fn lease(&self) -> Result<&RawLease> {
        let job = self.job.as_ref();
        let lease = job.and_then(|job| job.source.as_ref().or(job.target.as_ref()));
        lease.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "transfer", "a job that is done"))
    }

    /// Notes what was moved of the piece that begins at `at` of the span.
    pub(super) fn moved(&self, at: u64, bytes: u64) {
        self.outcome.lock().moved.push((at, bytes));
    }

    /// Notes an error. The first one counts.
    pub(super) fn fail(&self, error: Error) {
        self.outcome.lock().error.get_or_insert(error);
    }

    /// Whether a piece of it failed.
    pub(super) fn has_failed(&self) -> bool {
        self.outcome.lock().error.is_some()
    }

    /// Whether requests may send the bytes from where they are: nobody can change them or take
    /// their pages away.
    pub(super) fn is_private(&self) -> bool {
        self.lease().is_ok_and(|lease| !lease.place().0.is_shared())
    }

    /// Writes what came to `at` of the span.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let lease = self.lease()?;
        let at = within(lease, at, bytes.len())?;
        if lease.access() != Access::Write {
            return Err(Error::new(ErrorKind::InvalidInput, "transfer", "a job whose lease is for reading"));
        }
        // SAFETY: `within` found the bytes to lie in the lease, which is for writing and held by
        // this job; no other piece of the job has them. What came is in memory of its own.
        let outcome = unsafe { guarded::copy(bytes.as_ptr(), lease.address().add(at), bytes.len()) };
        outcome.map_err(|gone| gone.error("write", lease.place().0))
    }

    /// Copies bytes of the span into a buffer of a part.
    pub(super) fn copy_to(&self, at: u64, len: u64, buffer: &MemoryRange) -> Result<()> {
        let lease = self.lease()?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let at = within(lease, at, len)?;
        let target = buffer.range(0, len)?.raw_lease(Access::Write)?;
        // SAFETY: `within` found the bytes to lie in the lease that this job holds; the buffer's
        // range was just leased for writing, and has as many bytes.
        let outcome = unsafe { guarded::copy(lease.address().add(at).cast_const(), target.address(), len) };
        outcome.map_err(|gone| gone.error("read", lease.place().0))
    }

    /// Bytes of the span for requests, which keep the job.
    pub(super) fn bytes(self: &Arc<Self>, at: u64, len: u64) -> Result<Bytes> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let lease = self.lease()?;
        if lease.place().0.is_shared() {
            return Err(Error::new(ErrorKind::InvalidInput, "transfer", "bytes that others may change"));
        }
        let at = within(lease, at, len)?;
        Ok(Bytes::from_owner(LeasedBytes { job: self.clone(), at, len }))
    }
}

impl Drop for LeasedJob {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        let token = job.token;
        // The leases end before anybody hears of it.
        drop(job);
        let mut outcome = self.outcome.lock();
        let total = outcome.moved.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let result = match outcome.error.take() {
            Some(error) => Err(error.with_bytes_done(from_the_start(&mut outcome.moved))),
            None if total == self.span.len => Ok(()),
            None => {
                let error = Error::new(ErrorKind::System, "transfer", "the task that moved it ended early");
                Err(error.with_bytes_done(from_the_start(&mut outcome.moved)))
            }
        };
        drop(outcome);
        self.completions.finished(JobCompletion { token, result }, total);
    }
}

/// The bytes that were moved without a gap from the start of the span.
fn from_the_start(moved: &mut [(u64, u64)]) -> u64 {
    moved.sort_unstable();
    moved.iter().fold(0, |done, (at, bytes)| if *at <= done { done.max(at.saturating_add(*bytes)) } else { done })
}

/// The offset of bytes within a lease, if they lie in it.
fn within(lease: &RawLease, at: u64, len: usize) -> Result<usize> {
    let at = usize::try_from(at).ok().filter(|at| at.checked_add(len).is_some_and(|end| end <= lease.len()));
    at.ok_or_else(|| Error::new(ErrorKind::OutOfRange, "transfer", "bytes outside of a job's lease"))
}

/// Leased bytes in a request.
struct LeasedBytes {
    job: Arc<LeasedJob>,
    at: usize,
    len: usize,
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        let Ok(lease) = self.job.lease() else { return &[] };
        // SAFETY: `LeasedJob::bytes` found the range to lie within the lease, and the memory to be
        // this process's alone. The lease, which this value holds, admits no writer.
        unsafe { std::slice::from_raw_parts(lease.address().add(self.at), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_core::Dram;

    fn job(memory: &Dram, token: u64) -> Job {
        let lease = memory.memory().raw_lease(Access::Read).unwrap();
        let span = Span { source: 0, target: 0, len: memory.len() as u64 };
        Job { token, span, source: Some(lease), target: None, notifier: None }
    }

    #[test]
    fn it_is_done_when_the_last_request_lets_go() {
        let memory = Dram::allocate(100).unwrap();
        memory.lease_mut().unwrap().fill(7);
        let completions = Completions::new().unwrap();
        let leased = LeasedJob::admit(job(&memory, 5), &completions).unwrap();
        let bytes = leased.bytes(10, 20).unwrap();
        leased.moved(0, 100);
        drop(leased);
        let mut done = Vec::new();
        completions.take(false, &mut done).unwrap();
        assert!(done.is_empty() && memory.lease_mut().is_err());
        assert_eq!(&bytes[..], [7; 20]);
        drop(bytes);
        completions.take(true, &mut done).unwrap();
        assert!(done.len() == 1 && done[0].token == 5 && done[0].result.is_ok() && memory.lease_mut().is_ok());
    }

    #[test]
    fn a_task_that_ends_early_is_an_error_with_the_bytes_from_the_start() {
        let memory = Dram::allocate(100).unwrap();
        let completions = Completions::new().unwrap();
        let leased = LeasedJob::admit(job(&memory, 1), &completions).unwrap();
        for (at, bytes) in [(60, 40), (0, 10), (10, 5)] {
            leased.moved(at, bytes);
        }
        drop(leased);
        let mut done = Vec::new();
        completions.take(true, &mut done).unwrap();
        assert!(done[0].result.as_ref().is_err_and(|e| e.bytes_done() == 15), "{done:?}");
    }
}
