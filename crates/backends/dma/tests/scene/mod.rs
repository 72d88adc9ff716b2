//! A model of a device, and machines whose only engine is one.
//!
//! A [`SoftwareDevice`] takes descriptor bytes, runs them on a thread of its own and writes
//! completion records. What goes wrong is decided by a plan. It shares no code with the library
//! but the layouts of descriptors and records, which `layout.rs` checks against literals.
#![allow(dead_code, unsafe_code)] // Each test program uses a part.

mod analytics;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use datapipes_core::backend::Backend;
use datapipes_core::locks::{Condvar, Mutex};
use datapipes_core::memory::guarded;
use datapipes_core::topology::Topology;
use datapipes_core::{Dram, Machine};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_dma::{
    AnalyticsQueue, AnalyticsRecord, CompletionCode, CompletionRecord, CompletionSlot, Descriptor, DescriptorBytes,
    DsaBackend, EngineOperation, MalformedDescriptor, Portal, QueueDiscovery, QueueMode, Submission, WorkQueue,
    WorkQueueFacts,
};

/// What the device does with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Run,
    /// It moves so many bytes and then meets a missing page. `backward`: it began at the end.
    PageFault {
        done: u32,
        backward: bool,
    },
    /// It answers with this status and moves nothing.
    Fail(CompletionCode),
    /// It runs so many descriptors of a batch and then meets a missing page of the list.
    ListFault {
        done: u32,
    },
    /// It stops, and answers neither this one nor any later one.
    Die,
}

/// Decides what the device does with its n-th descriptor; those in a batch count too.
pub(crate) type FaultPlan = dyn FnMut(u64, &Descriptor) -> Behaviour + Send;

/// How a device ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its state tells of its death, and afterwards it is certain that it is quiet.
    Reported,
    /// Nothing tells of its death but the missing answers; it can be stopped.
    Silent,
    /// Nobody can tell whether it still writes.
    Unstoppable,
}

struct DeviceState {
    waiting: VecDeque<DescriptorBytes>,
    entries: usize,
    plan: Box<FaultPlan>,
    seen: u64,
    /// What it was given, batches and their members alike.
    log: Vec<Descriptor>,
    /// It takes descriptors, but runs none.
    is_held: bool,
    is_dead: bool,
    is_stopped: bool,
    end: End,
    overflowed: bool,
    /// It says that it is full so many times, whatever is in it.
    refusals: u64,
}

struct Shared {
    state: Mutex<DeviceState>,
    changed: Condvar,
    facts: WorkQueueFacts,
    batches: bool,
}

/// A device in software with one work queue.
#[derive(Clone)]
pub(crate) struct SoftwareDevice {
    shared: Arc<Shared>,
}

/// How a device is made.
#[derive(Clone, Copy)]
pub(crate) struct DeviceOptions {
    pub(crate) mode: QueueMode,
    pub(crate) entries: u32,
    pub(crate) max_transfer_bytes: u64,
    pub(crate) max_batch: u32,
    pub(crate) end: End,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            mode: QueueMode::Shared,
            entries: 8,
            max_transfer_bytes: 16 << 10,
            max_batch: 0,
            end: End::Reported,
        }
    }
}

impl SoftwareDevice {
    pub(crate) fn new(options: DeviceOptions) -> SoftwareDevice {
        SoftwareDevice::with_plan(options, |_, _| Behaviour::Run)
    }

