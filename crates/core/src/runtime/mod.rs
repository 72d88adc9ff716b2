//! The runtime flavor: pipes that are carried out side by side under one coordinator (CIDR'23,
//! section 5.2, figure 6b), which is the one integrated data mover that *Platform IO DMA
//! Transaction Acceleration* asks for.
//!
//! ```text
//! transfer -> line (room in the pipe's queue) -> resource (scheduler: class, share, rate, caps) -> device's queue
//!                                                                                             \-> workers of threads
//! completion -> whoever waits, else the coordinator (epoll over the queues' events) -> resource -> handle
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
#[cfg(not(shuttle))]
mod events;
#[cfg(shuttle)]
#[path = "events_model.rs"]
mod events;
mod executor;
mod handle;
mod in_flight;
mod inbox;
mod pipe_state;
pub(crate) mod schedule;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
mod shared_resource;
mod thread_role;
mod transfer_counts;
mod troubles;
mod worker_pool;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;

use serde::{Deserialize, Serialize};

pub(crate) use coordinator::{EventSource, Interest};
pub use handle::{Cancelled, Handle, Handles};
pub(crate) use inbox::Inbox;
pub use schedule::{ClassStats, FlowStats, PriorityClass, SchedulePolicy, ScheduleStats, Served, ServiceLevel};
pub use shared_resource::ResourceReport;

use crate::backend::{CompletionNotifier, Constraints, check_count};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, Panicked, reentry};
use crate::locator::{Endpoint, Locator};
use crate::machine::Machine;
use crate::memory::Access;
use crate::pipe::queue::lease;
use crate::pipe::{Execution, Pipe, PipeReport};
use crate::plan::Route;
use crate::span::{CheckedSpan, Span};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::threads;
use coordinator::Coordinator;
use in_flight::{Callback, InFlightTransfer};
use pipe_state::{AlignmentEnd, PipeState};
use shared_resource::SharedResource;
use transfer_counts::TransferCounts;
use worker_pool::WorkerPool;

/// How a runtime works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuntimeOptions {
    /// What its threads' names begin with.
    pub name: String,
    /// Threads that copy between memories, at most.
    pub copiers: usize,
    /// Threads for routes of two hops and primitives that block, at most.
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
    }
}

impl RuntimeOptions {
    /// What serves a machine.
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
        }
    }
}

impl RuntimeOptions {
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
    /// Of the route.
    pub constraints: Constraints,
    /// Of the runtime: class and rates.
    pub service: ServiceLevel,
    /// Transfers under way, at most; [`RuntimeOptions::queue`] if not given.
    pub queue: Option<usize>,
}

crate::setters! {
    ConnectOptions {
        constraints: Constraints,
        service: ServiceLevel,
        queue: into Option<usize>,
    }
}

/// The data mover: connects pipes and carries out their transfers side by side.
///
/// Dropping it waits for what is under way; nothing is lost. Pipes that outlive it refuse new
/// transfers. Dropped within a callback, it waits for transfers, not for callbacks nor for its
/// threads, which end when they have called them. Dropped by what carries out a transfer
/// ([`Reader`](crate::locator::Reader), [`Watch`](crate::locator::WriteObserver)), it refuses new
/// transfers at once, and does the rest when that thread is through with the transfer.
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
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    machine: Machine,
    config: RuntimeOptions,
    coordinator: Arc<Coordinator>,
    resources: Mutex<HashMap<ResourceKey, Arc<SharedResource>>>,
    tally: Arc<TransferCounts>,
    next: Arc<AtomicU64>,
    closed: AtomicBool,
}

/// The most devices that no pipe uses and that are kept for their figures.
const MAX_UNUSED_DEVICES: usize = 64;

