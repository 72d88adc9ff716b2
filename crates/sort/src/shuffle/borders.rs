//! Where records begin in a file, found by reading only what is near.

use std::borrow::Cow;
use std::fs::File;
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, Pipe, Result, Span};

use super::order::{PlacedRecord, ShuffleOrder};
use crate::input::{leftover, refuse};
use crate::place::InputPlace;
use crate::shuffle::cuts::SortedRecords;

/// Bytes of a read that looks for the end of a line.
const PROBE: usize = 4 << 10;
/// Bytes that are moved at once from a place that is no file.
const MAX_MOVED: usize = 1 << 20;
/// A sample of a line has at most so many bytes. What is left of a longer line is one, too: it lies
/// elsewhere in the order than the line, but it divides the order as well.
const MAX_SAMPLE: usize = 64 << 10;

/// A file or another place of records, of which single ones are looked up.
///
/// It is cut into parts at any offsets. A record belongs to the part in which it begins, so a
/// part is read from the first record that begins at or behind its start, to the first one that
/// begins at or behind its end.
#[derive(Debug)]
pub struct RecordBorders {
    source: Source,
    path: PathBuf,
    len: u64,
    fixed_len: Option<usize>,
    terminator: u8,
}

#[derive(Debug)]
enum Source {
    File(File),
    /// A place from an offset on, and memory that its bytes are moved to.
    Place {
        pipe: Box<Pipe>,
        from: u64,
        memory: Dram,
    },
}

impl RecordBorders {
    /// No sample is taken where no line begins within so many bytes.
    pub const MAX_SEARCH: u64 = 1 << 20;

    /// Opens a regular file.
    ///
    /// # Errors
    /// Errors of opening it; `InvalidInput` if it is not a regular file, or if its length is not a
    /// multiple of the records'.
    pub fn open(order: &ShuffleOrder, path: &Path) -> Result<RecordBorders> {
        let fail = |e| Error::io("open", e, path.display().to_string());
        let meta = std::fs::metadata(path).map_err(fail)?;
        if !meta.is_file() {
            return Err(refuse(ErrorKind::InvalidInput, path, "it is not a regular file".to_owned()));
        }
        RecordBorders::over(order, File::open(path).map_err(fail)?, path)
    }

    /// Takes an open regular file; `name` is for messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn over(order: &ShuffleOrder, file: File, name: &Path) -> Result<RecordBorders> {
        let len = file.metadata().map_err(|e| Error::io("open", e, name.display().to_string()))?.len();
        RecordBorders::of(order, Source::File(file), len, name)
    }

    /// Takes a place that a pipe reads, such as an object in a bucket.
    ///
    /// # Errors
    /// Errors of connecting it to memory; as [`open`](Self::open).
    pub fn of_place(machine: &Machine, order: &ShuffleOrder, place: &InputPlace) -> Result<RecordBorders> {
        let memory = Dram::allocate(MAX_MOVED)?;
        let constraints = Constraints::default().typical_len(PROBE as u64);
        let pipe = Box::new(machine.connect_with(place.locator(), &memory, &constraints)?);
        let source = Source::Place { pipe, from: place.span().0, memory };
        RecordBorders::of(order, source, place.len(), place.name())
    }

    fn of(order: &ShuffleOrder, source: Source, len: u64, name: &Path) -> Result<RecordBorders> {
        let fixed_len = order.fixed_len();
        if let Some(record) = fixed_len
            && !len.is_multiple_of(record as u64)
        {
            return Err(leftover(name, record, (len % record as u64) as usize));
        }
        let terminator = order.terminator().unwrap_or(b'\n');
        Ok(RecordBorders { source, path: name.to_path_buf(), len, fixed_len, terminator })
    }

    /// The length of the file when it was opened.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the offset of the first record that begins at `at` or behind it, or the file's
    /// length if none does.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn at_or_behind(&self, at: u64) -> Result<u64> {
        Ok(self.search(at, u64::MAX)?.unwrap_or(self.len))
    }

    /// Returns the first record that begins at `near` or behind it, and its offset. A long line is
    /// cut off. Returns `None` if no record begins there or within a megabyte.
    ///
    /// # Errors
    /// Errors of reading.
    pub fn sample(&self, near: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(at) = self.search(near, Self::MAX_SEARCH)?.filter(|at| *at < self.len) else { return Ok(None) };
        if let Some(len) = self.fixed_len {
            let record = self.read(at, len)?;
            return Ok((record.len() == len).then_some((at, record)));
        }
        let mut record = Vec::new();
        while record.len() < MAX_SAMPLE {
            let more = self.read(at + record.len() as u64, PROBE)?;
            let end = memchr::memchr(self.terminator, &more);
            record.extend_from_slice(&more[..end.unwrap_or(more.len())]);
            if end.is_some() || more.is_empty() {
                break;
            }
        }
        record.truncate(MAX_SAMPLE);
        record.push(self.terminator);
        Ok(Some((at, record)))
    }

    /// Returns the offset of the first record at `at` or behind it. Returns `None` if the next
    /// `max` bytes do not tell.
    fn search(&self, at: u64, max: u64) -> Result<Option<u64>> {
        if at == 0 || at >= self.len {
            return Ok(Some(at.min(self.len)));
        }
        if let Some(len) = self.fixed_len {
            return Ok(Some(at.next_multiple_of(len as u64).min(self.len)));
        }
        // A line begins at `at` if a terminator is in front of it.
        let mut from = at - 1;
        let mut probe = PROBE;
        while from - (at - 1) < max {
            let bytes = self.read(from, probe)?;
            if let Some(end) = memchr::memchr(self.terminator, &bytes) {
                return Ok(Some(from + end as u64 + 1));
            }
            if bytes.is_empty() {
                return Ok(Some(self.len));
            }
            from += bytes.len() as u64;
            probe = (2 * probe).min(1 << 20);
        }
        Ok(None)
    }

    /// Reads up to `len` bytes; fewer only at the end of the file, which is where it was at first.
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let len = len.min(usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX));
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.read_some(at + done as u64, &mut bytes[done..])? {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    fn read_some(&self, at: u64, bytes: &mut [u8]) -> Result<usize> {
        match &self.source {
            Source::File(file) => loop {
                match file.read_at(bytes, at) {
                    Ok(len) => return Ok(len),
                    Err(e) if e.kind() == IoErrorKind::Interrupted => {}
                    Err(e) => return Err(Error::io("read", e, self.path.display().to_string()).with_offset(at)),
                }
            },
            Source::Place { pipe, from, memory } => {
                let len = bytes.len().min(MAX_MOVED);
                if len > 0 {
                    pipe.transfer(Span { source: from + at, target: 0, len: len as u64 })?;
                    memory.memory().read(0, &mut bytes[..len])?;
                }
                Ok(len)
            }
        }
    }
}