    pub(crate) fn with_plan(
        options: DeviceOptions,
        plan: impl FnMut(u64, &Descriptor) -> Behaviour + Send + 'static,
    ) -> SoftwareDevice {
        let facts = WorkQueueFacts {
            name: "wq0.0".into(),
            device: "model0".into(),
            path: "/nonexistent".into(),
            sysfs: ["/nonexistent".into(), "/nonexistent".into()],
            mode: options.mode,
            size: options.entries,
            priority: 10,
            group: Some(0),
            max_transfer_bytes: options.max_transfer_bytes,
            max_batch: options.max_batch,
            block_on_fault: false,
            node: None,
        };
        let state = DeviceState {
            waiting: VecDeque::new(),
            entries: options.entries as usize,
            plan: Box::new(plan),
            seen: 0,
            log: Vec::new(),
            is_held: false,
            is_dead: false,
            is_stopped: false,
            end: options.end,
            overflowed: false,
            refusals: 0,
        };
        let batches = options.max_batch > 1;
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new(), facts, batches };
        SoftwareDevice { shared: Arc::new(shared) }
    }

    pub(crate) fn facts(&self) -> WorkQueueFacts {
        self.shared.facts.clone()
    }

    /// A portal to it, with a thread that runs what comes through.
    pub(crate) fn portal(&self) -> SoftwarePortal {
        self.shared.state.lock().is_stopped = false;
        let shared = self.shared.clone();
        SoftwarePortal { device: self.clone(), thread: Some(std::thread::spawn(move || shared.run())) }
    }

    /// A backend whose only queue is this device's.
    pub(crate) fn backend(&self) -> DsaBackend {
        let device = self.clone();
        let found = QueueDiscovery { usable: vec![self.facts()], absent: Vec::new() };
        DsaBackend::with(found, move |_| Ok(Box::new(device.portal()) as Box<dyn Portal>))
    }

    /// A queue of this device as that of an analytics accelerator.
    pub(crate) fn analytics(&self) -> AnalyticsQueue {
        AnalyticsQueue::over(WorkQueue::new(self.facts(), Box::new(self.portal())))
    }

    /// A machine with a processor and this device.
    pub(crate) fn machine(&self) -> Machine {
        machine_with(self.backend())
    }

    /// It takes descriptors and runs none, until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.shared.state.lock().is_held = true;
    }

    pub(crate) fn release(&self) {
        self.shared.state.lock().is_held = false;
        self.shared.changed.notify_all();
    }

    /// It works again, as after a reset; what it had is gone.
    pub(crate) fn revive(&self) {
        let mut state = self.shared.state.lock();
        state.is_dead = false;
        state.waiting.clear();
    }

    /// It says so many times that it is full.
    pub(crate) fn refuse(&self, times: u64) {
        self.shared.state.lock().refusals = times;
    }

    pub(crate) fn refusals_left(&self) -> u64 {
        self.shared.state.lock().refusals
    }

    pub(crate) fn log(&self) -> Vec<Descriptor> {
        self.shared.state.lock().log.clone()
    }

    /// Whether a dedicated queue was given more than it holds; hardware would lose that.
    pub(crate) fn overflowed(&self) -> bool {
        self.shared.state.lock().overflowed
    }
}

pub(crate) fn machine_with(dsa: DsaBackend) -> Machine {
    let topology = Topology::discover();
    let cpu: Arc<dyn Backend> = Arc::new(CpuBackend::new(&topology, Calibration::assumed(&topology)));
    Machine::new(topology, vec![cpu, Arc::new(dsa)])
}

/// The way into a [`SoftwareDevice`].
pub(crate) struct SoftwarePortal {
    device: SoftwareDevice,
    thread: Option<JoinHandle<()>>,
}

// SAFETY: the thread touches memory only for descriptors that it took and did not answer. `stop`
// joins it; a device that cannot be stopped says so.
unsafe impl Portal for SoftwarePortal {
    unsafe fn submit(&mut self, descriptor: &DescriptorBytes) -> Submission {
        let mut state = self.device.shared.state.lock();
        if state.is_dead && state.end == End::Reported {
            return Submission::Lost("the model is dead".into());
        }
        if state.refusals > 0 {
            state.refusals -= 1;
            return Submission::Full;
        }
        if state.waiting.len() >= state.entries {
            if self.device.shared.facts.mode == QueueMode::Dedicated {
                state.overflowed = true;
                return Submission::Accepted;
            }
            return Submission::Full;
        }
        state.waiting.push_back(*descriptor);
        self.device.shared.changed.notify_all();
        Submission::Accepted
    }

    fn check(&mut self) -> Result<(), String> {
        let state = self.device.shared.state.lock();
        if state.is_dead && state.end == End::Reported { Err("the model says that it is dead".into()) } else { Ok(()) }
    }

    fn takes_batches(&self) -> bool {
        self.device.shared.batches
    }

    fn stop(&mut self) -> Result<(), String> {
        let end = {
            let mut state = self.device.shared.state.lock();
            state.is_stopped = true;
            state.end
        };
        self.device.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            datapipes_testkit::joined(thread);
        }
        if end == End::Unstoppable { Err("the model cannot be stopped".into()) } else { Ok(()) }
    }
}

