//! The counts by which a sort verifies that it lost and invented nothing.
//!
//! Records are counted where they are parsed and again where they are written. Each side has the
//! number of records, their bytes, and a sum over a hash of each record's contents. The sum does
//! not depend on the order, so both sides agree exactly if the output is a permutation of the
//! input. A sort that finds a difference fails with `Corrupt`.
//!
//! The hash multiplies 64-bit words and folds the 128-bit products, as wyhash and its relatives do.
//! It guards against errors, not against an adversary: two different multisets of records agree
//! with a probability of about 2^-64.

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Serialize, Serializer};

/// What a sort counted of records that it wrote or dropped. Tallies of several sorts are compared
/// by adding them up, the sums modulo 2^64: what was written and dropped is together what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecordTally {
    /// The number of records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their hashes, modulo 2^64. JSON has it as 16 hexadecimal digits.
    #[serde(serialize_with = "hexadecimal")]
    pub sum: u64,
}

fn hexadecimal<S: Serializer>(sum: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{sum:016x}"))
}

/// Records, their bytes, and the sum of their hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    sum: u64,
}

impl Tally {
    /// Counts one record.
    #[inline]
    pub(crate) fn add(&mut self, record: &[u8]) {
        self.records += 1;
        self.bytes += record.len() as u64;
        self.sum = self.sum.wrapping_add(hash(record));
    }

    /// Counts one record by its length and its hash.
    #[inline]
    pub(crate) fn add_hashed(&mut self, len: u64, hash: u64) {
        self.records += 1;
        self.bytes += len;
        self.sum = self.sum.wrapping_add(hash);
    }

    /// Counts numbers of `width` bytes, given as they are in files.
    #[inline]
    pub(crate) fn add_numbers(&mut self, width: usize, values: impl Iterator<Item = u64>) {
        let (mut records, mut sum) = (0_u64, 0_u64);
        for value in values {
            records += 1;
            sum = sum.wrapping_add(fold(value ^ SECRET[0], SECRET[1]));
        }
        self.records += records;
        self.bytes += records * width as u64;
        self.sum = self.sum.wrapping_add(sum);
    }

    /// The sum of the hashes, as it is shown.
    pub(crate) fn sum(self) -> String {
        format!("{:016x}", self.sum)
    }

    /// Returns it for a report.
    pub(crate) fn report(self) -> RecordTally {
        RecordTally { records: self.records, bytes: self.bytes, sum: self.sum }
    }

    /// Adds another tally.
    pub(crate) fn join(&mut self, other: Tally) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// Fails unless the records written and the records dropped as duplicates are together those
    /// that were read.
    pub(crate) fn verify(self, mut written: Tally, dropped: Tally) -> Result<()> {
        written.join(dropped);
        if self == written {
            return Ok(());
        }
        let what = |t: Tally| format!("{} records of {} bytes with the sum {:016x}", t.records, t.bytes, t.sum);
        let context = format!("read {}, but wrote or dropped {}", what(self), what(written));
        Err(Error::new(ErrorKind::Corrupt, "sort", context)
            .with_advice("the output was not published; check the machine's memory, and report this as a bug"))
    }
}

/// Fails unless the bytes merged are the sum of those written and those dropped.
pub(crate) fn verify_bytes(merged: u64, written: u64, dropped: Tally) -> Result<()> {
    if merged == written + dropped.bytes {
        return Ok(());
    }
    let context = format!("merged {merged} bytes, but wrote {written} and dropped {}", dropped.bytes);
    Err(Error::new(ErrorKind::Corrupt, "merge", context)
        .with_advice("the output was not published; check the machine's memory, and report this as a bug"))
}

/// Numbers without a pattern (the digits of the golden ratio and of the square roots of 2, 3 and
/// 5).
const SECRET: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b];

/// Folds the two halves of the product of two words together.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |eight| u64::from_le_bytes(*eight))
}

#[inline]
fn half_word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |four| u64::from(u32::from_le_bytes(*four)))
}

/// Hashes a record. The last bytes are read in pieces that overlap: a loop over them would end at a
/// branch that is mispredicted, because lengths differ from record to record.
#[inline]
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let mut chains = Chains::default();
    let mut mix = |words: [u64; 4]| chains.mix(words);
    match len {
        32.. => {
            let (fours, rest) = bytes.as_chunks::<32>();
            fours.iter().for_each(|four| mix(words(four)));
            if !rest.is_empty() {
                mix(words(&bytes[len - 32..]));
            }
        }
        16.. => mix([word(bytes, 0), word(bytes, 8), word(bytes, len - 16), word(bytes, len - 8)]),
        8.. => mix([word(bytes, 0), 0, word(bytes, len - 8), 0]),
        4.. => mix([half_word(bytes, 0), 0, half_word(bytes, len - 4), 0]),
        1.. => mix([u64::from(bytes[0]), 0, u64::from(bytes[len / 2]), u64::from(bytes[len - 1])]),
        0 => mix([0; 4]),
    }
    chains.end(len as u64)
}

