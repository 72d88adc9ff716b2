//! Test data as a pure function from a range of bytes to its content.
//!
//! A [`Generator`] stands for a file of a certain length. Any thread may ask for any range of it,
//! in any order; all ranges together are the file. Nothing here opens, writes or allocates files:
//! the caller moves the bytes through pipes. The same kind, seed and amount give the same bytes on
//! every machine.
//!
//! ```
//! use datapipes_data::generate::{Amount, Generator, DataKind};
//!
//! let kind: DataKind = "records-ascii".parse()?;
//! let generator = Generator::new(kind, Amount::Records(1000));
//! let mut second = [0; 100];
//! generator.fill(100, &mut second);
//! assert!(second.starts_with(b"~sHd0jDv6X  00000000000000000000000000000001"));
//! # Ok::<(), datapipes_data::generate::UnknownKind>(())
//! ```
#![forbid(unsafe_code)]

mod kind;
mod lines;
mod numbers;
pub(crate) mod random;
mod records;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use kind::{DataKind, UnknownKind};
pub use lines::LineForm;
pub use numbers::{Distribution, NumberType};
pub use records::{KEY_LEN, RECORD_LEN, RecordForm};

use lines::LineSource;
use numbers::NumberSource;
use records::RecordSource;

/// The amount of data to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This many records; for lines of varying length, the bytes that so many take on average.
    Records(u64),
    /// This many bytes, less a last part of a record. Lines fill them exactly, because the last
    /// line is cut to fit. Only equal and ordered lines may end some bytes earlier, if the cut line
    /// would break the promise.
    Bytes(u64),
}

/// A stream of generated data, addressed by byte offset.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    kind: DataKind,
    len_bytes: u64,
    seed: u64,
    first_record: u128,
}

/// The most bytes in a block of fixed-size records.
const FIXED_BLOCK_LEN: usize = 64 << 10;

impl Generator {
    /// Makes a stream of `amount` of `kind`, with seed 0 and from record 0 on.
    pub fn new(kind: DataKind, amount: Amount) -> Self {
        let bytes = match amount {
            Amount::Records(records) => records.saturating_mul(kind.mean_record_len() as u64),
            Amount::Bytes(bytes) => bytes,
        };
        let len_bytes = match (kind, kind.record_len()) {
            (DataKind::Lines(form), _) => form.usable_len(bytes),
            (_, Some(len)) => bytes - bytes % len as u64,
            (_, None) => bytes,
        };
        Self { kind, len_bytes, seed: 0, first_record: 0 }
    }

    /// Sets the seed. gensort's forms are the same for every seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the first record, as gensort's `-b` does. Only 100-byte records are numbered.
    #[must_use]
    pub fn with_first_record(self, first_record: u128) -> Self {
        Self { first_record, ..self }
    }

    /// Returns the kind of data.
    pub fn kind(&self) -> DataKind {
        self.kind
    }

    /// Returns the bytes in the whole stream.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the records in the whole stream, or `None` if only generating them tells.
    pub fn records(&self) -> Option<u64> {
        self.kind.record_len().map(|len| self.len_bytes / len as u64)
    }

    /// Returns the unit of generation in bytes. Ranges that begin and end at multiples of it cost
    /// nothing extra; for others the cut blocks are generated in full.
    pub fn block_len(&self) -> usize {
        match self.kind {
            DataKind::Lines(form) => form.block_len(),
            DataKind::Records(_) => RECORD_LEN,
            DataKind::Numbers(number, _) => number.len_bytes(),
        }
    }

    /// Returns the number of blocks of [`block_len`](Self::block_len); the last one may be shorter.
    pub fn blocks(&self) -> u64 {
        self.len_bytes.div_ceil(self.block_len() as u64)
    }

    /// Returns the content of one block: whole lines or records.
    pub fn block(&self, block: u64) -> Vec<u8> {
        let range = self.block_range(block);
        let mut out = vec![0; (range.end - range.start) as usize];
        self.fill(range.start, &mut out);
        out
    }

    fn block_range(&self, block: u64) -> Range<u64> {
        let len = self.block_len() as u64;
        let start = block.saturating_mul(len).min(self.len_bytes);
        start..start.saturating_add(len).min(self.len_bytes)
    }

    /// Fills `out` with the stream's bytes from `offset` on, both of any alignment. Returns how
    /// many bytes there were: fewer than `out` holds only at the end of the stream.
    pub fn fill(&self, offset: u64, out: &mut [u8]) -> usize {
        let left = self.len_bytes.saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let block_len = self.block_len() as u64;
        let mut cut = Vec::new();
        let mut at = 0;
        while at < wanted {
            let place = offset + at as u64;
            let block = self.block_range(place / block_len);
            let rest = &mut out[at..wanted];
            if place == block.start && rest.len() as u64 >= block.end - block.start {
                at += self.fill_whole(block, rest);
            } else {
                cut.resize((block.end - block.start) as usize, 0);
                self.fill_whole(block.clone(), &mut cut);
                let from = &cut[(place - block.start) as usize..];
                let len = from.len().min(rest.len());
                rest[..len].copy_from_slice(&from[..len]);
                at += len;
            }
        }
        wanted
    }

    /// Fills `out` from its start with whole blocks, beginning with the block at `first`. Returns
    /// their length.
    ///
    /// Lines are made one block at a time; records and numbers, whose blocks are tiny, as many as
    /// fit.
    fn fill_whole(&self, first: Range<u64>, out: &mut [u8]) -> usize {
        let (seed, records) = (self.seed, self.records().unwrap_or(0));
        let block_len = self.block_len();
        let index = first.start / block_len as u64;
        let fitting = (out.len() - out.len() % block_len).min(FIXED_BLOCK_LEN - FIXED_BLOCK_LEN % block_len);
        match self.kind {
            DataKind::Records(form) => {
                RecordSource { form, seed, first_record: self.first_record, records }.fill(index, &mut out[..fitting]);
                fitting
            }
            DataKind::Numbers(number, distribution) => {
                NumberSource { number, distribution, seed, records }.fill(index, &mut out[..fitting]);
                fitting
            }
            DataKind::Lines(form) => {
                let len = (first.end - first.start) as usize;
                LineSource { form, seed, len_bytes: self.len_bytes }.fill(index, &mut out[..len]);
                len
            }
        }
    }
}