impl Drop for SoftwarePortal {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return;
            }
            let next = state.waiting.front().copied().filter(|_| !state.is_held && !state.is_dead);
            let Some(bytes) = next else {
                state = self.changed.wait(state);
                continue;
            };
            drop(state);
            let answered = self.carry_out(&bytes, true);
            state = self.state.lock();
            match answered {
                None => state.is_dead = true,
                Some((address, record)) => {
                    // The entry is free before anybody can know that it is.
                    state.waiting.pop_front();
                    record.write(address);
                }
            }
        }
    }

    /// Runs a descriptor. Returns the answer and its address, or `None` where the device died of
    /// it.
    fn carry_out(&self, bytes: &DescriptorBytes, may_batch: bool) -> Option<(u64, Answer)> {
        let descriptor = match Descriptor::decode(bytes) {
            Ok(descriptor) => descriptor,
            Err(why) => {
                let status = match why {
                    MalformedDescriptor::Operation(_) => CompletionCode::BAD_OPERATION,
                    MalformedDescriptor::Reserved => CompletionCode::RESERVED_FIELD,
                };
                let address = u64::from_le_bytes(std::array::from_fn(|i| bytes.0[8 + i]));
                return Some((address, Answer::Copy(CompletionRecord::new(status, 0))));
            }
        };
        assert_eq!(descriptor.completion % 32, 0, "a completion record that is not aligned");
        let behaviour = {
            let mut state = self.state.lock();
            let number = state.seen;
            state.seen += 1;
            state.log.push(descriptor);
            (state.plan)(number, &descriptor)
        };
        let record = match behaviour {
            Behaviour::Die => return None,
            Behaviour::Fail(status) => CompletionRecord::new(status, 0),
            Behaviour::Run => match analytics::execute(&descriptor) {
                Some(record) => return Some((descriptor.completion, Answer::Analytics(record))),
                None => self.execute(&descriptor, may_batch)?,
            },
            Behaviour::PageFault { done, backward } => faulted(&descriptor, done, backward),
            Behaviour::ListFault { done } => {
                let EngineOperation::Batch { list, .. } = descriptor.operation else { panic!("not a batch") };
                self.carry_out_members(list, done)?;
                CompletionRecord::new(CompletionCode::BATCH_PAGE_FAULT, done)
            }
        };
        Some((descriptor.completion, Answer::Copy(record)))
    }

    fn carry_out_members(&self, list: u64, count: u32) -> Option<()> {
        (0..count).try_for_each(|i| {
            let (address, record) = self.carry_out(&member(list, i), false)?;
            record.write(address);
            Some(())
        })
    }

    /// Runs a descriptor without an injected fault; `None` where a member of a batch was the
    /// device's death.
    fn execute(&self, descriptor: &Descriptor, may_batch: bool) -> Option<CompletionRecord> {
        let facts = &self.facts;
        let is_size = |len: u32| len > 0 && u64::from(len) <= facts.max_transfer_bytes;
        let wrong = |status| Some(CompletionRecord::new(status, 0));
        match descriptor.operation {
            EngineOperation::Noop | EngineOperation::Drain => wrong(CompletionCode::SUCCESS),
            EngineOperation::Batch { .. } if !may_batch => wrong(CompletionCode::BAD_OPERATION),
            EngineOperation::Batch { count, .. } if count < 2 || count > facts.max_batch => {
                wrong(CompletionCode::COUNT_OUT_OF_RANGE)
            }
            EngineOperation::Batch { list, .. } if list % 64 != 0 => wrong(CompletionCode::LIST_MISALIGNED),
            EngineOperation::Batch { list, count } => {
                self.carry_out_members(list, count)?;
                let ok = (0..count).all(|i| {
                    let address = u64::from_le_bytes(std::array::from_fn(|b| member(list, i).0[8 + b]));
                    slot(address).read().is_some_and(|record| record.status == CompletionCode::SUCCESS)
                });
                let status = if ok { CompletionCode::SUCCESS } else { CompletionCode::BATCH_FAILED };
                Some(CompletionRecord::new(status, count))
            }
            EngineOperation::Memmove { len, .. }
            | EngineOperation::Fill { len, .. }
            | EngineOperation::Compare { len, .. }
            | EngineOperation::Dualcast { len, .. }
            | EngineOperation::Crc { len, .. }
            | EngineOperation::CacheFlush { len, .. }
                if !is_size(len) =>
            {
                wrong(CompletionCode::SIZE_OUT_OF_RANGE)
            }
            EngineOperation::Dualcast { targets: [first, second], .. } if (first ^ second) & 0xfff != 0 => {
                wrong(CompletionCode::DUALCAST_TARGETS)
            }
            EngineOperation::Memmove { source, target, len } => Some(copied(source, target, len)),
            EngineOperation::Fill { pattern, target, len } => {
                let bytes: Vec<u8> = pattern.to_le_bytes().into_iter().cycle().take(len as usize).collect();
                store(target, &bytes);
                wrong(CompletionCode::SUCCESS)
            }
            EngineOperation::Compare { first, second, len, .. } => {
                let (first, second) = (load(first, len), load(second, len));
                let equal = first.iter().zip(&second).take_while(|(a, b)| a == b).count() as u32;
                let mut record = CompletionRecord::new(CompletionCode::SUCCESS, equal);
                record.result = u8::from(equal < len);
                Some(record)
            }
            EngineOperation::Dualcast { source, targets, len } => {
                let bytes = load(source, len);
                targets.into_iter().for_each(|target| store(target, &bytes));
                wrong(CompletionCode::SUCCESS)
            }
            EngineOperation::Crc { source, len, seed } => {
                let mut record = CompletionRecord::new(CompletionCode::SUCCESS, len);
                record.specific[..4].copy_from_slice(&crc32c(seed, &load(source, len)).to_le_bytes());
                Some(record)
            }
            EngineOperation::CacheFlush { .. } => wrong(CompletionCode::SUCCESS),
            EngineOperation::Decompress { .. } | EngineOperation::Compress { .. } | EngineOperation::Crc64 { .. } => {
                unreachable!("they were carried out before")
            }
        }
    }
}

