//! What a runtime shares with its pipes: the coordinator, and one shared resource for each place
//! where transfers compete.

use std::collections::HashMap;

use super::coordinator::Coordinator;
use super::coordinator::event_source::AttendedResource;
use super::latencies::ClassRecorders;
use super::options::RuntimeOptions;
use super::resource::shared_resource::SharedResource;
use super::resource::worker_pool::WorkerThreads;
use super::schedule::SchedulePolicy;
use super::transfer::in_flight::PartScheduler;
use super::transfer::transfer_counts::TransferCounts;
use crate::error::{Error, ErrorKind, Result};
use crate::locator::Endpoint;
use crate::machine::Machine;
use crate::pipe::{Execution, Pipe};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// The most devices that no pipe uses and that are kept for their figures.
const MAX_UNUSED_DEVICES: usize = 64;

pub(super) struct RuntimeState {
    pub(super) machine: Machine,
    pub(super) options: RuntimeOptions,
    pub(super) coordinator: Arc<Coordinator>,
    resources: Mutex<HashMap<ResourceKey, Arc<SharedResource>>>,
    pub(super) counts: Arc<TransferCounts>,
    /// The next number for a transfer.
    pub(super) next_request: Arc<AtomicU64>,
    pub(super) closed: AtomicBool,
    /// Times of transfers, where they are measured.
    pub(super) latencies: Option<ClassRecorders>,
    /// What its threads get, in words.
    pub(super) share: Option<String>,
}

/// What transfers compete for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ResourceKey {
    Memory,
    Core(usize),
    Blocking,
    Device(String),
}

impl RuntimeState {
    pub(super) fn new(
        machine: Machine,
        options: RuntimeOptions,
        coordinator: Arc<Coordinator>,
        share: Option<String>,
    ) -> RuntimeState {
        RuntimeState {
            latencies: options.measure_latencies.then(ClassRecorders::default),
            machine,
            options,
            coordinator,
            resources: Mutex::new(HashMap::new()),
            counts: Arc::new(TransferCounts::default()),
            next_request: Arc::new(AtomicU64::new(1)),
            closed: AtomicBool::new(false),
            share,
        }
    }

    /// The shared resources that pipes were connected at.
    pub(super) fn resources(&self) -> Vec<Arc<SharedResource>> {
        self.resources.lock().values().cloned().collect()
    }

    /// Whether it takes new transfers.
    ///
    /// # Errors
    /// `Unavailable` where it was shut down.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "transfer", "the runtime was shut down"));
        }
        Ok(())
    }

    /// Returns when the transfers have ended that are under way now.
    pub(super) fn drain(&self) {
        if !self.coordinator.owner.is_here() {
            return;
        }
        let _waiter = self.coordinator.begin_blocked_wait();
        self.arm_all();
        self.counts.drain(&self.coordinator);
    }

    fn arm_all(&self) {
        for resource in self.resources() {
            resource.arm_all();
        }
    }

    /// The shared resource where a pipe's transfers queue.
    pub(super) fn resource(&self, pipe: &Pipe) -> Result<Arc<SharedResource>> {
        let key = key_of(pipe);
        let mut resources = self.resources.lock();
        if let Some(resource) = resources.get(&key) {
            return Ok(resource.clone());
        }
        // The rate of the first route stands for the place.
        let rate = pipe.route().hops.iter().map(|hop| hop.quality.bytes_per_s).fold(f64::INFINITY, f64::min);
        let rate = Some(rate).filter(|rate| rate.is_finite());
        let options = &self.options;
        let threads = |name: &str, max: usize, core| {
            let max = max.clamp(1, RuntimeOptions::MAX_THREADS);
            Some(WorkerThreads { name: format!("{}-{name}", options.name), max, core })
        };
        let (name, policy, workers) = match &key {
            ResourceKey::Memory => ("memory".to_owned(), &options.memory, threads("copy", options.copiers, None)),
            ResourceKey::Core(core) => (format!("core {core}"), &options.memory, threads("core", 1, Some(*core))),
            ResourceKey::Blocking => ("blocking".to_owned(), &options.device, threads("block", options.blocking, None)),
            ResourceKey::Device(name) => (name.clone(), &options.device, None),
        };
        let mut policy = SchedulePolicy { rate: policy.rate.or(rate), ..policy.clone() };
        if let Some(workers) = &workers {
            policy.outstanding_chunks = policy.outstanding_chunks.min(workers.max as u32);
        }
        if matches!(key, ResourceKey::Device(_)) {
            forget_unused(&mut resources);
        }
        let resource = SharedResource::new(name, policy, self.coordinator.clone(), workers);
        let attended: Arc<dyn AttendedResource> = resource.clone();
        self.coordinator.add_resource(Arc::downgrade(&attended));
        resources.insert(key, resource.clone());
        Ok(resource)
    }
}

/// Forgets the devices that no pipe uses, with their figures, if there are many of them. Device
/// numbers are not limited: each mount in memory has one.
fn forget_unused(resources: &mut HashMap<ResourceKey, Arc<SharedResource>>) {
    // A user of a resource has a reference beside the table's, and got it under the table's lock,
    // which the caller holds.
    let is_unused = |key: &ResourceKey, resource: &Arc<SharedResource>| {
        matches!(key, ResourceKey::Device(_)) && Arc::strong_count(resource) == 1
    };
    if resources.iter().filter(|(key, resource)| is_unused(key, resource)).count() >= MAX_UNUSED_DEVICES {
        resources.retain(|key, resource| !is_unused(key, resource));
    }
}

/// Where a pipe's transfers compete.
fn key_of(pipe: &Pipe) -> ResourceKey {
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
