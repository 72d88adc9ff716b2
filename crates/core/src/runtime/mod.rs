//! The runtime flavor: pipes that are carried out side by side under one coordinator (CIDR'23,
//! section 5.2, figure 6b), which is the one integrated data mover that *Platform IO DMA
//! Transaction Acceleration* asks for.
//!
//! ```text
//! transfer -> slot of the pipe's queue -> shared resource (scheduler: class, share, rate, caps) -> device's queue
//!                                                                                              \-> worker pool
//! completion -> whoever waits, else the coordinator (epoll over the queues' events) -> shared resource -> handle
//! ```
//!
//! | what | where it runs |
//! |---|---|
//! | memory to memory, short, nothing held back | on the caller, at once |
//! | memory to memory | a worker pool of as few threads as serve, by parts of 256 KiB, of 64 KiB beside the class `latency` |
//! | into a core's cache | a thread bound to that core |
//! | a route with a queue (files by io_uring) | submitted by the caller or whoever completes; nobody polls |
//! | routes of two hops, primitives that block | a worker pool |
//!
//! A runtime without work uses no processor time. It does not decide which primitive is used: the
//! planner did, at connect.

mod coordinator;
mod executor;
mod handle;
mod inbox;
mod latencies;
mod options;
mod pipe;
mod report;
mod resource;
pub(crate) mod schedule;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
mod state;
mod transfer;
mod transfer_meter;

pub(crate) use coordinator::event_source::{EventSource, Interest};
pub use handle::{Cancelled, Handle, Handles};
pub(crate) use inbox::Inbox;
pub use options::{ConnectOptions, RuntimeOptions};
pub use pipe::{RefusedTransfer, RuntimePipe};
pub use report::{ClassLatencies, ResourceReport, RuntimeReport};
pub use schedule::{ClassStats, FlowStats, PriorityClass, SchedulePolicy, ScheduleStats, Served, ServiceLevel};
pub use transfer_meter::{MeteredTransfers, TransferMeter};

pub use crate::thread_share::ThreadShare;

use crate::backend::{Constraints, check_count};
use crate::error::{Error, Result};
use crate::guard::{self, Panicked, reentry};
use crate::locator::Locator;
use crate::machine::Machine;
use crate::span::Span;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::thread_share;
use crate::threads::{self, JoinHandle};
use coordinator::Coordinator;
use state::RuntimeState;

/// The data mover: connects pipes and carries out their transfers side by side.
///
/// Dropping it waits for what is under way; nothing is lost. Pipes that outlive it refuse new
/// transfers. Dropped within a callback, it waits for transfers, not for callbacks nor for its
/// threads, which end when they have called them. Dropped by what carries out a transfer
/// ([`Reader`](crate::locator::Reader), [`WriteObserver`](crate::locator::WriteObserver)), it
/// refuses new transfers at once, and does the rest when that thread is through with the transfer.
/// Dropped in a handler of `exit`, while a callback on another thread calls `exit` too, it may wait
/// for ever (docs/runtime.md).
///
/// It belongs to the process that started it. In a child that was made by `fork` all that may fail
/// fails as `Forked`, what waits returns at once, and dropping it or what was made by it does
/// nothing; a callback that the child asks for is called with `Forked`, and transfers go on in the
/// parent. A child may start a runtime of its own.
///
/// ```
/// use datapipes::runtime::{ConnectOptions, PriorityClass, Runtime, ServiceLevel};
/// use datapipes::{Dram, Span};
///
/// fn main() -> datapipes::Result<()> {
///     let machine = datapipes::discover();
///     let runtime = Runtime::start(&machine)?;
///     let (source, target) = (Dram::allocate(8 << 20)?, Dram::allocate(8 << 20)?);
///     source.lease_mut()?.fill(7);
///
///     let bulk = ConnectOptions::default().service(ServiceLevel::of(PriorityClass::Bulk));
///     let pipe = runtime.connect_with(&source, &target, &bulk)?;
///     let parts = (0..8).map(|i| Span { source: i << 20, target: i << 20, len: 1 << 20 });
///     let transfers = pipe.transfer_all(parts)?; // a future, too: `transfers.await?`
///     transfers.wait()?;
///     assert_eq!(target.lease()?[5 << 20], 7);
///     println!("{:?}", runtime.report());
///     Ok(())
/// }
/// ```
pub struct Runtime {
    state: Arc<RuntimeState>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Starts a runtime, with what serves this machine.
    ///
    /// # Errors
    /// `System` where the kernel gives no thread or descriptor.
    pub fn start(machine: &Machine) -> Result<Runtime> {
        Runtime::start_with(machine, RuntimeOptions::new(machine))
    }

    /// Starts a runtime as told.
    ///
    /// # Errors
    /// As [`start`](Self::start); `InvalidInput` for a configuration that makes no sense
    /// ([`RuntimeOptions::check`]).
    pub fn start_with(machine: &Machine, options: RuntimeOptions) -> Result<Runtime> {
        options.check()?;
        let share = match &options.thread_share {
            Some(share) => Some(thread_share::check(share)?),
            None => None,
        };
        let coordinator = Coordinator::new(options.thread_share.clone())?;
        let runs = coordinator.clone();
        let thread = threads::spawn(&format!("{}-coord", options.name), move || runs.run())
            .map_err(|e| e.within("the runtime's coordinator"))?;
        let state = RuntimeState::new(machine.clone(), options, coordinator, share);
        Ok(Runtime { state: Arc::new(state), thread: Some(thread) })
    }

    /// The machine it was started on.
    pub fn machine(&self) -> &Machine {
        &self.state.machine
    }

