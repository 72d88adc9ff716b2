//! The portal of a device of DPDK: it takes the descriptors of a work queue and writes their
//! answers, as an engine of Intel does by itself. So jobs, page faults, full queues and lost
//! engines are dealt with in one place for all engines.
//!
//! ```text
//! submit:  move  -> pages mapped where the device needs that -> rte_dma_copy -> pending
//!          drain -> pending, answered when it is the first
//! poll:    rte_dma_completed_status -> the first pending ones are answered, their pages unmapped
//! stop:    rte_dma_stop; what is pending is given up by the work queue
//! ```
//!
//! This module's unsafe code writes answers into slots. A work queue keeps a slot until it is
//! answered or the portal has stopped.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;

use super::device::DmaChannel;
use crate::completion::{CompletionCode, CompletionRecord, CompletionSlot};
use crate::descriptor::{Descriptor, DescriptorBytes, EngineOperation};
use crate::portal::{Portal, Submission};

/// Answers that are taken at once.
const ANSWERS: usize = 64;

/// Maps pages for a device, and unmaps them.
pub(super) trait DevicePages: Send {
    /// Maps the pages of some bytes; what is returned goes to `release`.
    fn hold(&self, bytes: Range<usize>) -> Result<Vec<usize>, String>;
    fn release(&self, held: &[usize]);
}

enum Work {
    Copy { len: u32, pages: Vec<usize> },
    Drain,
}

struct Pending {
    /// The address of the slot for the answer.
    slot: u64,
    work: Work,
}

/// A portal over a channel.
pub(super) struct DmadevPortal<C: DmaChannel, P: DevicePages> {
    channel: C,
    pages: P,
    entries: usize,
    pending: VecDeque<Pending>,
}

impl<C: DmaChannel, P: DevicePages> DmadevPortal<C, P> {
    pub(super) fn new(channel: C, pages: P, entries: u32) -> DmadevPortal<C, P> {
        DmadevPortal { channel, pages, entries: entries as usize, pending: VecDeque::new() }
    }

    fn copy(&mut self, slot: u64, (source, target, len): (u64, u64, u32)) -> Submission {
        if self.pending.len() >= self.entries {
            return Submission::Full;
        }
        let pages = match self.hold((source, target, len)) {
            Ok(pages) => pages,
            Err(_) => return answered(slot, CompletionCode::TRANSLATION, 0),
        };
        // SAFETY: the work queue's caller answers for the memory until the answer is there or the
        // queue is quiet, which is so when `stop` has returned without an error.
        match unsafe { self.channel.copy(source, target, len) } {
            Ok(()) => {
                self.pending.push_back(Pending { slot, work: Work::Copy { len, pages } });
                Submission::Accepted
            }
            Err(error) => {
                self.pages.release(&pages);
                match -error {
                    libc::ENOSPC | libc::EBUSY | libc::EAGAIN => Submission::Full,
                    _ => Submission::Lost(format!("it takes no copies: error {error}")),
                }
            }
        }
    }

    fn hold(&self, (source, target, len): (u64, u64, u32)) -> Result<Vec<usize>, String> {
        if !self.channel.needs_pages() {
            return Ok(Vec::new());
        }
        let bytes = |start: u64| -> Result<Range<usize>, String> {
            let start = usize::try_from(start).map_err(|e| e.to_string())?;
            Ok(start..start.checked_add(len as usize).ok_or("no range of addresses")?)
        };
        let mut pages = self.pages.hold(bytes(source)?)?;
        match bytes(target).and_then(|target| self.pages.hold(target)) {
            Ok(more) => pages.extend(more),
            Err(why) => {
                self.pages.release(&pages);
                return Err(why);
            }
        }
        Ok(pages)
    }

    /// Answers the drains that nothing is before.
    fn answer_drains(&mut self) {
        while let Some(Pending { slot, work: Work::Drain }) = self.pending.front() {
            answer(*slot, CompletionCode::SUCCESS, 0);
            self.pending.pop_front();
        }
    }
}

/// What an `rte_dma_status_code` means as an answer of a work queue, and whether bytes are done.
fn meaning(status: c_int) -> CompletionCode {
    match status {
        0 => CompletionCode::SUCCESS,
        // INVALID_SRC_ADDR, INVALID_DST_ADDR, INVALID_ADDR.
        3..=5 => CompletionCode::TRANSLATION,
        6 => CompletionCode::SIZE_OUT_OF_RANGE,
        7 => CompletionCode::BAD_OPERATION,
        // The device does not say how far it came, so all of it counts as not done.
        14 => CompletionCode::PAGE_FAULT,
        _ => CompletionCode::HARDWARE,
    }
}

fn answer(slot: u64, status: CompletionCode, done: u32) {
    let slot = std::ptr::with_exposed_provenance::<CompletionSlot>(slot as usize);
    // SAFETY: the address is that of a slot of the work queue (`CompletionSlot::address`), which
    // keeps it until it is answered or `stop` has returned; and the portal forgets it then.
    unsafe { &*slot }.write(&CompletionRecord::new(status, done));
}

/// Takes a descriptor by answering it at once.
fn answered(slot: u64, status: CompletionCode, done: u32) -> Submission {
    answer(slot, status, done);
    Submission::Accepted
}

// SAFETY: memory of a descriptor is used only by the channel, between its submission and its
// answer; and the portal uses slots until they are answered, and none after `stop`.
unsafe impl<C: DmaChannel, P: DevicePages> Portal for DmadevPortal<C, P> {
    unsafe fn submit(&mut self, descriptor: &DescriptorBytes) -> Submission {
        let Ok(descriptor) = Descriptor::decode(descriptor) else {
            return Submission::Lost("it was given a descriptor that is none".into());
        };
        let slot = descriptor.completion;
        match descriptor.operation {
            EngineOperation::Memmove { source, target, len } => self.copy(slot, (source, target, len)),
            EngineOperation::Drain => {
                self.pending.push_back(Pending { slot, work: Work::Drain });
                self.answer_drains();
                Submission::Accepted
            }
            EngineOperation::Noop => answered(slot, CompletionCode::SUCCESS, 0),
            _ => answered(slot, CompletionCode::BAD_OPERATION, 0),
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.channel.check()
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn poll(&mut self) {
        let mut status = [0; ANSWERS];
        loop {
            self.answer_drains();
            if self.pending.is_empty() {
                return;
            }
            let done = self.channel.completed(&mut status).min(ANSWERS);
            for status in status.iter().take(done) {
                self.answer_drains();
                let Some(Pending { slot, work: Work::Copy { len, pages } }) = self.pending.pop_front() else { return };
                // Before the answer: its leases may end as soon as that is there.
                self.pages.release(&pages);
                let status = meaning(*status);
                answer(slot, status, if status == CompletionCode::SUCCESS { len } else { 0 });
            }
            if done == 0 {
                return;
            }
        }
    }

    fn takes_batches(&self) -> bool {
        false
    }

    fn stop(&mut self) -> Result<(), String> {
        self.poll();
        let stopped = self.channel.stop();
        for Pending { work, .. } in self.pending.drain(..) {
            // Pages of a device that may still write stay mapped, as their leases stay.
            if let (Work::Copy { pages, .. }, Ok(())) = (work, &stopped) {
                self.pages.release(&pages);
            }
        }
        stopped
    }
}

impl<C: DmaChannel, P: DevicePages> Drop for DmadevPortal<C, P> {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
