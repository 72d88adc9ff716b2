//! Many reads at once: what is cached is copied, the rest is sorted, merged, and read with a deep queue.

use datapipes_core::{Error, ErrorKind, Result};

use crate::constructor::Piece;
use crate::fine::{FineGrained, Inner, in_pages};
use crate::metrics::Tally;
use crate::store::PAGE;
use crate::writes::Stamp;

/// Reads that are looked up before the device is asked.
const WINDOW: usize = 4096;
/// How far ahead the index is touched.
const AHEAD: usize = 6;

/// How a batch of reads went.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Reads whose bytes were all cached.
    pub hits: u64,
    /// Those that needed the device.
    pub misses: u64,
    /// Those that failed, by their number in the batch: nothing is certain of their bytes, the others are not concerned.
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

impl FineGrained {
    /// Reads `len` bytes at each offset into `out`, one after the other: the rows of a table. Reads of the same bytes go to the
    /// device once. Each read is of one moment; the batch is not.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not `offsets.len() * len` bytes long. What single reads meet is in [`Gathered`].
    pub fn gather(&self, offsets: &[u64], len: usize, out: &mut [u8]) -> Result<Gathered> {
        check(offsets.len().checked_mul(len), out.len())?;
        let reads = |i: usize| Read { offset: offsets[i], len, out_at: i * len };
        Ok(self.0.gather(offsets.len(), &reads, out))
    }

    /// The same for reads of any lengths: (offset, length) each.
    ///
    /// # Errors
    /// `InvalidInput` where `out` is not as long as all of them together.
    pub fn gather_ranges(&self, ranges: &[(u64, usize)], out: &mut [u8]) -> Result<Gathered> {
        let mut starts = Vec::with_capacity(ranges.len());
        let mut sum = Some(0usize);
        for (_, len) in ranges {
            starts.push(sum.unwrap_or(0));
            sum = sum.and_then(|s| s.checked_add(*len));
        }
        check(sum, out.len())?;
        let reads = |i: usize| Read { offset: ranges[i].0, len: ranges[i].1, out_at: starts[i] };
        Ok(self.0.gather(ranges.len(), &reads, out))
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
    fn gather(&self, count: usize, reads: &dyn Fn(usize) -> Read, out: &mut [u8]) -> Gathered {
        let mut gathered = Gathered::default();
        let mut pieces = Vec::new();
        let mut stamps: Vec<(usize, Stamp)> = Vec::new();
        for window in (0..count).step_by(WINDOW) {
            let numbers = window..(window + WINDOW).min(count);
            pieces.clear();
            stamps.clear();
            for number in numbers.clone() {
                if number + AHEAD < numbers.end {
                    self.store.prefetch(reads(number + AHEAD).offset);
                }
                self.look_up(number, reads(number), out, &mut pieces, &mut stamps, &mut gathered);
            }
            gathered.hits += (numbers.len() - stamps.len()) as u64;
            gathered.misses += stamps.len() as u64;
            self.fetch(reads, out, &mut pieces, &stamps, &mut gathered);
        }
        Tally::add(&self.tally.failed, gathered.failed.len() as u64);
        // Hits that failed are none.
        gathered
    }

    /// Copies what is cached of a read; notes the rest, and the read's stamp, once.
    fn look_up(
        &self,
        number: usize,
        read: Read,
        out: &mut [u8],
        pieces: &mut Vec<Piece>,
        stamps: &mut Vec<(usize, Stamp)>,
        gathered: &mut Gathered,
    ) {
        self.sample(read.offset);
        let Read { offset, len, out_at } = read;
        let whole = len > 0 && len as u64 <= PAGE - offset % PAGE;
        let range = offset..offset.saturating_add(len as u64);
        // Before the look at what is there.
        let stamp = self.writes.stamp(&range);
        let first = whole.then(|| self.store.read(offset, &mut out[out_at..out_at + len]));
        if let Some(Ok(())) = first {
            return;
        }
        if len == 0 {
            return;
        }
        stamps.push((number, stamp));
        // A read that must wait or be refused is made by itself, later.
        if self.writes.is_changing(&range) || self.check_range(offset, len).is_err() {
            return;
        }
        if let Some(Err(missing)) = first {
            let path = self.dispatch(offset, len, missing);
            pieces.push(Piece { offset, len, out_at, read: stamps.len() as u32 - 1, path });
            return;
        }
        let _ = gathered;
        for (at, part) in in_pages(offset, len) {
            let part_at = out_at + (at - offset) as usize;
            if let Err(missing) = self.store.read(at, &mut out[part_at..part_at + part]) {
                let path = self.dispatch(at, part, missing);
                pieces.push(Piece { offset: at, len: part, out_at: part_at, read: stamps.len() as u32 - 1, path });
            }
        }
    }

    /// Reads what is missing of a window; what changed meanwhile is read again, one by one.
    fn fetch(
        &self,
        reads: &dyn Fn(usize) -> Read,
        out: &mut [u8],
        pieces: &mut [Piece],
        stamps: &[(usize, Stamp)],
        gathered: &mut Gathered,
    ) {
        if stamps.is_empty() {
            return;
        }
        // Reads that have pieces; the others could not be looked up.
        let mut begun = vec![false; stamps.len()];
        pieces.iter().for_each(|p| begun[p.read as usize] = true);
        let mut errors: Vec<Option<Error>> = Vec::new();
        errors.resize_with(stamps.len(), || None);
        if !pieces.is_empty() {
            self.bring(
                pieces,
                out,
                &mut |piece| stamps[piece.read as usize].1,
                &mut |piece, bytes| {
                    let whole = reads(stamps[piece.read as usize].0).len == piece.len;
                    match &self.config.verify {
                        Some(verify) if whole => verify(piece.offset, bytes),
                        _ => Ok(()),
                    }
                },
                &mut |piece, error| {
                    errors[piece.read as usize].get_or_insert(error);
                },
            );
        }
        for (at, (number, stamp)) in stamps.iter().enumerate() {
            let Read { offset, len, out_at } = reads(*number);
            let range = offset..offset.saturating_add(len as u64);
            let crosses = len as u64 > PAGE - offset % PAGE;
            let verified = !crosses || self.config.verify.is_none();
            // A read across pages all of whose parts were cached has no piece, and is whole if nothing changed.
            let begun = begun[at] || crosses && self.check_range(offset, len).is_ok() && !self.writes.is_changing(&range);
            if begun && verified && self.writes.unchanged(&range, *stamp) {
                if let Some(error) = errors[at].take() {
                    gathered.failed.push((*number, error));
                }
                continue;
            }
            if let Err(error) = self.read_slowly(offset, &mut out[out_at..out_at + len], false) {
                gathered.failed.push((*number, error));
            }
        }
    }
}
