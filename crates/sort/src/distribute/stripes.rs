//! The input as one sequence of records, and the stripe of it that a thread reads.

use std::collections::VecDeque;

use datapipes_core::{Constraints, Dram, Error, ErrorKind, Lease, Machine, Pipe, Result, Span, Ssd, Transfer};

use crate::control::Control;
use crate::cut::cut;
use crate::input::Input;
use crate::memory::blocks::ALIGN;
use crate::report::{MovementRole, Movements};
use crate::waits::SortWait;

/// A file that holds whole records.
pub(crate) struct Source {
    pub(crate) ssd: Ssd,
    /// The offset of the first record.
    pub(crate) from: u64,
    pub(crate) len: u64,
}

/// Bytes `from..to` of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) source: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The most files: each stays open.
const MAX_SOURCES: usize = 64;

/// Says why these inputs cannot be read anywhere, as far as that is known without opening them.
pub(crate) fn refuse_unseekable(inputs: &[Input], record: usize) -> Result<(), String> {
    if inputs.len() > MAX_SOURCES {
        return Err(format!("{} files are more than {MAX_SOURCES}", inputs.len()));
    }
    for input in inputs {
        let name = input.name().display();
        let is_file = input
            .stat()
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile);
        if !is_file || !matches!(input, Input::File { .. } | Input::Deferred { .. }) {
            return Err(format!("{name} is not a regular file"));
        }
        if !input.len().ok().flatten().unwrap_or(1).is_multiple_of(record as u64) {
            return Err(format!("{name} does not consist of whole records"));
        }
    }
    Ok(())
}

/// Opens all inputs. Returns them as they are if one is not what it seemed to be.
pub(crate) fn open_all(inputs: Vec<Input>, record: usize) -> Result<Result<Vec<Source>, Vec<Input>>> {
    let mut opened = Vec::with_capacity(inputs.len());
    for input in inputs {
        opened.push(match input {
            Input::Deferred { path, least } => {
                let input = Input::open(&path)?;
                let len = input.len()?.unwrap_or(least);
                if len < least {
                    return Err(cut(&path, least, len));
                }
                input
            }
            open => open,
        });
    }
    let mut sources = Vec::with_capacity(opened.len());
    for input in &opened {
        let Input::File { ssd, from } = input else { return Ok(Err(opened)) };
        let len = ssd.len()?.saturating_sub(*from);
        if !len.is_multiple_of(record as u64) {
            return Ok(Err(opened));
        }
        sources.push(Source { ssd: ssd.clone(), from: *from, len });
    }
    Ok(Ok(sources))
}

/// Bytes `from..to` of all sources together.
pub(crate) fn ranges(sources: &[Source], from: u64, to: u64) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut at = 0;
    for (source, Source { from: first, len, .. }) in sources.iter().enumerate() {
        let (start, end) = (from.max(at), to.min(at + len));
        if start < end {
            ranges.push(Range { source, from: first + start - at, to: first + end - at });
        }
        at += len;
    }
    ranges
}

/// Cuts `total` bytes into as many stripes of whole records as there are threads. They begin at
/// multiples of 4 KiB if there are enough such places, so that they are read without detours.
pub(crate) fn cuts(total: u64, record: usize, threads: usize) -> Vec<u64> {
    let record = record as u64;
    let both = record / gcd(record, ALIGN as u64) * ALIGN as u64;
    let unit = if total / threads as u64 > 8 * both { both } else { record };
    let cut = |t: usize| (u128::from(total) * t as u128 / threads as u128) as u64 / unit * unit;
    (0..threads).map(cut).chain([total]).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The memory of a reader: chunks, each with headroom in front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunks {
    pub(crate) at: usize,
    pub(crate) count: usize,
    pub(crate) len: usize,
    pub(crate) headroom: usize,
}

struct Coming {
    transfer: Transfer,
    chunk: usize,
    len: usize,
}

/// Reads a stripe chunk by chunk, with the next chunks in flight.
pub(crate) struct StripeReader<'a> {
    machine: &'a Machine,
    memory: &'a Dram,
    sources: &'a [Source],
    record: usize,
    chunks: Chunks,
    /// What is still to be asked for.
    ranges: VecDeque<Range>,
    /// The pipes of all sources so far; the last one belongs to the first of the ranges.
    pipes: Vec<Pipe>,
    connected: Option<usize>,
    turn: usize,
    coming: VecDeque<Coming>,
    /// The start of a record that continues in the next chunk.
    begun: Vec<u8>,
}