/// What a resource stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ResourceKey {
    Memory,
    Core(usize),
    Blocking,
    Device(String),
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
    pub fn start_with(machine: &Machine, config: RuntimeOptions) -> Result<Runtime> {
        config.check()?;
        let coordinator = Coordinator::new()?;
        let runs = coordinator.clone();
        let thread = threads::spawn(&format!("{}-coord", config.name), move || runs.run())
            .map_err(|e| e.within("the runtime's coordinator"))?;
        let inner = Inner {
            machine: machine.clone(),
            config,
            coordinator,
            resources: Mutex::new(HashMap::new()),
            tally: Arc::new(TransferCounts::default()),
            next: Arc::new(AtomicU64::new(1)),
            closed: AtomicBool::new(false),
        };
        Ok(Runtime { inner: Arc::new(inner), thread: Some(thread) })
    }

    /// The machine it was started on.
    pub fn machine(&self) -> &Machine {
        &self.inner.machine
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
    /// As [`Machine::connect_with`]; `Unsupported` where the rate asked for cannot be promised
    /// beside what was promised already.
    pub fn connect_with(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        ask: &ConnectOptions,
    ) -> Result<RuntimePipe> {
        self.check("connect")?;
        let inner = &self.inner;
        inner.open()?;
        check_count("queue", ask.queue.map(|queue| queue as u64))?;
        let urgent = ask.constraints.urgent || ask.service.class == PriorityClass::Latency;
        let constraints = Constraints { urgent, ..ask.constraints.clone() };
        let pipe = inner.machine.connect_with(source, target, &constraints)?;
        let resource = inner.resource(&pipe)?;
        let queue = pipe.queue().filter(|queue| queue.event().is_some());
        if let Some(queue) = queue {
            inner.coordinator.add_queue(queue)?;
        }
        let flow = resource.join(ask.service.clone(), queue)?;
        let anchor = if pipe.ends().1.file().is_some() { AlignmentEnd::Target } else { AlignmentEnd::Source };
        let at_once = resource.workers.is_some() && ask.service.at_most.is_none() && is_short_cut(&pipe);
        let most = ask.queue.unwrap_or(inner.config.queue);
        let line = PipeState::new(pipe, resource, flow, anchor, most, inner.tally.clone(), inner.next.clone());
        let (counts_panics, service) = (inner.coordinator.troubles.panics().number(), ask.service.clone());
        Ok(RuntimePipe { line: Arc::new(line), inner: inner.clone(), at_once, counts_panics, service })
    }

    /// Starts transfers of several pipes, and gives one handle for all.
    ///
    /// # Errors
    /// The first error of starting; what was started before it is carried out.
    pub fn transfer_all<'a>(&self, transfers: impl IntoIterator<Item = (&'a RuntimePipe, Span)>) -> Result<Handles> {
        let handles = transfers.into_iter().map(|(pipe, span)| pipe.transfer(span)).collect::<Result<Vec<_>>>()?;
        Ok(Handles::new(handles))
    }

    /// Whether this is the process that started it.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.inner.coordinator.owner.check(operation)
    }

    /// A panic of foreign code was caught.
    pub(crate) fn note_panic(&self, panicked: &Panicked) {
        self.inner.coordinator.troubles.panics().note(panicked);
    }

    /// A thread was refused; `instead` says what was done.
    pub(crate) fn note_refused(&self, error: &Error, instead: &str) {
        self.inner.coordinator.troubles.refused(error, instead);
    }

    /// Returns when nothing is under way. Others may start transfers meanwhile; those are waited
    /// for, too, and callbacks, but within a callback.
    ///
    /// Within what carries out a transfer (a [`Reader`](crate::locator::Reader)) it waits neither
    /// for that nor for others whose threads wait in the library likewise. Within a mover with a
    /// queue, and a [`Watch`](crate::locator::WriteObserver) that it calls, it returns at once.
    pub fn drain(&self) {
        self.inner.drain();
    }

    /// Refuses new transfers, carries out what is under way, and ends the threads. Dropping the
    /// runtime does the same.
    pub fn shutdown(self) {}

    /// What it did and is doing; nothing of it is known in a child of the process that started it.
    pub fn report(&self) -> RuntimeReport {
        if self.check("report").is_err() {
            return RuntimeReport::default();
        }
        let (under_way, completed, failed) = self.inner.tally.read();
        let mut resources: Vec<_> = self.inner.resources().values().map(|resource| resource.report()).collect();
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        let troubles = &self.inner.coordinator.troubles;
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
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.check("drop").is_err() {
            // A child has neither the threads nor, perhaps, who would let go of the locks. What
            // there is of it stays.
            std::mem::forget((self.inner.clone(), self.thread.take()));
            return;
        }
        self.inner.closed.store(true, Ordering::SeqCst);
        let ending = Ending { inner: self.inner.clone(), thread: self.thread.take() };
        if reentry::is_in_operation() {
            // Called by what carries out a transfer, it would wait for that.
            let counts = self.inner.coordinator.troubles.panics().number();
            return reentry::postpone(guard::Call::Run(Box::new(move || ending.end())), counts);
        }
        ending.end();
    }
}

