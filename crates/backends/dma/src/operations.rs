//! The engine's other operations, on memory of this process: fill, compare, CRC, copy to two
//! targets, flush of caches. They return when they are done.
//!
//! In a child of the process that opened the queue they fail as `Forked`.
//!
//! Long ranges are cut by the queue's limit. After a page fault the pages of the piece are touched,
//! and the piece begins anew: each of these operations may be repeated.
//!
//! This module's unsafe code submits operations on memory that leases of the call hold. They end
//! when the operation is answered or the queue is quiet; otherwise they are leaked.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use datapipes_core::memory::{Lease, LeaseMut, MemoryRange};
use datapipes_core::process::page_size;
use datapipes_core::{Error, ErrorKind, Result};

use crate::completion::{CompletionCode, CompletionRecord, CompletionSlot};
use crate::descriptor::{DescriptorFlags, EngineOperation};
use crate::work_queue::{NotTaken, Work, WorkQueue};

/// How often a piece is repeated after page faults.
pub(crate) const MAX_REPEATS: u32 = 8;

/// How often in a row a full queue may refuse an operation.
const MAX_REFUSALS: u32 = 2000;

/// A part of the ranges of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) at: usize,
    pub(crate) len: u32,
}

/// Leases whose pages can be touched.
pub(crate) trait Touch {
    fn touch(&mut self, part: Part);
}

impl Touch for Lease {
    fn touch(&mut self, Part { at, len }: Part) {
        let bytes = &self[at..at + len as usize];
        bytes.iter().step_by(page_size()).chain(bytes.last()).for_each(|byte| _ = std::hint::black_box(*byte));
    }
}

impl Touch for LeaseMut {
    fn touch(&mut self, Part { at, len }: Part) {
        let bytes = &mut self[at..at + len as usize];
        let mut write = |at: usize| bytes[at] = std::hint::black_box(bytes[at]);
        (0..len as usize).step_by(page_size()).chain((len as usize).checked_sub(1)).for_each(&mut write);
    }
}

impl<A: Touch, B: Touch> Touch for (A, B) {
    fn touch(&mut self, part: Part) {
        self.0.touch(part);
        self.1.touch(part);
    }
}

pub(crate) fn address(range: &MemoryRange, part: Part) -> u64 {
    range.address().expose_provenance() as u64 + part.at as u64
}

fn check_len(what: &str, len: usize, others: &[&MemoryRange]) -> Result<()> {
    match others.iter().find(|other| other.len() != len) {
        None => Ok(()),
        Some(other) => {
            let why = format!("{what}: {len} and {} bytes", other.len());
            Err(Error::new(ErrorKind::InvalidInput, "transfer", why).with_advice("give ranges of one length"))
        }
    }
}

impl WorkQueue {
    /// Writes the eight bytes of `pattern`, in little-endian order, over and over.
    ///
    /// # Errors
    /// `Busy`, `Unsupported` as for [`MemoryRange::lease_mut`]; `Device` where the engine fails or
    /// is lost.
    pub fn fill(&self, target: &MemoryRange, pattern: u64) -> Result<()> {
        let work = |part: Part| EngineOperation::Fill { pattern, target: address(target, part), len: part.len };
        self.each_part(target.lease_mut()?, target.len(), work, |_| true)
    }

    /// Whether two ranges of one length hold the same bytes.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); `InvalidInput` for ranges of different lengths.
    pub fn compare(&self, first: &MemoryRange, second: &MemoryRange) -> Result<bool> {
        check_len("compare", first.len(), &[second])?;
        let work = |part: Part| EngineOperation::Compare {
            first: address(first, part),
            second: address(second, part),
            len: part.len,
            expected: 0,
        };
        let mut equal = true;
        self.each_part((first.lease()?, second.lease()?), first.len(), work, |record| {
            equal = record.result == 0;
            equal
        })?;
        Ok(equal)
    }