impl<'a> StripeReader<'a> {
    pub(crate) fn new(
        machine: &'a Machine,
        memory: &'a Dram,
        sources: &'a [Source],
        ranges: Vec<Range>,
        record: usize,
        chunks: Chunks,
    ) -> StripeReader<'a> {
        StripeReader {
            machine,
            memory,
            sources,
            record,
            chunks,
            ranges: ranges.into(),
            pipes: Vec::new(),
            connected: None,
            turn: 0,
            coming: VecDeque::new(),
            begun: Vec::new(),
        }
    }

    /// Returns the next whole records, and how many bytes were read for them. The records before
    /// them must have been given back. `None` is the end.
    pub(crate) fn next(&mut self, control: &Control) -> Result<Option<(Lease, u64)>> {
        self.ask(control)?;
        let Some(Coming { transfer, chunk, len }) = self.coming.pop_front() else {
            return match self.begun.len() {
                0 => Ok(None),
                left => Err(Error::new(ErrorKind::InvalidInput, "sort", format!("{left} bytes of a record are left"))),
            };
        };
        let waits = control.waits_for(SortWait::Records);
        transfer.wait()?;
        drop(waits);
        let arrived = self.place(chunk);
        let start = arrived - self.begun.len();
        if !self.begun.is_empty() {
            self.memory.range(start, self.begun.len())?.lease_mut()?.copy_from_slice(&self.begun);
        }
        let bytes = arrived + len - start;
        let whole = bytes / self.record * self.record;
        self.begun.clear();
        self.begun.extend_from_slice(&self.memory.range(start + whole, bytes - whole)?.lease()?);
        Ok(Some((self.memory.range(start, whole)?.lease()?, len as u64)))
    }

    /// Adds the counters of its pipes.
    pub(crate) fn finish(mut self, movements: &Movements) {
        for pipe in std::mem::take(&mut self.pipes) {
            movements.keep(MovementRole::Input, pipe);
        }
    }

    /// Where the bytes of a chunk arrive.
    fn place(&self, chunk: usize) -> usize {
        self.chunks.at + chunk * (self.chunks.headroom + self.chunks.len) + self.chunks.headroom
    }

    /// Asks for chunks while there is room for them. One is left for the records handed out.
    fn ask(&mut self, control: &Control) -> Result<()> {
        while self.coming.len() + 1 < self.chunks.count {
            let Some(range) = self.ranges.front_mut() else { return Ok(()) };
            if self.connected != Some(range.source) {
                let ssd = &self.sources[range.source].ssd;
                let constraints = Constraints::default().typical_len(range.to - range.from);
                self.pipes.push(self.machine.connect_with(ssd, self.memory, &constraints)?);
                self.connected = Some(range.source);
            }
            let Some(pipe) = self.pipes.last() else { return Ok(()) };
            let source = range.from;
            let len = (range.to - range.from).min(self.chunks.len as u64);
            range.from += len;
            if range.from == range.to {
                self.ranges.pop_front();
            }
            let chunk = self.turn;
            self.turn = (self.turn + 1) % self.chunks.count;
            let span = Span { source, target: self.place(chunk) as u64, len };
            let transfer = control.start_read(SortWait::Records, pipe, span)?;
            self.coming.push_back(Coming { transfer, chunk, len: len as usize });
        }
        Ok(())
    }
}

impl Drop for StripeReader<'_> {
    fn drop(&mut self) {
        // The memory will be used for something else: nothing may be in flight into it.
        for coming in self.coming.drain(..) {
            // The outcome no longer matters.
            let _ = coming.transfer.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_whole_records_and_nearly_equal() {
        for record in [1, 7, 97, 100, 4096, 5000] {
            for threads in 1..5 {
                for records in [0, 1, 5, 1000, 100_003] {
                    let total = records * record as u64;
                    let cuts = cuts(total, record, threads);
                    assert_eq!((cuts.len(), cuts[0], cuts[threads]), (threads + 1, 0, total));
                    assert!(cuts.windows(2).all(|w| w[0] <= w[1] && (w[1] - w[0]) % record as u64 == 0));
                }
            }
        }
        assert_eq!(cuts(100_000_000, 100, 2), [0, 49_971_200, 100_000_000]);
    }
}
