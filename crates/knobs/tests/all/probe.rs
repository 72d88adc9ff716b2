//! Primitives that call a function of the test in the place of moving bytes.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use datapipes_core::backend::{
    Backend, Counters, InlineMover, Job, JobCompletion, Mover, Offer, OfferQuery, Primitive, Quality, QueuedMover,
};
use datapipes_core::topology::Topology;
use datapipes_core::{Error, Machine, Result, Span};
use rustix::event::{EventfdFlags, eventfd};

type Work = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Who carries out the primitive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Caller,
    /// A queue with an event.
    Queue,
    /// A device that is asked whether it is done.
    Engine,
}

/// A machine with one primitive, which calls `work` for each transfer and fills the caches. Where
/// it `is_queued`, it is called when a job is submitted, and the queue has an event.
pub(crate) fn machine(is_queued: bool, work: impl Fn() -> Result<()> + Send + Sync + 'static) -> Machine {
    machine_by(if is_queued { By::Queue } else { By::Caller }, Arc::new(work))
}

/// A machine with a device that moves the bytes, and has no event.
pub(crate) fn engine() -> Machine {
    machine_by(By::Engine, Arc::new(|| Ok(())))
}

fn machine_by(by: By, work: Work) -> Machine {
    Machine::new(Topology::discover_under(Path::new("/nonexistent")), vec![Arc::new(Probe { by, work })])
}

struct Probe {
    by: By,
    work: Work,
}

impl Backend for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn primitives(&self) -> Vec<Primitive> {
        vec![Primitive { name: "probe", what: "calls the test", available: Ok("always".into()) }]
    }

    fn offers(&self, _: &OfferQuery<'_>) -> Vec<Offer> {
        let quality = Quality {
            latency_ns: 1.0,
            bytes_per_s: 1e9,
            cpu_share: 1.0,
            offload: self.by == By::Engine,
            fills_processor_cache: true,
            fills_page_cache: false,
            measured: false,
        };
        vec![Offer { primitive: "probe", verdict: Ok(quality), why: "it is the only one".into() }]
    }

    fn open(&self, _: &OfferQuery<'_>, _: &str) -> Result<Mover> {
        if self.by == By::Caller {
            return Ok(Mover::Inline(Box::new(ProbeCopy(self.work.clone()))));
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|e| Error::os("open", e.raw_os_error(), "an event"))?;
        let (work, has_event) = (self.work.clone(), self.by == By::Queue);
        Ok(Mover::Queued(Box::new(ProbeQueue { work, done: Mutex::default(), event, has_event })))
    }
}

struct ProbeCopy(Work);

impl InlineMover for ProbeCopy {
    fn transfer(&self, _: Span) -> Result<()> {
        (self.0)()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct ProbeQueue {
    work: Work,
    done: Mutex<Vec<JobCompletion>>,
    event: OwnedFd,
    has_event: bool,
}

impl QueuedMover for ProbeQueue {
    #[allow(clippy::result_large_err)] // The job comes back whole.
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let result = (self.work)();
        self.done.lock().unwrap().push(JobCompletion { token: job.token, result });
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).unwrap();
        Ok(())
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.has_event.then(|| self.event.as_fd())
    }

    fn complete(&self, _: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        done.append(&mut self.done.lock().unwrap());
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
