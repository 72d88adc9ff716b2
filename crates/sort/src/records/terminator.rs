//! Finding the terminators of records, 64 bytes at a time. Most lines are short, so a search that
//! begins for each line costs more in its branches than in its comparisons.

/// Bytes that are searched at once.
const WINDOW: usize = 64;

/// Returns the position of the first `wanted` byte from `from` on.
#[inline]
pub(crate) fn find(wanted: u8, bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let mut searched = 0;
    if let (Some(first), Some(second)) = (window(rest, 0), window(rest, WINDOW)) {
        // Two windows without a branch between them: how long the next line is cannot be predicted.
        let (first, second) = (matches(wanted, first), matches(wanted, second));
        if first | second != 0 {
            let behind = WINDOW + second.trailing_zeros() as usize;
            return Some(from + std::hint::select_unpredictable(first != 0, first.trailing_zeros() as usize, behind));
        }
        searched = 2 * WINDOW;
    }
    memchr::memchr(wanted, &rest[searched..]).map(|at| from + searched + at)
}

/// Calls `sink` with the position of each `wanted` byte from `from` on, until it returns false.
#[inline]
pub(crate) fn find_each(wanted: u8, bytes: &[u8], from: usize, mut sink: impl FnMut(usize) -> bool) {
    let mut at = from;
    while let Some(window) = window(bytes, at) {
        let mut found = matches(wanted, window);
        while found != 0 {
            if !sink(at + found.trailing_zeros() as usize) {
                return;
            }
            found &= found - 1;
        }
        at += WINDOW;
    }
    for end in memchr::memchr_iter(wanted, bytes.get(at..).unwrap_or(&[])) {
        if !sink(at + end) {
            return;
        }
    }
}

#[inline]
fn window(bytes: &[u8], at: usize) -> Option<&[u8; WINDOW]> {
    bytes.get(at..)?.first_chunk()
}

/// Returns a number with a bit for each byte that is `wanted`.
#[inline]
#[allow(unsafe_code)]
fn matches(wanted: u8, bytes: &[u8; WINDOW]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
        let (quarters, _) = bytes.as_chunks::<16>();
        quarters.iter().rev().fold(0, |found, quarter| {
            // SAFETY: every x86-64 processor has SSE2. The load takes the 16 bytes of the array,
            // and needs no alignment.
            let equal = unsafe {
                let loaded = _mm_loadu_si128(quarter.as_ptr().cast());
                _mm_movemask_epi8(_mm_cmpeq_epi8(loaded, _mm_set1_epi8(wanted.cast_signed())))
            };
            found << 16 | u64::from(equal as u16)
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    bytes.iter().rev().fold(0, |found, byte| found << 1 | u64::from(*byte == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_are_those_of_a_naive_search(
            gaps in proptest::collection::vec(prop_oneof![0usize..4, 0usize..70, 120usize..140], 0..20),
            from in 0usize..200,
            most in 0usize..20,
        ) {
            let mut bytes: Vec<u8> = Vec::new();
            for gap in gaps {
                bytes.extend(std::iter::repeat_n(b'x', gap));
                bytes.push(b'\n');
            }
            let naive: Vec<usize> = (from..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
            prop_assert_eq!(find(b'\n', &bytes, from), naive.first().copied());
            let mut found = Vec::new();
            find_each(b'\n', &bytes, from, |at| {
                found.push(at);
                found.len() <= most
            });
            prop_assert_eq!(&found[..], &naive[..naive.len().min(most + 1)]);
        }
    }
}
