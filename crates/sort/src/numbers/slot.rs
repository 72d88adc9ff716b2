//! A slot of numbers, sorted in place.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use datapipes_core::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes_core::locks::Mutex;
use datapipes_core::{Dram, Error, ErrorKind, Pipe, Result, Span, Transfer};

use super::merge::{Counts, MergeRules, NumberSource, merge_into};
use super::{Numbers, Unsigned};
use crate::control::{Control, MIN_UNDER_WAY, count, is_of_file, limit_under_way};
use crate::memory::blocks::{ALIGN, BlockPool, PartWriter, Target, write_partial_blocks};
use crate::memory::parallel::{Disjoint, run_on_threads};
use crate::records::tally::Tally;
use crate::runs::checksum;
use crate::runs::spill::IndexEntry;
use crate::waits::SortWait;

/// Bytes for which a run has a key in its index.
const PIECE: u64 = 4 << 20;
/// The most bytes of a slot's runs that are under way.
const MAX_UNDER_WAY: u64 = 8 * PIECE;

/// Writes of a slot's runs in flight.
pub(crate) struct WritesInFlight<'a> {
    control: &'a Control,
    counter: &'a AtomicU64,
    flying: VecDeque<(Transfer, u64, InFlightMark)>,
    under_way: u64,
    limit: InFlightLimit,
}

impl<'a> WritesInFlight<'a> {
    /// What arrives is counted by `counter`.
    pub(crate) fn new(control: &'a Control, counter: &'a AtomicU64) -> WritesInFlight<'a> {
        let limit = limit_under_way(MAX_UNDER_WAY);
        WritesInFlight { control, counter, flying: VecDeque::new(), under_way: 0, limit }
    }

    /// Starts to write `len` bytes, in as many requests as the limit asks for. The bytes behind the
    /// last number in its block are written too, and are no part of the run.
    fn write(&mut self, pipe: &Pipe, source: u64, target: u64, len: u64) -> Result<()> {
        let mut at = 0;
        while at < len {
            self.control.check()?;
            let piece = self.make_way(pipe, len - at)?;
            let span = Span { source: source + at, target: target + at, len: piece.next_multiple_of(ALIGN as u64) };
            let begun = self.limit.begin();
            // To start a write may be to wait for it, as in `BlockPool::write`.
            let waits = (!pipe.is_queued()).then(|| self.control.calls_for(SortWait::Spill));
            self.flying.push_back((pipe.start(span)?, piece, begun));
            drop(waits);
            self.under_way += piece;
            at += piece;
        }
        Ok(())
    }

    /// Waits until some of these bytes may be written, and returns how many.
    fn make_way(&mut self, pipe: &Pipe, len: u64) -> Result<u64> {
        loop {
            let most = if is_of_file(pipe) { self.limit.bytes() } else { MAX_UNDER_WAY };
            let room = most.saturating_sub(self.under_way) / ALIGN as u64 * ALIGN as u64;
            if room >= len.min(MIN_UNDER_WAY) || self.flying.is_empty() {
                return Ok(len.min(room.max(MIN_UNDER_WAY)));
            }
            self.await_oldest()?;
        }
    }

    fn await_oldest(&mut self) -> Result<()> {
        if let Some((transfer, len, begun)) = self.flying.pop_front() {
            let waits = self.control.waits_for(SortWait::Spill);
            transfer.wait()?;
            drop(waits);
            self.under_way -= len;
            self.limit.arrived(begun);
            count(self.counter, len);
        }
        Ok(())
    }

    /// Waits for all writes.
    pub(crate) fn drain(mut self) -> Result<()> {
        while !self.flying.is_empty() {
            self.await_oldest()?;
        }
        Ok(())
    }
}

/// The sorted numbers of a slot: one sequence, or an ascending part for each thread that sorted.
pub(crate) struct SortedNumbers {
    numbers: Numbers,
    arena: Dram,
    count: usize,
    parts: usize,
    unique: bool,
    /// The numbers that were in the slot.
    pub(crate) read: Tally,
    /// Numbers that were dropped as duplicates.
    pub(crate) dropped: Tally,
}

/// The index and the checksums of a run that is being written.
#[derive(Default)]
pub(crate) struct RunFacts {
    pub(crate) key_index: Vec<IndexEntry>,
    pub(crate) sums: Vec<u32>,
}

impl SortedNumbers {
    /// Encodes and sorts `count` numbers at the start of the arena.
    pub(crate) fn sort(numbers: Numbers, arena: &Dram, count: usize, threads: usize, unique: bool) -> Result<Self> {
        let (arena, read, dropped) = (arena.clone(), Tally::default(), Tally::default());
        let mut sorted = SortedNumbers { numbers, arena, count, parts: threads.max(1), unique, read, dropped };
        if count < 1 << 16 {
            sorted.parts = 1;
        }
        match numbers.kind.width() {
            4 => sorted.sort_as::<u32>()?,
            _ => sorted.sort_as::<u64>()?,
        }
        Ok(sorted)
    }

