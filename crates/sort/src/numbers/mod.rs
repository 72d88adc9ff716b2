//! Files of little-endian numbers. The value is the record, so values are sorted in place.
//!
//! ```text
//! slot:   encode the numbers as unsigned integers in the same order, sort them in place,
//!         write them as a run from the slot
//! merge:  take some values of each run, so that all fit L2;
//!         sort those not above the smallest last value taken: they come next in the output
//! output: decode the values
//! ```
//! Sorting a few thousand values of each run in cache is faster than a tournament for each value.

pub(crate) mod vector;

mod merge;
mod slot;

pub(crate) use merge::{MergeRules, merge_number_runs};
pub(crate) use slot::{SortedNumbers, WritesInFlight};

use std::cmp::Ordering;

use datapipes_core::memory::Plain;

use crate::records::layout::Layout;
pub use crate::records::number_kind::NumberKind;
pub(crate) use crate::records::number_kind::Numbers;

/// The unsigned integer that stands for a number while it is sorted.
pub(crate) trait Unsigned: Plain + Ord + Send + Sync {
    const MAX: Self;
    fn sort(values: &mut [Self]);
    fn encode(self, numbers: Numbers) -> Self;
    fn decode(self, numbers: Numbers) -> Self;
    fn widen(self) -> u64;
    /// The number in the first bytes, in the machine's byte order.
    fn read(bytes: &[u8]) -> Self;
    /// Puts the number into the first bytes, in the machine's byte order.
    fn write(self, bytes: &mut [u8]);
}

/// The prefix of a number as it is in a file.
fn file_prefix<T: Unsigned>(numbers: Numbers, record: &[u8]) -> u64 {
    T::read(record).encode(numbers).widen()
}

impl Unsigned for u32 {
    const MAX: u32 = u32::MAX;

    fn sort(values: &mut [u32]) {
        vector::sort_u32(values);
    }

    #[inline]
    fn encode(self, numbers: Numbers) -> u32 {
        let value = u32::from_le(self);
        if numbers.reverse { !value } else { value }
    }

    #[inline]
    fn decode(self, numbers: Numbers) -> u32 {
        (if numbers.reverse { !self } else { self }).to_le()
    }

    #[inline]
    fn widen(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn read(bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |four| u32::from_ne_bytes(*four))
    }

    #[inline]
    fn write(self, bytes: &mut [u8]) {
        if let Some(four) = bytes.first_chunk_mut() {
            *four = self.to_ne_bytes();
        }
    }
}

const SIGN: u64 = 1 << 63;

impl Unsigned for u64 {
    const MAX: u64 = u64::MAX;

    fn sort(values: &mut [u64]) {
        vector::sort_u64(values);
    }

    #[inline]
    fn encode(self, numbers: Numbers) -> u64 {
        let bits = u64::from_le(self);
        let value = match numbers.kind {
            NumberKind::U32 | NumberKind::U64 => bits,
            NumberKind::I64 => bits ^ SIGN,
            // The bits of negative floats descend, and they come before the positive ones.
            NumberKind::F64 => bits ^ ((bits as i64 >> 63) as u64 | SIGN),
        };
        if numbers.reverse { !value } else { value }
    }

    #[inline]
    fn decode(self, numbers: Numbers) -> u64 {
        let value = if numbers.reverse { !self } else { self };
        let bits = match numbers.kind {
            NumberKind::U32 | NumberKind::U64 => value,
            NumberKind::I64 => value ^ SIGN,
            NumberKind::F64 => value ^ (((value as i64 >> 63) as u64 ^ u64::MAX) | SIGN),
        };
        bits.to_le()
    }

    #[inline]
    fn widen(self) -> u64 {
        self
    }

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        bytes.first_chunk().map_or(0, |eight| u64::from_ne_bytes(*eight))
    }

    #[inline]
    fn write(self, bytes: &mut [u8]) {
        if let Some(eight) = bytes.first_chunk_mut() {
            *eight = self.to_ne_bytes();
        }
    }
}

/// Numbers as they are in runs: encoded, in the machine's byte order.
impl Layout for Numbers {
    #[inline]
    fn fixed_len(&self) -> Option<usize> {
        Some(self.kind.width())
    }

    fn prefix(&self, record: &[u8]) -> u64 {
        if let Some(eight) = record.first_chunk::<8>() {
            return u64::from_ne_bytes(*eight);
        }
        record.first_chunk::<4>().map_or(0, |four| u64::from(u32::from_ne_bytes(*four)))
    }

    fn file_prefix(&self, record: &[u8]) -> u64 {
        match self.kind.width() {
            4 => file_prefix::<u32>(*self, record),
            _ => file_prefix::<u64>(*self, record),
        }
    }

    fn prefix_decides(&self) -> bool {
        true
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.prefix(a).cmp(&self.prefix(b))
    }

    fn prefix_at(&self, _record: &[u8], _depth: usize) -> Option<u64> {
        None
    }

    fn numbers(&self) -> Option<Numbers> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_keep_the_order(a: u64, b: u64, reverse: bool) {
            for kind in [NumberKind::U64, NumberKind::I64, NumberKind::F64] {
                let n = Numbers { kind, reverse };
                prop_assert_eq!(a.encode(n).decode(n), a);
                let order = match kind {
                    NumberKind::I64 => (a as i64).cmp(&(b as i64)),
                    NumberKind::F64 => f64::from_bits(a).total_cmp(&f64::from_bits(b)),
                    _ => a.cmp(&b),
                };
                prop_assert_eq!(a.encode(n).cmp(&b.encode(n)), if reverse { order.reverse() } else { order });
            }
            let n = Numbers { kind: NumberKind::U32, reverse };
            prop_assert_eq!((a as u32).encode(n).decode(n), a as u32);
        }
    }
}
