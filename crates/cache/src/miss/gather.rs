//! Many reads at once: cached bytes are copied, the rest is sorted, merged, and read with a deep
//! queue.

use std::ops::Range;
use std::time::Instant;

use datapipes_core::{Error, Result};

use super::constructor::Piece;
use super::requester::{Bring, in_pages};
use crate::coherence::writes::Stamp;
use crate::pool::file::Inner;
use crate::store::PAGE;

/// The number of reads that are looked up before the device is asked.
const WINDOW: usize = 4096;
/// How many reads ahead index lines are prefetched, and how many the items.
const INDEX_AHEAD: usize = 12;
const ITEM_AHEAD: usize = 6;

/// The result of a batch of reads.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Gathered {
    /// Reads whose bytes were all cached.
    pub hits: u64,
    /// Reads that needed the device.
    pub misses: u64,
    /// Reads that failed, by their number in the batch. Their bytes are undefined; other reads are
    /// not affected.
    pub failed: Vec<(usize, Error)>,
}

impl Gathered {
    /// Returns the first error, if there is one.
    ///
    /// # Errors
    /// The error of the failed read with the lowest number.
    pub fn all(mut self) -> Result<Gathered> {
        self.failed.sort_by_key(|(number, _)| *number);
        match self.failed.is_empty() {
            true => Ok(self),
            false => Err(self.failed.swap_remove(0).1),
        }
    }
}

/// One read of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) out_at: usize,
}

impl Read {
    fn range(self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }
}

/// A read that is not a hit: its number, and the versions of its bytes before the lookup.
#[derive(Clone, Copy)]
struct Begun {
    number: usize,
    stamp: Stamp,
    /// Nothing of it was looked up: the read is made by itself.
    alone: bool,
}

/// A batch between its windows. Each window is looked up, then what is missing of it is fetched.
#[derive(Default)]
pub(crate) struct Gathering {
    gathered: Gathered,
    /// The number of reads that were looked up.
    looked_up: usize,
    pieces: Vec<Piece>,
    begun: Vec<Begun>,
}

impl Gathering {
    /// Looks up the next window of `count` reads, which `reads` describes. Returns false where
    /// there is none. What was missing before must have been fetched.
    pub(crate) fn look_up(
        &mut self,
        inner: &Inner,
        count: usize,
        reads: &dyn Fn(usize) -> Read,
        out: &mut [u8],
    ) -> bool {
        let numbers = self.looked_up..(self.looked_up + WINDOW).min(count);
        self.pieces.clear();
        self.begun.clear();
        if numbers.is_empty() {
            return false;
        }
        self.looked_up = numbers.end;
        for number in numbers.clone() {
            if number + INDEX_AHEAD < numbers.end
                && let Some(place) = inner.map.of(reads(number + INDEX_AHEAD).offset)
            {
                inner.store.index_soon(place);
            }
            if number + ITEM_AHEAD < numbers.end
                && let Some(place) = inner.map.of(reads(number + ITEM_AHEAD).offset)
            {
                inner.store.item_soon(place);
            }
            inner.look_up(number, reads(number), out, &mut self.pieces, &mut self.begun);
        }
        self.gathered.hits += (numbers.len() - self.begun.len()) as u64;
        self.gathered.misses += self.begun.len() as u64;
        true
    }

    /// Whether the last window needs the device.
    pub(crate) fn has_misses(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Reads what is missing of the last window.
    pub(crate) fn fetch(&mut self, inner: &Inner, reads: &dyn Fn(usize) -> Read, out: &mut [u8]) {
        inner.fetch(reads, out, &mut self.pieces, &self.begun, &mut self.gathered);
    }

    /// The result, after the last window.
    pub(crate) fn end(self) -> Gathered {
        self.gathered
    }
}

impl Inner {
    /// Reads ranges of any lengths into `out`, which has the sum of their lengths.
    pub(crate) fn gather_ranges(&self, ranges: &[(u64, usize)], out: &mut [u8]) -> Gathered {
        let mut sum = 0;
        let mut next = |len: usize| {
            sum += len;
            sum - len
        };
        let starts: Vec<usize> = ranges.iter().map(|(_, len)| next(*len)).collect();
        let reads = |i: usize| Read { offset: ranges[i].0, len: ranges[i].1, out_at: starts[i] };
        self.gather(ranges.len(), &reads, out)
    }