    /// Connects two places by the best route, for ordinary service.
    ///
    /// # Errors
    /// As [`Machine::connect`].
    pub fn connect(&self, source: &dyn Locator, target: &dyn Locator) -> Result<RuntimePipe> {
        self.connect_with(source, target, &ConnectOptions::default())
    }

    /// Connects two places by the best route that meets the constraints, for the service that is
    /// asked for.
    ///
    /// # Errors
    /// As [`Machine::connect_with`], with a share as [`Machine::connect_with_share`]; `Unsupported`
    /// where the rate asked for cannot be promised beside what was promised already, and for a
    /// share of a pipe whose bytes a device moves: threads serve such pipes in common.
    pub fn connect_with(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        options: &ConnectOptions,
    ) -> Result<RuntimePipe> {
        self.check("connect")?;
        self.state.check_open()?;
        check_count("queue", options.queue.map(|queue| queue as u64))?;
        let urgent = options.constraints.urgent || options.service.class == PriorityClass::Latency;
        let constraints = Constraints { urgent, ..options.constraints.clone() };
        let machine = &self.state.machine;
        let mut pipe = match &options.thread_share {
            Some(share) => machine.connect_with_share(source, target, &constraints, share.clone())?,
            None => machine.connect_with(source, target, &constraints)?,
        };
        if let Some(share) = &self.state.share {
            pipe.note_threads(share);
        }
        RuntimePipe::connect(self.state.clone(), pipe, options)
    }

    /// Starts transfers of several pipes, and gives one handle for all. They are taken from the
    /// iterator and started as [`RuntimePipe::transfer_all`] does; those of a pipe that follow each
    /// other go together.
    ///
    /// # Errors
    /// As [`RuntimePipe::transfer_all`].
    pub fn transfer_all<'a>(&self, transfers: impl IntoIterator<Item = (&'a RuntimePipe, Span)>) -> Result<Handles> {
        pipe::start_all(transfers.into_iter())
    }

    /// Whether this is the process that started it.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.state.coordinator.owner.check(operation)
    }

    /// A panic of foreign code was caught.
    pub(crate) fn note_panic(&self, panicked: &Panicked) {
        self.state.coordinator.troubles.panics().note(panicked);
    }

    /// A thread was refused; `instead` says what was done.
    pub(crate) fn note_refused(&self, error: &Error, instead: &str) {
        self.state.coordinator.troubles.refused(error, instead);
    }

    /// Returns when the transfers have ended, and their callbacks, that were under way when it was
    /// called. Others may be started meanwhile, also by such callbacks, and are not waited for.
    /// Within a callback it waits for no callback.
    ///
    /// Within what carries out a transfer (a [`Reader`](crate::locator::Reader)) it waits neither
    /// for that nor for others whose threads wait in the library likewise. Within a mover with a
    /// queue, and a [`WriteObserver`](crate::locator::WriteObserver) that it calls, it returns at
    /// once.
    pub fn drain(&self) {
        self.state.drain();
    }

    /// Refuses new transfers, carries out what is under way, and ends the threads. Dropping the
    /// runtime does the same.
    pub fn shutdown(self) {}

    /// What it did and is doing; nothing of it is known in a child of the process that started it.
    pub fn report(&self) -> RuntimeReport {
        if self.check("report").is_err() {
            return RuntimeReport::default();
        }
        let (under_way, completed, failed) = self.state.counts.read();
        let mut resources: Vec<_> = self.state.resources().iter().map(|resource| resource.report()).collect();
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        let troubles = &self.state.coordinator.troubles;
        let (threads_refused, first_refusal) = troubles.refusals();
        RuntimeReport {
            under_way,
            completed,
            failed,
            panics: troubles.panics().count(),
            first_panic: troubles.panics().first().map(str::to_owned),
            threads_refused,
            first_refusal,
            resources,
            thread_share: self.state.share.clone(),
            latencies: self.state.latencies.as_ref().map_or_else(Vec::new, |latencies| latencies.read()),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.check("drop").is_err() {
            // A child has neither the threads nor, perhaps, who would let go of the locks. What
            // there is of it stays.
            std::mem::forget((self.state.clone(), self.thread.take()));
            return;
        }
        self.state.closed.store(true, Ordering::SeqCst);
        let ending = Ending { state: self.state.clone(), thread: self.thread.take() };
        if reentry::is_in_operation() {
            // Called by what carries out a transfer, it would wait for that.
            let counts = self.state.coordinator.troubles.panics().number();
            return reentry::postpone(guard::Call::Run(Box::new(move || ending.end())), counts);
        }
        ending.end();
    }
}

/// What is left to do of a runtime that was dropped.
struct Ending {
    state: Arc<RuntimeState>,
    thread: Option<JoinHandle<()>>,
}

impl Ending {
    fn end(mut self) {
        self.state.drain();
        // A thread of a runtime that waited for threads would wait for itself, or they for each
        // other.
        let waits = !guard::is_in_foreign_code();
        for resource in self.state.resources() {
            if let Some(workers) = resource.workers() {
                workers.shut_down(waits);
            }
        }
        let stand_in = self.state.coordinator.stop();
        if waits {
            // One that sleeps on descriptors which the program closed hears of nothing: it is left
            // asleep, with what it needs.
            let own = self.thread.take().filter(|_| !self.state.coordinator.is_unreachable());
            for thread in [own, stand_in].into_iter().flatten() {
                // Foreign code that panicked in it was caught; were it ours, what is left is
                // dropped all the same.
                let _ = threads::join(thread);
            }
        }
        // Descriptors hold pipes, which hold what holds the coordinator.
        self.state.coordinator.clear();
    }
}
