//! A portion of numbers: copied together, sorted in cache, and decoded on the way to the output.

use datapipes_core::{LeaseMut, Result};

use super::load::Loaded;
use crate::memory::blocks::PartWriter;
use crate::numbers::{Numbers, Unsigned};
use crate::records::tally::Tally;

/// Bytes that are decoded at once; they stay in the first-level cache.
const BATCH: usize = 4096;

/// Numbers in order, encoded.
pub(super) struct SortedNumbers<'a> {
    numbers: Numbers,
    bytes: &'a [u8],
}

impl<'a> SortedNumbers<'a> {
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
        Ok((SortedNumbers { numbers, bytes: &room[..kept] }, dropped))
    }

    /// Bytes of the numbers.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
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
        for batch in self.bytes.chunks(BATCH) {
            for (to, from) in decoded.chunks_exact_mut(width).zip(batch.chunks_exact(width)) {
                T::read(from).decode(self.numbers).write(to);
            }
            let decoded = &decoded[..batch.len()];
            tally.add_numbers(width, decoded.chunks_exact(width).map(|number| T::read(number).widen()));
            out.push(decoded)?;
        }
        out.finish()?;
        Ok(tally)
    }

    /// Writes them as they are in runs, and calls `each` with the offset and the bytes of some.
    pub(super) fn write_encoded(&self, out: &mut PartWriter<'_>, mut each: impl FnMut(u64, &[u8])) -> Result<()> {
        let width = self.numbers.kind.width();
        for batch in self.bytes.chunks(BATCH) {
            each(out.at(), &batch[..width]);
            out.push(batch)?;
        }
        out.finish()
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
