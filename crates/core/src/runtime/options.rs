//! What is asked of a runtime and of its pipes.

use std::sync::Arc;

use super::schedule::{SchedulePolicy, ServiceLevel};
use super::transfer_meter::TransferMeter;
use crate::backend::{Constraints, check_count};
use crate::error::Result;
use crate::machine::Machine;
use crate::thread_share::ThreadShare;

/// How a runtime works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuntimeOptions {
    /// What its threads' names begin with.
    pub name: String,
    /// Threads that copy between memories, at most. More than [`RuntimeOptions::MAX_THREADS`] are
    /// not started.
    pub copiers: usize,
    /// Threads for routes of two hops and primitives that block, at most; likewise.
    pub blocking: usize,
    /// Transfers that one pipe has under way, at most, unless its [`ConnectOptions::queue`] says
    /// otherwise.
    pub queue: usize,
    /// Copies between memories up to this length are made on the caller where nothing is held back,
    /// in bytes.
    pub max_inline_bytes: u64,
    /// How copies between memories are shared.
    pub memory: SchedulePolicy,
    /// How a device is shared.
    pub device: SchedulePolicy,
    /// Whether the times of transfers are measured, for
    /// [`RuntimeReport::latencies`](super::RuntimeReport::latencies). A short copy then costs two
    /// looks at the clock more.
    pub measure_latencies: bool,
    /// A share of caches and memory bandwidth for its threads. Callers have no part in it, so
    /// nothing is copied on them then, whatever `max_inline_bytes` says.
    pub thread_share: Option<Arc<dyn ThreadShare>>,
}

crate::setters! {
    RuntimeOptions {
        name: into String,
        copiers: usize,
        blocking: usize,
        queue: usize,
        max_inline_bytes: u64,
        memory: SchedulePolicy,
        device: SchedulePolicy,
        measure_latencies: bool,
    }
}

/// The variable that has all runtimes measure the times of transfers, if it is `1`.
const MEASURE_LATENCIES: &str = "DATAPIPES_LATENCIES";

impl RuntimeOptions {
    /// The most threads of one kind that a runtime starts, whatever it was asked for.
    pub const MAX_THREADS: usize = 256;

    /// What serves a machine. Times of transfers are measured where the variable
    /// `DATAPIPES_LATENCIES` is `1`.
    pub fn new(machine: &Machine) -> RuntimeOptions {
        let cores = machine.topology().usable_cores().count();
        // One core saturates a good part of the memory's bandwidth; a second pays on machines with
        // many.
        let copiers = if cores > 4 { 2 } else { 1 };
        RuntimeOptions {
            name: "dp".into(),
            copiers,
            blocking: cores.clamp(2, 16),
            queue: 1024,
            max_inline_bytes: 64 << 10,
            memory: SchedulePolicy::for_memory(),
            device: SchedulePolicy::for_device(),
            thread_share: None,
            measure_latencies: std::env::var_os(MEASURE_LATENCIES).is_some_and(|value| value == "1"),
        }
    }

    /// The same with a share of caches and memory bandwidth for its threads.
    #[must_use]
    pub fn thread_share(self, share: Arc<dyn ThreadShare>) -> RuntimeOptions {
        RuntimeOptions { thread_share: Some(share), ..self }
    }

    /// Whether the numbers make sense.
    ///
    /// # Errors
    /// `InvalidInput` for none of what must be there, and as [`SchedulePolicy::check`].
    pub fn check(&self) -> Result<()> {
        for (knob, count) in [("copiers", self.copiers), ("blocking", self.blocking), ("queue", self.queue)] {
            check_count(knob, Some(count as u64))?;
        }
        self.memory.check().and_then(|()| self.device.check())
    }
}

/// What is asked of one pipe of a runtime.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// What the route must meet.
    pub constraints: Constraints,
    /// The class and the rates that the runtime gives it.
    pub service: ServiceLevel,
    /// Transfers under way, at most; [`RuntimeOptions::queue`] if not given.
    pub queue: Option<usize>,
    /// Who counts its transfers, beside those of other pipes. A transfer then costs two looks at
    /// the clock more, unless times are measured already.
    pub meter: Option<Arc<TransferMeter>>,
    /// A share of caches and memory bandwidth for threads while they carry out its transfers.
    /// Nothing of it is copied on callers then.
    pub thread_share: Option<Arc<dyn ThreadShare>>,
}

crate::setters! {
    ConnectOptions {
        constraints: Constraints,
        service: ServiceLevel,
        queue: into Option<usize>,
        meter: into Option<Arc<TransferMeter>>,
    }
}

impl ConnectOptions {
    /// The same with a share of caches and memory bandwidth for threads while they carry out its
    /// transfers.
    #[must_use]
    pub fn thread_share(self, share: Arc<dyn ThreadShare>) -> ConnectOptions {
        ConnectOptions { thread_share: Some(share), ..self }
    }
}
