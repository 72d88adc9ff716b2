//! Sort-benchmark records: 100 bytes, of which the first 10 are the key.
//!
//! The forms named after gensort's options are bit-compatible with gensort 1.5 (C. Nyberg,
//! sortbenchmark.org). The others keep the binary form's body and replace the key, so that only the
//! distribution of keys differs.

use super::random::{self, Lcg};

/// Bytes in a record.
pub const RECORD_LEN: usize = 100;
/// Bytes in a record's key, which is at the start of the record.
pub const KEY_LEN: usize = 10;

/// The format of 100-byte records and the distribution of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordForm {
    /// `gensort`: binary, uniform keys, incompressible.
    Binary,
    /// `gensort -a`: printable, uniform keys.
    Ascii,
    /// `gensort -s`: binary; three quarters of the records share up to six leading key bytes.
    Skewed,
    /// `gensort -a -s`: printable, with the same skew.
    AsciiSkewed,
    /// One thousand distinct keys.
    Duplicates,
    /// Four of five records have the same key.
    Hot,
    /// Distinct keys in ascending order.
    Sorted,
    /// Distinct keys in descending order.
    Reverse,
    /// Keys in ascending order, except that one record in a hundred is out of place.
    NearlySorted,
    /// Every record has the same key.
    AllEqual,
}

/// The stream that a range of records is a part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordSource {
    pub(super) form: RecordForm,
    pub(super) seed: u64,
    /// gensort's `-b`: the number of the stream's first record.
    pub(super) first_record: u128,
    /// Records in the whole stream; ordered forms spread their keys over it.
    pub(super) records: u64,
}

type Record = [u8; RECORD_LEN];

impl RecordSource {
    /// Fills `out` with whole records from record `index` of the stream on.
    pub(super) fn fill(&self, index: u64, out: &mut [u8]) {
        let (records, rest) = out.as_chunks_mut::<RECORD_LEN>();
        assert!(rest.is_empty(), "a range of whole records");
        let number = self.first_record.wrapping_add(u128::from(index));
        match self.form {
            RecordForm::Binary => binary(number, records),
            RecordForm::Skewed => {
                binary(number, records);
                skew(number, records, Skew::BITS);
            }
            RecordForm::Ascii => ascii(number, records),
            RecordForm::AsciiSkewed => {
                ascii(number, records);
                skew(number, records, Skew::CHARACTERS);
            }
            _ => {
                binary(number, records);
                for (index, record) in (index..).zip(records) {
                    self.place_key(index, record);
                }
            }
        }
    }

    /// Replaces the key of a binary record according to the form's distribution.
    fn place_key(&self, index: u64, record: &mut Record) {
        let random = random::at_index(self.seed, index);
        let step = u64::MAX / self.records.max(1);
        let ascending = index.wrapping_mul(step);
        let prefix = match self.form {
            RecordForm::Duplicates => random::mix(random::below(random, 1000) + 1),
            RecordForm::Hot if random::below(random, 5) != 0 => HOT_KEY,
            RecordForm::Sorted => ascending,
            RecordForm::Reverse => !ascending,
            RecordForm::NearlySorted if random::below(random, 100) != 0 => ascending,
            RecordForm::AllEqual => HOT_KEY,
            _ => return,
        };
        record[..8].copy_from_slice(&prefix.to_be_bytes());
        record[8..KEY_LEN].fill(0);
    }
}

const HOT_KEY: u64 = u64::from_be_bytes(*b"datapipe");

/// The binary form's constants, with which the ten-byte fields are XORed, in the top 80 bits.
const FIELDS: [u128; 10] = {
    let high_10_bytes: [u128; 10] = [
        0,
        0xF0E8_E4E2_E1D8_D4D2_D1CC,
        0xCAC9_C6C5_C3B8_B4B2_B1AC,
        0xAAA9_A6A5_A39C_9A99_9695,
        0x938E_8D8B_8778_7472_716C,
        0x6A69_6665_635C_5A59_5655,
        0x534E_4D4B_473C_3A39_3635,
        0x332E_2D2B_271E_1D1B_170F,
        0xC8C4_C2C1_9894_9291_8CE0,
        0x170F_332E_2D2B_271E_1D1B,
    ];
    let mut fields = [0; 10];
    let mut index = 0;
    while index < fields.len() {
        fields[index] = (high_10_bytes[index] << 48).to_be();
        index += 1;
    }
    fields
};

/// Records whose random numbers are made at once; their window stays in L1.
const BATCH: usize = 64;