/// Two chains, so that one product need not wait for the other.
#[derive(Clone, Copy, Debug)]
struct Chains {
    a: u64,
    b: u64,
}

impl Default for Chains {
    fn default() -> Self {
        Chains { a: SECRET[0], b: SECRET[1] }
    }
}

impl Chains {
    #[inline]
    fn mix(&mut self, [first, second, third, fourth]: [u64; 4]) {
        self.a = fold(first ^ self.a, second ^ SECRET[2]);
        self.b = fold(third ^ self.b, fourth ^ SECRET[3]);
    }

    /// The length comes last, because that of a long record is known only then.
    #[inline]
    fn end(self, len: u64) -> u64 {
        fold(self.a ^ SECRET[0] ^ len, self.b ^ SECRET[1])
    }
}

/// The four words of 32 bytes.
#[inline]
fn words(four: &[u8]) -> [u64; 4] {
    [word(four, 0), word(four, 8), word(four, 16), word(four, 24)]
}

/// The hash of a record whose bytes come one after the other: the same as of all of them at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordHash {
    chains: Chains,
    len: u64,
    /// The bytes that were mixed last, and those behind them, which are not mixed yet.
    before: [u8; 32],
    behind: Vec<u8>,
}

impl RecordHash {
    pub(crate) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.behind.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(32 - self.behind.len()));
            self.behind.extend_from_slice(now);
            bytes = rest;
            if let Some(full) = self.behind.first_chunk::<32>() {
                self.chains.mix(words(full));
                self.before = *full;
                self.behind.clear();
            }
        }
        let (fours, rest) = bytes.as_chunks::<32>();
        fours.iter().for_each(|four| self.chains.mix(words(four)));
        if let Some(last) = fours.last() {
            self.before = *last;
        }
        self.behind.extend_from_slice(rest);
    }

    pub(crate) fn finish(mut self) -> u64 {
        if self.len < 32 {
            return hash(&self.behind);
        }
        if !self.behind.is_empty() {
            let mut last = [0; 32];
            let (old, new) = last.split_at_mut(32 - self.behind.len());
            old.copy_from_slice(&self.before[self.behind.len()..]);
            new.copy_from_slice(&self.behind);
            self.chains.mix(words(&last));
        }
        self.chains.end(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn of(records: &[&[u8]]) -> Tally {
        let mut tally = Tally::default();
        records.iter().for_each(|r| tally.add(r));
        tally
    }

    #[test]
    fn any_changed_bit_changes_the_hash() {
        for len in 0..200 {
            let mut record: Vec<u8> = (0..len).map(|i| (i * 37 + len) as u8).collect();
            let mut seen = HashSet::from([hash(&record)]);
            for bit in 0..8 * len {
                record[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(hash(&record)), "bit {bit} of {len} bytes");
                record[bit / 8] ^= 1 << (bit % 8);
            }
            record.push(0);
            assert!(seen.insert(hash(&record)), "a zero behind {len} bytes");
        }
    }

    #[test]
    fn a_record_in_parts_has_the_hash_of_the_whole() {
        let record: Vec<u8> = (0..200).map(|i| (i * 37 % 251) as u8).collect();
        for len in 0..record.len() {
            for step in [1, 7, 31, 32, 33, 64, 200] {
                let mut parts = RecordHash::default();
                record[..len].chunks(step).for_each(|part| parts.push(part));
                assert_eq!(parts.finish(), hash(&record[..len]), "{len} bytes by {step}");
            }
        }
    }

    #[test]
    fn a_tally_depends_on_everything_but_the_order() {
        let read = of(&[b"one\n", b"two\n", b"three\n", b"two\n"]);
        let none = Tally::default();
        read.verify(of(&[b"two\n", b"three\n", b"two\n", b"one\n"]), none).unwrap();
        read.verify(of(&[b"two\n", b"three\n", b"one\n"]), of(&[b"two\n"])).unwrap();
        for wrong in [
            &[&b"one\n"[..], b"two\n", b"three\n", b"three\n"][..],
            &[b"one\n", b"two\n", b"three\n"],
            &[b"one\n", b"two\n", b"three\n", b"two\n", b"two\n"],
            &[b"one\n", b"two\n", b"thre\n", b"twoo\n"],
            &[b"one\n", b"two\n", b"thrwo\n", b"tee\n"],
        ] {
            let error = read.verify(of(wrong), none).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }

    #[test]
    fn numbers_count_as_they_are() {
        let of = |values: &[u64]| {
            let mut tally = Tally::default();
            tally.add_numbers(8, values.iter().copied());
            tally
        };
        assert_eq!(of(&[1, 2, 3]), of(&[3, 1, 2]));
        assert_ne!(of(&[1, 4]), of(&[2, 3]));
        assert_ne!(of(&[0, 0]), of(&[0]));
        assert_eq!(of(&[7, 9]).bytes, 16);
    }
}
