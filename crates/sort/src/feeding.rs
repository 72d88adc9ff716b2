//! How many threads a sort is worth: no more than the spill places feed.
//!
//! ```text
//! rate     before anything is read, some bytes are written to the spill places and read back
//! work     seconds of the processor that a byte costs in a phase: some numbers are sorted by one
//!          thread; for other records, it is what their runs cost
//! threads  2.5 times as many as have work all the time at that rate, because each also waits for
//!          requests of its own
//! ```
//! More threads only divide the memory: each has smaller buffers and blocks, there are more
//! buckets, and requests become shorter. 4 GB of numbers in 1 GiB on 16 cores took 9.0 s and 13 s
//! of the processor with 4 threads, and 11.4 s and 19 s with 16
//! (`benchmarks/results/2026-11-26-sort-xeon.md`).
//!
//! The rate of the input is not asked for. All bytes come from the spill places once more, and a
//! slow input only makes threads wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use datapipes_core::{Pipe, Result, Span};
use datapipes_metrics::ByteRate;

use crate::engine::Engine;
use crate::numbers::{Numbers, SortedNumbers};
use crate::processor_time::thread_seconds;
use crate::records::layout::Layout;
use crate::runs::spill::Spill;

/// So few threads are never too many, and nothing is measured for them.
const FEW: usize = 2;
/// Nothing is measured for a shorter input.
const WORTH_MEASURING: u64 = 64 << 20;
/// The bytes that are written and read back are this part of the input, or fewer.
const PROBE_PART: u64 = 16;
const MAX_PROBE: u64 = 16 << 20;
/// The requests for them, unless they would be too short or too long.
const REQUESTS: u64 = 32;
const MIN_REQUEST: u64 = 64 << 10;
/// A slow place is not asked for longer than this.
const MAX_TIME: Duration = Duration::from_millis(150);
/// Requests in flight, half of them writes.
const DEPTH: usize = 8;
/// The median of so many measurements counts. A thread that loses its core says nothing about a
/// place, and a disk that is held to a rate takes its first bytes at once: of two measurements the
/// better one gave 42 to 356 MB/s for a disk of 30. The median of single requests does not do, as
/// such a disk has pauses.
const ROUNDS: usize = 3;
const MAX_REQUEST: u64 = 1 << 20;
/// Threads for each one that would have work all the time. With 4 threads for the work of 1.4,
/// numbers took less time than with 2 or 8.
const MARGIN: f64 = 2.5;
/// Numbers that are sorted to see what they cost.
const SAMPLE: usize = 128 << 10;

/// What was measured before the sort.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed {
    /// Bytes a second that the spill places take and give back at the same time.
    rate: f64,
    /// Seconds of the processor for a byte of numbers; `None` for other records.
    work: Option<f64>,
}

/// A number of threads, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadChoice {
    pub(crate) threads: usize,
    pub(crate) why: String,
}

impl ThreadChoice {
    /// As many of `most` threads as a place of this rate feeds, if a byte costs `work` seconds.
    fn fed(most: usize, rate: f64, work: f64) -> ThreadChoice {
        let wanted = (MARGIN * rate * work).ceil();
        let threads = if wanted < most as f64 { (wanted as usize).max(FEW.min(most)) } else { most };
        let thread = ByteRate(1.0 / work.max(1e-12));
        let rate = ByteRate(rate);
        let why = format!("the spill places take and return {rate}, and one of {most} threads does {thread}");
        ThreadChoice { threads, why }
    }
}

impl Feed {
    /// The threads for numbers, which are sorted in the same time whatever they are.
    pub(crate) fn threads_for_numbers(&self, most: usize) -> Option<ThreadChoice> {
        Some(ThreadChoice::fed(most, self.rate, self.work?))
    }

    /// The threads that merge runs of `bytes` that took `seconds` of the processor.
    pub(crate) fn threads_after(&self, most: usize, seconds: f64, bytes: u64) -> ThreadChoice {
        ThreadChoice::fed(most, self.rate, seconds / bytes.max(1) as f64)
    }
}

