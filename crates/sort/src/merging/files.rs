//! Merging sorted files on several cores, each a range of keys.
//!
//! ```text
//! merge(files):
//!     read records at equal distances in all files; of these, in order, the one that has a part of
//!         the bytes before it is a splitter
//!     in every file, search by halves for the first record that is not before the splitter
//!     each core merges its range, and compares every record with the one it wrote before
//! ```
//! A search by halves finds the right place only in a file that is in order. If the output is in
//! order, from the first range to the last, then so is every file, because its records are a part
//! of the output in their order. If it is not, the caller merges the files again on one core, by
//! their heads.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_core::locks::Mutex;
use datapipes_core::{Pipe, Result};

use crate::input::Opened;
use crate::memory::blocks::{PartWriter, Target, write_partial_blocks};
use crate::memory::parallel::run_parts;
use crate::merging::merge::{MergeResult, Merger, OrderCheck, WORTH_DIVIDING};
use crate::records::layout::Layout;
use crate::records::record_buffer::{RecordBuffer, SHORT_RECORD};
use crate::records::tally::verify_bytes;
use crate::runs::record_reader::{Buffers, RecordReader, Segment};
use crate::waits::SortWait;

/// A file to merge: bytes `from..to`, read by the pipe.
pub(crate) struct SortedFile {
    pub(crate) pipe: Box<Pipe>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) name: PathBuf,
}

/// The records that are read to choose the splitters.
const SAMPLES: usize = 128;
/// Bytes of a read while records are searched.
const PROBE: usize = 16 << 10;

/// A record of a file, and its offset there.
struct Sample {
    prefix: u64,
    file: usize,
    at: u64,
    record: Vec<u8>,
    /// The bytes of the file that it stands for.
    weight: u64,
}