/// What is left to do of a runtime that was dropped.
struct Ending {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Ending {
    fn end(mut self) {
        self.inner.drain();
        // A thread of a runtime that waited for threads would wait for itself, or they for each
        // other.
        let waits = !guard::is_in_foreign_code();
        for resource in self.inner.resources().values() {
            if let Some(workers) = &resource.workers {
                workers.shut_down(waits);
            }
        }
        let stand_in = self.inner.coordinator.stop();
        if waits {
            for thread in [self.thread.take(), stand_in].into_iter().flatten() {
                // Foreign code that panicked in it was caught; were it ours, what is left is
                // dropped all the same.
                let _ = threads::join(thread);
            }
        }
        // Descriptors hold pipes, which hold what holds the coordinator.
        self.inner.coordinator.clear();
    }
}

impl Inner {
    fn resources(&self) -> MutexGuard<'_, HashMap<ResourceKey, Arc<SharedResource>>> {
        self.resources.lock()
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "transfer", "the runtime was shut down"));
        }
        Ok(())
    }

    fn drain(&self) {
        if !self.coordinator.owner.is_here() {
            return;
        }
        let _leaning = self.coordinator.begin_blocked_wait();
        self.attend_all();
        self.tally.drain(&self.coordinator);
    }

    fn attend_all(&self) {
        let resources: Vec<_> = self.resources().values().cloned().collect();
        for resource in resources {
            resource.arm_all();
        }
    }

    fn resource(&self, pipe: &Pipe) -> Result<Arc<SharedResource>> {
        let site = site_of(pipe);
        let mut resources = self.resources();
        if let Some(resource) = resources.get(&site) {
            return Ok(resource.clone());
        }
        // The rate of the first route stands for the place.
        let rate = pipe.route().hops.iter().map(|hop| hop.quality.bytes_per_s).fold(f64::INFINITY, f64::min);
        let rate = Some(rate).filter(|rate| rate.is_finite());
        let config = &self.config;
        let threads = |name: &str, most, core| Some(WorkerPool::new(format!("{}-{name}", config.name), most, core));
        let (name, policy, workers) = match &site {
            ResourceKey::Memory => ("memory".to_owned(), &config.memory, threads("copy", config.copiers, None)),
            ResourceKey::Core(core) => (format!("core {core}"), &config.memory, threads("core", 1, Some(*core))),
            ResourceKey::Blocking => ("blocking".to_owned(), &config.device, threads("block", config.blocking, None)),
            ResourceKey::Device(name) => (name.clone(), &config.device, None),
        };
        let mut policy = SchedulePolicy { rate: policy.rate.or(rate), ..policy.clone() };
        if let Some(workers) = &workers {
            policy.outstanding_chunks = policy.outstanding_chunks.min(workers.most() as u32);
        }
        if matches!(site, ResourceKey::Device(_)) {
            forget_unused(&mut resources);
        }
        let resource = SharedResource::new(name, policy, self.coordinator.clone(), workers);
        self.coordinator.add_resource(&resource);
        resources.insert(site, resource.clone());
        Ok(resource)
    }
}

