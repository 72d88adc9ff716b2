//! Completion records: what the engine answers, in 32 bytes.
//!
//! The layout is that of `struct dsa_completion_record` in Linux's `include/uapi/linux/idxd.h`:
//!
//! ```text
//! 0  status (bits 6:0), whether the fault was of a write (bit 7)     8  address of the fault
//! 1  result                                                         16  for the operation: 16 bytes
//! 2  fault information (reserved before version 2), reserved
//! 4  bytes done, or descriptors done
//! ```

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// How an operation ended, `DSA_COMP_*`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CompletionCode(pub u8);

impl CompletionCode {
    /// It is done.
    pub const SUCCESS: CompletionCode = CompletionCode(0x01);
    /// It is done, and the result is not the expected one.
    pub const UNEXPECTED_RESULT: CompletionCode = CompletionCode(0x02);
    /// A page was missing, and the engine was not to wait for it. A part is done.
    pub const PAGE_FAULT: CompletionCode = CompletionCode(0x03);
    /// A page was missing, and the kernel could not bring it.
    pub const PAGE_FAULT_UNRESOLVED: CompletionCode = CompletionCode(0x04);
    /// A descriptor of a batch failed.
    pub const BATCH_FAILED: CompletionCode = CompletionCode(0x05);
    /// An analytics accelerator met something that it cannot process; `result` says what.
    pub const ANALYTICS: CompletionCode = CompletionCode(0x0a);
    /// The output of an analytics accelerator does not fit its target.
    pub const OUTPUT_FULL: CompletionCode = CompletionCode(0x0b);
    /// A page of the list of a batch was missing.
    pub const BATCH_PAGE_FAULT: CompletionCode = CompletionCode(0x06);
    /// The operation is not supported.
    pub const BAD_OPERATION: CompletionCode = CompletionCode(0x10);
    /// Flags are set that the operation does not know.
    pub const INVALID_FLAGS: CompletionCode = CompletionCode(0x11);
    /// A reserved field is not 0.
    pub const RESERVED_FIELD: CompletionCode = CompletionCode(0x12);
    /// The transfer size is 0, or above the limit of the work queue.
    pub const SIZE_OUT_OF_RANGE: CompletionCode = CompletionCode(0x13);
    /// The number of descriptors is below 2, or above the limit of the work queue.
    pub const COUNT_OUT_OF_RANGE: CompletionCode = CompletionCode(0x14);
    /// Source and target overlap.
    pub const OVERLAP: CompletionCode = CompletionCode(0x16);
    /// The two targets of a dualcast do not agree in the lowest 12 bits.
    pub const DUALCAST_TARGETS: CompletionCode = CompletionCode(0x17);
    /// The list of descriptors is not aligned to 64 bytes.
    pub const LIST_MISALIGNED: CompletionCode = CompletionCode(0x18);
    /// The hardware failed.
    pub const HARDWARE: CompletionCode = CompletionCode(0x20);
    /// An address could not be translated.
    pub const TRANSLATION: CompletionCode = CompletionCode(0x22);

    /// What it means, in a few words.
    pub fn name(self) -> &'static str {
        match self {
            CompletionCode::SUCCESS => "success",
            CompletionCode::UNEXPECTED_RESULT => "another result than expected",
            CompletionCode::PAGE_FAULT => "a page fault",
            CompletionCode::PAGE_FAULT_UNRESOLVED => "a page fault that the kernel could not resolve",
            CompletionCode::BATCH_FAILED => "a failed descriptor in a batch",
            CompletionCode::BATCH_PAGE_FAULT => "a page fault at the list of a batch",
            CompletionCode::ANALYTICS => "an input that it cannot process",
            CompletionCode::OUTPUT_FULL => "a target that is too small",
            CompletionCode::BAD_OPERATION => "an unknown operation",
            CompletionCode::INVALID_FLAGS => "invalid flags",
            CompletionCode::RESERVED_FIELD => "a reserved field that is not 0",
            CompletionCode::SIZE_OUT_OF_RANGE => "a transfer size out of range",
            CompletionCode::COUNT_OUT_OF_RANGE => "a number of descriptors out of range",
            CompletionCode::OVERLAP => "overlapping buffers",
            CompletionCode::DUALCAST_TARGETS => "targets of a dualcast that differ in the lowest 12 bits",
            CompletionCode::LIST_MISALIGNED => "a list of descriptors that is not aligned",
            CompletionCode::HARDWARE => "a hardware error",
            CompletionCode::TRANSLATION => "an address that could not be translated",
            _ => "a status of idxd.h that this library has no name for",
        }
    }

    /// Whether a missing page ended it.
    pub fn is_page_fault(self) -> bool {
        matches!(self, CompletionCode::PAGE_FAULT | CompletionCode::PAGE_FAULT_UNRESOLVED)
    }
}