impl<L: Layout> Merger<'_, L> {
    fn parts(&self, total: u64) -> usize {
        self.threads.min(usize::try_from(total / (WORTH_DIVIDING / 2)).unwrap_or(usize::MAX))
    }

    /// Whether files of `total` bytes may be merged into the target by several threads. If
    /// duplicates are dropped, a part's offset in the output is not known in advance. If a file
    /// turns out not to be in order, all is written again, which an object does not take.
    pub(crate) fn may_divide(&self, total: u64, target: Target<'_>) -> bool {
        self.parts(total) > 1
            && matches!(target, Target::File { padded, .. } if padded || self.coded)
            && !self.unique
            && self.layout.numbers().is_none()
    }

    /// Merges files into a file, each thread a range of keys. Returns `None` if one thread should
    /// merge them: because they are short or have long records, or because one of them turned out
    /// not to be in order. What was written then is not valid.
    pub(crate) fn merge_files(
        &self,
        files: &[SortedFile],
        target: Target<'_>,
        counter: &AtomicU64,
    ) -> Result<Option<MergeResult>> {
        let total: u64 = files.iter().map(|f| f.to - f.from).sum();
        let whole =
            |f: &SortedFile| self.layout.fixed_len().is_none_or(|len| (f.to - f.from).is_multiple_of(len as u64));
        if !self.may_divide(total, target) || !files.iter().all(whole) {
            return Ok(None);
        }
        let parts = self.parts(total);
        let share = self.buffers.1 / parts / 4096 * 4096;
        let division = (0..parts).map(|p| self.buffers_within(self.buffers.0 + p * share, share, files.len()));
        let Ok(division) = division.collect::<Result<Vec<_>>>() else { return Ok(None) };
        let others = self.control.progress.waits.begin(SortWait::Idle, self.threads.saturating_sub(1));
        let Some(cuts) = self.cut_files(files, parts)? else { return Ok(None) };
        let starts = self.starts(files, &cuts)?;
        drop(others);
        let (counted, merged) = (counter.load(Relaxed), self.control.progress.merged.load(Relaxed));

        let check = OrderCheck::default();
        let done: Mutex<Vec<PartOutcome>> = Mutex::new((0..parts).map(|_| None).collect());
        run_parts(&self.control.progress.waits, self.threads, parts, |p| {
            let shared_end = p + 1 < parts;
            let mut out = PartWriter::new(self.blocks, target, starts[p], shared_end, self.control, counter);
            let (from, to) = (&cuts[p], &cuts[p + 1]);
            let mut sources = Vec::with_capacity(files.len());
            let opened = files.iter().enumerate().try_for_each(|(i, file)| {
                let segment = Segment { from: from[i], to: to[i] };
                let buffers = division[p].0[i];
                sources.push(self.open_part(file, buffers, segment)?.taking_long(self.long));
                Ok(())
            });
            let last = RecordBuffer::new(0, 0);
            let result = opened.and_then(|()| self.merge_part(sources, last, true, &mut out, Some(&check)));
            done.lock()[p] = Some(result.and_then(|mut merged| {
                merged.bytes = out.at() - starts[p];
                verify_bytes(starts[p + 1] - starts[p], merged.bytes, merged.dropped)?;
                Ok((merged, PartEnd { edges: std::mem::take(&mut out.partial_blocks) }))
            }));
        });
        let mut all = MergeResult::default();
        let (mut edges, mut last) = (Vec::new(), None::<Vec<u8>>);
        for result in done.into_inner().into_iter().flatten() {
            if check.is_broken() {
                break;
            }
            let (mut merged, mut end) = result?;
            if let Some((first, last_of_part)) = merged.ends.take() {
                if last.as_ref().is_some_and(|last| self.layout.compare(last, &first) == Ordering::Greater) {
                    check.set_broken();
                }
                last = Some(last_of_part);
            }
            edges.append(&mut end.edges);
            all.bytes += merged.bytes;
            all.parts.push(merged.bytes);
            all.join(merged);
        }
        if check.is_broken() {
            // Nothing may be in flight where the next attempt writes.
            self.blocks.drain()?;
            counter.store(counted, Relaxed);
            self.control.progress.merged.store(merged, Relaxed);
            return Ok(None);
        }
        write_partial_blocks(self.blocks, target, self.control, edges)?;
        Ok(Some(all))
    }

    /// Returns where each part begins in the output, and where the last one ends. A last line
    /// without a terminator gets one.
    fn starts(&self, files: &[SortedFile], cuts: &[Vec<u64>]) -> Result<Vec<u64>> {
        let mut starts = vec![0; cuts.len()];
        for (i, file) in files.iter().enumerate() {
            let open_end = match self.layout.terminator() {
                Some(terminator) if file.to > file.from => self.last_byte(file)? != Some(terminator),
                _ => false,
            };
            for (start, cut) in starts.iter_mut().zip(cuts) {
                let at_end = cut[i] == file.to && file.to > file.from;
                *start += cut[i] - file.from + u64::from(open_end && at_end);
            }
        }
        Ok(starts)
    }

    fn last_byte(&self, file: &SortedFile) -> Result<Option<u8>> {
        // The reader adds a terminator that is not there, so the last byte is read as it is.
        let at = file.to - 1;
        let page = at - at % 4096;
        let len = file.to - page;
        let memory = self.memory.range(self.buffers.0, 4096)?;
        let span = datapipes_core::Span { source: page, target: self.buffers.0 as u64, len };
        file.pipe.start(span)?.wait()?;
        let lease = memory.lease()?;
        Ok(lease.get((at - page) as usize).copied())
    }

    /// Returns, for each cut (one more than there are parts), the offset in each file. `None` if
    /// there are long records.
    fn cut_files(&self, files: &[SortedFile], parts: usize) -> Result<Option<Vec<Vec<u64>>>> {
        let Some(samples) = self.samples(files)? else { return Ok(None) };
        let total: u64 = samples.iter().map(|s| s.weight).sum();
        let mut cuts = vec![files.iter().map(|f| f.from).collect::<Vec<u64>>()];
        let mut before = 0;
        for sample in &samples {
            if cuts.len() == parts {
                break;
            }
            if before * parts as u64 >= total * cuts.len() as u64 {
                let mut cut = Vec::with_capacity(files.len());
                for (i, file) in files.iter().enumerate() {
                    let previous = cuts[cuts.len() - 1][i];
                    let position = match i == sample.file {
                        true => Some(sample.at),
                        false => self.position(file, &sample.record, i < sample.file)?,
                    };
                    let Some(position) = position else { return Ok(None) };
                    cut.push(position.max(previous));
                }
                cuts.push(cut);
            }
            before += sample.weight;
        }
        // There may be fewer places to cut than parts.
        let end: Vec<u64> = files.iter().map(|f| f.to).collect();
        cuts.resize(parts + 1, end);
        Ok(Some(cuts))
    }

    /// Reads records at equal distances, and orders them as a merge does.
    fn samples(&self, files: &[SortedFile]) -> Result<Option<Vec<Sample>>> {
        let total: u64 = files.iter().map(|f| f.to - f.from).sum();
        let step = (total / SAMPLES as u64).max(1);
        let mut samples = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let len = file.to - file.from;
            let count = (len / step).max(1);
            for i in 0..count {
                let near = file.from + (u128::from(len) * u128::from(2 * i + 1) / u128::from(2 * count)) as u64;
                let Some(found) = self.record_behind(file, near)? else { return Ok(None) };
                let Some((at, record)) = found else { continue };
                let prefix = self.layout.prefix(&record);
                samples.push(Sample { prefix, file: index, at, record, weight: len / count });
            }
        }
        samples.sort_by(|a, b| {
            let order = a.prefix.cmp(&b.prefix).then_with(|| self.layout.compare(&a.record, &b.record));
            order.then((a.file, a.at).cmp(&(b.file, b.at)))
        });
        Ok(Some(samples))
    }

    fn open_part<'f>(&'f self, file: &'f SortedFile, buffers: Buffers, part: Segment) -> Result<RecordReader<'f, L>> {
        let reader = RecordReader::of_part(self.layout, &file.pipe, &file.name, self.memory, buffers, part, file.to)?;
        Ok(reader.controlled(self.control))
    }

    /// Opens a file from an offset on, to look at a few records.
    fn look<'f>(&'f self, file: &'f SortedFile, from: u64) -> Result<RecordReader<'f, L>> {
        let buffers = Buffers { at: self.buffers.0, size: PROBE, crossing: 0 };
        let reader = self.open_part(file, buffers, Segment { from, to: file.to })?;
        Ok(reader.giving_up_behind(SHORT_RECORD as usize))
    }

    /// Returns the first record that begins behind offset `near`, or at it if the file begins
    /// there, and its offset; `Some(None)` if none does, and `None` if there is a long one.
    #[allow(clippy::option_option)]
    fn record_behind(&self, file: &SortedFile, near: u64) -> Result<Option<Found>> {
        let (mut at, partial) = match self.layout.fixed_len() {
            Some(len) => (file.from + (near - file.from).next_multiple_of(len as u64), false),
            None => (near, near > file.from),
        };
        if at >= file.to {
            return Ok(Some(None));
        }
        let mut reader = self.look(file, at)?;
        if partial {
            // The rest of a record that begins before.
            if !reader.advance()? {
                return Ok(Some(None));
            }
            if reader.record().len() as u64 > SHORT_RECORD {
                return Ok(None);
            }
            at += reader.record().len() as u64;
        }
        if at >= file.to || !reader.advance()? {
            return Ok(Some(None));
        }
        let record = reader.record();
        Ok((record.len() as u64 <= SHORT_RECORD).then(|| Some((at, record.to_vec()))))
    }

    /// Returns the offset in a file of the first record that does not come before `key`. Records
    /// equal to the key come before it if `equal_before` is set. `None` if there are long records.
    fn position(&self, file: &SortedFile, key: &[u8], equal_before: bool) -> Result<Option<u64>> {
        let prefix = self.layout.prefix(key);
        let before = |record: &[u8]| {
            let order = self.layout.prefix(record).cmp(&prefix);
            match order.then_with(|| self.layout.compare(record, key)) {
                Ordering::Less => true,
                Ordering::Equal => equal_before,
                Ordering::Greater => false,
            }
        };
        // The record at `low` comes before the key, or is the first of the file. No record that
        // begins behind `high` does.
        let (mut low, mut high) = (file.from, file.to);
        while high.saturating_sub(low) > PROBE as u64 {
            let middle = u64::midpoint(low, high);
            let Some(found) = self.record_behind(file, middle)? else { return Ok(None) };
            match found {
                Some((at, record)) if before(&record) => low = at,
                _ => high = middle,
            }
        }
        if low >= file.to {
            return Ok(Some(file.to));
        }
        let (mut at, mut reader) = (low, self.look(file, low)?);
        while reader.advance()? {
            if reader.record().len() as u64 > SHORT_RECORD {
                return Ok(None);
            }
            if !before(reader.record()) {
                break;
            }
            at += reader.record().len() as u64;
        }
        Ok(Some(at.min(file.to)))
    }
}

/// What became of a part; `None` before it ends.
type PartOutcome = Option<Result<(MergeResult, PartEnd)>>;

/// A record and its offset in a file, if there is one.
type Found = Option<(u64, Vec<u8>)>;

/// What a part leaves to be written with other parts.
struct PartEnd {
    edges: Vec<crate::memory::blocks::PartialBlock>,
}

impl SortedFile {
    /// Takes all inputs, which are in their order, if all are files that can be read anywhere.
    pub(crate) fn all(inputs: &mut Vec<(usize, Opened)>) -> Option<Vec<SortedFile>> {
        if inputs.is_empty() || inputs.iter().any(|(_, opened)| matches!(opened, Opened::Stream(_))) {
            return None;
        }
        let file = |(_, opened)| match opened {
            Opened::Place { pipe, from, to, name } => Some(SortedFile { pipe, from, to, name }),
            Opened::Stream(_) => None,
        };
        Some(inputs.drain(..).filter_map(file).collect())
    }

    pub(crate) fn into_opened(self) -> Opened {
        let SortedFile { pipe, from, to, name } = self;
        Opened::Place { pipe, from, to, name }
    }
}
