//! Reading sorted records one by one, with one buffer read ahead: from a spilled run, a sorted
//! file, or a stream.
//!
//! ```text
//! |<------- buffer ------->|<------- buffer ------->|
//! | grain | grain | grain  | grain ...  (in flight)
//!   given   checked  ^ not yet checked
//! ```
//! Each grain of a spilled run is checked just before its records are handed out: the check brings
//! the bytes into the cache that are used next.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use datapipes_core::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes_core::memory::Plain;
use datapipes_core::{Dram, Error, ErrorKind, Lease, Pipe, Result, Span, Transfer};

use crate::control::{Control, is_of_file, limit_under_way};
use crate::long::{LongLines, OpenLine};
use crate::records::layout::Layout;
use crate::records::prefetch::{prefetch, prefetch_far};
use crate::records::record_buffer::RecordBuffer;
use crate::records::stub::Stub;
use crate::report::{MovementRole, Movements, StreamEnd};
use crate::runs::checksum;
use crate::runs::compressed::RunDecompressor;
use crate::runs::packing::{self, FrameTable};
use crate::runs::spill::Run;
use crate::stoppable::StoppableFile;
use crate::waits::SortWait;

const ALIGN: u64 = 4096;
/// How far ahead of a record its successors are fetched, in bytes.
const PREFETCH: usize = 512;

/// Bytes `from..to` of a run, which begin and end with records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The memory of a reader, as offsets in the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// Offset of two buffers of `size` bytes each.
    pub(crate) at: usize,
    pub(crate) size: usize,
    /// Bytes behind them for a record that crosses buffers; longer records are put together on the
    /// heap.
    pub(crate) crossing: usize,
}

impl Buffers {
    /// The bytes of all of it.
    pub(crate) fn len(&self) -> usize {
        2 * self.size + self.crossing
    }
}

/// The way in which the bytes are read.
pub(crate) enum ReadMethod<'a> {
    /// A pipe that is shared with other readers.
    Shared(&'a Pipe),
    /// A pipe of the reader's own.
    Own(Box<Pipe>),
    /// A stream, read by `read`.
    Stream(StoppableFile),
    /// The output of the program that decompresses the run.
    Compressed(RunDecompressor),
    /// Everything was read, or was in memory from the start.
    Ended,
}

/// The kind of source, for errors and for the rules at its end.
#[derive(Clone, Debug)]
enum SourceKind {
    /// A run that this job spilled.
    Spilled,
    /// The user's file or stream of this name.
    Input(PathBuf),
}

struct PendingRead {
    transfer: Transfer,
    /// The buffer (0 or 1), and the bytes to be read.
    buffer: usize,
    len: usize,
    /// Their offset in the source.
    offset: u64,
    begun: Option<InFlightMark>,
}

/// How much of an input is read at once. A server gives more the more is asked for, so there a
/// buffer is filled at once.
fn read_limit(pipe: &Pipe, buffers: Buffers) -> Option<InFlightLimit> {
    is_of_file(pipe).then(|| limit_under_way(buffers.size as u64))
}

/// A reader of records in order.
pub(crate) struct RecordReader<'a, L> {
    layout: &'a L,
    way: ReadMethod<'a>,
    what: SourceKind,
    memory: &'a Dram,
    movements: Option<&'a Movements>,
    /// Records are read from one buffer while the other is filled.
    buffers: Buffers,
    /// The buffer that the next read fills.
    turn: usize,
    /// The bytes still to be read are `next..stop` of the source.
    next: u64,
    stop: u64,
    /// The offset in the source where the records end.
    end: u64,
    pending_read: Option<PendingRead>,
    view: Option<Lease>,
    /// The offset in the source where the view begins.
    view_at: u64,
    /// Bytes of the view that were checked.
    checked: usize,
    /// Bytes of the view that were checked and belong to the segment.
    usable: usize,
    /// The current record in the view.
    from: usize,
    to: usize,
    /// The view was searched up to here for the end of the record that begins at `to`.
    searched: usize,
    crossing: RecordBuffer,
    in_crossing: bool,
    /// How many bytes are read at once, where that may be less than a buffer has.
    limit: Option<InFlightLimit>,
    /// Bytes of all records read so far.
    came: u64,
    /// The checksums of a spilled run, the run's offset in the source, and the bytes of each grain.
    sums: &'a [u32],
    sums_at: u64,
    grain: usize,
    /// The frames of a compressed run, and the bytes of the run.
    table: Option<&'a FrameTable>,
    run_len: u64,
    /// How many bytes ahead of a record the bytes to be checked next are prefetched; 0 for not at
    /// all.
    far: usize,
    /// Where waits for bytes are counted, and who may ask to stop.
    control: Option<&'a Control>,
    /// What takes the lines that have more bytes than `most`, terminators included.
    long: Option<&'a LongLines<'a>>,
    most: usize,
    /// The long line whose bytes are coming.
    open: Option<OpenLine<'a>>,
    /// The bytes behind which a record is handed out, although it goes on.
    give_up: usize,
}

