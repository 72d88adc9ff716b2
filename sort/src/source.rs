//! Reading a sorted run record by record, ahead by one buffer.

use std::cmp::Ordering;

use datapipes_core::memory::Plain;
use datapipes_core::{Dram, Lease, Pipe, Result, Span, Transfer};

use crate::layout::Layout;
use crate::prefetch::prefetch;
use crate::spill::Run;

const ALIGN: u64 = 4096;
/// How far ahead of a record its successors are fetched, in bytes.
const PREFETCH: usize = 512;

/// Part of a run: bytes `from..to` of it, which begin and end with records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

struct Coming {
    transfer: Transfer,
    /// Offset in the pool of the first byte that is ours, and how many are.
    at: usize,
    len: usize,
}

/// A reader of records in order.
pub(crate) struct Source<'a, L> {
    layout: &'a L,
    pipe: &'a Pipe,
    memory: &'a Dram,
    /// Two buffers in the pool: records are read from one while the other is filled.
    buffers: [usize; 2],
    size: usize,
    /// Which buffer the next read goes to.
    turn: usize,
    /// What is still to be read, as offsets in the place.
    next: u64,
    end: u64,
    coming: Option<Coming>,
    view: Option<Lease>,
    /// The current record in the view.
    from: usize,
    to: usize,
    /// A record that crosses buffers is put together here.
    crossing: Vec<u8>,
    in_crossing: bool,
}

impl<'a, L: Layout> Source<'a, L> {
    /// Opens a segment of a run with two buffers of `size` bytes at `at` in the pool.
    pub(crate) fn open(
        layout: &'a L,
        pipe: &'a Pipe,
        memory: &'a Dram,
        (at, size): (usize, usize),
        run: &Run,
        segment: Segment,
    ) -> Result<Source<'a, L>> {
        let mut source = Source {
            layout,
            pipe,
            memory,
            buffers: [at, at + size],
            size,
            turn: 0,
            next: run.offset + segment.from,
            end: run.offset + segment.to,
            coming: None,
            view: None,
            from: 0,
            to: 0,
            crossing: Vec::new(),
            in_crossing: false,
        };
        source.read_ahead()?;
        Ok(source)
    }

    /// The current record. Call `advance` first.
    #[inline]
    pub(crate) fn record(&self) -> &[u8] {
        if self.in_crossing {
            return &self.crossing;
        }
        match &self.view {
            Some(view) => &view[self.from..self.to],
            None => &[],
        }
    }

    /// Goes to the next record; false at the end.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool> {
        if let Some(view) = &self.view
            && let Some(end) = self.layout.end_of(view, self.to)
        {
            // There are more runs than the hardware follows: it is told what comes.
            prefetch(view, self.to + PREFETCH);
            self.from = self.to;
            self.to = end;
            self.in_crossing = false;
            return Ok(true);
        }
        self.next_buffer()
    }

    /// The rest of the view is the start of a record that goes on in the next buffer, or nothing.
    #[cold]
    fn next_buffer(&mut self) -> Result<bool> {
        self.crossing.clear();
        if let Some(view) = self.view.take() {
            self.crossing.extend_from_slice(&view[self.to..]);
        }
        loop {
            let Some(coming) = self.coming.take() else {
                // The end. A last line without a terminator (of a file that somebody else sorted) gets one.
                self.in_crossing = !self.crossing.is_empty();
                if let (true, Some(terminator)) = (self.in_crossing, self.layout.terminator()) {
                    self.crossing.push(terminator);
                }
                self.to = 0;
                return Ok(self.in_crossing);
            };
            coming.transfer.wait()?;
            let view = self.memory.range(coming.at, coming.len)?.lease()?;
            self.read_ahead()?;
            let end = match self.layout.fixed_len() {
                Some(len) => {
                    let missing = (len - self.crossing.len()) % len;
                    (missing <= view.len()).then_some(missing)
                }
                None if self.crossing.is_empty() => Some(0),
                None => self.layout.end_of(&view, 0),
            };
            match end {
                Some(end) if self.crossing.is_empty() => {
                    // The buffers meet between two records.
                    self.to = end;
                    self.view = Some(view);
                    return self.advance();
                }
                Some(end) => {
                    self.crossing.extend_from_slice(&view[..end]);
                    self.in_crossing = true;
                    self.to = end;
                    self.view = Some(view);
                    return Ok(true);
                }
                None => self.crossing.extend_from_slice(&view),
            }
        }
    }

    /// The numbers at hand, and whether more follow them; empty at the end. For runs of numbers, of which none crosses
    /// buffers.
    pub(crate) fn window<T: Plain>(&mut self) -> Result<(&[T], bool)> {
        while self.view.as_ref().is_none_or(|view| self.to == view.len()) {
            self.view = None;
            let Some(coming) = self.coming.take() else { return Ok((&[], false)) };
            coming.transfer.wait()?;
            self.view = Some(self.memory.range(coming.at, coming.len)?.lease()?);
            self.to = 0;
            self.read_ahead()?;
        }
        match &self.view {
            Some(view) => Ok((&view.as_slice_of::<T>()?[self.to / size_of::<T>()..], self.coming.is_some())),
            None => Ok((&[], false)),
        }
    }

    /// Goes past bytes of the window.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.to += bytes;
    }

    /// Starts to fill the buffer whose turn it is.
    fn read_ahead(&mut self) -> Result<()> {
        if self.next >= self.end {
            return Ok(());
        }
        // Reads are aligned, so the first may bring bytes before ours, and the last some behind.
        let start = self.next - self.next % ALIGN;
        let stop = (start + self.size as u64).min(self.end);
        let buffer = self.buffers[self.turn];
        let transfer = self.pipe.start(Span { source: start, target: buffer as u64, len: stop - start })?;
        let skip = (self.next - start) as usize;
        self.coming = Some(Coming { transfer, at: buffer + skip, len: (stop - self.next) as usize });
        self.next = stop;
        self.turn ^= 1;
        Ok(())
    }
}

