//! A sort that tells its caller how far it is.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Machine, Result, threads};

use crate::control::{Control, SortProgress};
use crate::job::{SortJob, sort};
use crate::report::SortReport;

/// As [`sort`], on a thread of its own, so that the calling thread can tell how far it is: it calls
/// `tell` each `every`, and stops the sort where that returns false. A last call tells of the end;
/// what it returns changes nothing. If `tell` panics, the sort is stopped before the panic goes on.
///
/// The sort is stopped by the job's [`Control`], which stays so. A sort that was not stopped leaves
/// its control as it was.
///
/// # Errors
/// As [`sort`]. `Forked` in a child that `tell` made by `fork`, when it returns there: the sort
/// goes on in the parent alone. `System` where the kernel refuses the thread.
pub fn sort_telling(
    machine: &Machine,
    job: SortJob,
    every: Duration,
    mut tell: impl FnMut(&SortProgress) -> bool,
) -> Result<SortReport> {
    let (owner, control) = (OwningProcess::here(), job.control.clone());
    let (done, finished) = channel();
    let machine = machine.clone();
    let thread = threads::spawn("dp-sort", move || {
        // The receiver waits for this, or its process is another one.
        let _ = done.send(sort(&machine, job));
    })?;
    let mut sorting = SortingThread { owner, control, thread: Some(thread), finished, over: false };
    loop {
        let outcome = match sorting.finished.recv_timeout(every) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Disconnected) => {
                sorting.over = true;
                return Err(sorting.why_no_result());
            }
            Err(RecvTimeoutError::Timeout) => None,
        };
        sorting.over = outcome.is_some();
        let goes_on = tell(&sorting.control.progress);
        sorting.owner.check("sort")?;
        if let Some(outcome) = outcome {
            return outcome;
        }
        if !goes_on {
            sorting.control.stop();
        }
    }
}

/// The thread of [`sort_telling`]. When it is dropped before the sort is over, the sort is stopped
/// and waited for, but not in a child of the process that sorts.
struct SortingThread {
    owner: OwningProcess,
    control: Control,
    thread: Option<threads::JoinHandle<()>>,
    finished: Receiver<Result<SortReport>>,
    /// Whether the sort has an outcome, or will never have one.
    over: bool,
}

impl SortingThread {
    fn why_no_result(&mut self) -> Error {
        match self.thread.take().map(threads::join) {
            Some(Err(lost)) => lost.error("sort"),
            _ => Error::new(ErrorKind::System, "sort", "its thread gave no result"),
        }
    }
}

impl Drop for SortingThread {
    fn drop(&mut self) {
        if !self.over {
            self.control.stop();
        }
        // In a child this returns at once.
        let _ = self.thread.take().map(threads::join);
        if !self.owner.is_here() {
            // The other end is with a thread that a child lacks, and that may have been within the
            // channel at the fork.
            std::mem::forget(std::mem::replace(&mut self.finished, channel().1));
        }
    }
}
