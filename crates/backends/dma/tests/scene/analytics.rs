//! What an analytics accelerator does with its operations.
//!
//! It compresses with the codes that it is given, bit by bit, so codes that are wrong make a stream
//! that nobody reads. It finds only repetitions of one byte. Decompression is that of `flate2`.

use datapipes_dma::{AnalyticsRecord, CompletionCode, Descriptor, DescriptorFlags, EngineOperation};
use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::{load, store};

/// The lengths that the symbols from 257 on begin at, and the extra bits of each (RFC 1951, 3.2.5).
const LENGTHS: [(u32, u32); 29] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
];

/// Carries an operation out, if it is one of an analytics accelerator.
pub(super) fn execute(descriptor: &Descriptor) -> Option<AnalyticsRecord> {
    let failed = |status| Some(AnalyticsRecord::new(status, 0, 0));
    match descriptor.operation {
        EngineOperation::Crc64 { source, len, polynomial, flags } => {
            let mut record = AnalyticsRecord::new(CompletionCode::SUCCESS, len, 0);
            record.checksum = crc64(&load(source, len), polynomial, flags & 1 << 15 != 0, flags & 1 << 14 != 0);
            Some(record)
        }
        EngineOperation::Compress { flags, state, .. }
            if flags != 0x6 || state % 32 != 0 || !descriptor.flags.has(DescriptorFlags::READ_STATE) =>
        {
            failed(CompletionCode::INVALID_FLAGS)
        }
        EngineOperation::Compress { source, target, len, max_target, state, .. } => {
            let (source, state) = (load(source, len), load(state, 1568));
            let output = compressed(&source, &state);
            if output.len() > max_target as usize {
                let mut record = AnalyticsRecord::new(CompletionCode::ANALYTICS, len, max_target);
                record.error_code = 0x19;
                return Some(record);
            }
            store(target, &output);
            Some(done(len, output.len(), &source))
        }
        EngineOperation::Decompress { flags, .. } if flags != 0x1f => failed(CompletionCode::INVALID_FLAGS),
        EngineOperation::Decompress { source, target, len, max_target, .. } => {
            let mut output = vec![0; max_target as usize];
            let mut inflater = Decompress::new(false);
            let status = inflater.decompress(&load(source, len), &mut output, FlushDecompress::Finish);
            output.truncate(inflater.total_out() as usize);
            match status {
                Ok(Status::StreamEnd) => {
                    store(target, &output);
                    Some(done(inflater.total_in() as u32, output.len(), &output))
                }
                Ok(_) if output.len() == max_target as usize => failed(CompletionCode::OUTPUT_FULL),
                other => {
                    let mut record = AnalyticsRecord::new(CompletionCode::ANALYTICS, inflater.total_in() as u32, 0);
                    // A code that stands for nothing (QPL's hw_status.h), or an end that is too
                    // early.
                    record.error_code = if other.is_err() { 0x0b } else { 0x02 };
                    Some(record)
                }
            }
        }
        _ => None,
    }
}

fn done(read: u32, written: usize, plain: &[u8]) -> AnalyticsRecord {
    let mut crc = Crc::new();
    crc.update(plain);
    let mut record = AnalyticsRecord::new(CompletionCode::SUCCESS, read, written as u32);
    record.checksum = u64::from(crc.sum());
    record
}

/// CRC-64 bit by bit: the polynomial is in normal form, whatever the order of bits.
fn crc64(bytes: &[u8], polynomial: u64, is_reflected: bool, is_inverted: bool) -> u64 {
    let ones = if is_inverted { u64::MAX } else { 0 };
    let crc = bytes.iter().fold(ones, |crc, byte| match is_reflected {
        true => (0..8)
            .fold(crc ^ u64::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { polynomial.reverse_bits() } else { 0 }),
        false => {
            (0..8).fold(crc ^ u64::from(*byte) << 56, |crc, _| crc << 1 ^ if crc >> 63 == 1 { polynomial } else { 0 })
        }
    });
    crc ^ ones
}

/// Bits from the lowest of a byte to the highest.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        for bit in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().unwrap() |= ((value >> bit & 1) as u8) << (self.used % 8);
            self.used += 1;
        }
    }

    /// A code comes with its highest bit first.
    fn code(&mut self, entry: u32) {
        let (code, len) = (entry & 0x7fff, entry >> 15);
        (0..len).rev().for_each(|bit| self.put(code >> bit, 1));
    }
}

fn compressed(source: &[u8], state: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(state[at..at + 4].try_into().unwrap());
    let literal = |symbol: usize| number(288 + 4 * symbol);
    let mut bits = Bits::default();
    (0..number(28)).for_each(|bit| bits.put(u32::from(state[32 + bit as usize / 8] >> (bit % 8)), 1));
    let mut at = 0;
    while at < source.len() {
        let run = source[at..].iter().take(258).take_while(|byte| at > 0 && **byte == source[at - 1]).count() as u32;
        if run < 3 {
            bits.code(literal(usize::from(source[at])));
            at += 1;
            continue;
        }
        let symbol = LENGTHS.iter().rposition(|(from, _)| *from <= run).unwrap();
        let (from, extra) = LENGTHS[symbol];
        bits.code(literal(257 + symbol));
        bits.put(run - from, extra);
        // The byte before.
        bits.code(number(1440));
        at += run as usize;
    }
    bits.code(literal(256));
    bits.bytes
}
