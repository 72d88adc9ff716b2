//! An open work queue: descriptors go in, and each has memory for its answer.
//!
//! ```text
//! submit:   entries free?  no: forget those that are answered; still none: Full
//!           portal.submit(descriptor)      Accepted -> the slot of the answer
//! stop:     the queue seems to work?  drain: all before it is answered      -> quiet
//!           portal.stop()                                                   -> quiet, or not sure
//! ```
//!
//! Several pipes share a queue, since a dedicated one can be opened only once. An entry counts as
//! free when its answer is written, whether or not anybody has read that: a pipe that nobody waits
//! for keeps no entries from others.
//!
//! This module's unsafe code hands descriptors to a portal. It promises: slots and lists of
//! descriptors live until they are answered or the queue is quiet, whatever the submitter drops.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use datapipes_core::process::OwningProcess;
use datapipes_core::topology::CpuFeatures;

use crate::completion::{CompletionCode, CompletionRecord, CompletionSlot};
use crate::descriptor::{Descriptor, DescriptorBytes, DescriptorFlags, EngineOperation};
use crate::discovery::WorkQueueFacts;
use crate::portal::{Portal, Submission, SubmitInstructions, Umwait, pause_by_rounds};

/// How long an unanswered descriptor is waited for before the queue counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rounds of waiting between two looks at the state of the queue.
const ROUNDS_BETWEEN_CHECKS: u32 = 1024;

/// The rounds of waiting that are busy before UMWAIT is used.
const BUSY_ROUNDS: u32 = 32;

/// An open work queue.
pub struct WorkQueue {
    facts: WorkQueueFacts,
    owner: OwningProcess,
    patience: Duration,
    umwait: Option<Umwait>,
    state: Mutex<QueueState>,
}

struct QueueState {
    portal: Option<Box<dyn Portal>>,
    /// What was not answered when it was last looked at. It is kept alive here, since the engine
    /// reads and writes it.
    unanswered: Vec<Unanswered>,
    lost: Option<LostQueue>,
}

struct Unanswered {
    slot: Arc<CompletionSlot>,
    batch: Option<BatchInFlight>,
}

struct BatchInFlight {
    /// The engine reads it.
    _list: Box<[DescriptorBytes]>,
    /// The slots of the descriptors in the list.
    members: Vec<Arc<CompletionSlot>>,
}

/// How a queue was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostQueue {
    /// The reason.
    pub why: String,
    /// Whether it is certain that the engine accesses no memory any more.
    pub is_quiet: bool,
}

/// Why a descriptor was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// There is no free entry at the moment.
    Full,
    /// The queue takes nothing any more.
    Lost,
}

/// An operation and its flags.
pub(crate) type Work = (EngineOperation, DescriptorFlags);

impl WorkQueue {
    /// Opens a queue over its portal.
    pub fn new(facts: WorkQueueFacts, portal: Box<dyn Portal>) -> WorkQueue {
        // Nobody writes the answers of a polled device but who polls.
        let umwait = SubmitInstructions::detect(CpuFeatures::of_this_processor()).umwait();
        let umwait = umwait.filter(|_| !portal.is_polled());
        let state = QueueState { portal: Some(portal), unanswered: Vec::new(), lost: None };
        WorkQueue { facts, owner: OwningProcess::here(), patience: PATIENCE, umwait, state: Mutex::new(state) }
    }

