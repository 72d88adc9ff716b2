//! The splitters of the buckets, from a sample of the input.

use datapipes_core::{Dram, Machine, Pipe, Result, Span, Transfer};

use super::plan::Shape;
use super::stripes::{Source, ranges};
use crate::control::Control;
use crate::memory::blocks::ALIGN;
use crate::records::layout::Layout;
use crate::report::{MovementRole, Movements};

/// Sampled keys for each bucket. The largest bucket is then about 1.6 times the mean.
const OVERSAMPLE: usize = 32;
/// Keys that are taken from one place: neighbours cost no request of their own.
const KEYS_A_PLACE: usize = 8;
/// Places that are read at once.
const AT_ONCE: usize = 64;

/// Reads prefixes at places all over the input, in ascending order. The memory is used meanwhile
/// from `at` on.
pub(crate) fn sample<L: Layout>(
    layout: &L,
    record: usize,
    machine: &Machine,
    (memory, at): (&Dram, usize),
    sources: &[Source],
    shape: &Shape,
    (control, movements): (&Control, &Movements),
) -> Result<Vec<u64>> {
    let total: u64 = sources.iter().map(|s| s.len).sum();
    let window = window(record);
    let keys_a_place = keys_a_place(record);
    let most = (memory.len() - at) / (window + ALIGN);
    let pipes: Vec<Pipe> = sources.iter().map(|s| machine.connect(&s.ssd, memory)).collect::<Result<_>>()?;
    let places = places(total / record as u64, record, shape.buckets);
    let mut sample = Vec::with_capacity(places.len() * keys_a_place);
    for batch in places.chunks(most.clamp(1, AT_ONCE)) {
        control.check()?;
        let mut coming: Vec<(Transfer, usize, usize)> = Vec::with_capacity(batch.len());
        for (i, first) in batch.iter().enumerate() {
            let from = first * record as u64;
            let Some(range) = ranges(sources, from, from + window as u64).first().copied() else { continue };
            // Whole blocks are read; the record lies where it lies in them.
            let aligned = range.from / ALIGN as u64 * ALIGN as u64;
            let target = at + i * (window + ALIGN);
            let skip = (range.from - aligned) as usize;
            let len = range.to - aligned;
            let span = Span { source: aligned, target: target as u64, len };
            coming.push((pipes[range.source].start(span)?, target + skip, len as usize - skip));
        }
        for (transfer, start, len) in coming {
            transfer.wait()?;
            let bytes = memory.range(start, len)?.lease()?;
            let count = len / record;
            let step = count.div_ceil(keys_a_place).max(1);
            sample.extend(bytes.chunks_exact(record).step_by(step).map(|r| layout.file_prefix(r)));
        }
    }
    for pipe in pipes {
        movements.keep(MovementRole::Input, pipe);
    }
    sample.sort_unstable();
    Ok(sample)
}

/// Bytes that are read at a place: at least one whole record.
fn window(record: usize) -> usize {
    (2 * record).next_multiple_of(ALIGN)
}

fn keys_a_place(record: usize) -> usize {
    (window(record) / record).clamp(1, KEYS_A_PLACE)
}

/// The first record of each place that is sampled: one at random in each of equal parts of the
/// input, so that a sorted input is cut evenly too.
pub(super) fn places(records: u64, record: usize, buckets: usize) -> Vec<u64> {
    let places = (buckets * OVERSAMPLE / keys_a_place(record)) as u64;
    let part = |place: u64| (u128::from(records) * u128::from(place) / u128::from(places)) as u64;
    let mut random = records;
    let place = |place| {
        let (low, high) = (part(place), part(place + 1));
        (low + next(&mut random) % (high - low).max(1)).min(records - 1)
    };
    (0..places).map(place).collect()
}

/// Splitters that cut an ascending sample into about `buckets` equal parts. A value that is more
/// than one of them gets a bucket of its own: its predecessor becomes a splitter too.
pub(crate) fn splitters(sample: &[u64], buckets: usize) -> Vec<u64> {
    let quantiles: Vec<u64> = (1..buckets).filter_map(|i| sample.get(i * sample.len() / buckets)).copied().collect();
    let mut splitters = Vec::with_capacity(quantiles.len());
    for equal in quantiles.chunk_by(|a, b| a == b) {
        if let (true, Some(before)) = (equal.len() > 1, equal[0].checked_sub(1)) {
            splitters.push(before);
        }
        splitters.push(equal[0]);
    }
    splitters.dedup();
    splitters
}

/// The share of the most frequent value of an ascending sample.
pub(crate) fn greatest_share(sample: &[u64]) -> f64 {
    let most = sample.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0);
    most as f64 / sample.len().max(1) as f64
}

/// SplitMix64: a sort of the same input takes the same sample.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_value_has_a_bucket_of_its_own() {
        assert_eq!(splitters(&[1, 2, 3, 4, 5, 6, 7, 8], 4), [3, 5, 7]);
        assert_eq!(splitters(&[1, 2, 9, 9, 9, 9, 9, 20], 4), [8, 9]);
        assert_eq!(splitters(&[0; 8], 4), [0]);
        assert_eq!(splitters(&[5; 8], 4), [4, 5]);
        assert_eq!(splitters(&[1, 1, 2, 2], 4), [1, 2]);
        assert_eq!(splitters(&[4, 4, 5, 5, 5, 5, 5, 5], 8), [4, 5]);
        assert_eq!(splitters(&[], 4), [0_u64; 0]);
    }

    #[test]
    fn shares_are_of_the_most_frequent_value() {
        assert!((greatest_share(&[1, 2, 2, 3]) - 0.5).abs() < 1e-9);
        assert!(greatest_share(&[]).abs() < 1e-9);
    }
}
