//! Operations of an analytics accelerator on memory of this process. They return when they are
//! done.
//!
//! This module's unsafe code submits operations on memory that leases of the call hold. They end
//! when the operation is answered or the queue is quiet; otherwise they are leaked, and the state
//! of a compression with them.
#![allow(unsafe_code)]

use std::path::Path;

use datapipes_core::memory::{Lease, LeaseMut, MemoryRange};
use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Result};

use super::record::AnalyticsRecord;
use super::state::CompressState;
use crate::completion::CompletionCode;
use crate::descriptor::{DescriptorFlags, EngineOperation};
use crate::discovery::QueueDiscovery;
use crate::operations::{MAX_REPEATS, Part, Touch, address};
use crate::portal::DevicePortal;
use crate::work_queue::{Work, WorkQueue};

/// Decompression on; output at the end; stop after the last block, and an error where the input
/// ends before it (`ADDF_ENABLE_DECOMP`, `FLUSH_OUTPUT`, `STOP_ON_EOB`, `CHECK_FOR_EOB`,
/// `SEL_BFINAL_EOB`).
const WHOLE_STREAM: u16 = 0x1f;
/// Output at the end, and the code that ends a block (`ADCF_FLUSH_OUTPUT`, `END_PROC`).
const WHOLE_BLOCK: u16 = 0x06;
const REFLECTED: u16 = 1 << 15;
const INVERTED: u16 = 1 << 14;
/// What [`CompletionCode::ANALYTICS`] says where the target of a compression is too small. That of
/// a decompression is told by [`CompletionCode::OUTPUT_FULL`]; 0x0b is a wrong code of a stream.
const TARGET_FULL: u8 = 0x19;
/// The farthest that the engine looks back in what it decompressed.
const HISTORY_BYTES: u32 = 4096;

/// How a CRC-64 is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc64Convention {
    /// The polynomial, with its highest power left out.
    pub polynomial: u64,
    /// Whether the lowest bit of a byte comes first.
    pub is_reflected: bool,
    /// Whether it begins with ones, and is inverted at the end.
    pub is_inverted: bool,
}

impl Crc64Convention {
    /// That of ECMA-182.
    pub const ECMA_182: Crc64Convention =
        Crc64Convention { polynomial: 0x42f0_e1eb_a9ea_3693, is_reflected: false, is_inverted: false };
    /// That of the file format of xz.
    pub const XZ: Crc64Convention =
        Crc64Convention { polynomial: 0x42f0_e1eb_a9ea_3693, is_reflected: true, is_inverted: true };

    fn flags(self) -> u16 {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        flag(self.is_reflected, REFLECTED) | flag(self.is_inverted, INVERTED)
    }
}

/// What a compression or decompression wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateOutcome {
    /// Bytes of the target.
    pub bytes: usize,
    /// CRC-32 (that of gzip) of what is not compressed, as the engine computed it.
    pub crc32: u32,
}

/// A work queue of an analytics accelerator.
pub struct AnalyticsQueue(WorkQueue);

/// What an operation uses: the input, the output, the codes. All of it lives until the answer.
struct Held {
    source: Lease,
    target: Option<LeaseMut>,
    _state: Option<Box<CompressState>>,
}

impl AnalyticsQueue {
    /// Opens the first queue of this machine that can be opened.
    ///
    /// # Errors
    /// `Unavailable` where there is none, with the reasons.
    pub fn open(topology: &Topology) -> Result<AnalyticsQueue> {
        let found = QueueDiscovery::analytics_under(Path::new("/"));
        let mut reasons = found.absent;
        for facts in found.usable {
            match DevicePortal::open(&facts, topology) {
                Ok(portal) => return Ok(AnalyticsQueue(WorkQueue::new(facts, Box::new(portal)))),
                Err(e) => reasons.push(e.to_string()),
            }
        }
        let context = format!("an analytics accelerator: {}", reasons.join("; "));
        Err(Error::new(ErrorKind::Unavailable, "open", context))
    }

    /// Takes an open queue: that of a model of an accelerator, in tests.
    pub fn over(queue: WorkQueue) -> AnalyticsQueue {
        AnalyticsQueue(queue)
    }

    /// The queue.
    pub fn work_queue(&self) -> &WorkQueue {
        &self.0
    }

    /// Computes the CRC-64 of a range. The engine takes no CRC of bytes before them.
    ///
    /// # Errors
    /// `Busy` where the bytes are leased for writing; `Unsupported` for more bytes than a
    /// descriptor takes; `Device` where the engine fails or is lost.
    pub fn crc64(&self, source: &MemoryRange, convention: Crc64Convention) -> Result<u64> {
        let len = self.checked_len(source)?;
        let Crc64Convention { polynomial, .. } = convention;
        let operation = EngineOperation::Crc64 { source: start(source), len, polynomial, flags: convention.flags() };
        let held = Held { source: source.lease()?, target: None, _state: None };
        let record = self.run(held, (operation, DescriptorFlags::default()))?;
        self.succeeded(&record).map(|()| record.checksum)
    }

