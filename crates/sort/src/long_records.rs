//! Binary records of which the memory takes few or none: they go to the spill places as they are
//! read, and only their numbers are sorted.
//!
//! ```text
//! reading:  each record goes to the spill places, piece by piece (long/open_line.rs)
//! sorting:  numbers of records, by the first bytes of the keys; where these are equal, the keys
//!           are read piece by piece
//! output:   each record is read again, piece by piece, and written
//! ```
//! So each byte is written twice, whatever the memory is. Runs of one or two records would be
//! merged in many passes.

use std::cmp::Ordering;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use datapipes_core::{Error, ErrorKind, Result, Span};

use crate::control::count;
use crate::engine::Engine;
use crate::input::{Input, Opened, leftover};
use crate::long::{LineBuffers, LongLines, OpenLine, PIECE, StoredLine, read_through, sort_by};
use crate::memory::blocks::{BlockPool, PartWriter};
use crate::records::layout::{BinaryKey, Layout};
use crate::records::stub::{StoredPiece, StoredPlace};
use crate::records::tally::Tally;
use crate::report::{MethodReport, MovementRole, Phase, SortReport, StreamEnd};
use crate::runs::spill::Spill;
use crate::sink::Sink;
use crate::text::PiecedLine;
use crate::waits::SortWait;

/// Records of which the memory takes fewer are sorted in this way.
const FEW: usize = 8;
/// Bytes that are read at once, at most.
const CHUNK: usize = 1 << 20;
/// Reads of places begin at multiples of this.
const ALIGN: u64 = 4096;
/// The part of the memory that the places of records may take.
const PLACES_PART: u64 = 4;

/// A record in the spill places.
struct StoredRecord {
    /// The first eight bytes of its key, as far as it has them.
    prefix: u64,
    place: StoredPlace,
    hash: u64,
}

/// Records as they are read.
struct Storing<'s> {
    lines: &'s LongLines<'s>,
    key: BinaryKey,
    stored: Vec<StoredRecord>,
    open: Option<OpenLine<'s>>,
    /// Bytes of the open record, and of its prefix.
    len: usize,
    prefix: [u8; 8],
    /// The most records whose places fit the memory.
    most: u64,
}

impl Storing<'_> {
    /// Takes the bytes that follow.
    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => OpenLine::begin(self.lines)?,
            };
            let (here, rest) = bytes.split_at(bytes.len().min(self.key.record - self.len));
            open.push(here)?;
            for (at, byte) in self.prefix.iter_mut().enumerate().take(self.key.len) {
                if let Some(found) = (self.key.at + at).checked_sub(self.len).and_then(|at| here.get(at)) {
                    *byte = *found;
                }
            }
            self.len += here.len();
            bytes = rest;
            if self.len < self.key.record {
                self.open = Some(open);
                continue;
            }
            let (place, hash) = open.finish_record()?;
            let full = |_| Error::new(ErrorKind::OutOfMemory, "sort", "the places of long records");
            self.stored.try_reserve(1).map_err(full)?;
            if self.stored.len() as u64 >= self.most {
                let context = format!("the places of more than {} long records", self.most);
                return Err(Error::new(ErrorKind::OutOfMemory, "sort", context)
                    .with_advice("give more memory (`memory_bytes`)"));
            }
            let prefix = u64::from_be_bytes(std::mem::take(&mut self.prefix));
            self.stored.push(StoredRecord { prefix, place, hash });
            self.len = 0;
        }
        Ok(())
    }
}