/// Forgets the devices that no pipe uses, with their figures, if there are many of them. Device
/// numbers are not limited: each mount in memory has one.
fn forget_unused(resources: &mut HashMap<ResourceKey, Arc<SharedResource>>) {
    // Whoever uses a resource has a reference beside the table's, and gets it under the table's
    // lock, which the caller holds.
    let is_unused = |key: &ResourceKey, resource: &Arc<SharedResource>| {
        matches!(key, ResourceKey::Device(_)) && Arc::strong_count(resource) == 1
    };
    if resources.iter().filter(|(key, resource)| is_unused(key, resource)).count() >= MAX_UNUSED_DEVICES {
        resources.retain(|key, resource| !is_unused(key, resource));
    }
}

/// Where a pipe's transfers queue.
fn site_of(pipe: &Pipe) -> ResourceKey {
    let (source, target) = pipe.ends();
    let in_memory = source.memory().is_some() && target.memory().is_some();
    match pipe.execution() {
        Execution::Inline(_) | Execution::Whole(_) if target.facts.core.is_some() => {
            ResourceKey::Core(target.facts.core.unwrap_or_default())
        }
        Execution::Inline(_) if in_memory => ResourceKey::Memory,
        Execution::Queue(queue) if queue.event().is_some() => ResourceKey::Device(device_of(source, target)),
        _ => ResourceKey::Blocking,
    }
}

fn device_of(source: &Endpoint, target: &Endpoint) -> String {
    let Some(file) = source.file().or(target.file()) else {
        let far = if source.memory().is_some() { target } else { source };
        return far.facts.name.clone();
    };
    let device = file.device();
    format!("device {}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Whether short transfers may run on the caller.
fn is_short_cut(pipe: &Pipe) -> bool {
    let (source, target) = pipe.ends();
    matches!(pipe.execution(), Execution::Inline(_)) && source.memory().is_some() && target.memory().is_some()
}

/// A pipe of a runtime. Many threads may use it at once.
#[derive(Clone)]
pub struct RuntimePipe {
    line: Arc<PipeState>,
    inner: Arc<Inner>,
    /// Whether short transfers may run on the caller.
    at_once: bool,
    /// Who counts the panics of callbacks of what ran on the caller.
    counts_panics: u32,
    service: ServiceLevel,
}

/// A transfer that was not started because the queue was full.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedTransfer {
    /// What was to be moved.
    pub span: Span,
    /// Why it was not.
    pub error: Error,
}

impl fmt::Display for RefusedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { source, target, len } = self.span;
        write!(f, "the transfer of {len} bytes from {source} to {target} was not started: {}", self.error)
    }
}

impl std::error::Error for RefusedTransfer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RefusedTransfer> for Error {
    fn from(refused: RefusedTransfer) -> Error {
        refused.error
    }
}

impl RuntimePipe {
    /// Starts a transfer; waits for room where the pipe's queue is full.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy` (the bytes are held by somebody else, or the queue is full of transfers
    /// that end only when their callers return, of which this is one): nothing was started.
    #[inline]
    pub fn transfer(&self, span: Span) -> Result<Handle> {
        let span = self.line.pipe.check(span)?;
        if self.runs_inline(span) { self.transfer_inline(span) } else { self.start(span, true) }
    }

    /// Starts a transfer, or gives its span back where the queue is full.
    ///
    /// # Errors
    /// As [`transfer`](Self::transfer), and `Busy` where the queue is full.
    #[allow(clippy::result_large_err)]
    pub fn try_transfer(&self, span: Span) -> std::result::Result<Handle, RefusedTransfer> {
        let started = |span| if self.runs_inline(span) { self.transfer_inline(span) } else { self.start(span, false) };
        self.line.pipe.check(span).and_then(started).map_err(|error| RefusedTransfer { span, error })
    }

