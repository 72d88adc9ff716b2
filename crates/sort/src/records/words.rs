//! Bytes of keys, eight at a time.

/// Eight bytes from `at` on as a big-endian number, with zeros behind the end.
#[inline]
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    // Near the end, the last eight bytes are shifted instead of padded.
    let start = at.min(bytes.len().saturating_sub(8));
    match bytes.get(start..).and_then(<[u8]>::first_chunk) {
        Some(eight) => u64::from_be_bytes(*eight).checked_shl(8 * (at - start) as u32).unwrap_or(0),
        None => short_word(bytes.get(at..).unwrap_or(&[])),
    }
}

#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
        .checked_shl(64 - 8 * bytes.len() as u32)
        .unwrap_or(0)
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// The word with every ASCII lowercase letter made uppercase.
#[inline]
pub(crate) fn fold(word: u64) -> u64 {
    let low = word & !HIGHS;
    let from_a = low + ONES * (0x80 - b'a' as u64);
    let past_z = low + ONES * (0x80 - b'z' as u64 - 1);
    word - (((from_a ^ past_z) & !word & HIGHS) >> 2)
}

/// The number of bytes in which two lines agree if letters are folded. They agree in the first
/// `from`.
#[inline]
pub(crate) fn common_folded_prefix(a: &[u8], b: &[u8], from: usize) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let differ = |at: usize| match (a[at..].first_chunk(), b[at..].first_chunk()) {
        (Some(a), Some(b)) => fold(u64::from_le_bytes(*a)) ^ fold(u64::from_le_bytes(*b)),
        _ => 0,
    };
    let mut at = from;
    while at + 8 <= len {
        let bits = differ(at);
        if bits != 0 {
            return at + bits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    if len >= 8 {
        // The last eight bytes, of which those before `at` agree.
        return len - 8 + differ(len - 8).trailing_zeros() as usize / 8;
    }
    from.max(a.iter().zip(b).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count())
}

/// The number of bytes in which two lines agree. They agree in the first `from`.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8], from: usize) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    // Sixteen bytes at a time: how many words agree is hard to predict.
    let differ = |at: usize| match (a[at..].first_chunk(), b[at..].first_chunk()) {
        (Some(a), Some(b)) => u128::from_le_bytes(*a) ^ u128::from_le_bytes(*b),
        _ => 0,
    };
    let mut at = from;
    while at + 16 <= len {
        let bits = differ(at);
        if bits != 0 {
            return at + bits.trailing_zeros() as usize / 8;
        }
        at += 16;
    }
    if len >= 16 {
        // The last sixteen bytes, of which those before `at` agree.
        return len - 16 + differ(len - 16).trailing_zeros() as usize / 8;
    }
    short_common_prefix(a, b, from)
}

/// Does the same for two lines of one length below sixteen bytes.
#[inline]
fn short_common_prefix(a: &[u8], b: &[u8], from: usize) -> usize {
    let len = a.len();
    let bits = match (a.first_chunk(), b.first_chunk(), a.last_chunk(), b.last_chunk()) {
        (Some(first_a), Some(first_b), Some(last_a), Some(last_b)) => {
            let first = u64::from_le_bytes(*first_a) ^ u64::from_le_bytes(*first_b);
            if first != 0 {
                return first.trailing_zeros() as usize / 8;
            }
            u64::from_le_bytes(*last_a) ^ u64::from_le_bytes(*last_b)
        }
        _ => return from.max(a.iter().zip(b).take_while(|(a, b)| a == b).count()),
    };
    len - 8 + bits.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that share long prefixes and end near multiples of eight.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(prop_oneof![Just(0u8), Just(b'a'), Just(b'A'), Just(0xff)], 0..10);
        (0usize..30, tail).prop_map(|(common, tail)| [&vec![b'a'; common][..], &tail].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn prefixes_and_words_are_those_of_the_bytes(a in bytes(), b in bytes(), from in 0usize..50) {
            let naive = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common_prefix(&a, &b, from.min(naive)), naive);
            let naive = a.iter().zip(&b).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
            prop_assert_eq!(common_folded_prefix(&a, &b, from.min(naive)), naive);
            let mut padded = a.get(from..).unwrap_or(&[]).to_vec();
            padded.resize(8, 0);
            prop_assert_eq!(word(&a, from), u64::from_be_bytes(padded[..8].try_into().unwrap_or([0; 8])));
        }
    }
}