impl ShuffleOrder {
    /// As [`cuts`](Self::cuts), of a file whose records are in order.
    ///
    /// # Errors
    /// Errors of reading; `InvalidInput` if a splitter is no record.
    pub fn cuts_of_file(&self, sorted: &RecordBorders, part: u64, splitters: &[PlacedRecord]) -> Result<Vec<u64>> {
        self.cuts_in(sorted, part, splitters)
    }

    /// As [`lie_between`](Self::lie_between), of a file whose records are in order.
    ///
    /// # Errors
    /// As [`cuts_of_file`](Self::cuts_of_file).
    pub fn file_lies_between(&self, sorted: &RecordBorders, splitters: [Option<&[u8]>; 2]) -> Result<bool> {
        self.ends_between(sorted, splitters)
    }
}

impl SortedRecords for RecordBorders {
    fn byte_len(&self) -> u64 {
        self.len
    }

    fn start_of(&self, low: u64, at: u64) -> Result<u64> {
        if let Some(len) = self.fixed_len {
            return Ok(at / len as u64 * len as u64);
        }
        // Backwards, by longer and longer pieces.
        let (mut end, mut piece) = (at, PROBE as u64);
        while end > low {
            let from = end.saturating_sub(piece).max(low);
            let bytes = self.read(from, (end - from) as usize)?;
            if let Some(found) = memchr::memrchr(self.terminator, &bytes) {
                return Ok(from + found as u64 + 1);
            }
            (end, piece) = (from, (2 * piece).min(1 << 20));
        }
        Ok(low)
    }

    fn record_at(&self, start: u64) -> Result<Cow<'_, [u8]>> {
        let mut record = Vec::new();
        let mut piece = self.fixed_len.unwrap_or(PROBE);
        loop {
            let more = self.read(start + record.len() as u64, piece)?;
            let end = match self.fixed_len {
                Some(_) => Some(more.len()),
                None => memchr::memchr(self.terminator, &more).map(|end| end + 1),
            };
            let take = end.unwrap_or(more.len());
            if more.is_empty() || self.fixed_len.is_some_and(|len| len > take) {
                let context = format!("{} became shorter", self.path.display());
                return Err(Error::new(ErrorKind::EndOfFile, "read", context).with_offset(start));
            }
            record.try_reserve(take).map_err(|_| {
                let context = format!("a record of more than {} bytes", record.len());
                Error::new(ErrorKind::OutOfMemory, "read", context).with_offset(start)
            })?;
            record.extend_from_slice(&more[..take]);
            // The last record of a file may lack the byte that ends it.
            if end.is_some() || start + record.len() as u64 >= self.len {
                return Ok(Cow::Owned(record));
            }
            piece = (2 * piece).min(1 << 20);
        }
    }
}