    /// Compresses a range as a Deflate stream of one block with fixed codes, which every
    /// decompressor reads.
    ///
    /// # Errors
    /// As [`crc64`](Self::crc64); `NoSpace` where the target is too small.
    pub fn compress(&self, source: &MemoryRange, target: &MemoryRange) -> Result<DeflateOutcome> {
        let (len, max_target) = (self.checked_len(source)?, self.checked_len(target)?);
        let state = Box::new(CompressState::fixed());
        let operation = EngineOperation::Compress {
            source: start(source),
            target: start(target),
            len,
            max_target,
            state: state.address(),
            flags: WHOLE_BLOCK,
        };
        let held = Held { source: source.lease()?, target: Some(target.lease_mut()?), _state: Some(state) };
        let flags = DescriptorFlags::READ_STATE | DescriptorFlags::CACHE_CONTROL;
        self.outcome(&self.run(held, (operation, flags))?, target)
    }

    /// Decompresses a Deflate stream (RFC 1951, without the headers of zlib and gzip).
    ///
    /// # Errors
    /// As [`compress`](Self::compress); `Unsupported` for a stream that the engine refuses: it is
    /// no stream, ends early, or looks back farther than 4096 bytes, as those of most compressors
    /// do. A core may read it then.
    pub fn decompress(&self, source: &MemoryRange, target: &MemoryRange) -> Result<DeflateOutcome> {
        let (len, max_target) = (self.checked_len(source)?, self.checked_len(target)?);
        let (from, to) = (start(source), start(target));
        let operation = EngineOperation::Decompress { source: from, target: to, len, max_target, flags: WHOLE_STREAM };
        let held = Held { source: source.lease()?, target: Some(target.lease_mut()?), _state: None };
        let record = self.run(held, (operation, DescriptorFlags::CACHE_CONTROL))?;
        if record.status == CompletionCode::ANALYTICS && record.error_code != TARGET_FULL {
            let why =
                format!("the engine refuses the stream at byte {}: {:#04x}", record.bytes_completed, record.error_code);
            let error = Error::new(ErrorKind::Unsupported, "decompress", why);
            return Err(
                error.with_advice(format!("decompress it by a core: an engine looks back {HISTORY_BYTES} bytes"))
            );
        }
        self.outcome(&record, target)
    }

    /// Bytes that one descriptor takes.
    fn checked_len(&self, range: &MemoryRange) -> Result<u32> {
        let most = self.0.facts().max_transfer_bytes.min(u64::from(u32::MAX));
        match u32::try_from(range.len()) {
            Ok(len) if u64::from(len) <= most && len > 0 => Ok(len),
            _ => {
                let why = format!("{} bytes, and a descriptor takes 1 to {most}", range.len());
                Err(Error::new(ErrorKind::Unsupported, "transfer", why))
            }
        }
    }

    fn outcome(&self, record: &AnalyticsRecord, target: &MemoryRange) -> Result<DeflateOutcome> {
        let is_full = record.status == CompletionCode::OUTPUT_FULL
            || record.status == CompletionCode::ANALYTICS && record.error_code == TARGET_FULL;
        if is_full {
            let why = format!("the output does not fit {} bytes", target.len());
            return Err(Error::new(ErrorKind::NoSpace, "transfer", why).with_advice("give a larger target"));
        }
        self.succeeded(record)?;
        let bytes = record.output_bytes as usize;
        if bytes > target.len() {
            let why = format!("{} says that it wrote {bytes} bytes to {}", self.0.facts().name, target.len());
            return Err(Error::new(ErrorKind::Device, "transfer", why));
        }
        Ok(DeflateOutcome { bytes, crc32: record.checksum as u32 })
    }

    fn succeeded(&self, record: &AnalyticsRecord) -> Result<()> {
        if record.status == CompletionCode::SUCCESS {
            return Ok(());
        }
        let AnalyticsRecord { status, error_code, .. } = record;
        let why = format!("the engine of {} answered: {status:?}, error {error_code:#04x}", self.0.facts().name);
        Err(Error::new(ErrorKind::Device, "transfer", why))
    }

    /// Carries out an operation. After a page fault the pages are touched, and it begins anew.
    fn run(&self, mut held: Held, work: Work) -> Result<AnalyticsRecord> {
        let mut repeats = 0;
        loop {
            // SAFETY: `held` has the leases and the state until this returns, and for ever where
            // the queue is lost and not quiet.
            let answered = unsafe { self.0.answer_to(work) };
            let record = match answered.map(|slot| AnalyticsRecord::read_from(&slot)) {
                Ok(record) => record,
                Err(e) => {
                    if self.0.lost().is_some_and(|lost| !lost.is_quiet) {
                        // The engine may still use the bytes.
                        std::mem::forget(held);
                    }
                    return Err(e);
                }
            };
            match record {
                Some(record) if record.status.is_page_fault() && repeats < MAX_REPEATS => {
                    repeats += 1;
                    held.touch();
                }
                Some(record) => return Ok(record),
                None => return Err(Error::new(ErrorKind::System, "transfer", "an answer that is not there")),
            }
        }
    }
}

impl Held {
    fn touch(&mut self) {
        // Both lengths fit a descriptor.
        let whole = |len: usize| Part { at: 0, len: len as u32 };
        self.source.touch(whole(self.source.len()));
        if let Some(target) = &mut self.target {
            target.touch(whole(target.len()));
        }
    }
}

fn start(range: &MemoryRange) -> u64 {
    address(range, Part { at: 0, len: 0 })
}