    /// Computes the CRC-32C (polynomial 0x1EDC6F41, reflected, as iSCSI has it). `seed` is the CRC
    /// of the bytes before these, 0 where there are none.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn crc32c(&self, source: &MemoryRange, seed: u32) -> Result<u32> {
        let crc = std::cell::Cell::new(seed);
        let work = |part: Part| EngineOperation::Crc { source: address(source, part), len: part.len, seed: crc.get() };
        self.each_part(source.lease()?, source.len(), work, |record| {
            crc.set(record.crc());
            true
        })?;
        Ok(crc.get())
    }

    /// Copies a range to two others of its length.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); `InvalidInput` for ranges of different lengths; `Misaligned` where
    /// the addresses of the targets differ in the lowest 12 bits.
    pub fn dualcast(&self, source: &MemoryRange, targets: [&MemoryRange; 2]) -> Result<()> {
        check_len("dualcast", source.len(), &targets)?;
        let [first, second] = targets;
        if (first.address().addr() ^ second.address().addr()) & 0xfff != 0 {
            let why = "the targets of a dualcast differ in the lowest 12 bits";
            return Err(Error::new(ErrorKind::Misaligned, "transfer", why)
                .with_advice("take targets at the same offset in a page"));
        }
        let work = |part: Part| EngineOperation::Dualcast {
            source: address(source, part),
            targets: [address(first, part), address(second, part)],
            len: part.len,
        };
        let leases = (source.lease()?, (first.lease_mut()?, second.lease_mut()?));
        self.each_part(leases, source.len(), work, |_| true)
    }

    /// Writes the lines of a range back to memory, and drops them from the caches.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn flush_caches(&self, range: &MemoryRange) -> Result<()> {
        let work = |part: Part| EngineOperation::CacheFlush { target: address(range, part), len: part.len };
        self.each_part(range.lease()?, range.len(), work, |_| true)
    }

    /// Carries out an operation part by part, until `go_on` says no.
    fn each_part<L: Touch>(
        &self,
        mut leases: L,
        len: usize,
        work: impl Fn(Part) -> EngineOperation,
        mut go_on: impl FnMut(&CompletionRecord) -> bool,
    ) -> Result<()> {
        // A pattern begins anew with each part, so parts are multiples of its length.
        let most = self.facts().max_transfer_bytes.min(1 << 31) / 8 * 8;
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(8);
        let mut at = 0;
        while at < len {
            let part = Part { at, len: (len - at).min(most) as u32 };
            let mut repeats = 0;
            let record = loop {
                // SAFETY: the leases hold the memory until this returns, and for ever where the
                // queue is lost and not quiet.
                let answered = unsafe { self.answer_to((work(part), DescriptorFlags::default())) };
                let record = match answered.map(|slot| slot.read()) {
                    Ok(Some(record)) => record,
                    // `answer_to` returns a slot when it is written.
                    Ok(None) => return Err(self.lost_error()),
                    Err(e) => {
                        if self.lost().is_some_and(|lost| !lost.is_quiet) {
                            // The engine may still use the bytes.
                            std::mem::forget(leases);
                        }
                        return Err(e.with_bytes_done(at as u64));
                    }
                };
                match record.status {
                    CompletionCode::SUCCESS => break record,
                    status if status.is_page_fault() && repeats < MAX_REPEATS => {
                        repeats += 1;
                        leases.touch(part);
                    }
                    status => {
                        let why = format!("the engine of {} answered: {status:?}", self.facts().name);
                        return Err(Error::new(ErrorKind::Device, "transfer", why).with_bytes_done(at as u64));
                    }
                }
            };
            if !go_on(&record) {
                return Ok(());
            }
            at += part.len as usize;
        }
        Ok(())
    }

    /// Submits an operation and waits for its answer.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit): the caller holds the memory of the operation until this
    /// returns, and leaks it where the queue is lost and not quiet.
    pub(crate) unsafe fn answer_to(&self, work: Work) -> Result<Arc<CompletionSlot>> {
        // A child lacks the mapping of the portal, and its own memory may be there.
        self.check_owner("transfer")?;
        let (mut round, mut refusals, since) = (0u32, 0, Instant::now());
        let slot = loop {
            // SAFETY: the caller answers for the memory.
            match unsafe { self.submit(&[work]) }.as_deref() {
                Ok([slot, ..]) => break slot.clone(),
                Ok([]) => return Err(Error::new(ErrorKind::System, "transfer", "a submission without a slot")),
                Err(NotTaken::Lost) => return Err(self.lost_error()),
                Err(NotTaken::Full) if refusals >= MAX_REFUSALS => {
                    let why = format!("{} stays full", self.facts().name);
                    return Err(Error::new(ErrorKind::Busy, "transfer", why));
                }
                Err(NotTaken::Full) => {
                    self.pause(None, refusals);
                    refusals += 1;
                }
            }
        };
        loop {
            self.take_note();
            if slot.is_written() {
                return Ok(slot);
            }
            if self.lost().is_some() {
                // It may have been answered before the queue became quiet.
                return if slot.is_written() { Ok(slot) } else { Err(self.lost_error()) };
            }
            self.look_after(round, since);
            self.pause(Some(&*slot), round);
            round = round.wrapping_add(1);
        }
    }

    fn lost_error(&self) -> Error {
        let why = self.lost().map_or_else(String::new, |lost| lost.why);
        Error::new(ErrorKind::Device, "transfer", format!("{} was lost: {why}", self.facts().name))
    }
}