    /// Starts transfers, and gives one handle for all.
    ///
    /// # Errors
    /// The first error of starting; what was started before it is carried out.
    pub fn transfer_all(&self, spans: impl IntoIterator<Item = Span>) -> Result<Handles> {
        Ok(Handles::new(spans.into_iter().map(|span| self.transfer(span)).collect::<Result<Vec<_>>>()?))
    }

    /// Whether it runs on the caller. Beside others that are held back, only what is in a hurry
    /// does.
    #[inline]
    fn runs_inline(&self, span: CheckedSpan) -> bool {
        self.at_once
            && span.len <= self.inner.config.max_inline_bytes
            && (self.service.class == PriorityClass::Latency || !self.line.resource.has_backlog())
    }

    /// On the caller: a copy this short is over before another thread would have woken up.
    #[inline]
    fn transfer_inline(&self, span: CheckedSpan) -> Result<Handle> {
        let Execution::Inline(inline) = self.line.pipe.execution() else { return self.start(span, true) };
        if self.inner.closed.load(Ordering::Relaxed) {
            self.inner.open()?;
        }
        match inline.transfer(span.span()) {
            // Nothing was moved: as for the others, the caller hears of it at once, and it does not
            // count.
            Err(e) if matches!(e.kind(), ErrorKind::OutOfRange | ErrorKind::Busy | ErrorKind::InvalidInput) => Err(e),
            result => {
                self.inner.tally.at_once(result.is_ok());
                Ok(Handle::finished(result, self.counts_panics))
            }
        }
    }

    fn start(&self, span: CheckedSpan, wait: bool) -> Result<Handle> {
        self.start_ringing(span, wait, None)
    }

    /// As `try_transfer`; `done` is called with the result. Where the device rings the notifier
    /// when it is done, nobody else is woken up for it: whoever hears it looks.
    #[allow(clippy::result_large_err)]
    pub(crate) fn try_transfer_notifying(
        &self,
        span: Span,
        notifier: &Arc<CompletionNotifier>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> std::result::Result<(), RefusedTransfer> {
        let started = |span| match self.runs_inline(span) {
            true => self.transfer_inline(span),
            false => self.start_ringing(span, false, Some(notifier.clone())),
        };
        match self.line.pipe.check(span).and_then(started) {
            Ok(handle) => {
                handle.call_back(Callback::Internal(Box::new(done)), notifier.rings() == 0);
                Ok(())
            }
            Err(error) => Err(RefusedTransfer { span, error }),
        }
    }

    fn start_ringing(
        &self,
        span: CheckedSpan,
        wait: bool,
        notifier: Option<Arc<CompletionNotifier>>,
    ) -> Result<Handle> {
        self.inner.open()?;
        // What setting out may complete on this thread is told when all is out.
        let _hold = guard::defer_calls();
        let line = &self.line;
        line.acquire_slot(wait)?;
        // Again, after it is counted: either this sees that the runtime was shut down, or who shuts
        // it down waits for this.
        let leases = match self.inner.open().and_then(|()| self.leases(span)) {
            Ok(leases) => leases,
            Err(e) => {
                line.count_refused();
                return Err(e);
            }
        };
        let transfer = InFlightTransfer::new(line.clone(), line.name(), span, leases, notifier);
        line.resource.enqueue(&transfer);
        Ok(Handle::transfer(transfer))
    }

    /// Leases for the whole of a transfer, where its parts can work under them.
    fn leases(&self, span: CheckedSpan) -> Result<in_flight::Leases> {
        let pipe = &self.line.pipe;
        match pipe.execution() {
            Execution::Queue(queue) => match queue.leases(span.span()) {
                Err(e) if e.kind() == ErrorKind::Busy => {
                    // A transfer whose handle was dropped may be done, with nobody to take note of
                    // it.
                    self.look();
                    queue.leases(span.span())
                }
                leases => leases,
            },
            Execution::Inline(inline) if inline.parts().is_some() => {
                let (source, target) = pipe.ends();
                let source = lease(source.memory(), span.source, span.len, Access::Read)?;
                let target = lease(target.memory(), span.target, span.len, Access::Write)?;
                Ok((source, target))
            }
            // These lease for themselves, part by part.
            Execution::Inline(_) | Execution::Whole(_) => Ok((None, None)),
        }
    }

    /// Whether [`try_transfer`](Self::try_transfer) would find room now.
    pub fn has_room(&self) -> bool {
        self.is_here() && self.line.has_room()
    }

    fn is_here(&self) -> bool {
        self.inner.coordinator.owner.is_here()
    }

    /// Whether this is the process that connected it.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.inner.coordinator.owner.check(operation)
    }

