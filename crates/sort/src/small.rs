//! Inputs that together fit a small buffer: the calling thread reads, sorts and writes them.
//!
//! ```text
//! files --read--> buffer   entries, as in a slot
//!                 sort     entries
//!                 gather   records in order, into a second buffer
//! buffer --write--> output the same kinds of output as of any sort
//! ```
//! Finding out what machine this is, starting threads and connecting pipes takes longer than all of
//! that. Nothing here needs it. Records are counted and summed as in any sort, and the output gets
//! its name as in any sort.

use std::fs::{File, Metadata};
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use datapipes_core::{Error, Result};

use crate::control::Control;
use crate::cut::cut;
use crate::form::slot_sorter::SlotSorter;
use crate::input::{Input, says_its_length};
use crate::job::RecordFormat;
use crate::memory::blocks::OrderedStream;
use crate::numbers::{Numbers, Unsigned};
use crate::output::Output;
use crate::records::entry::{self, Entry};
use crate::records::layout::{Fixed, KeyedLines, Layout, PlainLines};
use crate::records::tally::Tally;
use crate::report::{MethodReport, MovementRole, Movements, OutputReport, SortReport, StreamEnd};
use crate::runs::spill::SpillFiles;
use crate::sink::{explain, open_file, publish_file};

/// The least and the most that counts as small, in bytes of all inputs together. Above the most,
/// several threads gain more than their start takes (benchmarks/results/2026-11-23-sort-small.md).
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=4 << 20;
/// What a sort may take of its memory budget for the records: they are there twice, and each has
/// two entries.
const SHARE_OF_BUDGET: u64 = 8;
/// The same for what is read of a pipe before its length is known.
const SHARE_IF_BEGUN: u64 = 32;
/// The bytes of a record, at least, on average: so many records fit.
const BYTES_A_RECORD: usize = 8;
/// The most memory of a sort beside records and entries: buckets, samples, and keys of a group.
const SORTER_BYTES: usize = 2 << 20;

/// Small files that were read, and wait to be sorted.
#[derive(Debug)]
pub struct SmallInput {
    format: RecordFormat,
    /// The records of all files, one after the other; each line has its terminator.
    bytes: Vec<u8>,
    /// The bytes that were read.
    read: u64,
    /// The most bytes that count as small in the memory budget.
    max_bytes: usize,
    source: Source,
    /// Takes a large file that the output replaces.
    spill_files: Option<SpillFiles>,
}

/// Where the bytes came from.
#[derive(Debug)]
enum Source {
    /// Files that can be read again.
    Files,
    /// The standard input, a file. Once the bytes are sorted, its offset is set to this one.
    File { end: u64 },
    /// A pipe, which has been read to its end.
    Pipe(Input),
}

/// What became of the attempt to read a small standard input.
#[derive(Debug)]
pub enum SmallStandardInput {
    /// It is small, and waits to be sorted.
    Small(SmallInput),
    /// It is not small, or something is wrong with it. It is to be sorted as any other input.
    Other(Input),
}

/// Records in their final order, and what was counted.
struct Sorted {
    bytes: Vec<u8>,
    read: Tally,
    written: Tally,
    dropped: Tally,
}