    /// The same with another time after which an unanswered descriptor means that the queue is
    /// lost. It is 10 s by default.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> WorkQueue {
        // The queue has a destructor, so its fields cannot be moved into another.
        let mut queue = self;
        queue.patience = patience;
        queue
    }

    /// What is known of it.
    pub fn facts(&self) -> &WorkQueueFacts {
        &self.facts
    }

    /// Whether new work can be given to it by this process.
    pub fn is_usable(&self) -> bool {
        self.is_here() && self.state.lock().lost.is_none()
    }

    /// Whether this process opened it.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Checks that this process opened it.
    pub(crate) fn check_owner(&self, operation: &'static str) -> datapipes_core::Result<()> {
        self.owner.check(operation)
    }

    /// How it was lost, if it was. A child of the process that opened it does not know.
    pub fn lost(&self) -> Option<LostQueue> {
        // A thread that the child lacks may hold the lock of its copy.
        if self.is_here() { self.state.lock().lost.clone() } else { None }
    }

    /// The most operations that one descriptor can carry; 1 where there are no batches.
    pub(crate) fn max_batch(&self) -> usize {
        let takes = self.state.lock().portal.as_ref().is_some_and(|portal| portal.takes_batches());
        if takes { (self.facts.max_batch as usize).max(1) } else { 1 }
    }

    /// Submits operations, several as a batch, and returns where their answers will be.
    ///
    /// # Safety
    /// The memory that the operations name stays valid, and is accessed by nobody else as far as it
    /// is written, until the answers are there or the queue is lost and quiet.
    pub(crate) unsafe fn submit(&self, work: &[Work]) -> Result<Vec<Arc<CompletionSlot>>, NotTaken> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.unanswered.len() >= self.facts.size as usize {
            state.take_note();
            if state.unanswered.len() >= self.facts.size as usize {
                return Err(if state.lost.is_some() { NotTaken::Lost } else { NotTaken::Full });
            }
        }
        let Some(portal) = &mut state.portal else { return Err(NotTaken::Lost) };
        let slots: Vec<Arc<CompletionSlot>> = work.iter().map(|_| Arc::default()).collect();
        let descriptors: Vec<DescriptorBytes> =
            work.iter().zip(&slots).map(|(work, slot)| self.descriptor(*work, slot).encode()).collect();
        let (descriptor, unanswered) = match (descriptors.as_slice(), slots.as_slice()) {
            ([], _) | (_, []) => return Ok(slots),
            ([one], [slot]) => (*one, Unanswered { slot: slot.clone(), batch: None }),
            (several, _) => {
                let slot: Arc<CompletionSlot> = Arc::default();
                // The list lives in `unanswered`; moving the box does not move its contents.
                let list: Box<[DescriptorBytes]> = several.into();
                let batch =
                    EngineOperation::Batch { list: list.as_ptr().expose_provenance() as u64, count: list.len() as u32 };
                let descriptor = self.descriptor((batch, DescriptorFlags::default()), &slot).encode();
                let batch = Some(BatchInFlight { _list: list, members: slots.clone() });
                (descriptor, Unanswered { slot, batch })
            }
        };
        // It is kept before the engine can know of it.
        state.unanswered.push(unanswered);
        // SAFETY: the caller answers for the operations' memory. Slots and lists are kept in
        // `unanswered`.
        match unsafe { portal.submit(&descriptor) } {
            Submission::Accepted => Ok(slots),
            Submission::Full => {
                state.unanswered.pop();
                Err(NotTaken::Full)
            }
            Submission::Lost(why) => {
                state.unanswered.pop();
                self.stop(state, why);
                Err(NotTaken::Lost)
            }
        }
    }

    /// Makes a descriptor of an operation whose answer goes to a slot.
    fn descriptor(&self, (operation, flags): Work, slot: &CompletionSlot) -> Descriptor {
        let has_memory =
            !matches!(operation, EngineOperation::Noop | EngineOperation::Drain | EngineOperation::Batch { .. });
        let flags = flags | DescriptorFlags::COMPLETION_VALID | DescriptorFlags::REQUEST_COMPLETION;
        let flags = flags.with(DescriptorFlags::BLOCK_ON_FAULT, self.facts.block_on_fault && has_memory);
        Descriptor { pasid: 0, privileged: false, flags, completion: slot.address(), interrupt_handle: 0, operation }
    }

    /// Takes note of what is answered. Members of a batch that the engine did not come to get an
    /// answer here.
    pub(crate) fn take_note(&self) {
        self.state.lock().take_note();
    }

    /// Waits a moment for an answer.
    pub(crate) fn pause(&self, answer: Option<&CompletionSlot>, round: u32) {
        match (self.umwait, answer) {
            (Some(umwait), Some(answer)) if round >= BUSY_ROUNDS => umwait.wait(answer, || answer.is_written()),
            _ => pause_by_rounds(round),
        }
    }

    /// Looks after a queue that was not heard of since a time, now and then. It is lost where its
    /// state says so, or where it did not answer for too long.
    pub(crate) fn look_after(&self, round: u32, since: Instant) {
        if round % ROUNDS_BETWEEN_CHECKS != ROUNDS_BETWEEN_CHECKS - 1 {
            return;
        }
        let mut state = self.state.lock();
        let Some(portal) = &mut state.portal else { return };
        match portal.check() {
            Err(why) => self.stop(&mut state, why),
            Ok(()) if since.elapsed() >= self.patience => {
                self.stop(&mut state, format!("it did not answer within {:?}", self.patience));
            }
            Ok(()) => {}
        }
    }

    /// Marks the queue as lost, and finds out whether it is quiet.
    fn stop(&self, state: &mut QueueState, why: String) {
        let Some(mut portal) = state.portal.take() else { return };
        let drained = portal.check().is_ok() && self.drain(&mut *portal, state);
        let stopped = portal.stop();
        state.forget_answered();
        let is_quiet = state.unanswered.is_empty() || drained || stopped.is_ok();
        let doubt = stopped.err().filter(|_| !is_quiet).map_or_else(String::new, |doubt| format!(" ({doubt})"));
        let unanswered = std::mem::take(&mut state.unanswered);
        if !is_quiet {
            // The engine may read and write them at any time.
            std::mem::forget(unanswered);
        }
        state.lost = Some(LostQueue { why: format!("{why}{doubt}"), is_quiet });
    }

    /// Waits until everything that was submitted is answered. Returns whether it is.
    fn drain(&self, portal: &mut dyn Portal, state: &mut QueueState) -> bool {
        portal.poll();
        state.forget_answered();
        // A dedicated queue loses what is beyond its entries.
        if state.unanswered.len() >= self.facts.size as usize {
            return false;
        }
        let slot: Arc<CompletionSlot> = Arc::default();
        let drain = self.descriptor((EngineOperation::Drain, DescriptorFlags::default()), &slot).encode();
        state.unanswered.push(Unanswered { slot: slot.clone(), batch: None });
        // SAFETY: a drain names no memory but its answer, which `unanswered` keeps.
        if unsafe { portal.submit(&drain) } != Submission::Accepted {
            state.unanswered.pop();
            return false;
        }
        let since = Instant::now();
        for round in 0.. {
            portal.poll();
            if let Some(record) = slot.read() {
                return record.status == CompletionCode::SUCCESS;
            }
            let look = round % ROUNDS_BETWEEN_CHECKS == ROUNDS_BETWEEN_CHECKS - 1;
            if look && (since.elapsed() >= self.patience || portal.check().is_err()) {
                break;
            }
            pause_by_rounds(round);
        }
        false
    }
}