impl<'a, L: Layout> RecordReader<'a, L> {
    /// Opens a segment of a spilled run.
    pub(crate) fn of_run(
        layout: &'a L,
        pipe: &'a Pipe,
        memory: &'a Dram,
        buffers: Buffers,
        run: &'a Run,
        segment: Segment,
    ) -> Result<RecordReader<'a, L>> {
        let mut source = RecordReader::new(layout, ReadMethod::Shared(pipe), SourceKind::Spilled, memory, buffers);
        let grain = run.table.as_ref().map_or(run.grain, |table| table.frame) as u64;
        source.table = run.table.as_ref();
        // Whole grains are read, because only they can be checked.
        source.next = run.offset + segment.from / grain * grain;
        source.stop = run.offset + segment.to.next_multiple_of(grain).min(run.len);
        source.end = run.offset + segment.to;
        source.to = (segment.from % grain) as usize;
        (source.sums, source.sums_at, source.grain) = (&run.sums, run.offset, run.grain);
        source.run_len = run.len;
        if segment.from >= segment.to {
            source.next = source.stop;
        }
        source.read_ahead()?;
        Ok(source)
    }

    /// Opens bytes `from..to` of a sorted file.
    pub(crate) fn of_file(
        layout: &'a L,
        pipe: Box<Pipe>,
        name: &Path,
        memory: &'a Dram,
        buffers: Buffers,
        segment: Segment,
        movements: &'a Movements,
    ) -> Result<RecordReader<'a, L>> {
        let limit = read_limit(&pipe, buffers);
        let mut source =
            RecordReader::new(layout, ReadMethod::Own(pipe), SourceKind::Input(name.to_path_buf()), memory, buffers);
        (source.movements, source.limit) = (Some(movements), limit);
        // Reads are aligned, so the first may include bytes before the segment.
        source.next = segment.from - segment.from % ALIGN;
        (source.stop, source.end) = (segment.to, segment.to);
        source.to = (segment.from % ALIGN) as usize;
        if segment.from >= segment.to {
            source.next = source.stop;
        }
        source.read_ahead()?;
        Ok(source)
    }

    /// Opens bytes `segment` of a sorted file of `len` bytes, by a pipe that is shared with readers
    /// of other parts.
    pub(crate) fn of_part(
        layout: &'a L,
        pipe: &'a Pipe,
        name: &Path,
        memory: &'a Dram,
        buffers: Buffers,
        segment: Segment,
        len: u64,
    ) -> Result<RecordReader<'a, L>> {
        let what = SourceKind::Input(name.to_path_buf());
        let mut source = RecordReader::new(layout, ReadMethod::Shared(pipe), what, memory, buffers);
        source.limit = read_limit(pipe, buffers);
        // Reads are aligned, so they may include bytes before and behind the segment.
        source.next = segment.from - segment.from % ALIGN;
        (source.stop, source.end) = (segment.to.next_multiple_of(ALIGN).min(len), segment.to);
        source.to = (segment.from % ALIGN) as usize;
        if segment.from >= segment.to {
            source.next = source.stop;
        }
        source.read_ahead()?;
        Ok(source)
    }

    /// Opens a compressed run.
    pub(crate) fn of_packed(
        layout: &'a L,
        run: RunDecompressor,
        memory: &'a Dram,
        buffers: Buffers,
        movements: &'a Movements,
    ) -> RecordReader<'a, L> {
        let mut source = RecordReader::new(layout, ReadMethod::Compressed(run), SourceKind::Spilled, memory, buffers);
        source.movements = Some(movements);
        (source.stop, source.end) = (u64::MAX, u64::MAX);
        source
    }

    /// Opens a stream. The first read is made when the first record is asked for.
    pub(crate) fn of_stream(
        layout: &'a L,
        stream: StoppableFile,
        memory: &'a Dram,
        buffers: Buffers,
        movements: &'a Movements,
    ) -> RecordReader<'a, L> {
        let what = SourceKind::Input(stream.name().to_path_buf());
        let mut source = RecordReader::new(layout, ReadMethod::Stream(stream), what, memory, buffers);
        source.movements = Some(movements);
        (source.stop, source.end) = (u64::MAX, u64::MAX);
        source
    }

    /// Opens sorted records that are in memory. They are used where they are.
    pub(crate) fn of_memory(
        layout: &'a L,
        name: &Path,
        records: &Dram,
        memory: &'a Dram,
    ) -> Result<RecordReader<'a, L>> {
        let what = SourceKind::Input(name.to_path_buf());
        let buffers = Buffers { at: 0, size: 0, crossing: 0 };
        let mut source = RecordReader::new(layout, ReadMethod::Ended, what, memory, buffers);
        source.end = records.len() as u64;
        source.came = source.end;
        source.view = Some(records.lease()?);
        Ok(source)
    }

    /// Counts the waits for its bytes from here on, and gives up when it is asked to.
    pub(crate) fn controlled(mut self, control: &'a Control) -> Self {
        self.control = Some(control);
        self
    }

    fn new(
        layout: &'a L,
        way: ReadMethod<'a>,
        what: SourceKind,
        memory: &'a Dram,
        buffers: Buffers,
    ) -> RecordReader<'a, L> {
        let crossing = RecordBuffer::new(buffers.at + 2 * buffers.size, buffers.crossing);
        RecordReader {
            layout,
            way,
            what,
            memory,
            movements: None,
            buffers,
            turn: 0,
            next: 0,
            stop: 0,
            end: 0,
            pending_read: None,
            view: None,
            view_at: 0,
            checked: 0,
            usable: 0,
            from: 0,
            to: 0,
            searched: 0,
            crossing,
            in_crossing: false,
            came: 0,
            sums: &[],
            sums_at: 0,
            grain: 0,
            table: None,
            run_len: 0,
            far: 0,
            control: None,
            limit: None,
            long: None,
            most: usize::MAX,
            open: None,
            give_up: usize::MAX,
        }
    }

    /// Hands out stubs in place of long lines from here on.
    pub(crate) fn taking_long(mut self, long: Option<&'a LongLines<'a>>) -> Self {
        (self.long, self.most) = (long, long.map_or(usize::MAX, LongLines::longest));
        self
    }

    /// Hands out the start of a record that has more than `most` bytes and crosses buffers. What
    /// comes after it is not valid.
    pub(crate) fn giving_up_behind(mut self, most: usize) -> Self {
        self.give_up = most;
        self
    }

    /// Prefetches the bytes of a run that are to be checked next, `bytes` ahead of each record.
    pub(crate) fn fetch_ahead(&mut self, bytes: usize) {
        self.far = bytes.min(self.grain);
    }

    /// Returns the current record. Call `advance` first.
    #[inline]
    pub(crate) fn record(&self) -> &[u8] {
        if self.in_crossing {
            return self.crossing.bytes();
        }
        match &self.view {
            Some(view) => &view[self.from..self.to],
            None => &[],
        }
    }

    /// Returns the current record and what follows it in memory, which may be anything.
    #[inline]
    pub(crate) fn record_onwards(&self) -> &[u8] {
        match &self.view {
            Some(view) if !self.in_crossing => &view[self.from..],
            _ => self.record(),
        }
    }

    /// Returns the bytes of all records, once the last one was handed out.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.came
    }

    /// Returns the bytes that records took on the heap beyond the memory set aside for them.
    pub(crate) fn excess(&self) -> u64 {
        self.crossing.excess()
    }

    /// Goes to the next record. Returns false at the end.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool> {
        if let Some(end) = self.next_end() {
            self.step_to(end);
            return Ok(true);
        }
        self.advance_slowly()
    }

    /// Returns where the record after the current one ends, if the checked part of the buffer has
    /// all of it.
    #[inline]
    pub(crate) fn next_end(&self) -> Option<usize> {
        let end = self.layout.end_of(self.view.as_ref()?.get(..self.usable)?, self.to)?;
        (end - self.to <= self.most).then_some(end)
    }

    /// Returns the record after the current one, which ends at `end`.
    #[inline]
    pub(crate) fn up_to(&self, end: usize) -> &[u8] {
        match &self.view {
            Some(view) => &view[self.to..end],
            None => &[],
        }
    }

    /// Goes to the next record, which ends at `end`.
    #[inline]
    pub(crate) fn step_to(&mut self, end: usize) {
        if let Some(view) = &self.view {
            // There are more runs than the hardware prefetcher follows.
            prefetch(view, self.to + PREFETCH);
            if self.far > 0 {
                prefetch_far(view, self.to + self.far);
            }
        }
        self.from = self.to;
        self.to = end;
        self.in_crossing = false;
    }

    /// Goes to the next record if the checked part of the view ends within a record, or with one.
    #[cold]
    fn advance_slowly(&mut self) -> Result<bool> {
        self.crossing.clear();
        self.in_crossing = false;
        // A line that turned out to be long was searched for its end, and has one.
        self.searched = if self.most < usize::MAX { self.to } else { self.usable };
        loop {
            if self.searched >= self.usable && !self.check_more()? {
                break;
            }
            let Some(view) = &self.view else { break };
            let view = &view[..self.usable];
            if let Some(end) = self.end_in(view, self.to) {
                self.from = self.to;
                self.to = end;
                return if end - self.from > self.most { self.end_long_in_view() } else { Ok(true) };
            }
            self.searched = self.usable;
        }
        // The rest of the view is empty, or the start of a record that continues in the next
        // buffer.
        self.keep_rest()?;
        while self.next_view()? {
            while self.check_more()? {
                if let Some(found) = self.end_of_crossing()? {
                    return Ok(found);
                }
            }
            self.keep_rest()?;
            if self.crossing.len() > self.give_up {
                self.in_crossing = true;
                return Ok(true);
            }
        }
        self.finish()
    }

    /// Returns the end of the record that begins at `at` of the view, if it is there. The view was
    /// searched up to `searched`.
    fn end_in(&self, view: &[u8], at: usize) -> Option<usize> {
        match self.layout.fixed_len() {
            Some(_) => self.layout.end_of(view, at),
            None => self.layout.end_of(view, self.searched.max(at)),
        }
    }

    /// Looks for the end of the crossing record in bytes `searched..usable` of the view.
    fn end_of_crossing(&mut self) -> Result<Option<bool>> {
        let Some(view) = &self.view else { return Ok(None) };
        let view = &view[..self.usable];
        if self.open.is_some() {
            let Some(end) = self.layout.end_of(view, self.searched.max(self.to)) else {
                self.searched = self.usable;
                return Ok(None);
            };
            let from = std::mem::replace(&mut self.to, end);
            return self.end_long(from..end - 1).map(Some);
        }
        if self.crossing.len() == 0 {
            // One buffer ends, and the next begins, between two records.
            let Some(end) = self.end_in(view, self.to) else {
                self.searched = self.usable;
                return Ok(None);
            };
            (self.from, self.to) = (self.to, end);
            let is_long = end - self.from > self.most;
            return if is_long { self.end_long_in_view().map(Some) } else { Ok(Some(true)) };
        }
        let end = match self.layout.fixed_len() {
            Some(len) => Some(self.to + len - self.crossing.len()).filter(|end| *end <= view.len()),
            None => self.layout.end_of(view, self.searched.max(self.to)),
        };
        let Some(end) = end else {
            self.searched = self.usable;
            return Ok(None);
        };
        if self.crossing.len() + (end - self.to) > self.most {
            let from = std::mem::replace(&mut self.to, end);
            self.begin_long()?;
            return self.end_long(from..end - 1).map(Some);
        }
        self.crossing.extend(self.memory, &view[self.to..end])?;
        (self.to, self.in_crossing) = (end, true);
        Ok(Some(true))
    }

    /// Sets aside the line that begins with the bytes that crossed buffers.
    fn begin_long(&mut self) -> Result<()> {
        if let Some(long) = self.long {
            let mut open = OpenLine::begin(long)?;
            open.push(self.crossing.bytes())?;
            self.crossing.clear();
            self.open = Some(open);
        }
        Ok(())
    }

    /// Sets aside the current record, which is in the view, and puts its stub in its place.
    fn end_long_in_view(&mut self) -> Result<bool> {
        self.crossing.clear();
        self.begin_long()?;
        self.end_long(self.from..self.to - 1)
    }

    /// Ends the long line with these bytes of the view, and makes its stub the current record.
    fn end_long(&mut self, last: std::ops::Range<usize>) -> Result<bool> {
        let Some(mut open) = self.open.take() else { return Ok(false) };
        if let Some(view) = &self.view {
            open.push(&view[last])?;
        }
        let stub = open.finish(self.layout)?;
        self.crossing.clear();
        self.crossing.extend(self.memory, &stub)?;
        self.in_crossing = true;
        // What is merged is the stub.
        let len = Stub::of(&stub, self.most - 1).map_or(0, |stub| stub.len);
        self.came = self.came.wrapping_add(stub.len() as u64).wrapping_sub(len);
        Ok(true)
    }

    /// Keeps the rest of the view, which belongs to a record that continues behind it.
    fn keep_rest(&mut self) -> Result<()> {
        if let Some(view) = self.view.take() {
            let rest = &view[self.to..self.usable];
            if self.open.is_none() && self.crossing.len() + rest.len() > self.most {
                self.begin_long()?;
            }
            match &mut self.open {
                Some(open) => open.push(rest)?,
                None => self.crossing.extend(self.memory, rest)?,
            }
            self.to = 0;
        }
        Ok(())
    }

    /// Handles the rest at the end: a line without a terminator gets one; a part of a record is an
    /// error.
    fn finish(&mut self) -> Result<bool> {
        if self.open.is_some() {
            // The terminator that it lacks is a part of its stub.
            self.came += 1;
            return self.end_long(0..0);
        }
        let left = self.crossing.len();
        if left == 0 {
            return Ok(false);
        }
        match (&self.what, self.layout.terminator()) {
            (SourceKind::Input(_), Some(terminator)) => {
                self.came += 1;
                if left >= self.most {
                    self.begin_long()?;
                    return self.end_long(0..0);
                }
                self.crossing.extend(self.memory, &[terminator])?;
                self.in_crossing = true;
                Ok(true)
            }
            (SourceKind::Input(name), None) => {
                let len = self.layout.fixed_len().unwrap_or(1);
                Err(crate::input::leftover(name, len, left))
            }
            (SourceKind::Spilled, _) => Err(Error::new(
                ErrorKind::Corrupt,
                "read",
                format!("a spilled run ends within a record, after {left} bytes of it"),
            )),
        }
    }

    /// Checks one more grain of the view. Returns false if all of it was checked.
    fn check_more(&mut self) -> Result<bool> {
        let Some(view) = &self.view else { return Ok(false) };
        if self.checked >= view.len() {
            return Ok(false);
        }
        let mut end = view.len();
        if !self.sums.is_empty() {
            end = end.min(self.checked + self.grain);
            let at = self.view_at + self.checked as u64;
            let index = ((at - self.sums_at) / self.grain as u64) as usize;
            let Some(sum) = self.sums.get(index) else {
                return Err(
                    Error::new(ErrorKind::Corrupt, "read", "a spilled run has no checksum there").with_offset(at)
                );
            };
            checksum::check(&view[self.checked..end], *sum, at)?;
        }
        self.checked = end;
        self.usable = end.min(usize::try_from(self.end - self.view_at).unwrap_or(usize::MAX));
        Ok(true)
    }

    /// Takes the next buffer. Returns false at the end.
    fn next_view(&mut self) -> Result<bool> {
        let (view, at) = match &mut self.way {
            way @ (ReadMethod::Stream(_) | ReadMethod::Compressed(_)) => {
                let at = self.buffers.at + self.turn * self.buffers.size;
                self.turn ^= 1;
                let mut lease = self.memory.range(at, self.buffers.size)?.lease_mut()?;
                let waits = self.control.map(|control| control.waits_for(SortWait::Runs));
                let end = match way {
                    ReadMethod::Stream(stream) => StreamEnd::of(stream.waits_for_others()),
                    _ => StreamEnd::CompressProgram,
                };
                let len = match way {
                    ReadMethod::Stream(stream) => stream.read(&mut lease).map_err(|e| e.with_offset(self.next))?,
                    ReadMethod::Compressed(run) => run.read(&mut lease)?,
                    ReadMethod::Shared(_) | ReadMethod::Own(_) | ReadMethod::Ended => 0,
                };
                drop(waits);
                drop(lease);
                if let Some(movements) = self.movements {
                    movements.add_stream(MovementRole::Merge, end, len as u64);
                }
                if len == 0 {
                    return Ok(false);
                }
                let offset = self.next;
                self.next += len as u64;
                (self.memory.range(at, len)?.lease()?, offset)
            }
            ReadMethod::Shared(_) | ReadMethod::Own(_) | ReadMethod::Ended => {
                let Some(coming) = self.pending_read.take() else { return Ok(false) };
                let PendingRead { transfer, buffer, len, offset, begun } = coming;
                let waits = self.control.map(|control| control.waits_for(SortWait::Runs));
                transfer.wait()?;
                drop(waits);
                if let (Some(limit), Some(begun)) = (&mut self.limit, begun) {
                    limit.arrived(begun);
                }
                self.control.map_or(Ok(()), Control::check)?;
                let view = match self.table {
                    Some(table) => self.unpack(table, buffer, len, offset)?,
                    None => self.memory.range(buffer, len)?.lease()?,
                };
                self.read_ahead()?;
                (view, offset)
            }
        };
        let ours = (view.len() as u64).min(self.end - at);
        self.came += ours.saturating_sub(self.to as u64);
        (self.view, self.view_at) = (Some(view), at);
        (self.checked, self.usable, self.searched) = (0, 0, 0);
        Ok(true)
    }

    /// Returns at least the next `wanted` values, if so many are left in the buffer, and whether
    /// more follow them; none at the end. It is used for runs of numbers, which never cross
    /// buffers.
    pub(crate) fn window<T: Plain>(&mut self, wanted: usize) -> Result<(&[T], bool)> {
        let wanted = wanted.saturating_mul(size_of::<T>());
        loop {
            while self.usable < self.to.saturating_add(wanted) && self.check_more()? {}
            if self.view.is_some() && self.to < self.usable {
                break;
            }
            if self.view.take().is_some() {
                self.to = 0;
            }
            if !self.next_view()? {
                return Ok((&[], false));
            }
        }
        match &self.view {
            Some(view) => {
                let more = self.view_at + (self.usable as u64) < self.end;
                let width = size_of::<T>();
                Ok((&view.as_slice_of::<T>()?[self.to / width..self.usable / width], more))
            }
            None => Ok((&[], false)),
        }
    }

    /// Skips bytes of the window.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.to += bytes;
    }

    /// Starts to read as many frames of a compressed run as the second buffer takes.
    fn read_frames(&mut self, table: &FrameTable) -> Result<()> {
        let (ReadMethod::Shared(pipe), Some(first)) = (&self.way, self.frame_at(table, self.next)) else {
            return Err(no_frame(self.next));
        };
        let from = first.at - first.at % ALIGN;
        let (mut end, mut next) = (first.at, self.next);
        while next < self.stop && next - self.next + table.frame as u64 <= self.buffers.size as u64 {
            let frame = self.frame_at(table, next).ok_or_else(|| no_frame(next))?;
            let behind = frame.at + u64::from(frame.len);
            // Frames of one block follow each other.
            if frame.at != end || behind.next_multiple_of(ALIGN) - from > self.buffers.size as u64 {
                break;
            }
            (end, next) = (behind, (next + table.frame as u64).min(self.sums_at + self.run_len));
        }
        let buffer = self.buffers.at + self.buffers.size;
        let span = Span { source: from, target: buffer as u64, len: end.next_multiple_of(ALIGN) - from };
        let len = (next - self.next) as usize;
        if len == 0 {
            return Err(no_frame(next));
        }
        let transfer = self.start(pipe, span)?;
        self.pending_read = Some(PendingRead { transfer, buffer, len, offset: self.next, begun: None });
        self.next = next;
        Ok(())
    }

    fn frame_at(&self, table: &FrameTable, offset: u64) -> Option<packing::Frame> {
        table.frames.get(((offset - self.sums_at) / table.frame as u64) as usize).copied()
    }

    /// Decompresses what was read into the first buffer.
    fn unpack(&self, table: &FrameTable, landed: usize, len: usize, mut offset: u64) -> Result<Lease> {
        let landed = self.memory.range(landed, self.buffers.size)?.lease()?;
        let mut lease = self.memory.range(self.buffers.at, len)?.lease_mut()?;
        let first = self.frame_at(table, offset).ok_or_else(|| no_frame(offset))?;
        let start = first.at - first.at % ALIGN;
        for bytes in lease.chunks_mut(table.frame) {
            let frame = self.frame_at(table, offset).ok_or_else(|| no_frame(offset))?;
            let at = (frame.at - start) as usize;
            packing::unpack(&landed[at..at + frame.len as usize], bytes, offset)?;
            offset += bytes.len() as u64;
        }
        drop(lease);
        self.memory.range(self.buffers.at, len)?.lease()
    }

    fn start(&self, pipe: &Pipe, span: Span) -> Result<Transfer> {
        match self.control {
            Some(control) => control.start_read(SortWait::Runs, pipe, span),
            None => pipe.start(span),
        }
    }

    /// Starts to fill the buffer whose turn it is.
    fn read_ahead(&mut self) -> Result<()> {
        let pipe = match &self.way {
            ReadMethod::Shared(pipe) => *pipe,
            ReadMethod::Own(pipe) => pipe.as_ref(),
            ReadMethod::Stream(_) | ReadMethod::Compressed(_) | ReadMethod::Ended => return Ok(()),
        };
        if self.next >= self.stop {
            return Ok(());
        }
        if let Some(table) = self.table {
            return self.read_frames(table);
        }
        // What was begun is waited for: of a slow file little is asked for at once.
        let most = self.limit.as_ref().map_or(u64::MAX, |limit| limit.bytes() / ALIGN * ALIGN);
        let stop = (self.next + most.min(self.buffers.size as u64)).min(self.stop);
        let buffer = self.buffers.at + self.turn * self.buffers.size;
        let (len, begun) = (stop - self.next, self.limit.as_ref().map(InFlightLimit::begin));
        let transfer = self.start(pipe, Span { source: self.next, target: buffer as u64, len })?;
        self.pending_read = Some(PendingRead { transfer, buffer, len: len as usize, offset: self.next, begun });
        self.next = stop;
        self.turn ^= 1;
        Ok(())
    }
}

