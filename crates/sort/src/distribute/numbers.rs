//! A portion of numbers: copied together, sorted in cache, and decoded on the way to the output.

use datapipes_core::{LeaseMut, Result};

use super::load::Loaded;
use crate::memory::blocks::PartWriter;
use crate::numbers::{Numbers, Unsigned};
use crate::records::tally::Tally;

/// Bytes that are decoded at once; they stay in the first-level cache.
const BATCH: usize = 4096;

/// Numbers in order.
pub(super) struct SortedNumbers<'a> {
    numbers: Numbers,
    codes: Codes<'a>,
}

/// Numbers in order, encoded.
enum Codes<'a> {
    InMemory(&'a [u8]),
    /// The same number again and again.
    Repeated {
        code: u64,
        bytes: u64,
    },
}

impl<'a> SortedNumbers<'a> {
    /// `bytes` of the number with this code, of which one is left if duplicates are dropped.
    /// Returns them, and what was dropped.
    pub(super) fn counted(numbers: Numbers, code: u64, bytes: u64, unique: bool) -> (Self, Tally) {
        let (width, mut dropped) = (numbers.kind.width(), Tally::default());
        let mut kept = bytes;
        if unique {
            kept = kept.min(width as u64);
            let again = usize::try_from((bytes - kept) / width as u64).unwrap_or(usize::MAX);
            dropped.add_numbers(width, std::iter::repeat_n(decoded(numbers, code), again));
        }
        (SortedNumbers { numbers, codes: Codes::Repeated { code, bytes: kept } }, dropped)
    }

    /// Copies the pieces of a portion to the start of `room` and sorts them there. If `low` is
    /// `high`, all are equal. Returns them, and the duplicates that were dropped.
    pub(super) fn sort(
        numbers: Numbers,
        raw: &[u8],
        places: &[Loaded],
        (low, high): (u64, u64),
        room: &'a mut LeaseMut,
        unique: bool,
    ) -> Result<(Self, Tally)> {
        let mut len = 0;
        for Loaded { at, len: piece } in places.iter().copied() {
            room[len..len + piece].copy_from_slice(&raw[at..at + piece]);
            len += piece;
        }
        let (kept, dropped) = match numbers.kind.width() {
            4 => arrange::<u32>(numbers, room, len, (low < high, unique))?,
            _ => arrange::<u64>(numbers, room, len, (low < high, unique))?,
        };
        Ok((SortedNumbers { numbers, codes: Codes::InMemory(&room[..kept]) }, dropped))
    }

    /// Bytes of the numbers.
    pub(super) fn len(&self) -> u64 {
        match self.codes {
            Codes::InMemory(bytes) => bytes.len() as u64,
            Codes::Repeated { bytes, .. } => bytes,
        }
    }

    /// Calls `each` with the bytes of some codes after the others.
    fn each_batch(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self.codes {
            Codes::InMemory(bytes) => bytes.chunks(BATCH).try_for_each(each),
            Codes::Repeated { code, bytes } => {
                let (width, mut batch) = (self.numbers.kind.width(), [0; BATCH]);
                batch.chunks_exact_mut(width).for_each(|number| number.copy_from_slice(&native(code, width)[..width]));
                let mut left = bytes;
                while left > 0 {
                    let now = left.min(BATCH as u64);
                    each(&batch[..now as usize])?;
                    left -= now;
                }
                Ok(())
            }
        }
    }

    /// Writes them as they are in files, and counts them.
    pub(super) fn write(&self, out: &mut PartWriter<'_>) -> Result<Tally> {
        match self.numbers.kind.width() {
            4 => self.write_as::<u32>(out),
            _ => self.write_as::<u64>(out),
        }
    }

    fn write_as<T: Unsigned>(&self, out: &mut PartWriter<'_>) -> Result<Tally> {
        let width = size_of::<T>();
        let (mut tally, mut decoded) = (Tally::default(), [0; BATCH]);
        self.each_batch(|batch| {
            let mut written = batch;
            if !self.numbers.plain() {
                for (to, from) in decoded.chunks_exact_mut(width).zip(batch.chunks_exact(width)) {
                    T::read(from).decode(self.numbers).write(to);
                }
                written = &decoded[..batch.len()];
            }
            tally.add_numbers(width, written.chunks_exact(width).map(|number| T::read(number).widen()));
            out.push(written)
        })?;
        out.finish()?;
        Ok(tally)
    }

    /// Writes them as they are in runs, and calls `each` with the offset and the bytes of some.
    pub(super) fn write_encoded(&self, out: &mut PartWriter<'_>, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let width = self.numbers.kind.width();
        self.each_batch(|batch| {
            each(out.at(), &batch[..width]);
            out.push(batch)
        })?;
        out.finish()
    }
}

/// A code in the machine's byte order. A narrow one is in the first bytes.
fn native(code: u64, width: usize) -> [u8; 8] {
    if cfg!(target_endian = "little") { code.to_le_bytes() } else { (code << (64 - 8 * width)).to_be_bytes() }
}

/// The number of a code, as it is in a file.
fn decoded(numbers: Numbers, code: u64) -> u64 {
    let bytes = native(code, numbers.kind.width());
    match numbers.kind.width() {
        4 => u32::read(&bytes).decode(numbers).widen(),
        _ => u64::read(&bytes).decode(numbers).widen(),
    }
}

/// Sorts the numbers in the first `len` bytes, and drops duplicates if asked to. Returns the bytes
/// that are left, and what was dropped.
fn arrange<T: Unsigned>(
    numbers: Numbers,
    room: &mut LeaseMut,
    len: usize,
    (differ, unique): (bool, bool),
) -> Result<(usize, Tally)> {
    let values = &mut room.as_slice_of::<T>()?[..len / size_of::<T>()];
    if differ {
        T::sort(values);
    }
    let mut dropped = Tally::default();
    if !unique {
        return Ok((len, dropped));
    }
    let mut kept = 0;
    for i in 1..values.len() {
        if values[i] == values[kept] {
            dropped.add_numbers(size_of::<T>(), std::iter::once(values[i].decode(numbers).widen()));
        } else {
            kept += 1;
            values[kept] = values[i];
        }
    }
    Ok((values.len().min(kept + 1) * size_of::<T>(), dropped))
}