    /// Makes `count` reads, which `reads` describes.
    pub(crate) fn gather(&self, count: usize, reads: &dyn Fn(usize) -> Read, out: &mut [u8]) -> Gathered {
        let started = self.latencies.are_measured().then(Instant::now);
        let mut gathering = Gathering::default();
        while gathering.look_up(self, count, reads, out) {
            gathering.fetch(self, reads, out);
        }
        let gathered = gathering.end();
        if let Some(started) = started {
            self.latencies.add(gathered.misses == 0, started.elapsed());
        }
        gathered
    }

    /// Copies the cached bytes of a read. Notes the missing ones, and the read's stamp once.
    fn look_up(&self, number: usize, read: Read, out: &mut [u8], pieces: &mut Vec<Piece>, begun: &mut Vec<Begun>) {
        self.sample(read.offset);
        let Read { offset, len, out_at } = read;
        let whole = len > 0 && len as u64 <= PAGE - offset % PAGE;
        let range = read.range();
        // The stamp is taken before the lookup.
        let stamp = self.writes.stamp(&range);
        let first = whole.then(|| self.cached(offset, &mut out[out_at..out_at + len]));
        if let Some(Ok(())) = first {
            return;
        }
        if len == 0 {
            return;
        }
        begun.push(Begun { number, stamp, alone: true });
        // A read that must wait or fail is made by itself later. So is one whose parts can be
        // checked only together.
        let parts = first.is_none() && self.options.verify.is_some();
        if parts || self.writes.is_changing(&range) || self.is_beyond(offset, len) {
            return;
        }
        let read = begun.len() as u32 - 1;
        if let Some(last) = begun.last_mut() {
            last.alone = false;
        }
        if let Some(Err(missing)) = first {
            let path = self.dispatch(offset, len, missing);
            pieces.push(Piece { offset, len, out_at, read, path });
            return;
        }
        for (at, part) in in_pages(offset, len) {
            let part_at = out_at + (at - offset) as usize;
            if let Err(missing) = self.cached(at, &mut out[part_at..part_at + part]) {
                let path = self.dispatch(at, part, missing);
                pieces.push(Piece { offset: at, len: part, out_at: part_at, read, path });
            }
        }
    }

    /// Reads what is missing of a window. Reads that changed or failed are made again one by one,
    /// because a failed request may have been made for other reads as well.
    fn fetch(
        &self,
        reads: &dyn Fn(usize) -> Read,
        out: &mut [u8],
        pieces: &mut [Piece],
        begun: &[Begun],
        gathered: &mut Gathered,
    ) {
        let mut failed = vec![false; begun.len()];
        if !pieces.is_empty() {
            let unchanged = |piece: &Piece| {
                let Begun { number, stamp, .. } = begun[piece.read as usize];
                self.writes.unchanged(&reads(number).range(), stamp)
            };
            self.bring(pieces, out, Bring { careful: false, whole: true, unchanged: &unchanged }, &mut |piece, _| {
                failed[piece.read as usize] = true
            });
        }
        for (&Begun { number, stamp, alone }, failed) in begun.iter().zip(failed) {
            let read = reads(number);
            if !alone && !failed && self.writes.unchanged(&read.range(), stamp) {
                continue;
            }
            let out = &mut out[read.out_at..read.out_at + read.len];
            if let Err(error) = self.read_slowly(read.offset, out, None) {
                gathered.failed.push((number, error));
            }
        }
    }
}