/// Makes the records of `gensort`.
///
/// ```text
/// numbers  r0   r1   r2 ... r9   r10    field k of record n = top ten bytes of r(n+k) ^ FIELDS[k]
/// record 0 |f0| |f1| |f2|...|f9|
/// record 1      |f0| |f1| ...    |f9|   so a record needs one new number
/// ```
fn binary(number: u128, records: &mut [Record]) {
    let mut lcg = Lcg::at_record(number);
    let mut window = [0u128; BATCH + FIELDS.len() - 1];
    let overlap = FIELDS.len() - 1;
    for slot in &mut window[BATCH..] {
        *slot = lcg.value().to_be();
        lcg.advance();
    }
    for batch in records.chunks_mut(BATCH) {
        window.copy_within(BATCH.., 0);
        for slot in &mut window[overlap..] {
            *slot = lcg.value().to_be();
            lcg.advance();
        }
        for (record, numbers) in batch.iter_mut().zip(window.windows(FIELDS.len())) {
            // Sixteen bytes are stored for every field except the last; the next field overwrites
            // the six surplus bytes. Two plain stores are faster than ten-byte copies.
            for field in 0..overlap {
                let bytes = (numbers[field] ^ FIELDS[field]).to_ne_bytes();
                record[field * 10..field * 10 + 16].copy_from_slice(&bytes);
            }
            let bytes = (numbers[overlap] ^ FIELDS[overlap]).to_ne_bytes();
            record[overlap * 10..].copy_from_slice(&bytes[..10]);
        }
    }
}

/// Returns the ten printable characters of a key, each `' ' + digit` in base 95, least digit first.
#[inline]
fn ascii_key(random: u128) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    let mut high = (random >> 64) as u64;
    for character in &mut key[..8] {
        *character = b' ' + (high % 95) as u8;
        high /= 95;
    }
    let low = random as u64;
    key[8] = b' ' + (low % 95) as u8;
    key[9] = b' ' + (low / 95 % 95) as u8;
    key
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Two hexadecimal digits for each byte.
const HEX_PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX[byte >> 4], HEX[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Makes the records of `gensort -a`: key, record number in hexadecimal, 13 digits of the random
/// number four times each, CR LF.
fn ascii(number: u128, records: &mut [Record]) {
    let mut lcg = Lcg::at_record(number);
    let mut number = number;
    for record in records {
        let random = lcg.value();
        record[..KEY_LEN].copy_from_slice(&ascii_key(random));
        record[10..12].fill(b' ');
        for (pair, byte) in record[12..44].as_chunks_mut::<2>().0.iter_mut().zip(number.to_be_bytes()) {
            *pair = HEX_PAIRS[usize::from(byte)];
        }
        record[44..46].fill(b' ');
        for (index, group) in record[46..98].as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *group = [HEX[(random >> (48 - 4 * index)) as usize & 15]; 4];
        }
        record[98..].copy_from_slice(b"\r\n");
        lcg.advance();
        number = number.wrapping_add(1);
    }
}

/// The two variants of gensort's `-s`.
struct Skew {
    /// Selects the random bits that say how much of the key is replaced.
    mask: u64,
    /// The unit of that number, in bits.
    unit_bits: u32,
    /// Returns the key from whose start the replacement is taken.
    key: fn(u128) -> u64,
}

/// The most bits of a key that are replaced.
const SKEW_BITS: u32 = 48;

impl Skew {
    const BITS: Self = Self { mask: 0x3F, unit_bits: 1, key: |random| (random >> 64) as u64 };
    const CHARACTERS: Self = Self { mask: 0x7, unit_bits: 8, key: ascii_prefix };
}

fn ascii_prefix(random: u128) -> u64 {
    let key = ascii_key(random);
    u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7]])
}

/// Replaces the start of keys, as gensort's `-s` does.
///
/// gensort holds 129 replacements in a table. Entry `i` is the start of the unskewed key of record
/// `i`, so it is computed here (the tests compare all of them with gensort's output).
fn skew(number: u128, records: &mut [Record], skew: Skew) {
    let mut lcg = Lcg::at_record(number);
    let mut number = number;
    let mut class = skew_class(number);
    let mut replacement = (skew.key)(Lcg::at_record(class).value());
    for record in records {
        if skew_class(number) != class {
            class = skew_class(number);
            replacement = (skew.key)(Lcg::at_record(class).value());
        }
        let amount = (lcg.value() as u64 >> 32) & skew.mask;
        let bits = amount as u32 * skew.unit_bits;
        if (1..=SKEW_BITS).contains(&bits) {
            let mut prefix = [0; 8];
            prefix.copy_from_slice(&record[..8]);
            let kept = u64::MAX >> bits;
            let key = (u64::from_be_bytes(prefix) & kept) | (replacement & !kept);
            record[..8].copy_from_slice(&key.to_be_bytes());
        }
        lcg.advance();
        number = number.wrapping_add(1);
    }
}

/// The replacement that a record number takes: the count of its significant bits.
///
/// Numbers that use the top four bits of a 64-bit half count as using all of it, as in gensort.
#[inline]
fn skew_class(number: u128) -> u128 {
    let bits = 128 - number.leading_zeros();
    u128::from(match bits {
        61..=64 => 64,
        125..=128 => 128,
        bits => bits,
    })
}