impl<L: Layout> Engine<'_, L> {
    /// The key of records that are sorted by their places, because the memory takes few of them.
    pub(crate) fn key_of_long_records(&self) -> Option<BinaryKey> {
        let (_, memory) = self.budget.whole();
        self.layout.binary_key().filter(|key| !self.fits && key.record > memory / FEW)
    }

    /// Sorts long records into the output, and notes in `report` what was counted.
    pub(crate) fn sort_long_records(
        &self,
        inputs: Vec<Input>,
        key: BinaryKey,
        blocks: &BlockPool,
        (sink, spill): (&Sink<'_>, &Spill<'_>),
        report: &mut SortReport,
    ) -> Result<()> {
        let begun = Instant::now();
        report.method = MethodReport::new("places", "the memory takes few of these records");
        report.threads = 1;
        // Nothing of a record is kept in memory but where it is.
        let lines = LongLines::new(self.machine, (spill, self.control), (0, 0));
        let each = (size_of::<StoredRecord>() + 3 * size_of::<usize>()) as u64 + pieces_bytes(key.record);
        let most = (self.settings.memory_bytes / PLACES_PART / each).max(2);
        let mut storing = Storing { lines: &lines, key, stored: Vec::new(), open: None, len: 0, prefix: [0; 8], most };
        for input in inputs {
            self.store(input, &mut storing)?;
        }
        let stored = std::mem::take(&mut storing.stored);
        drop(storing);
        let mut read = Tally::default();
        stored.iter().for_each(|record| read.add_hashed(record.place.len, record.hash));
        report.phases.push(Phase { name: "store", seconds: begun.elapsed().as_secs_f64() });
        let begun = Instant::now();
        sink.begin(Some(read.bytes).filter(|_| !self.settings.unique))?;
        let buffers = lines.take_buffers()?;
        let outcome = self.write_stored(&stored, key, &buffers, blocks, sink);
        lines.give_back(buffers);
        // The first error counts, but no write may be in flight when this returns.
        let waits = self.control.waits_for(SortWait::Output);
        let drained = blocks.drain();
        drop(waits);
        let (written, dropped) = outcome?;
        drained?;
        lines.close(&self.movements);
        report.phases.push(Phase { name: "write", seconds: begun.elapsed().as_secs_f64() });
        (report.records, report.bytes) = (read.records, self.control.progress.read.load(Relaxed));
        (report.records_out, report.bytes_out) = (written.records, written.bytes);
        report.record_sum = Some(read.sum());
        (report.written, report.dropped) = (written.report(), dropped.report());
        self.verify_read(report.bytes)?;
        read.verify(written, dropped)
    }

    /// Reads an input to its end, and stores its records.
    fn store(&self, input: Input, storing: &mut Storing<'_>) -> Result<()> {
        let (at, len) = self.budget.whole();
        let chunk = (len / 2).min(CHUNK) / 4096 * 4096;
        let opened = Opened::of(input, self.machine, &self.memory, self.control)?;
        let name = match opened {
            Opened::Stream(mut stream) => loop {
                self.control.check()?;
                let mut lease = self.memory.range(at, chunk)?.lease_mut()?;
                let waits = self.control.waits_for(SortWait::Input);
                let came = stream.read(&mut lease)?;
                drop(waits);
                self.movements.add_stream(MovementRole::Input, StreamEnd::of(stream.waits_for_others()), came as u64);
                count(&self.control.progress.read, came as u64);
                if came == 0 {
                    break stream.name().to_path_buf();
                }
                storing.push(&lease[..came])?;
            },
            Opened::Place { pipe, from, to, name } => {
                let start = |offset: u64, half: usize| {
                    let len = (to - offset).min(chunk as u64);
                    let span = Span { source: offset, target: (at + half * chunk) as u64, len };
                    self.control
                        .start_read(SortWait::Input, &pipe, span)
                        .map(|transfer| (transfer, offset, len as usize))
                };
                // Reads are aligned, so the first may include bytes before the first record.
                let first = from - from % ALIGN;
                let (mut half, mut ahead) = (0, (from < to).then(|| start(first, 0)).transpose()?);
                while let Some((transfer, offset, len)) = ahead.take() {
                    let waits = self.control.waits_for(SortWait::Input);
                    transfer.wait()?;
                    drop(waits);
                    let here = half;
                    half ^= 1;
                    let next = offset + len as u64;
                    let coming = if next < to { Some(start(next, half)?) } else { None };
                    let outcome = self.control.check().and_then(|()| {
                        let lease = self.memory.range(at + here * chunk, len)?.lease()?;
                        let skip = from.saturating_sub(offset) as usize;
                        count(&self.control.progress.read, (len - skip) as u64);
                        storing.push(&lease[skip..])
                    });
                    match (outcome, coming) {
                        (Ok(()), coming) => ahead = coming,
                        (Err(e), coming) => {
                            // Nothing may be in flight into memory that is used for something else.
                            if let Some((transfer, ..)) = coming {
                                let _ = transfer.wait();
                            }
                            return Err(e);
                        }
                    }
                }
                self.movements.keep(MovementRole::Input, *pipe);
                name
            }
        };
        match storing.len {
            0 => Ok(()),
            left => Err(leftover(&name, storing.key.record, left)),
        }
    }

    /// Writes the records in order. Returns what was written, and what was dropped as a duplicate.
    fn write_stored(
        &self,
        stored: &[StoredRecord],
        key: BinaryKey,
        buffers: &LineBuffers,
        blocks: &BlockPool,
        sink: &Sink<'_>,
    ) -> Result<(Tally, Tally)> {
        let compare = |a: &usize, b: &usize| {
            self.control.check()?;
            let (a, b) = (&stored[*a], &stored[*b]);
            let order = match a.prefix.cmp(&b.prefix) {
                Ordering::Equal if key.len > 8 => compare_keys(a, b, key, buffers)?,
                order => order,
            };
            Ok(if key.reverse { order.reverse() } else { order })
        };
        let order = sort_by((0..stored.len()).collect(), compare)?;
        let (mut written, mut dropped) = (Tally::default(), Tally::default());
        let counter = &self.control.progress.written;
        let mut out = PartWriter::new(blocks, sink.target(), 0, false, self.control, counter);
        let mut kept: Option<usize> = None;
        for index in order {
            self.control.check()?;
            let record = &stored[index];
            if let (true, Some(kept)) = (self.settings.unique, kept)
                && compare(&kept, &index)? == Ordering::Equal
            {
                dropped.add_hashed(record.place.len, record.hash);
                continue;
            }
            let hash = read_through(buffers, &record.place, &[], |piece| out.push_start(piece, piece.len()))?;
            written.add_hashed(record.place.len, hash);
            kept = Some(index);
        }
        out.finish()?;
        Ok((written, dropped))
    }
}

/// Bytes of memory for the places of the pieces of a record.
fn pieces_bytes(record: usize) -> u64 {
    (record.div_ceil(PIECE) * size_of::<StoredPiece>()) as u64
}

/// Compares the keys of two records behind their first eight bytes.
fn compare_keys(a: &StoredRecord, b: &StoredRecord, key: BinaryKey, buffers: &LineBuffers) -> Result<Ordering> {
    let mut a = StoredLine::open(buffers, 0, &[], &a.place);
    let mut b = StoredLine::open(buffers, 1, &[], &b.place);
    let (mut at, end) = ((key.at + 8) as u64, (key.at + key.len) as u64);
    while at < end {
        let (x, y) = (a.piece(at)?, b.piece(at)?);
        let len = x.len().min(y.len()).min((end - at) as usize);
        let order = x[..len].cmp(&y[..len]);
        if order != Ordering::Equal || len == 0 {
            return Ok(order);
        }
        at += len as u64;
    }
    Ok(Ordering::Equal)
}
