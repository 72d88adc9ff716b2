//! The argument of -S: GNU's suffixes, KiB without a suffix.

use super::key_spec::leading_digits;

/// A size in bytes or in percent of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferSize {
    /// A number of bytes.
    Bytes(u64),
    /// Percent of physical memory; may be above 100.
    Percent(u64),
}

/// The reason why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SizeError {
    /// The text does not begin with a number.
    Invalid,
    /// Something other than a suffix follows the number.
    Suffix,
    /// The size is more than 2^64 - 1 bytes.
    TooLarge,
}

impl BufferSize {
    /// Parses digits and one of `b` (bytes), `k K` (KiB, as without a suffix), `m M g G t T P E Z Y
    /// R Q`, `%`.
    ///
    /// ```
    /// use datapipes_sort::text::{BufferSize, SizeError};
    /// assert_eq!(BufferSize::parse(b"2G"), Ok(BufferSize::Bytes(2 << 30)));
    /// assert_eq!(BufferSize::parse(b"64"), Ok(BufferSize::Bytes(65536)));
    /// assert_eq!(BufferSize::parse(b"50%"), Ok(BufferSize::Percent(50)));
    /// assert_eq!(BufferSize::parse(b"2GB"), Err(SizeError::Suffix));
    /// ```
    pub fn parse(text: &[u8]) -> Result<BufferSize, SizeError> {
        // As in GNU sort, a suffix alone counts as one of its unit.
        let (count, suffix) = match leading_digits(text) {
            Some((digits, suffix)) => (value(digits), suffix),
            None if text.first().is_some_and(|&b| power(b).is_some()) => (Some(1), text),
            None => return Err(SizeError::Invalid),
        };
        match (suffix, count) {
            (b"b", Some(count)) => Ok(BufferSize::Bytes(count)),
            (b"%", Some(count)) => Ok(BufferSize::Percent(count)),
            // GNU sort accepts these two only behind a number that fits 64 bits.
            (b"b" | b"%", None) => Err(SizeError::Suffix),
            ([], _) => scaled(count, 1),
            ([letter], _) => scaled(count, power(*letter).ok_or(SizeError::Suffix)?),
            _ => Err(SizeError::Suffix),
        }
    }

    /// Returns the bytes, given the size of physical memory; `None` if a percentage of it is 2^64
    /// or more.
    pub fn resolve(self, physical_bytes: u64) -> Option<u64> {
        match self {
            BufferSize::Bytes(bytes) => Some(bytes),
            BufferSize::Percent(percent) => u64::try_from(u128::from(physical_bytes) * u128::from(percent) / 100).ok(),
        }
    }
}

/// The power of 1024 that a suffix stands for.
fn power(letter: u8) -> Option<u32> {
    match letter {
        b'k' | b'K' => Some(1),
        b'm' | b'M' => Some(2),
        b'g' | b'G' => Some(3),
        b't' | b'T' => Some(4),
        b'P' => Some(5),
        b'E' => Some(6),
        b'Z' => Some(7),
        b'Y' => Some(8),
        b'R' => Some(9),
        b'Q' => Some(10),
        _ => None,
    }
}

/// The value of the digits; `None` if it is 2^64 or more.
fn value(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |n, digit| n.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

fn scaled(count: Option<u64>, power: u32) -> Result<BufferSize, SizeError> {
    let count = count.ok_or(SizeError::TooLarge)?;
    let bytes = 1024u64.checked_pow(power).and_then(|factor| count.checked_mul(factor));
    match bytes {
        Some(bytes) => Ok(BufferSize::Bytes(bytes)),
        None if count == 0 => Ok(BufferSize::Bytes(0)),
        None => Err(SizeError::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes() {
        let bytes = |text: &str| BufferSize::parse(text.as_bytes());
        assert_eq!(bytes("10b"), Ok(BufferSize::Bytes(10)));
        assert_eq!(bytes("M"), Ok(BufferSize::Bytes(1 << 20)));
        assert_eq!(bytes("+7m"), Ok(BufferSize::Bytes(7 << 20)));
        assert_eq!(bytes("0Y"), Ok(BufferSize::Bytes(0)));
        assert_eq!(bytes("0Q"), Ok(BufferSize::Bytes(0)));
        assert_eq!(bytes("1R"), Err(SizeError::TooLarge));
        assert_eq!(bytes("1Z"), Err(SizeError::TooLarge));
        assert_eq!(bytes("99999999999999999999"), Err(SizeError::TooLarge));
        for (text, error) in [("", SizeError::Invalid), ("x", SizeError::Invalid), ("-1", SizeError::Invalid)] {
            assert_eq!(bytes(text), Err(error), "{text}");
        }
        for text in ["3x", "1KB", "1KiB", "b3", "%", "5p"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        for text in ["18446744073709551616b", "99999999999999999999%", "99999999999999999999x"] {
            assert_eq!(bytes(text), Err(SizeError::Suffix), "{text}");
        }
        assert_eq!(bytes("18446744073709551615b"), Ok(BufferSize::Bytes(u64::MAX)));
        assert_eq!(bytes("18446744073709551615%"), Ok(BufferSize::Percent(u64::MAX)));
        assert_eq!(BufferSize::Percent(150).resolve(u64::MAX), None);
        assert_eq!(BufferSize::Percent(50).resolve(1000), Some(500));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..24), near in "[0-9]{0,24}[bkKmGTPEZY%]{0,2}") {
            let _ = BufferSize::parse(&bytes);
            let _ = BufferSize::parse(near.as_bytes()).map(|size| size.resolve(1 << 40));
        }
    }
}