    fn sort_as<T: Unsigned>(&mut self) -> Result<()> {
        let mut lease = self.arena.range(0, self.count * size_of::<T>())?.lease_mut()?;
        let values = lease.as_slice_of::<T>()?;
        let stripe = values.len().div_ceil(self.parts).max(1);
        let numbers = self.numbers;
        let all = Disjoint::new(values);
        let read = Mutex::new(Tally::default());
        run_on_threads(self.parts, |t| {
            let from = (t * stripe).min(all.len());
            // SAFETY: stripe t is this thread's alone.
            #[allow(unsafe_code)]
            let part = unsafe { all.slice(from, stripe.min(all.len() - from)) };
            // The numbers are counted here and not when they arrive, because sorting brings them
            // into the cache anyway.
            let mut tally = Tally::default();
            tally.add_numbers(size_of::<T>(), part.iter().map(|v| v.widen()));
            read.lock().join(tally);
            if !numbers.plain() {
                part.iter_mut().for_each(|v| *v = v.encode(numbers));
            }
            T::sort(part);
        });
        self.read = read.into_inner();
        if self.unique && self.parts == 1 {
            let mut kept = 0;
            for i in 1..values.len() {
                if values[i] == values[kept] {
                    let value = values[i].decode(numbers).widen();
                    self.dropped.add_numbers(size_of::<T>(), std::iter::once(value));
                } else {
                    kept += 1;
                    values[kept] = values[i];
                }
            }
            self.count = self.count.min(kept + 1);
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.count * self.numbers.kind.width()) as u64
    }

    /// Starts to write the encoded numbers as a run, directly from the slot.
    pub(crate) fn write_run(&self, target: Target<'_>, writes: &mut WritesInFlight<'_>) -> Result<RunFacts> {
        let Target::Run { pipe, base, grain } = target else {
            return Err(Error::new(ErrorKind::InvalidInput, "spill", "not a run"));
        };
        let mut facts = RunFacts::default();
        let (len, width) = (self.bytes(), self.numbers.kind.width());
        let mut at = 0;
        while at < len {
            let now = (len - at).min(PIECE);
            let piece = self.arena.range(at as usize, now as usize)?.lease()?;
            facts.key_index.push(IndexEntry {
                at,
                prefix: crate::records::layout::Layout::prefix(&self.numbers, &piece[..width]),
            });
            facts.sums.extend(piece.chunks(grain).map(checksum::sum));
            drop(piece);
            writes.write(pipe, self.arena.memory().at() as u64 + at, base + at, now)?;
            at += now;
        }
        Ok(facts)
    }

    /// Writes all numbers, decoded, to the output. `l2` is the size of a core's second-level cache.
    /// Returns what was written, and what was dropped now.
    pub(crate) fn write_output(
        &self,
        (blocks, l2): (&BlockPool, u64),
        target: Target<'_>,
        control: &Control,
        counter: &AtomicU64,
    ) -> Result<Counts> {
        match self.numbers.kind.width() {
            4 => self.write_as::<u32>((blocks, l2), target, control, counter),
            _ => self.write_as::<u64>((blocks, l2), target, control, counter),
        }
    }

    fn write_as<T: Unsigned>(
        &self,
        (blocks, l2): (&BlockPool, u64),
        target: Target<'_>,
        control: &Control,
        counter: &AtomicU64,
    ) -> Result<Counts> {
        let lease = self.arena.range(0, self.count * size_of::<T>())?.lease()?;
        let values = lease.as_slice_of::<T>()?;
        let sorted: Vec<&[T]> = values.chunks(values.len().div_ceil(self.parts).max(1)).collect();
        let parts = if self.unique || target.stream().is_some() { 1 } else { self.parts };
        // Each thread takes the values between two splitters from every sorted part.
        let mut cuts = vec![vec![0; sorted.len()]];
        for part in 1..parts {
            let longest = sorted[0];
            let splitter = longest[longest.len() * part / parts];
            cuts.push(sorted.iter().map(|s| s.partition_point(|v| *v < splitter)).collect());
        }
        cuts.push(sorted.iter().map(|s| s.len()).collect());
        let rules = MergeRules { unique: self.unique, decode: true, l2 };
        let outcome = Mutex::new((Ok(()), Vec::new(), Counts::default()));
        run_on_threads(parts, |p| {
            let at: usize = cuts[p].iter().sum::<usize>() * size_of::<T>();
            let mut out = PartWriter::new(blocks, target, at as u64, p + 1 < parts, control, counter);
            let inflows = sorted
                .iter()
                .enumerate()
                .map(|(s, v)| NumberSource::<T, Numbers>::Memory(&v[cuts[p][s]..cuts[p + 1][s]]))
                .collect();
            let result = merge_into(self.numbers, inflows, rules, &mut out, |_, _, _| {})
                .and_then(|counts| out.finish().map(|()| counts));
            let mut outcome = outcome.lock();
            outcome.1.append(&mut out.partial_blocks);
            match result {
                Ok(counts) => outcome.2.join(counts),
                Err(e) if outcome.0.is_ok() => outcome.0 = Err(e),
                Err(_) => {}
            }
        });
        let (result, edges, counts) = outcome.into_inner();
        result?;
        write_partial_blocks(blocks, target, control, edges)?;
        Ok(counts)
    }
}
