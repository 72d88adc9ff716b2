//! Merging sorted numbers: the values that come next are sorted in the cache.

use datapipes_core::Result;
use datapipes_core::memory::as_bytes;

use super::{Numbers, Unsigned};
use crate::memory::blocks::PartWriter;
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::runs::record_reader::RecordReader;

/// The number of values sorted at once: 512 KiB of u64, which fits L2 beside the runs' next lines.
const AT_ONCE: usize = 1 << 16;
const MIN_WINDOW: usize = 64;

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

/// Merges all inflows into the output, and decodes the values if it is the final output. `progress`
/// is told the output's offset, the next value (as written in runs) and the number of bytes about
/// to be written.
pub(crate) fn merge_into<T: Unsigned, L: Layout>(
    numbers: Numbers,
    mut inflows: Vec<NumberSource<'_, T, L>>,
    unique: bool,
    decode: bool,
    out: &mut PartWriter<'_>,
    mut progress: impl FnMut(u64, u64, u64),
) -> Result<Counts> {
    let take = (AT_ONCE / inflows.len().max(1)).max(MIN_WINDOW);
    let mut work: Vec<T> = Vec::with_capacity(take * inflows.len());
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
        let mut sources = 0;
        for inflow in &mut inflows {
            let (window, _) = inflow.window(take)?;
            let taken = &window[..window.len().min(take)];
            let count = taken.partition_point(|v| *v <= bound);
            if count > 0 {
                work.extend_from_slice(&taken[..count]);
                sources += 1;
                inflow.consume(count);
            }
        }
        if sources > 1 {
            T::sort(&mut work);
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

/// Merges the sources of one part.
pub(crate) fn merge_number_runs<L: Layout>(
    numbers: Numbers,
    sources: Vec<RecordReader<'_, L>>,
    unique: bool,
    decode: bool,
    out: &mut PartWriter<'_>,
    progress: impl FnMut(u64, u64, u64),
) -> Result<Counts> {
    match numbers.kind.width() {
        4 => {
            let inflows = sources.into_iter().map(|s| NumberSource::<u32, L>::Run(Box::new(s))).collect();
            merge_into(numbers, inflows, unique, decode, out, progress)
        }
        _ => {
            let inflows = sources.into_iter().map(|s| NumberSource::<u64, L>::Run(Box::new(s))).collect();
            merge_into(numbers, inflows, unique, decode, out, progress)
        }
    }
}

/// Appends values to an output.
fn push_values<T: Unsigned>(out: &mut PartWriter<'_>, values: &[T]) -> Result<()> {
    out.push(as_bytes(values))
}