/// CRC-32C bit by bit, as in RFC 3720, appendix B.4. `before` is the CRC of the bytes before.
pub(crate) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!before, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// The record of a page fault after `done` bytes, which are moved.
fn faulted(descriptor: &Descriptor, done: u32, backward: bool) -> CompletionRecord {
    let EngineOperation::Memmove { source, target, len } = descriptor.operation else {
        return CompletionRecord::new(CompletionCode::PAGE_FAULT, 0);
    };
    let done = done.min(len - 1);
    let skip = if backward { u64::from(len - done) } else { 0 };
    if done > 0 {
        copied(source + skip, target + skip, done);
    }
    let mut record = CompletionRecord::new(CompletionCode::PAGE_FAULT, done);
    record.result = u8::from(backward);
    record.write_fault = true;
    record.fault_address = target + u64::from(if backward { len - done - 1 } else { done });
    record
}

fn copied(source: u64, target: u64, len: u32) -> CompletionRecord {
    let (from, to) = (pointer(source).cast_const(), pointer(target));
    // SAFETY: who submitted the descriptor holds the bytes until it is answered.
    match unsafe { guarded::copy(from, to, len as usize) } {
        Ok(()) => CompletionRecord::new(CompletionCode::SUCCESS, len),
        Err(gone) => {
            let mut record = CompletionRecord::new(CompletionCode::PAGE_FAULT, gone.done as u32);
            record.fault_address = gone.address as u64;
            record
        }
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

fn load(address: u64, len: u32) -> Vec<u8> {
    // SAFETY: as in `copied`.
    unsafe { std::slice::from_raw_parts(pointer(address).cast_const(), len as usize) }.to_vec()
}

fn store(address: u64, bytes: &[u8]) {
    // SAFETY: as in `copied`.
    unsafe { pointer(address).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

fn member(list: u64, index: u32) -> DescriptorBytes {
    // SAFETY: as in `copied`; the list has more descriptors than `index`.
    unsafe { pointer(list).cast::<DescriptorBytes>().add(index as usize).read() }
}

fn slot(address: u64) -> &'static CompletionSlot {
    // SAFETY: the slot lives until it is answered; the reference is used only until then, or by
    // the batch that keeps its members' slots.
    unsafe { &*pointer(address).cast::<CompletionSlot>() }
}

/// What the device writes for a descriptor.
enum Answer {
    Copy(CompletionRecord),
    Analytics(AnalyticsRecord),
}

impl Answer {
    fn write(&self, address: u64) {
        match self {
            Answer::Copy(record) => slot(address).write(record),
            Answer::Analytics(record) => record.write_to(slot(address)),
        }
    }
}

/// Bytes that are nowhere alike.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| ((n * 2_654_435_761) >> 13 ^ n) as u8).collect()
}

/// Memory with [`pattern`] in it, and memory of the same length with zeros.
pub(crate) fn pair(len: usize) -> (Dram, Dram) {
    let (source, target) = (Dram::allocate(len).unwrap(), Dram::allocate(len).unwrap());
    source.lease_mut().unwrap().copy_from_slice(&pattern(len));
    (source, target)
}