impl QueueState {
    fn take_note(&mut self) {
        if let Some(portal) = &mut self.portal {
            portal.poll();
        }
        self.forget_answered();
    }

    fn forget_answered(&mut self) {
        self.unanswered.retain(|entry| {
            let Some(record) = entry.slot.read() else { return true };
            if let Some(batch) = &entry.batch
                && record.status != CompletionCode::SUCCESS
            {
                let status = match record.status {
                    CompletionCode::BATCH_PAGE_FAULT => CompletionCode::PAGE_FAULT,
                    other => other,
                };
                let missed = batch.members.iter().filter(|member| !member.is_written());
                missed.for_each(|member| member.write(&CompletionRecord::new(status, 0)));
            }
            false
        });
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let is_here = self.owner.is_here();
        let state = self.state.get_mut();
        if !is_here {
            // A child has the memory of its parent's queue, but not the queue.
            std::mem::forget(state.portal.take());
            std::mem::forget(std::mem::take(&mut state.unanswered));
        } else if state.portal.is_some() {
            state.take_note();
            if !state.unanswered.is_empty() {
                // Movers end what they have before they drop the queue, so this is left of a call
                // that panicked.
                let mut taken = QueueState {
                    portal: state.portal.take(),
                    unanswered: std::mem::take(&mut state.unanswered),
                    lost: None,
                };
                self.stop(&mut taken, "it was dropped".into());
            }
        }
    }
}