impl<L> Drop for RecordReader<'_, L> {
    fn drop(&mut self) {
        // The buffers will be used for something else: nothing may be in flight into them.
        if let Some(coming) = self.pending_read.take() {
            // The outcome no longer matters.
            let _ = coming.transfer.wait();
        }
        if let (ReadMethod::Own(pipe), Some(movements)) =
            (std::mem::replace(&mut self.way, ReadMethod::Ended), self.movements)
        {
            movements.keep(MovementRole::Merge, *pipe);
        }
    }
}

fn no_frame(offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, "read", "a compressed run has no frame there").with_offset(offset)
}

/// Reads single records of runs, at offsets that are not known in advance.
pub(crate) struct RunSearcher<'a, L> {
    pub(crate) layout: &'a L,
    pub(crate) pipe: &'a Pipe,
    pub(crate) memory: &'a Dram,
    pub(crate) buffers: Buffers,
    pub(crate) control: &'a Control,
}

impl<'a, L: Layout> RunSearcher<'a, L> {
    fn open(&self, run: &'a Run, from: u64) -> Result<RecordReader<'a, L>> {
        self.open_by(self.buffers, run, from)
    }

    fn open_by(&self, buffers: Buffers, run: &'a Run, from: u64) -> Result<RecordReader<'a, L>> {
        let segment = Segment { from, to: run.len };
        let reader = RecordReader::of_run(self.layout, self.pipe, self.memory, buffers, run, segment)?;
        Ok(reader.controlled(self.control))
    }

    /// Returns the record that begins at offset `at` of a run.
    pub(crate) fn record_at(&self, run: &'a Run, at: u64) -> Result<Vec<u8>> {
        let mut source = self.open(run, at)?;
        source.advance()?;
        Ok(source.record().to_vec())
    }

    /// Returns the offset in a run of the first record that does not come before `key`. Records
    /// equal to the key come before it if `equal_before` is set.
    pub(crate) fn position(&self, run: &'a Run, key: &[u8], equal_before: bool) -> Result<u64> {
        let Some(mark) = self.mark_before(run, key, equal_before)? else { return Ok(0) };
        self.position_from(self.open(run, mark)?, mark, key, equal_before)
    }

    /// Returns the offset in each run of the first record that does not come before `key`. All runs
    /// are read at once, each by buffers of its own: those of run `i` lie behind `i` others.
    pub(crate) fn positions(&self, runs: &'a [Run], key: &[u8]) -> Result<Vec<u64>> {
        // These searches use the buffers of the first run, so they come before all readers.
        let marks = runs.iter().map(|run| self.mark_before(run, key, false)).collect::<Result<Vec<_>>>()?;
        let mut readers = Vec::with_capacity(runs.len());
        for (i, (run, mark)) in runs.iter().zip(marks).enumerate() {
            let buffers = Buffers { at: self.buffers.at + i * self.buffers.len(), ..self.buffers };
            readers.push(match mark {
                Some(mark) => Some((self.open_by(buffers, run, mark)?, mark)),
                None => None,
            });
        }
        let position = |reader: Option<(RecordReader<'a, L>, u64)>| match reader {
            Some((reader, mark)) => self.position_from(reader, mark, key, false),
            None => Ok(0),
        };
        readers.into_iter().map(position).collect()
    }

    /// Whether a record comes before `key`.
    fn is_before(&self, record: &[u8], key: &[u8], equal_before: bool) -> bool {
        match self.layout.compare(record, key) {
            Ordering::Less => true,
            Ordering::Equal => equal_before,
            Ordering::Greater => false,
        }
    }

    /// Returns the position of `key` behind a record at `at`, with which the reader begins.
    fn position_from(
        &self,
        mut source: RecordReader<'a, L>,
        mut at: u64,
        key: &[u8],
        equal_before: bool,
    ) -> Result<u64> {
        while source.advance()? && self.is_before(source.record(), key, equal_before) {
            at += source.record().len() as u64;
        }
        Ok(at)
    }

    /// Returns the offset of the last index entry that comes before the key: by its prefix or, if
    /// the prefixes are equal, by its record.
    fn mark_before(&self, run: &'a Run, key: &[u8], equal_before: bool) -> Result<Option<u64>> {
        let prefix = self.layout.prefix(key);
        let (mut low, mut high) = (0, run.key_index.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let mark = run.key_index[middle];
            let is_before = match mark.prefix.cmp(&prefix) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => {
                    let mut source = self.open(run, mark.at)?;
                    source.advance()? && self.is_before(source.record(), key, equal_before)
                }
            };
            if is_before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low.checked_sub(1).map(|i| run.key_index[i].at))
    }
}