impl SmallInput {
    /// Reads files if all are regular files and together small, in a memory budget of so many
    /// bytes. Otherwise, and where anything else about them is wrong, nothing has changed, and
    /// [`sort`](crate::sort) does them or says what is wrong.
    ///
    /// # Errors
    /// `EndOfFile` if a file is cut while it is read.
    pub fn read<'p>(
        format: RecordFormat,
        memory_bytes: u64,
        paths: impl IntoIterator<Item = &'p Path>,
    ) -> Result<Option<SmallInput>> {
        let mut small = SmallInput::empty(format, memory_bytes);
        for path in paths {
            let start = small.bytes.len();
            if small.append(path)?.and_then(|()| small.end_source(start)).is_none() {
                return Ok(None);
            }
        }
        Ok(Some(small))
    }

    /// Reads the standard input to its end if it is a small regular file or a pipe of which few
    /// bytes come. Of a pipe as many bytes are read as count as small; if it has more, they are a
    /// part of the [`Input`] that is returned. This waits for whoever writes to the pipe.
    ///
    /// # Errors
    /// The standard input is closed; `EndOfFile` if it is a file that is cut while it is read.
    pub fn read_standard_input(format: RecordFormat, memory_bytes: u64) -> Result<SmallStandardInput> {
        let mut small = SmallInput::empty(format, memory_bytes);
        let other = || Input::deferred(Path::new("-")).map(SmallStandardInput::Other);
        let stdin = std::io::stdin();
        let Ok(file) = stdin.as_fd().try_clone_to_owned().map(File::from) else { return other() };
        let Ok(meta) = file.metadata() else { return other() };
        if meta.is_file() {
            return match small.append_open(&file, &meta)?.and_then(|()| small.end_source(0)) {
                Some(()) => Ok(SmallStandardInput::Small(small)),
                None => other(),
            };
        }
        if !meta.file_type().is_fifo() {
            return other();
        }
        // What was read stays in memory until a slot takes it, and the budget does not count it.
        small.max_bytes = small.max_bytes.min(usize::try_from(memory_bytes / SHARE_IF_BEGUN).unwrap_or(usize::MAX));
        let ended = small.append_pipe(&file);
        let input = |bytes| Input::Begun { name: PathBuf::from("standard input"), fd: file.into(), bytes };
        if !ended || small.end_source(0).is_none() {
            let bytes = std::mem::take(&mut small.bytes);
            return Ok(SmallStandardInput::Other(input(bytes)));
        }
        small.source = Source::Pipe(input(Vec::new()));
        Ok(SmallStandardInput::Small(small))
    }

    /// Takes what is better closed after the sort, as that of a [`SortJob`](crate::SortJob) does: a
    /// large file that the output replaces.
    #[must_use]
    pub fn spill_files(self, files: SpillFiles) -> SmallInput {
        SmallInput { spill_files: Some(files), ..self }
    }

    fn empty(format: RecordFormat, memory_bytes: u64) -> SmallInput {
        let max_bytes = (memory_bytes / SHARE_OF_BUDGET).clamp(*BYTES.start(), *BYTES.end()) as usize;
        SmallInput { format, bytes: Vec::new(), read: 0, max_bytes, source: Source::Files, spill_files: None }
    }

    /// Ends a source whose bytes are those from `start` on. Its last line gets a terminator.
    /// Returns `None` if it does not consist of whole records.
    fn end_source(&mut self, start: usize) -> Option<()> {
        let (record, terminator) = match &self.format {
            RecordFormat::Records { len, key_at, key_len, .. } => {
                let in_record = *key_len > 0 && key_at.checked_add(*key_len).is_some_and(|end| end <= *len);
                (in_record.then_some(*len)?, None)
            }
            RecordFormat::Numbers { kind, .. } => (kind.width(), None),
            RecordFormat::Lines { terminator, .. } => (1, Some(*terminator)),
        };
        let len = self.bytes.len() - start;
        if !len.is_multiple_of(record) {
            return None;
        }
        self.read += len as u64;
        if let (Some(terminator), true) = (terminator, len > 0)
            && self.bytes.last() != Some(&terminator)
        {
            self.bytes.push(terminator);
        }
        Some(())
    }

    /// Appends what comes from a pipe, up to the most bytes that count as small. Whether that was
    /// all; otherwise reading goes on elsewhere, and what is wrong shows there.
    fn append_pipe(&mut self, mut pipe: &File) -> bool {
        const AT_ONCE: usize = 64 << 10;
        loop {
            let len = self.bytes.len();
            let room = AT_ONCE.min(self.max_bytes.saturating_sub(len));
            if room == 0 || self.bytes.try_reserve(room + 1).is_err() {
                return false;
            }
            self.bytes.resize(len + room, 0);
            let read = pipe.read(&mut self.bytes[len..]);
            self.bytes.truncate(len + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == IoErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Appends the bytes of a file, if it is a regular one and there is room for it.
    fn append(&mut self, path: &Path) -> Result<Option<()>> {
        // Opening a named pipe would have an effect. So would reading some files that do not say
        // their length: what was read from them is gone, and the ordinary way would miss it.
        let fits = |meta: &Metadata, room: usize| meta.is_file() && says_its_length(meta) && meta.len() <= room as u64;
        let Some(room) = self.max_bytes.checked_sub(self.bytes.len()) else { return Ok(None) };
        let Some(before) = std::fs::metadata(path).ok().filter(|meta| fits(meta, room)) else { return Ok(None) };
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
        let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return Ok(None) };
        let Ok(meta) = file.metadata() else { return Ok(None) };
        let least = before.len().max(meta.len());
        if meta.is_file() && meta.len() < before.len() {
            return Err(cut(path, least, meta.len()));
        }
        // One byte for a terminator, and one to see that the file ends.
        if !fits(&meta, room) || self.bytes.try_reserve(meta.len() as usize + 2).is_err() {
            return Ok(None);
        }
        let Ok(read) = (&file).take(room as u64 + 1).read_to_end(&mut self.bytes) else { return Ok(None) };
        if (read as u64) < least {
            return Err(cut(path, least, read as u64));
        }
        Ok((read <= room).then_some(()))
    }

    /// Appends the bytes of an open file from its offset on, if there is room for them. The offset
    /// stays as it is.
    fn append_open(&mut self, file: &File, meta: &Metadata) -> Result<Option<()>> {
        let Ok(from) = rustix::fs::tell(file) else { return Ok(None) };
        let Ok(len) = usize::try_from(meta.len().saturating_sub(from)) else { return Ok(None) };
        if !says_its_length(meta) || len > self.max_bytes || self.bytes.try_reserve(len + 2).is_err() {
            return Ok(None);
        }
        // One byte more, to see that the file ends.
        self.bytes.resize(len + 1, 0);
        let mut read = 0;
        while read <= len {
            match rustix::io::pread(file, &mut self.bytes[read..], from + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Ok(None),
            }
        }
        if read < len {
            return Err(cut(Path::new("standard input"), len as u64, read as u64));
        }
        self.bytes.truncate(read);
        self.source = Source::File { end: from + read as u64 };
        Ok((read <= len).then_some(()))
    }

    /// Sorts the records into the output. `unique` keeps the first of records with the same key.
    ///
    /// Returns [`Declined`](SmallOutcome::Declined), with nothing changed, if there are more
    /// records than fit a small buffer, if there is no memory for one, or if the output is a place.
    ///
    /// # Errors
    /// Those of [`sort`](crate::sort) about outputs; `Interrupted`.
    pub fn sort_into(self, output: Output, unique: bool, control: &Control) -> Result<SmallOutcome> {
        // A place is written by a pipe, and there is no machine here to connect one.
        if matches!(output, Output::Place(_)) {
            return Ok(self.decline(output));
        }
        let started = Instant::now();
        let Some(sorted) = self.sorted(unique)? else { return Ok(self.decline(output)) };
        control.check()?;
        if let Source::File { end } = self.source {
            // Where `read` would have left it.
            let fail = |e: rustix::io::Errno| Error::os("seek in", e.raw_os_error(), "standard input");
            rustix::fs::seek(rustix::stdio::stdin(), rustix::fs::SeekFrom::Start(end)).map_err(fail)?;
        }
        control.progress.total.store(self.read, Relaxed);
        control.progress.read.store(self.read, Relaxed);
        let Sorted { bytes, read, written, dropped } = sorted;
        // Nothing is written unless all is well.
        read.verify(written, dropped)?;
        let movements = Movements::default();
        movements.add_stream(MovementRole::Input, StreamEnd::File, self.read);
        let (len, mut way) = (bytes.len() as u64, OutputReport::by("stream"));
        match output {
            Output::File { path, sync } => {
                let file = open_file(&path, sync)?;
                let result = file.begin(Some(len)).and_then(|()| control.check()).and_then(|()| file.write(&bytes));
                result.map_err(|e| explain(&file, e))?;
                movements.add_stream(MovementRole::Output, StreamEnd::File, len);
                way = publish_file(file, len, self.spill_files.as_ref())?;
            }
            Output::Stream { name, file } if len > 0 => {
                OrderedStream::new(name, file, control, &movements).write(0, &bytes)?;
            }
            Output::Memory { memory, .. } => {
                memory.memory().write(0, &bytes)?;
                movements.add_stream(MovementRole::Output, StreamEnd::File, len);
                way = OutputReport::by("memory");
            }
            Output::Stream { .. } | Output::Place(_) => {}
        }
        control.progress.written.store(len, Relaxed);
        Ok(SmallOutcome::Sorted(Box::new(SortReport {
            method: MethodReport::new("memory", "the inputs fit a small buffer"),
            records: read.records,
            records_out: written.records,
            written: written.report(),
            dropped: dropped.report(),
            bytes: self.read,
            bytes_out: len,
            memory_bytes: (2 * self.bytes.len()) as u64 + read.records * 2 * size_of::<Entry>() as u64,
            threads: 1,
            movements: movements.take(),
            output: way,
            seconds: started.elapsed().as_secs_f64(),
            ..SortReport::default()
        })))
    }

    fn decline(mut self, output: Output) -> SmallOutcome {
        // A terminator that was added is not among the bytes that were read.
        self.bytes.truncate(usize::try_from(self.read).unwrap_or(usize::MAX));
        let input = match self.source {
            Source::Pipe(Input::Begun { name, fd, .. }) => Some(Input::Begun { name, fd, bytes: self.bytes }),
            _ => None,
        };
        SmallOutcome::Declined(output, input)
    }

    /// The records in order; `None` if there are too many, or no memory to sort them.
    fn sorted(&self, unique: bool) -> Result<Option<Sorted>> {
        match &self.format {
            RecordFormat::Records { len, key_at, key_len, reverse } => {
                self.sort_records(&Fixed { len: *len, key_at: *key_at, key_len: *key_len, reverse: *reverse }, unique)
            }
            RecordFormat::Numbers { kind, reverse } => {
                let numbers = Numbers { kind: *kind, reverse: *reverse };
                // The values, what their sort needs, and the output.
                if !has_memory(3 * self.bytes.len()) {
                    return Ok(None);
                }
                Ok(Some(match kind.width() {
                    4 => self.sort_numbers::<u32>(numbers, unique),
                    _ => self.sort_numbers::<u64>(numbers, unique),
                }))
            }
            RecordFormat::Lines { order, terminator } if order.is_plain_bytes() || order.plain_reverse() => {
                self.sort_records(&PlainLines::new(*terminator, order.plain_reverse()), unique)
            }
            RecordFormat::Lines { order, terminator } => {
                self.sort_records(&KeyedLines::new(*terminator, order.clone()), unique)
            }
        }
    }

    fn sort_records<L: Layout>(&self, layout: &L, unique: bool) -> Result<Option<Sorted>> {
        let raw = &self.bytes[..];
        let mut read = Tally::default();
        let mut entries: Vec<Entry> = Vec::new();
        let max_records = self.max_bytes / BYTES_A_RECORD;
        // What follows takes memory without asking whether it is there.
        let records = match (layout.fixed_len(), layout.terminator()) {
            (Some(len), _) => raw.len() / len,
            (None, Some(terminator)) => memchr::memchr_iter(terminator, raw).count(),
            (None, None) => max_records,
        };
        if records > max_records || !has_memory(raw.len() + records * 2 * size_of::<Entry>()) {
            return Ok(None);
        }
        entries.reserve_exact(records);
        let end = layout.scan(raw, 0, |from, to| {
            let record = &raw[from..to];
            read.add(record);
            entries.push(entry::entry(layout.prefix(record), from, record.len()));
            entries.len() <= max_records
        });
        if end < raw.len() || entries.len() > max_records {
            return Ok(None);
        }
        // The sorter takes entries as they are in a slot, where they grow downwards.
        entries.reverse();
        let mut scratch = vec![0; entries.len()];
        let sorter = SlotSorter { layout, raw, threads: 1, unique, depth: 0 };
        let buckets = sorter.divide(&mut entries, &mut scratch);
        let (mut bytes, mut written, mut dropped) = (Vec::with_capacity(raw.len()), Tally::default(), Tally::default());
        for bucket in buckets {
            dropped.join(bucket.dropped);
            for entry in bucket.entries(&sorter) {
                let record = sorter.record(*entry);
                bytes.extend_from_slice(record);
                written.add(record);
            }
        }
        Ok(Some(Sorted { bytes, read, written, dropped }))
    }

    fn sort_numbers<T: Unsigned>(&self, numbers: Numbers, unique: bool) -> Sorted {
        let width = size_of::<T>();
        let (mut read, mut written, mut dropped) = (Tally::default(), Tally::default(), Tally::default());
        let mut values: Vec<T> = self.bytes.chunks_exact(width).map(T::read).collect();
        read.add_numbers(width, values.iter().map(|value| value.widen()));
        values.iter_mut().for_each(|value| *value = value.encode(numbers));
        T::sort(&mut values);
        let (mut bytes, mut kept, mut before) = (vec![0; self.bytes.len()], 0, None);
        for value in values {
            let decoded = value.decode(numbers);
            if unique && before == Some(value) {
                dropped.add_numbers(width, std::iter::once(decoded.widen()));
            } else {
                decoded.write(&mut bytes[kept..]);
                written.add_numbers(width, std::iter::once(decoded.widen()));
                kept += width;
            }
            before = Some(value);
        }
        bytes.truncate(kept);
        Sorted { bytes, read, written, dropped }
    }
}

/// Whether there is memory for so many bytes, and for what a sort needs beside them.
fn has_memory(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes + SORTER_BYTES).is_ok()
}

/// What became of a small input.
#[derive(Debug)]
pub enum SmallOutcome {
    /// It is sorted.
    Sorted(Box<SortReport>),
    /// It has too many records for a small buffer, or there is no memory for one. This is the
    /// output. A pipe has been read, and this is the input in its place; nothing else has changed.
    Declined(Output, Option<Input>),
}