impl fmt::Debug for CompletionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.name(), self.0)
    }
}

/// An answer of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRecord {
    /// How it ended, 7 bits; 0 is no answer.
    pub status: CompletionCode,
    /// After a page fault: whether a write met it.
    pub write_fault: bool,
    /// The result of the operation: of a comparison, 1 where the ranges differ; of a copy that
    /// ended early, 1 where it ran from the end to the beginning.
    pub result: u8,
    /// More about a fault, from version 2 of the engine on; else 0.
    pub fault_info: u8,
    /// Bytes done; of a batch, descriptors done.
    pub bytes_completed: u32,
    /// The address of a page fault.
    pub fault_address: u64,
    /// What belongs to the operation.
    pub specific: [u8; 16],
}

impl CompletionRecord {
    /// A record with this status, and the bytes done.
    pub fn new(status: CompletionCode, bytes_completed: u32) -> CompletionRecord {
        CompletionRecord {
            status,
            write_fault: false,
            result: 0,
            fault_info: 0,
            bytes_completed,
            fault_address: 0,
            specific: [0; 16],
        }
    }

    /// The computed CRC.
    pub fn crc(&self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.specific[i]))
    }

    /// Returns its bytes.
    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0] = self.status.0 & 0x7f | u8::from(self.write_fault) << 7;
        bytes[1] = self.result;
        bytes[2] = self.fault_info;
        bytes[4..8].copy_from_slice(&self.bytes_completed.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.fault_address.to_le_bytes());
        bytes[16..].copy_from_slice(&self.specific);
        bytes
    }

    /// Reads a record from its bytes. Reserved bytes are not looked at.
    pub fn decode(bytes: &[u8; 32]) -> CompletionRecord {
        CompletionRecord {
            status: CompletionCode(bytes[0] & 0x7f),
            write_fault: bytes[0] & 0x80 != 0,
            result: bytes[1],
            fault_info: bytes[2],
            bytes_completed: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            fault_address: u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            specific: std::array::from_fn(|i| bytes[16 + i]),
        }
    }
}

/// The memory that an engine writes its answer into, once: 32 bytes, or 64 where it is an analytics
/// accelerator.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CompletionSlot {
    /// The record as words, since a device writes them while a thread reads.
    words: [AtomicU64; 8],
}

impl CompletionSlot {
    /// The address, for a descriptor.
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Whether the answer is there.
    pub fn is_written(&self) -> bool {
        // The status, the lowest byte on a machine in little-endian order, comes last.
        self.words[0].load(Ordering::Acquire).to_le_bytes()[0] != 0
    }

    /// The answer, if it is there.
    pub fn read(&self) -> Option<CompletionRecord> {
        let bytes = self.bytes()?;
        Some(CompletionRecord::decode(&std::array::from_fn(|at| bytes[at])))
    }

    /// The bytes of the answer, if it is there.
    pub(crate) fn bytes(&self) -> Option<[u8; 64]> {
        if !self.is_written() {
            return None;
        }
        let mut bytes = [0; 64];
        for (word, at) in self.words.iter().zip((0..64).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(bytes)
    }

    /// Writes an answer, as an engine does.
    pub fn write(&self, record: &CompletionRecord) {
        self.put(&record.encode());
    }

    /// Writes whole words, the one with the status last.
    pub(crate) fn put(&self, bytes: &[u8]) {
        for (word, at) in self.words.iter().zip((0..bytes.len()).step_by(8)).rev() {
            let value = u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
            word.store(value, Ordering::Release);
        }
    }
}
