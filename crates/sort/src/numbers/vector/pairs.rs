//! Numbers of 128 bits, whose high words are sorted first.

use super::lanes::Lanes;
use super::quicksort;

/// Sorts by the high words, which carry the low ones along, then by whole numbers where high words
/// are equal, because comparing whole numbers costs three comparisons of words. Few high words are
/// equal if they are prefixes of keys.
pub(super) fn sort<H, W>(by_high: H, by_whole: W, values: &mut [u128])
where
    H: Lanes<Element = u128>,
    W: Lanes<Element = u128>,
{
    // The small network fills up with MAX, and must be able to tell it from an element.
    if values.iter().any(|value| high(*value) == u64::MAX) {
        return quicksort::sort(by_whole, values);
    }
    quicksort::sort(by_high, values);
    let mut start = 0;
    while start + 1 < values.len() {
        let key = high(values[start]);
        let mut end = start + 1;
        while end < values.len() && high(values[end]) == key {
            end += 1;
        }
        if end - start > 1 {
            quicksort::sort(by_whole, &mut values[start..end]);
        }
        start = end;
    }
}

/// The high word of a number.
pub(super) fn high(value: u128) -> u64 {
    (value >> 64) as u64
}
