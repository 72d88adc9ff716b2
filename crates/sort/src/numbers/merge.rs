//! Merging sorted numbers: the values that come next are sorted in the cache, or merged there two
//! by two if they come from few sources.

use datapipes_core::Result;
use datapipes_core::memory::as_bytes;

use super::{Numbers, Unsigned};
use crate::memory::blocks::PartWriter;
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::runs::record_reader::RecordReader;

const MIN_WINDOW: usize = 64;
/// Values of at most so many sources are merged two by two: a round costs 2 to 3 ns a value, and
/// sorting them 6 to 10.
const FEW_SOURCES: usize = 4;

/// How many values are sorted at once: those that fill half of a second-level cache. The other half
/// is for the runs' next lines.
fn at_once<T>(l2: u64) -> usize {
    usize::try_from(l2).unwrap_or(usize::MAX).clamp(64 << 10, 16 << 20) / 2 / size_of::<T>()
}

/// A sorted sequence of numbers.
pub(crate) enum NumberSource<'a, T, L> {
    /// A sequence that is in memory.
    Memory(&'a [T]),
    /// A sequence read from a run.
    Run(Box<RecordReader<'a, L>>),
}

impl<T: Unsigned, L: Layout> NumberSource<'_, T, L> {
    /// Returns the next values, about as many as are wanted, and whether more follow them. Empty at
    /// the end.
    fn window(&mut self, wanted: usize) -> Result<(&[T], bool)> {
        match self {
            NumberSource::Memory(values) => Ok((values, false)),
            NumberSource::Run(source) => source.window::<T>(wanted),
        }
    }

    fn consume(&mut self, count: usize) {
        match self {
            NumberSource::Memory(values) => *values = &values[count..],
            NumberSource::Run(source) => source.consume(count * size_of::<T>()),
        }
    }
}

/// What was written, and what was dropped as a duplicate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// For a run only the number of records and their bytes are counted.
    pub(crate) written: Tally,
    pub(crate) dropped: Tally,
}

impl Counts {
    pub(crate) fn join(&mut self, other: Counts) {
        self.written.join(other.written);
        self.dropped.join(other.dropped);
    }
}

/// How numbers are merged.
#[derive(Clone, Copy)]
pub(crate) struct MergeRules {
    /// Whether duplicates are dropped.
    pub(crate) unique: bool,
    /// Whether the values are decoded, because they go to the final output.
    pub(crate) decode: bool,
    /// Bytes of a core's second-level cache.
    pub(crate) l2: u64,
}

/// Merges all inflows into the output, and decodes the values if it is the final output. `progress`
/// is told the output's offset, the next value (as written in runs) and the number of bytes about
/// to be written.
pub(crate) fn merge_into<T: Unsigned, L: Layout>(
    numbers: Numbers,
    mut inflows: Vec<NumberSource<'_, T, L>>,
    MergeRules { unique, decode, l2 }: MergeRules,
    out: &mut PartWriter<'_>,
    mut progress: impl FnMut(u64, u64, u64),
) -> Result<Counts> {
    let take = (at_once::<T>(l2) / inflows.len().max(1)).max(MIN_WINDOW);
    let mut work: Vec<T> = Vec::with_capacity(take * inflows.len());
    // Where the values of each source end, and room to merge them.
    let (mut ends, mut merged) = (Vec::with_capacity(inflows.len()), Vec::new());
    let mut last: Option<T> = None;
    let mut counts = Counts::default();
    let width = size_of::<T>();
    let last_pass = decode;
    let decode = decode && !numbers.plain();
    loop {
        // Nothing above the smallest "last value taken" may be written: values that are not read
        // yet could be below it.
        let mut bound = T::MAX;
        let mut any = false;
        for inflow in &mut inflows {
            let (window, more) = inflow.window(take)?;
            let taken = &window[..window.len().min(take)];
            if let Some(highest) = taken.last() {
                any = true;
                if more || taken.len() < window.len() {
                    bound = bound.min(*highest);
                }
            }
        }
        if !any {
            return Ok(counts);
        }
        work.clear();
        ends.clear();
        for inflow in &mut inflows {
            let (window, _) = inflow.window(take)?;
            let taken = &window[..window.len().min(take)];
            let count = taken.partition_point(|v| *v <= bound);
            if count > 0 {
                work.extend_from_slice(&taken[..count]);
                ends.push(work.len());
                inflow.consume(count);
            }
        }
        if ends.len() > FEW_SOURCES {
            T::sort(&mut work);
        } else {
            while ends.len() > 1 {
                merge_neighbours(&work, &mut ends, &mut merged);
                std::mem::swap(&mut work, &mut merged);
            }
        }
        if unique {
            work.retain(|value| {
                let again = last.replace(*value) == Some(*value);
                if again {
                    counts.dropped.add_numbers(width, std::iter::once(value.decode(numbers).widen()));
                }
                !again
            });
        }
        let Some(first) = work.first() else { continue };
        progress(out.at(), first.widen(), size_of_val(work.as_slice()) as u64);
        if decode {
            work.iter_mut().for_each(|v| *v = v.decode(numbers));
        }
        if last_pass {
            counts.written.add_numbers(width, work.iter().map(|v| v.widen()));
        }
        push_values(out, &work)?;
    }
}

