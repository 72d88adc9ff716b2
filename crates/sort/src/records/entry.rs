//! A record's key prefix, its offset and its length, in one number.
//!
//! ```text
//! bit 127          64 63            28 27        12 11       0
//!    | key prefix   | offset in slot | length      | bucket |
//! ```
//! The order of the numbers is the order of the prefixes, then that of the input. So sorting the
//! numbers sorts the records, and is stable.

/// A record's prefix, offset and length.
pub(crate) type Entry = u128;

const ID_BITS: u32 = 12;
const LEN_BITS: u32 = 16;
const OFFSET_BITS: u32 = 36;
const ID_MASK: Entry = (1 << ID_BITS) - 1;
const REPEATED: Entry = 1;
const LEN_MASK: u64 = (1 << LEN_BITS) - 1;

/// The most buckets that entries can tell apart.
pub(crate) const MAX_BUCKETS: usize = 1 << ID_BITS;
/// The longest slot whose offsets fit.
pub(crate) const MAX_SLOT: usize = 1 << OFFSET_BITS;

/// Makes the entry of the record of `len` bytes at `offset`. A length that does not fit is found
/// later by the record's terminator.
#[inline]
pub(crate) fn entry(prefix: u64, offset: usize, len: usize) -> Entry {
    let len = (len as u64).min(LEN_MASK);
    Entry::from(prefix) << 64 | Entry::from((offset as u64) << (LEN_BITS + ID_BITS) | len << ID_BITS)
}

#[inline]
pub(crate) fn prefix(e: Entry) -> u64 {
    (e >> 64) as u64
}

#[inline]
pub(crate) fn with_prefix(e: Entry, prefix: u64) -> Entry {
    Entry::from(prefix) << 64 | Entry::from(e as u64)
}

#[inline]
pub(crate) fn offset(e: Entry) -> usize {
    (e as u64 >> (LEN_BITS + ID_BITS)) as usize
}

/// Returns the length, or `None` if it did not fit.
#[inline]
pub(crate) fn short_len(e: Entry) -> Option<usize> {
    let len = e as u64 >> ID_BITS & LEN_MASK;
    (len < LEN_MASK).then_some(len as usize)
}

#[inline]
pub(crate) fn with_id(e: Entry, id: usize) -> Entry {
    e | id as Entry
}

#[inline]
pub(crate) fn id(e: Entry) -> usize {
    (e & ID_MASK) as usize
}

#[inline]
pub(crate) fn without_id(e: Entry) -> Entry {
    e & !ID_MASK
}

/// Marks the entry of a record that is the same as the one before it in the order. The number of a
/// bucket is no longer needed then.
#[inline]
pub(crate) fn repeated(e: Entry) -> Entry {
    e | REPEATED
}

#[inline]
pub(crate) fn is_repeated(e: Entry) -> bool {
    e & ID_MASK == REPEATED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let e = entry(0x0123_4567_89ab_cdef, MAX_SLOT - 1, 1000);
        assert_eq!((prefix(e), offset(e), short_len(e), id(e)), (0x0123_4567_89ab_cdef, MAX_SLOT - 1, Some(1000), 0));
        assert_eq!(id(with_id(e, MAX_BUCKETS - 1)), MAX_BUCKETS - 1);
        assert_eq!(without_id(with_id(e, 77)), e);
        assert!(is_repeated(repeated(e)) && !is_repeated(e));
        assert_eq!((offset(repeated(e)), short_len(repeated(e))), (offset(e), short_len(e)));
        assert_eq!(short_len(entry(0, 0, 65_535)), None);
        assert_eq!(short_len(entry(0, 0, 1 << 30)), None);
        assert_eq!(prefix(with_prefix(e, 9)), 9);
        assert_eq!(offset(with_prefix(e, 9)), MAX_SLOT - 1);
    }
}
