//! Work descriptors: what the engine is to do, in the 64 bytes that it reads.
//!
//! The layout is that of `struct dsa_hw_desc` in Linux's `include/uapi/linux/idxd.h`, after the
//! Intel Data Streaming Accelerator Architecture Specification:
//!
//! ```text
//!  0  PASID (20 bits), privileged (bit 31)      32  transfer size, or number of descriptors
//!  4  flags (24 bits), operation (8 bits)       36  interrupt handle (16 bits), reserved (16)
//!  8  address of the completion record          40  for the operation: 24 bytes
//! 16  source, pattern, list of descriptors
//! 24  target, second source
//! ```
//! Analytics accelerators (IAA) read the same 64 bytes (`struct iax_hw_desc`), with flags of the
//! operation at 38, a second source at 40, and the room for output at 48.

use std::fmt;
use std::ops::BitOr;

/// The flags of a descriptor, `IDXD_OP_FLAG_*`: 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorFlags(u32);

impl DescriptorFlags {
    /// In a batch: begins only when the descriptors before it are done.
    pub const FENCE: DescriptorFlags = DescriptorFlags(0x0001);
    /// The engine waits for a missing page to come, rather than end with a page fault.
    pub const BLOCK_ON_FAULT: DescriptorFlags = DescriptorFlags(0x0002);
    /// The address of the completion record is valid.
    pub const COMPLETION_VALID: DescriptorFlags = DescriptorFlags(0x0004);
    /// A completion record is wanted in any case, not only after an error.
    pub const REQUEST_COMPLETION: DescriptorFlags = DescriptorFlags(0x0008);
    /// An interrupt is wanted at the end.
    pub const REQUEST_INTERRUPT: DescriptorFlags = DescriptorFlags(0x0010);
    /// The result is compared with the expected one, and a difference is a status of its own.
    pub const CHECK_RESULT: DescriptorFlags = DescriptorFlags(0x0080);
    /// Written bytes go to the cache, not to memory (the direct cache access of CIDR'23, on). For
    /// a cache flush: lines are kept.
    pub const CACHE_CONTROL: DescriptorFlags = DescriptorFlags(0x0100);
    /// Of an analytics accelerator: the second source is its configuration and state (AECS).
    pub const READ_STATE: DescriptorFlags = DescriptorFlags(0x01_0000);

    const MASK: u32 = 0x00ff_ffff;