/// Merges each second sequence with the one before it. `ends` are the ends of the sequences.
fn merge_neighbours<T: Unsigned>(values: &[T], ends: &mut Vec<usize>, merged: &mut Vec<T>) {
    merged.clear();
    merged.resize(values.len(), T::MAX);
    let (mut from, mut kept) = (0, 0);
    for pair in 0..ends.len().div_ceil(2) {
        let middle = ends[2 * pair];
        let to = ends.get(2 * pair + 1).copied().unwrap_or(middle);
        merge_two(&values[from..middle], &values[middle..to], &mut merged[from..to]);
        (ends[kept], from) = (to, to);
        kept += 1;
    }
    ends.truncate(kept);
}

/// Merges two ascending sequences without a branch that depends on their values. The ends are
/// merged from both sides, because the steps of one side wait for each other.
fn merge_two<T: Unsigned>(a: &[T], b: &[T], mut to: &mut [T]) {
    let (mut a, mut b) = (a, b);
    loop {
        // So many steps exhaust neither sequence, at whichever end they take from it.
        let steps = a.len().min(b.len()) / 2;
        if steps == 0 {
            break;
        }
        let (mut i, mut j) = (0, 0);
        let (mut i_end, mut j_end) = (a.len(), b.len());
        let len = to.len();
        for step in 0..steps {
            let (x, y) = (a[i], b[j]);
            let is_second = y < x;
            to[step] = if is_second { y } else { x };
            j += usize::from(is_second);
            i += usize::from(!is_second);
            let (x, y) = (a[i_end - 1], b[j_end - 1]);
            let is_first = y < x;
            to[len - 1 - step] = if is_first { x } else { y };
            i_end -= usize::from(is_first);
            j_end -= usize::from(!is_first);
        }
        (a, b) = (&a[i..i_end], &b[j..j_end]);
        to = &mut to[steps..len - steps];
    }
    let (mut i, mut j) = (0, 0);
    for place in to {
        let is_second = i == a.len() || (j < b.len() && b[j] < a[i]);
        *place = if is_second { b[j] } else { a[i] };
        j += usize::from(is_second);
        i += usize::from(!is_second);
    }
}

/// Merges the sources of one part.
pub(crate) fn merge_number_runs<L: Layout>(
    numbers: Numbers,
    sources: Vec<RecordReader<'_, L>>,
    rules: MergeRules,
    out: &mut PartWriter<'_>,
    progress: impl FnMut(u64, u64, u64),
) -> Result<Counts> {
    match numbers.kind.width() {
        4 => {
            let inflows = sources.into_iter().map(|s| NumberSource::<u32, L>::Run(Box::new(s))).collect();
            merge_into(numbers, inflows, rules, out, progress)
        }
        _ => {
            let inflows = sources.into_iter().map(|s| NumberSource::<u64, L>::Run(Box::new(s))).collect();
            merge_into(numbers, inflows, rules, out, progress)
        }
    }
}

/// Appends values to an output.
fn push_values<T: Unsigned>(out: &mut PartWriter<'_>, values: &[T]) -> Result<()> {
    out.push(as_bytes(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn neighbours_are_merged(mut sequences in proptest::collection::vec(proptest::collection::vec(prop_oneof![0_u64..9, any::<u64>()], 0..60), 1..6)) {
            let (mut values, mut ends, mut merged) = (Vec::new(), Vec::new(), Vec::new());
            for sequence in &mut sequences {
                sequence.sort_unstable();
                values.extend_from_slice(sequence);
                ends.push(values.len());
            }
            let mut expected = values.clone();
            expected.sort_unstable();
            while ends.len() > 1 {
                merge_neighbours(&values, &mut ends, &mut merged);
                std::mem::swap(&mut values, &mut merged);
            }
            prop_assert_eq!(ends, [expected.len()]);
            prop_assert_eq!(values, expected);
        }
    }
}
