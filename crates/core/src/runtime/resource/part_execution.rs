//! A part of a transfer that a thread of a worker pool carries out: a copy, a primitive that
//! blocks, a route of several hops, or a mover without an event.

use super::shared_resource::SharedResource;
use super::worker_pool::WorkSource;
use crate::error::Result;
use crate::guard::reentry::{self, BlockableWork};
use crate::guard::{self, ForeignCode};
use crate::pipe::Execution;
use crate::pipe::queue::{Part, PartSink};
use crate::runtime::transfer::in_flight::{InFlightTransfer, PartScheduler};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

impl WorkSource for SharedResource {
    fn carry_out_all(self: Arc<Self>) {
        while let Some((transfer, at, len)) = self.next_for_worker() {
            run_part(&self, &transfer, at, len);
            if !self.coordinator.owner.is_here() {
                // A waker forked, and this is the child.
                return;
            }
        }
    }

    fn has_backlog(&self) -> bool {
        SharedResource::has_backlog(self)
    }

    fn next_deadline(&self) -> Option<u64> {
        SharedResource::next_deadline(self)
    }
}

fn run_part(resource: &Arc<SharedResource>, transfer: &Arc<InFlightTransfer>, at: u64, len: u64) {
    let running = Arc::new(RunningPart {
        resource: resource.clone(),
        transfer: transfer.clone(),
        at,
        len,
        made_room: AtomicBool::new(false),
        back: AtomicBool::new(false),
        sleeps: AtomicU32::new(0),
    });
    // Until the transfer has heard of it: what is put off may wait for the transfer.
    let _middle = match transfer.pipe.execution() {
        Execution::Inline(_) | Execution::Whole(_) => reentry::enter_transfer(transfer.address(), running.clone()),
        Execution::Queue(_) => reentry::enter_shared_transfer(transfer.address(), running.clone()),
    };
    let outcome = guard::call(ForeignCode::Mover, || run_transfer(&running)).unwrap_or_else(|panicked| {
        resource.coordinator.troubles.panics().note(&panicked);
        Err(panicked.error("transfer"))
    });
    if !resource.coordinator.owner.is_here() {
        // It forked, and this is the child, with this thread alone: what is left is the parent's.
        return guard::abandon();
    }
    let result = match outcome {
        // The queue tells of it.
        Ok(None) => return,
        Ok(Some(result)) => result,
        Err(e) => Err(e),
    };
    running.finish(result);
}

/// A part that this thread carries out.
struct RunningPart {
    resource: Arc<SharedResource>,
    transfer: Arc<InFlightTransfer>,
    at: u64,
    len: u64,
    /// The resource counts it as back.
    made_room: AtomicBool,
    /// It is back, though this thread has not returned from all that this made it call.
    back: AtomicBool,
    /// How often this thread is said to sleep in the middle of it.
    sleeps: AtomicU32,
}

impl RunningPart {
    fn finish(&self, result: Result<()>) {
        self.back.store(true, Ordering::SeqCst);
        if self.made_room.load(Ordering::SeqCst) {
            self.resource.finish_part_late(&self.transfer, self.at, self.len, result);
        } else {
            self.resource.finish_part(&self.transfer, self.at, self.len, result);
        }
    }
}

impl BlockableWork for RunningPart {
    fn on_sleep(&self) {
        if self.back.load(Ordering::SeqCst) {
            return;
        }
        if !self.made_room.swap(true, Ordering::SeqCst) {
            self.resource.yield_slot(&self.transfer, self.at, self.len);
        }
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.transfer.worker_blocked();
    }

    fn on_resume(&self) {
        // Those that began when it was back do not count. The last to begin is the first to end.
        if self.sleeps.load(Ordering::SeqCst) > 0 && !self.back.load(Ordering::SeqCst) {
            self.sleeps.fetch_sub(1, Ordering::SeqCst);
            self.transfer.worker_resumed();
        }
    }
}

/// Carries out a part; None where its queue has told of it already.
fn run_transfer(running: &Arc<RunningPart>) -> Result<Option<Result<()>>> {
    let RunningPart { transfer, at, len, .. } = &**running;
    let (at, len) = (*at, *len);
    let mut job = transfer.job(at, len)?;
    let _lent = transfer.pipe.lend()?;
    match transfer.pipe.execution() {
        Execution::Inline(inline) => Ok(Some(match inline.parts() {
            Some(parts) => parts.transfer_part(&mut job, transfer.span.len),
            None => inline.transfer(job.span),
        })),
        Execution::Whole(pipe) => Ok(Some(pipe.transfer(job.span))),
        Execution::Queue(queue) => {
            drop(job);
            let told = Arc::new(Told { running: running.clone(), told: AtomicBool::new(false) });
            queue.submit_parts([Part { sink: told.clone(), ..transfer.part(at, len)? }]);
            // The mover has no event: this thread waits for it. A queue that breaks tells its
            // parts, too.
            let _ = queue.drive(|| told.told.load(Ordering::Acquire));
            Ok(None)
        }
    }
}

/// A part that a thread of the worker pool waits for.
struct Told {
    running: Arc<RunningPart>,
    told: AtomicBool,
}

impl PartSink for Told {
    fn part_done(&self, _at: u64, _len: u64, result: Result<()>) {
        self.running.finish(result);
        self.told.store(true, Ordering::Release);
    }

    fn deliveries_done(&self) {
        self.running.transfer.deliveries_done();
    }
}