impl<L> Drop for Source<'_, L> {
    fn drop(&mut self) {
        // The buffers are somebody else's from now on: nothing may be on its way into them.
        if let Some(coming) = self.coming.take() {
            // Its outcome is of no interest any more.
            let _ = coming.transfer.wait();
        }
    }
}

/// Where in a run the records begin that do not come before `key`. Records equal to the key come before it where
/// `equal_before` is set.
pub(crate) fn position<L: Layout>(
    layout: &L,
    pipe: &Pipe,
    memory: &Dram,
    buffer: (usize, usize),
    run: &Run,
    (key, equal_before): (&[u8], bool),
) -> Result<u64> {
    let prefix = layout.prefix(key);
    let before = |record: &[u8]| match layout.compare(record, key) {
        Ordering::Less => true,
        Ordering::Equal => equal_before,
        Ordering::Greater => false,
    };
    // The last mark that comes before the key: by its prefix, or, where that is the key's, by its record.
    let (mut low, mut high) = (0, run.marks.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        let mark = run.marks[middle];
        let is_before = match mark.prefix.cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => {
                let segment = Segment { from: mark.at, to: run.len };
                let mut source = Source::open(layout, pipe, memory, buffer, run, segment)?;
                source.advance()? && before(source.record())
            }
        };
        if is_before {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let Some(mark) = low.checked_sub(1).map(|i| run.marks[i]) else { return Ok(0) };
    let mut source = Source::open(layout, pipe, memory, buffer, run, Segment { from: mark.at, to: run.len })?;
    let mut at = mark.at;
    while source.advance()? && before(source.record()) {
        at += source.record().len() as u64;
    }
    Ok(at)
}

/// The record at an offset of a run at which one begins.
pub(crate) fn record_at<L: Layout>(
    layout: &L,
    pipe: &Pipe,
    memory: &Dram,
    buffer: (usize, usize),
    run: &Run,
    at: u64,
) -> Result<Vec<u8>> {
    let mut source = Source::open(layout, pipe, memory, buffer, run, Segment { from: at, to: run.len })?;
    source.advance()?;
    Ok(source.record().to_vec())
}
