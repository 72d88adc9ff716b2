//! Touching the memory of an input that fits ahead of the reader.
//!
//! The kernel clears a page when it is first touched. On virtual machines whose free pages went
//! back to the host that is slower than reading a disk: 0.6 to 0.8 GB/s a thread. The reader would
//! do it alone, one page before the other, while all other threads wait for the slot. Slots of
//! larger inputs are not touched ahead: it took 0.1 s more of the processor, because two threads
//! clear the same pages where the reader is as fast as this one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use datapipes_core::Dram;

/// Bytes that are touched at once.
const STEP: usize = 8 << 20;
/// A shorter input is not worth a thread.
pub(super) const WORTH_TOUCHING: u64 = 64 << 20;

/// What is expected to be used of some memory, as lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedUse {
    /// Bytes of records, from the memory's start on.
    pub(super) records: usize,
    /// Bytes of entries, which grow downwards from its end. Below them as much is used for sorting.
    pub(super) entries: usize,
}

/// Touches memory in the order in which the reader fills it, until all is touched or `stop` is set.
/// It does not fail: what it cannot touch is left to those who need it.
pub(super) fn touch_ahead(memory: &Dram, expected: ExpectedUse, stop: &AtomicBool) {
    for (from, to) in steps(memory.len(), expected) {
        let range = memory.range(from, to - from);
        if stop.load(Relaxed) || range.and_then(|range| range.memory().prefault()).is_err() {
            return;
        }
    }
}

/// The parts in the order in which they are used: some records, their entries, the next records;
/// then the room for sorting.
fn steps(len: usize, expected: ExpectedUse) -> Vec<(usize, usize)> {
    let records = expected.records.min(len);
    let entries = expected.entries.min((len - records) / 2);
    let count = records.div_ceil(STEP).max(1);
    let part = |bytes: usize, i: usize| (bytes as u128 * i as u128 / count as u128) as usize;
    let mut steps = Vec::new();
    for i in 0..count {
        steps.push((part(records, i), part(records, i + 1)));
        steps.push((len - part(entries, i + 1), len - part(entries, i)));
    }
    for i in 0..count {
        let top = len - entries;
        steps.push((top - part(entries, i + 1), top - part(entries, i)));
    }
    steps.retain(|(from, to)| to > from);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_what_is_used_once() {
        for (len, records, entries) in
            [(100 << 20, 50 << 20, 10 << 20), (64 << 20, 64 << 20, 9), (5, 3, 1), (9, 20, 20)]
        {
            let mut steps = steps(len, ExpectedUse { records, entries });
            steps.sort_unstable();
            assert!(steps.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{steps:?}");
            let (records, touched) = (records.min(len), steps.iter().map(|(from, to)| to - from).sum::<usize>());
            assert_eq!(touched, records + 2 * entries.min((len - records) / 2), "{steps:?}");
            assert!(steps.iter().all(|(_, to)| *to <= len), "{steps:?}");
        }
    }
}
