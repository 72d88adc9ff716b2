//! Completion records of an analytics accelerator, in 64 bytes (`struct iax_completion_record`).
//!
//! ```text
//!  0  as in a record of DSA: status, error, bytes read, address of a fault      24  bytes of output
//! 16  flags that are invalid                                                    28  bits of the last byte
//! 32  CRC-32 of what is not compressed, or CRC-64                               30  XOR checksum
//! ```
//! What filters write there (minimum, maximum, sum) is not read.

use crate::completion::{CompletionCode, CompletionRecord, CompletionSlot};

/// An answer of an analytics accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnalyticsRecord {
    /// How it ended, 7 bits; 0 is no answer.
    pub status: CompletionCode,
    /// After a page fault: whether a write met it.
    pub write_fault: bool,
    /// What was wrong with the input, for [`CompletionCode::ANALYTICS`].
    pub error_code: u8,
    /// More about a fault.
    pub fault_info: u8,
    /// Bytes of the input that were read.
    pub bytes_completed: u32,
    /// The address of a page fault.
    pub fault_address: u64,
    /// Flags that the operation does not know.
    pub invalid_flags: u32,
    /// Bytes that were written.
    pub output_bytes: u32,
    /// The bits of the last byte that count; 0 for all.
    pub output_bits: u8,
    /// The XOR of the words of what is not compressed.
    pub xor_checksum: u16,
    /// The CRC-32 of what is not compressed, or the CRC-64.
    pub checksum: u64,
}

impl AnalyticsRecord {
    /// A record with this status, and the bytes that were read and written.
    pub fn new(status: CompletionCode, bytes_completed: u32, output_bytes: u32) -> AnalyticsRecord {
        AnalyticsRecord {
            status,
            write_fault: false,
            error_code: 0,
            fault_info: 0,
            bytes_completed,
            fault_address: 0,
            invalid_flags: 0,
            output_bytes,
            output_bits: 0,
            xor_checksum: 0,
            checksum: 0,
        }
    }

    /// The answer in a slot, if it is there.
    pub fn read_from(slot: &CompletionSlot) -> Option<AnalyticsRecord> {
        slot.bytes().map(|bytes| AnalyticsRecord::decode(&bytes))
    }

    /// Writes an answer into a slot, as an accelerator does.
    pub fn write_to(&self, slot: &CompletionSlot) {
        slot.put(&self.encode());
    }

    /// Returns its bytes.
    pub fn encode(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let head = CompletionRecord {
            status: self.status,
            write_fault: self.write_fault,
            result: self.error_code,
            fault_info: self.fault_info,
            bytes_completed: self.bytes_completed,
            fault_address: self.fault_address,
            specific: [0; 16],
        };
        put(0, &head.encode());
        put(16, &self.invalid_flags.to_le_bytes());
        put(24, &self.output_bytes.to_le_bytes());
        put(28, &[self.output_bits]);
        put(30, &self.xor_checksum.to_le_bytes());
        put(32, &self.checksum.to_le_bytes());
        bytes
    }

    /// Reads a record from its bytes. Reserved bytes are not looked at.
    pub fn decode(bytes: &[u8; 64]) -> AnalyticsRecord {
        let head = CompletionRecord::decode(&std::array::from_fn(|at| bytes[at]));
        AnalyticsRecord {
            status: head.status,
            write_fault: head.write_fault,
            error_code: head.result,
            fault_info: head.fault_info,
            bytes_completed: head.bytes_completed,
            fault_address: head.fault_address,
            invalid_flags: u32::from_le_bytes(std::array::from_fn(|i| bytes[16 + i])),
            output_bytes: u32::from_le_bytes(std::array::from_fn(|i| bytes[24 + i])),
            output_bits: bytes[28],
            xor_checksum: u16::from_le_bytes(std::array::from_fn(|i| bytes[30 + i])),
            checksum: u64::from_le_bytes(std::array::from_fn(|i| bytes[32 + i])),
        }
    }
}