    /// Makes flags of their bits, if there are at most 24.
    pub fn from_bits(bits: u32) -> Option<DescriptorFlags> {
        (bits & !DescriptorFlags::MASK == 0).then_some(DescriptorFlags(bits))
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are set.
    pub fn has(self, other: DescriptorFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags and `other` where `on`, else these.
    #[must_use]
    pub fn with(self, other: DescriptorFlags, on: bool) -> DescriptorFlags {
        if on { self | other } else { self }
    }
}

impl BitOr for DescriptorFlags {
    type Output = DescriptorFlags;
    fn bitor(self, other: DescriptorFlags) -> DescriptorFlags {
        DescriptorFlags(self.0 | other.0)
    }
}

/// An operation with its operands. Addresses are virtual ones of the process (SVM).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineOperation {
    /// Nothing; with [`FENCE`](DescriptorFlags::FENCE) in a batch, a barrier.
    Noop,
    /// Reads and runs other descriptors.
    Batch {
        /// The address of the first, a multiple of 64.
        list: u64,
        /// Their number, at least 2.
        count: u32,
    },
    /// Ends when the operations before it in the same work queue have ended.
    Drain,
    /// Copies.
    Memmove {
        /// Address of the source.
        source: u64,
        /// Address of the target.
        target: u64,
        /// Bytes.
        len: u32,
    },
    /// Writes a pattern of eight bytes over and over.
    Fill {
        /// The pattern, in little-endian order.
        pattern: u64,
        /// Address of the target.
        target: u64,
        /// Bytes.
        len: u32,
    },
    /// Compares two ranges. The result is 0 where they are equal.
    Compare {
        /// Address of the first range.
        first: u64,
        /// Address of the second range.
        second: u64,
        /// Bytes of each.
        len: u32,
        /// The expected result, for [`CHECK_RESULT`](DescriptorFlags::CHECK_RESULT).
        expected: u8,
    },
    /// Copies to two targets. Their addresses agree in the lowest 12 bits.
    Dualcast {
        /// Address of the source.
        source: u64,
        /// Addresses of the targets.
        targets: [u64; 2],
        /// Bytes.
        len: u32,
    },
    /// Computes a CRC-32C.
    Crc {
        /// Address of the source.
        source: u64,
        /// Bytes.
        len: u32,
        /// The CRC of the bytes before them; 0 where there are none.
        seed: u32,
    },
    /// Writes lines back to memory, and drops them from the caches unless
    /// [`CACHE_CONTROL`](DescriptorFlags::CACHE_CONTROL) is set.
    CacheFlush {
        /// Address of the first byte.
        target: u64,
        /// Bytes.
        len: u32,
    },
    /// Decompresses a Deflate stream. Only an analytics accelerator does.
    Decompress {
        /// Address of the stream.
        source: u64,
        /// Address of the target.
        target: u64,
        /// Bytes of the stream.
        len: u32,
        /// Bytes that the target has room for.
        max_target: u32,
        /// When to begin and stop: `ADDF_*` of Intel's library QPL.
        flags: u16,
    },
    /// Compresses as Deflate, with [`READ_STATE`](DescriptorFlags::READ_STATE). Only an analytics
    /// accelerator does.
    Compress {
        /// Address of the source.
        source: u64,
        /// Address of the target.
        target: u64,
        /// Bytes of the source.
        len: u32,
        /// Bytes that the target has room for.
        max_target: u32,
        /// Address of the codes and of what goes before the output, a multiple of 32.
        state: u64,
        /// How the output ends: `ADCF_*` of QPL.
        flags: u16,
    },
    /// Computes a CRC of 64 bits. Only an analytics accelerator does.
    Crc64 {
        /// Address of the source.
        source: u64,
        /// Bytes.
        len: u32,
        /// The polynomial, with its highest power left out.
        polynomial: u64,
        /// The order of bits, and whether they are inverted: `ADC64F_*` of QPL.
        flags: u16,
    },
}

/// The bytes of the configuration and state that a compression reads.
pub(crate) const STATE_BYTES: u32 = 1568;

impl EngineOperation {
    /// Its code, `DSA_OPCODE_*` or `IAX_OPCODE_*`.
    pub fn code(&self) -> u8 {
        match self {
            EngineOperation::Noop => 0x00,
            EngineOperation::Batch { .. } => 0x01,
            EngineOperation::Drain => 0x02,
            EngineOperation::Memmove { .. } => 0x03,
            EngineOperation::Fill { .. } => 0x04,
            EngineOperation::Compare { .. } => 0x05,
            EngineOperation::Dualcast { .. } => 0x09,
            EngineOperation::Crc { .. } => 0x10,
            EngineOperation::CacheFlush { .. } => 0x20,
            // `IAX_OPCODE_*`.
            EngineOperation::Decompress { .. } => 0x42,
            EngineOperation::Compress { .. } => 0x43,
            EngineOperation::Crc64 { .. } => 0x44,
        }
    }
}

/// A work descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The address space, 20 bits. ENQCMD and the configuration of a dedicated queue replace it,
    /// so a user's is 0.
    pub pasid: u32,
    /// Whether the addresses are the kernel's.
    pub privileged: bool,
    /// The flags.
    pub flags: DescriptorFlags,
    /// The address of the completion record, a multiple of 32.
    pub completion: u64,
    /// Which interrupt is raised.
    pub interrupt_handle: u16,
    /// What is to be done.
    pub operation: EngineOperation,
}

/// The bytes of a descriptor, aligned as the submitting instructions want them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct DescriptorBytes(pub [u8; 64]);

impl fmt::Debug for DescriptorBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why bytes are no descriptor that this library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedDescriptor {
    /// The operation has this code.
    Operation(u8),
    /// A bit that must be 0 is not.
    Reserved,
}

/// The bytes that belong to the operation.
const SPECIFIC: usize = 40;
/// Those of an analytics accelerator: flags, the room for output, the length of the second source,
/// the polynomial of a CRC.
const OPERATION_FLAGS: usize = 38;
const MAX_TARGET: usize = 48;
const SECOND_LEN: usize = 52;
const POLYNOMIAL: usize = 56;

