//! What a compression reads beside its input: the codes, and the bits that go before the output
//! (the analytics engine configuration and state, AECS).
//!
//! ```text
//!    0  CRC, XOR checksum, reserved
//!   28  number of bits that go first          32  these bits (256 bytes)
//!  288  codes of literals and lengths (286)   1440  codes of distances (30)   up to 1568
//! ```
//! A code is 15 bits, and its length in the bits above (`struct aecs_comp_table_record` of Linux's
//! driver). Here they are the fixed codes of Deflate (RFC 1951, 3.2.6), so the output is one block
//! of a stream that every decompressor reads, and nothing has to be counted first.

use crate::descriptor::STATE_BYTES;

const FIRST_BITS_COUNT: usize = 28;
const FIRST_BITS: usize = 32;
const LITERALS: usize = 288;
const LITERAL_CODES: u32 = 286;
const DISTANCES: usize = LITERALS + 4 * 288;
const DISTANCE_CODES: u32 = 30;
/// The bits of a code, below its length.
const CODE_BITS: u32 = 15;
/// A last block (1) with fixed codes (01), from the lowest bit on.
const FIXED_LAST_BLOCK: u8 = 0b011;
const HEADER_BITS: u32 = 3;

/// The state for one compression, aligned as the engine wants it.
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CompressState {
    bytes: [u8; STATE_BYTES as usize],
}

impl std::fmt::Debug for CompressState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompressState(fixed codes)")
    }
}

/// The fixed code of a literal or length, and its length in bits.
fn fixed_code(symbol: u32) -> (u32, u32) {
    match symbol {
        0..144 => (0x30 + symbol, 8),
        144..256 => (0x190 + symbol - 144, 9),
        256..280 => (symbol - 256, 7),
        _ => (0xc0 + symbol - 280, 8),
    }
}

impl CompressState {
    /// One block of a stream, with the fixed codes of Deflate.
    pub fn fixed() -> CompressState {
        let mut bytes = [0; STATE_BYTES as usize];
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(FIRST_BITS_COUNT, HEADER_BITS);
        put(FIRST_BITS, u32::from(FIXED_LAST_BLOCK));
        for symbol in 0..LITERAL_CODES {
            let (code, len) = fixed_code(symbol);
            put(LITERALS + 4 * symbol as usize, len << CODE_BITS | code);
        }
        for symbol in 0..DISTANCE_CODES {
            put(DISTANCES + 4 * symbol as usize, 5 << CODE_BITS | symbol);
        }
        CompressState { bytes }
    }

    /// Its bytes, as the engine reads them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The address, for a descriptor.
    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }
}
