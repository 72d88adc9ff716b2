//! Jobs of pipes, as requests.
//!
//! | file | what it holds |
//! |---|---|
//! | `completions` | jobs that are done, the event of the queue, counters |
//! | `settings` | settings of one pipe |
//! | `leased` | a job whose leases end when no request touches its bytes any more |
//! | `get` | from an object: ranges, in parallel |
//! | `put` | to an object: whole parts from where they are, others through buffers |

mod completions;
mod get;
mod leased;
mod put;
mod settings;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use datapipes_core::backend::{Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::{Error, Result};

use crate::place::{ObjectPlace, Side};
use completions::Completions;
use leased::LeasedJob;
pub(crate) use settings::RequestSettings;

/// A mover between an object and memory.
pub(crate) struct ObjectMover {
    place: Arc<ObjectPlace>,
    completions: Arc<Completions>,
    settings: RequestSettings,
}

impl ObjectMover {
    pub(crate) fn new(place: Arc<ObjectPlace>, settings: RequestSettings) -> Result<ObjectMover> {
        Ok(ObjectMover { place, completions: Completions::new()?, settings })
    }
}

impl QueuedMover for ObjectMover {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        if let Err(error) = self.place.client.reactor.check("transfer") {
            return Err((job, error));
        }
        let job = LeasedJob::admit(job, &self.completions)?;
        let (place, settings) = (self.place.clone(), self.settings);
        match &self.place.side {
            Side::Source(_) => self.place.client.reactor.spawn(get::carry_out(place, job, settings)),
            Side::Target(upload) => {
                // Counted at once: an object is not published while a job is on its way.
                let writing = put::Writing::begin(upload);
                self.place.client.reactor.spawn(put::carry_out(place, writing, job, settings));
            }
        }
        Ok(())
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        Some(self.completions.event())
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        self.completions.take(wait, done)
    }

    fn counters(&self) -> Counters {
        self.completions.counters()
    }
}