impl<L: Layout> Engine<'_, L> {
    /// Measures what feeds the threads, if there may be more than enough of them. It needs the
    /// memory behind the output blocks.
    pub(crate) fn measure_feed(&self, spill: &Spill<'_>) -> Option<Feed> {
        let total = self.total.filter(|total| *total >= WORTH_MEASURING)?;
        let pointless = self.settings.threads_are_given || self.fits || self.budget.threads <= FEW;
        if pointless || spill.compressor.is_some() {
            return None;
        }
        // A sort that cannot use its places says so later, with what it knows then.
        let rate = self.spill_rate(total, spill).ok().flatten()?;
        let work = match self.layout.numbers() {
            Some(numbers) => Some(self.work_of_numbers(numbers).ok()?),
            None => None,
        };
        Some(Feed { rate, work })
    }

    /// Bytes a second that the spill places take and give back at the same time.
    fn spill_rate(&self, total: u64, spill: &Spill<'_>) -> Result<Option<f64>> {
        let probe = (total / PROBE_PART).min(MAX_PROBE);
        let room = (self.budget.arenas() / DEPTH) as u64;
        let request = (probe / REQUESTS).clamp(MIN_REQUEST, MAX_REQUEST).min(room) / 4096 * 4096;
        let count = probe.checked_div(request).unwrap_or(0);
        if count < DEPTH as u64 {
            return Ok(None);
        }
        let staging = spill.staging()?;
        let out = self.machine.connect(&self.memory, &staging)?;
        if out.route().hops.iter().all(|hop| hop.backend == "cpu") {
            // The threads copy themselves, so memory feeds all that there are.
            return Ok(None);
        }
        // The first touch of memory is not the place's time.
        self.memory.range(self.budget.arenas_at, DEPTH * request as usize)?.lease_mut()?.fill(1);
        let run = spill.reserve(count * request, self.control)?;
        let back = self.machine.connect(&staging, &self.memory)?;
        let flow = Flow { pipes: (out, back), request, memory: self.budget.arenas_at as u64, place: run.offset };
        let rates = (0..ROUNDS).map(|_| flow.rate(count)).collect::<Result<Vec<f64>>>();
        spill.free(vec![run], self.control)?;
        let mut rates = rates?;
        rates.sort_unstable_by(f64::total_cmp);
        Ok(rates.get(ROUNDS / 2).copied())
    }

    /// Seconds of the processor that one thread takes to sort a byte of numbers.
    fn work_of_numbers(&self, numbers: Numbers) -> Result<f64> {
        let width = numbers.kind.width();
        let count = SAMPLE.min(self.budget.arenas() / width / 2);
        let bytes = count * width;
        let arena = self.memory.range(self.budget.arenas_at, self.budget.arenas())?;
        // Numbers that are all different; they cost as much as any, or more.
        let mut number = 1_u64;
        for word in self.memory.range(self.budget.arenas_at, bytes)?.lease_mut()?.chunks_exact_mut(8) {
            number = number.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            word.copy_from_slice(&(number ^ number >> 29).to_ne_bytes());
        }
        let begun = thread_seconds();
        SortedNumbers::sort(numbers, &arena, count, 1, false)?;
        Ok((thread_seconds() - begun) / bytes.max(1) as f64)
    }
}

/// Requests to the spill places and back.
struct Flow {
    pipes: (Pipe, Pipe),
    /// Bytes of each.
    request: u64,
    /// Where `DEPTH` of them are in memory, and all of them in the places.
    memory: u64,
    place: u64,
}

impl Flow {
    /// Writes so many requests, and reads each one when it was written. Returns the bytes a second
    /// that came back, as far as there was time for them.
    fn rate(&self, count: u64) -> Result<f64> {
        let begun = Instant::now();
        let (mut writes, mut reads) = (VecDeque::new(), VecDeque::new());
        let (mut outcome, mut came) = (Ok(()), 0);
        let mut next = 0;
        loop {
            // What is in flight must end before its memory and its space are used again.
            let goes_on = outcome.is_ok() && begun.elapsed() < MAX_TIME;
            if goes_on && next < count && writes.len() < DEPTH / 2 {
                match self.pipes.0.start(self.span(next, true)) {
                    Ok(write) => writes.push_back((next, write)),
                    Err(e) => outcome = Err(e),
                }
                next += 1;
            } else if reads.len() < DEPTH / 2
                && let Some((index, write)) = writes.pop_front()
            {
                let read = write.wait().and_then(|()| self.pipes.1.start(self.span(index, false)));
                match read {
                    Ok(read) => reads.push_back(read),
                    Err(e) => outcome = Err(e),
                }
            } else if let Some(read) = reads.pop_front() {
                match read.wait() {
                    Ok(()) => came += 1,
                    Err(e) => outcome = Err(e),
                }
            } else {
                return outcome.map(|()| (came * self.request) as f64 / begun.elapsed().as_secs_f64().max(1e-9));
            }
        }
    }

    /// The bytes of a request. Those of a read go where those of its write came from.
    fn span(&self, index: u64, writes: bool) -> Span {
        let memory = self.memory + index % DEPTH as u64 * self.request;
        let place = self.place + index * self.request;
        let (source, target) = if writes { (memory, place) } else { (place, memory) };
        Span { source, target, len: self.request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_rate_of_the_places_and_the_work() {
        let threads = |most, rate, work| ThreadChoice::fed(most, rate, work).threads;
        // The numbers of the record: 10.8 ns for 8 bytes in a phase, and 1.1 GB/s.
        assert_eq!(threads(16, 1.1e9, 10.8e-9 / 8.0), 4);
        // A disk that is ten times slower, or as much faster.
        assert_eq!(threads(16, 0.11e9, 10.8e-9 / 8.0), 2);
        assert_eq!(threads(16, 11e9, 10.8e-9 / 8.0), 16);
        // Lines cost more.
        assert_eq!(threads(16, 1.1e9, 2.3e-9), 7);
        // The most is never exceeded, not by what cannot be measured either.
        for most in 1..5 {
            assert_eq!(threads(most, f64::INFINITY, 1.0), most);
            assert_eq!(threads(most, f64::NAN, 1.0), most.max(1));
            assert_eq!(threads(most, 0.0, 0.0), most.min(2));
        }
    }
}
