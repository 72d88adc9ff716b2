//! Many reads at once: what is cached is copied, the rest is sorted, merged, and read with a deep
//! queue.

use std::ops::Range;

use datapipes_core::{Error, ErrorKind, Result};

use crate::constructor::Piece;
use crate::fine::{FineGrained, Inner};
use crate::requester::{Bring, in_pages};
use crate::store::PAGE;
use crate::writes::Stamp;

/// Reads that are looked up before the device is asked.
const WINDOW: usize = 4096;
/// How far ahead lines of the index are fetched, and how far what they name.
const INDEX_AHEAD: usize = 12;
const ITEM_AHEAD: usize = 6;

/// How a batch of reads went.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Reads whose bytes were all cached.
    pub hits: u64,
    /// Those that needed the device.
    pub misses: u64,
    /// Those that failed, by their number in the batch: nothing is certain of their bytes, the
    /// others are not concerned.
    pub failed: Vec<(usize, Error)>,
}

impl Gathered {
    /// The first error, if there is any.
    ///
    /// # Errors
    /// That of the read with the lowest number.
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
struct Read {
    offset: u64,
    len: usize,
    out_at: usize,
}

impl Read {
    fn range(self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }
}

/// A read that is not a hit: its number, and the versions of its bytes from before it was looked
/// up.
#[derive(Clone, Copy)]
struct Begun {
    number: usize,
    stamp: Stamp,
    /// Nothing of it was looked up: it is to be made by itself.
    alone: bool,
}

impl FineGrained {
    /// Reads `len` bytes at each offset into `out`, one after the other: the rows of a table. Reads
    /// of the same bytes go to the device once. Each read is of one moment; the batch is not.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not `offsets.len() * len` bytes long. What single reads meet
    /// is in [`Gathered`].
    pub fn gather(&self, offsets: &[u64], len: usize, out: &mut [u8]) -> Result<Gathered> {
        self.0.owner.check("gather")?;
        check(offsets.len().checked_mul(len), out.len())?;
        let reads = |i: usize| Read { offset: offsets[i], len, out_at: i * len };
        Ok(self.0.gather(offsets.len(), &reads, out))
    }

    /// The same for reads of any lengths: (offset, length) each.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not as long as all of them together.
    pub fn gather_ranges(&self, ranges: &[(u64, usize)], out: &mut [u8]) -> Result<Gathered> {
        self.0.owner.check("gather")?;
        check(ranges.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len)), out.len())?;
        Ok(self.0.gather_ranges(ranges, out))
    }
}

fn check(wanted: Option<usize>, given: usize) -> Result<()> {
    if wanted == Some(given) {
        return Ok(());
    }
    let wanted = wanted.map_or("more than memory".to_owned(), |w| w.to_string());
    Err(Error::new(ErrorKind::InvalidInput, "gather", format!("{wanted} bytes into {given}")))
}

impl Inner {
    /// Reads of any lengths, into as many bytes as all of them have.
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

    fn gather(&self, count: usize, reads: &dyn Fn(usize) -> Read, out: &mut [u8]) -> Gathered {
        let mut gathered = Gathered::default();
        let mut pieces = Vec::new();
        let mut begun: Vec<Begun> = Vec::new();
        for window in (0..count).step_by(WINDOW) {
            let numbers = window..(window + WINDOW).min(count);
            pieces.clear();
            begun.clear();
            for number in numbers.clone() {
                if number + INDEX_AHEAD < numbers.end
                    && let Some(place) = self.map.of(reads(number + INDEX_AHEAD).offset)
                {
                    self.store.index_soon(place);
                }
                if number + ITEM_AHEAD < numbers.end
                    && let Some(place) = self.map.of(reads(number + ITEM_AHEAD).offset)
                {
                    self.store.item_soon(place);
                }
                self.look_up(number, reads(number), out, &mut pieces, &mut begun);
            }
            gathered.hits += (numbers.len() - begun.len()) as u64;
            gathered.misses += begun.len() as u64;
            self.fetch(reads, out, &mut pieces, &begun, &mut gathered);
        }
        gathered
    }

    /// Copies what is cached of a read; notes the rest, and the read's stamp, once.
    fn look_up(&self, number: usize, read: Read, out: &mut [u8], pieces: &mut Vec<Piece>, begun: &mut Vec<Begun>) {
        self.sample(read.offset);
        let Read { offset, len, out_at } = read;
        let whole = len > 0 && len as u64 <= PAGE - offset % PAGE;
        let range = read.range();
        // Before the look at what is there.
        let stamp = self.writes.stamp(&range);
        let first = whole.then(|| self.cached(offset, &mut out[out_at..out_at + len]));
        if let Some(Ok(())) = first {
            return;
        }
        if len == 0 {
            return;
        }
        begun.push(Begun { number, stamp, alone: true });
        // A read that must wait or be refused is made by itself, later; so is one whose parts can
        // be checked only together.
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

    /// Reads what is missing of a window. What changed meanwhile is read again, one by one; so is
    /// what failed, because the request that failed may have been for other reads as well.
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