impl Descriptor {
    /// Returns the bytes that the engine reads. Bits beyond the 20 of the PASID are left out.
    pub fn encode(&self) -> DescriptorBytes {
        let mut bytes = [0; 64];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(self.pasid & 0xf_ffff | u32::from(self.privileged) << 31).to_le_bytes());
        put(4, &(self.flags.bits() | u32::from(self.operation.code()) << 24).to_le_bytes());
        put(8, &self.completion.to_le_bytes());
        put(36, &self.interrupt_handle.to_le_bytes());
        let (first, second, size) = match self.operation {
            EngineOperation::Noop | EngineOperation::Drain => (0, 0, 0),
            EngineOperation::Batch { list, count } => (list, 0, count),
            EngineOperation::Memmove { source, target, len } => (source, target, len),
            EngineOperation::Fill { pattern, target, len } => (pattern, target, len),
            EngineOperation::Compare { first, second, len, expected } => {
                put(SPECIFIC, &[expected]);
                (first, second, len)
            }
            EngineOperation::Dualcast { source, targets, len } => {
                put(SPECIFIC, &targets[1].to_le_bytes());
                (source, targets[0], len)
            }
            EngineOperation::Crc { source, len, seed } => {
                put(SPECIFIC, &seed.to_le_bytes());
                (source, 0, len)
            }
            EngineOperation::CacheFlush { target, len } => (0, target, len),
            EngineOperation::Decompress { source, target, len, max_target, flags } => {
                put(OPERATION_FLAGS, &flags.to_le_bytes());
                put(MAX_TARGET, &max_target.to_le_bytes());
                (source, target, len)
            }
            EngineOperation::Compress { source, target, len, max_target, state, flags } => {
                put(OPERATION_FLAGS, &flags.to_le_bytes());
                put(SPECIFIC, &state.to_le_bytes());
                put(MAX_TARGET, &max_target.to_le_bytes());
                put(SECOND_LEN, &STATE_BYTES.to_le_bytes());
                (source, target, len)
            }
            EngineOperation::Crc64 { source, len, polynomial, flags } => {
                put(OPERATION_FLAGS, &flags.to_le_bytes());
                put(POLYNOMIAL, &polynomial.to_le_bytes());
                (source, 0, len)
            }
        };
        put(16, &first.to_le_bytes());
        put(24, &second.to_le_bytes());
        put(32, &size.to_le_bytes());
        DescriptorBytes(bytes)
    }

    /// Reads a descriptor from its bytes.
    ///
    /// # Errors
    /// An operation that this library does not use, or a bit that must be 0 and is not.
    pub fn decode(bytes: &DescriptorBytes) -> Result<Descriptor, MalformedDescriptor> {
        let bytes = &bytes.0;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (first, second, size) = (u64_at(16), u64_at(24), u32_at(32));
        let operation = match bytes[7] {
            0x00 => EngineOperation::Noop,
            0x01 => EngineOperation::Batch { list: first, count: size },
            0x02 => EngineOperation::Drain,
            0x03 => EngineOperation::Memmove { source: first, target: second, len: size },
            0x04 => EngineOperation::Fill { pattern: first, target: second, len: size },
            0x05 => EngineOperation::Compare { first, second, len: size, expected: bytes[SPECIFIC] },
            0x09 => EngineOperation::Dualcast { source: first, targets: [second, u64_at(SPECIFIC)], len: size },
            0x10 => EngineOperation::Crc { source: first, len: size, seed: u32_at(SPECIFIC) },
            0x20 => EngineOperation::CacheFlush { target: second, len: size },
            0x42 => EngineOperation::Decompress {
                source: first,
                target: second,
                len: size,
                max_target: u32_at(MAX_TARGET),
                flags: u16_at(OPERATION_FLAGS),
            },
            0x43 => EngineOperation::Compress {
                source: first,
                target: second,
                len: size,
                max_target: u32_at(MAX_TARGET),
                state: u64_at(SPECIFIC),
                flags: u16_at(OPERATION_FLAGS),
            },
            0x44 => EngineOperation::Crc64 {
                source: first,
                len: size,
                polynomial: u64_at(POLYNOMIAL),
                flags: u16_at(OPERATION_FLAGS),
            },
            code => return Err(MalformedDescriptor::Operation(code)),
        };
        let descriptor = Descriptor {
            pasid: u32_at(0) & 0xf_ffff,
            privileged: bytes[3] & 0x80 != 0,
            flags: DescriptorFlags(u32_at(4) & DescriptorFlags::MASK),
            completion: u64_at(8),
            interrupt_handle: u16_at(36),
            operation,
        };
        // Whatever the fields above do not hold is reserved.
        if descriptor.encode().0 == *bytes { Ok(descriptor) } else { Err(MalformedDescriptor::Reserved) }
    }
}