    /// Transfers under way.
    pub fn under_way(&self) -> usize {
        if self.is_here() { self.line.taken() } else { 0 }
    }

    /// As [`Handle::on_done`], for parts of the library: called by whoever completes.
    pub(crate) fn on_done_here(handle: Handle, done: impl FnOnce(Result<()>) + Send + 'static) {
        handle.call_back(Callback::Internal(Box::new(done)), true);
    }

    /// The coordinator, for who sleeps until something of this pipe is done.
    pub(crate) fn sleep_beside(&self, fd: BorrowedFd<'_>) {
        self.inner.coordinator.sleep_beside(fd);
    }

    /// Has the coordinator look after a descriptor.
    pub(crate) fn add_attended(&self, other: Arc<dyn EventSource>) -> Result<()> {
        self.inner.coordinator.add_source(other)
    }

    pub(crate) fn attend(&self, other: &dyn EventSource, interest: Interest) {
        self.inner.coordinator.arm_source(other, interest);
    }

    pub(crate) fn forget(&self, other: &dyn EventSource) {
        self.inner.coordinator.remove_source(other);
    }

    /// Stops everything that is under way as far as it was not begun: those transfers end as
    /// `Interrupted`. What a device or a thread has of them already is carried out; this does not
    /// wait for it.
    pub(crate) fn cancel_all(&self) {
        self.line.resource.cancel_all(self.line.flow);
    }

    /// The coordinator completes what is under way at this pipe's resource.
    pub(crate) fn attend_all(&self) {
        self.line.resource.arm_all();
    }

    /// Takes what the device is done with, without blocking.
    fn look(&self) {
        handle::poll_device(&self.line);
    }

    /// As [`look`](Self::look), also where another thread is at it: what was done before this call
    /// is told when it returns, or will be by a thread that sleeps until something is done.
    pub(crate) fn look_for_sure(&self) {
        handle::poll_device_synced(&self.line);
    }

    /// Returns when no transfer of this pipe is under way; within what carries out one, as
    /// [`Runtime::drain`].
    pub fn drain(&self) {
        if self.is_here() {
            self.line.drain();
        }
    }

    /// The route, with reasons.
    pub fn route(&self) -> &Route {
        self.line.pipe.route()
    }

    /// The service it was admitted for.
    pub fn service(&self) -> &ServiceLevel {
        &self.service
    }

    /// What really happened so far.
    pub fn report(&self) -> PipeReport {
        self.line.pipe.report()
    }
}

impl fmt::Debug for RuntimePipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime{:?}", self.line.pipe)
    }
}

/// What a runtime did and is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuntimeReport {
    /// Transfers under way.
    pub under_way: u64,
    /// Transfers completed without an error.
    pub completed: u64,
    /// Transfers that failed or were cancelled.
    pub failed: u64,
    /// Panics of foreign code that were caught: callbacks, wakers, closures of graphs, destructors,
    /// movers.
    pub panics: u64,
    /// What the first of them said.
    pub first_panic: Option<String>,
    /// Threads that the kernel refused.
    pub threads_refused: u64,
    /// The first refusal, and what was done instead.
    pub first_refusal: Option<String>,
    /// By place.
    pub resources: Vec<ResourceReport>,
}
