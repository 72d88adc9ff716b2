//! Frames of one segment, read through a pipe and used only after they were checked.

use datapipes_core::Lease;
use datapipes_core::{Constraints, Dram, Machine, MapOptions, Pages, Pipe, Result, Span};

use crate::log::format::frame::{ALIGN, Frame, FrameKind, HEADER, MAGIC, payload_crc};
use crate::log::format::segment::{DATA_AT, Header, LogPosition, Segment, checked_limit, no_header};
use crate::log::place::storage::SegmentSpace;

/// Bytes read at a time.
const WINDOW: usize = 1 << 20;
const BLOCK: u64 = 4096;

/// A range of a segment in memory.
struct Window {
    pipe: Pipe,
    memory: Dram,
    /// The offset in the segment of the bytes in memory.
    at: u64,
    len: usize,
    /// Bytes of the segment that exist.
    end: u64,
}

impl Window {
    /// Makes a window over a segment, with room for `most` bytes at any offset.
    fn over(machine: &Machine, medium: &dyn SegmentSpace, most: usize) -> Result<Window> {
        let len = WINDOW.max((most + 2 * BLOCK as usize).next_multiple_of(BLOCK as usize));
        let options = MapOptions::default().pages(Pages::Small).prefault(false);
        let memory = Dram::allocate_with(len, options)?;
        let constraints = Constraints::default().typical_len(len as u64);
        let pipe = machine.connect_with(medium.source(), &memory, &constraints)?;
        Ok(Window { pipe, memory, at: 0, len: 0, end: medium.len_bytes()? })
    }

    /// Returns the bytes at an offset; `None` if not all of them exist.
    fn view(&mut self, at: u64, len: usize) -> Result<Option<Lease>> {
        if at > self.end || len as u64 > self.end - at {
            return Ok(None);
        }
        if at < self.at || at + len as u64 > self.at + self.len as u64 {
            let from = at - at % BLOCK;
            let n = (self.end - from).min(self.memory.len() as u64);
            self.len = 0;
            self.pipe.transfer(Span { source: from, target: 0, len: n })?;
            (self.at, self.len) = (from, n as usize);
        }
        self.memory.range((at - self.at) as usize, len)?.lease().map(Some)
    }

    fn forget(&mut self) {
        self.len = 0;
    }
}

/// Reads a segment's header.
pub(crate) fn read_header(machine: &Machine, medium: &dyn SegmentSpace, name: &str) -> Result<Header> {
    let mut window = Window::over(machine, medium, 0)?;
    let header = window.view(0, DATA_AT as usize)?.and_then(|bytes| Header::decode(&bytes));
    let header = header.ok_or_else(|| no_header(name))?;
    checked_limit(&header, name)?;
    Ok(header)
}

/// The result of a step at a position.
pub(crate) enum Step {
    /// A valid record.
    Record { number: u64, payload: Lease },
    /// A mark.
    Mark,
    /// No valid frame.
    End,
}

/// Walks over the frames of a segment.
pub(crate) struct SegmentScan {
    segment: Segment,
    window: Window,
    tail: LogPosition,
}

impl SegmentScan {
    pub(crate) fn over(machine: &Machine, segment: Segment) -> Result<SegmentScan> {
        let limit = checked_limit(&segment.header, &segment.name)?;
        let mut window = Window::over(machine, &*segment.medium, limit)?;
        window.end = window.end.min(segment.header.len);
        let Header { base, first, epoch, .. } = segment.header;
        Ok(SegmentScan { segment, window, tail: LogPosition { position: base, number: first, epoch } })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the position of the next frame.
    pub(crate) fn tail(&self) -> LogPosition {
        self.tail
    }

    /// Goes over one frame. It stays in place if there is no valid frame.
    pub(crate) fn step(&mut self) -> Result<Step> {
        let LogPosition { position, number, epoch } = self.tail;
        let Some(frame) = self.frame_at(position)? else { return Ok(Step::End) };
        // A frame of an older epoch is the rest of a torn batch, behind something newer.
        let follows = frame.number == number
            && u64::from(frame.since) <= position
            && match frame.kind {
                FrameKind::Record => frame.epoch == epoch,
                FrameKind::Mark => frame.epoch >= epoch && frame.len == 0,
            };
        if !follows || frame.extent() > u64::from(self.segment.header.frame_limit) {
            return Ok(Step::End);
        }
        let Some(payload) = self.window.view(self.offset(position) + HEADER as u64, frame.len as usize)? else {
            return Ok(Step::End);
        };
        if payload_crc(&payload) != frame.payload_crc {
            return Ok(Step::End);
        }
        let next = position + frame.extent();
        Ok(match frame.kind {
            FrameKind::Record => {
                self.tail = LogPosition { position: next, number: number + 1, epoch };
                Step::Record { number, payload }
            }
            FrameKind::Mark => {
                self.tail = LogPosition { position: next, number, epoch: frame.epoch };
                Step::Mark
            }
        })
    }

    /// Decides whether the log ends at this position, where no frame is valid. If a later frame
    /// proves that these bytes were durable once, they are damaged, which is an error.
    ///
    /// `None` means to go on: another process appended meanwhile, and the frame here is valid by
    /// now.
    pub(crate) fn ends_here(&mut self) -> Result<Option<()>> {
        let at = self.tail.position;
        let Some(witness) = self.later_frame_after(at)? else { return Ok(Some(())) };
        // The bytes before the later frame were written before it: reading again must show them.
        self.window.forget();
        let before = self.tail;
        let found = !matches!(self.step()?, Step::End);
        self.tail = before;
        if found {
            return Ok(None);
        }
        let what = format!(
            "record {} is damaged: it is not the end of the log, because the frame at offset {} was written after it",
            self.tail.number,
            self.offset(witness)
        );
        Err(self.segment.corrupt(at, &what))
    }

    /// Finds the first frame behind a position whose batch was written when the position was
    /// durable.
    fn later_frame_after(&mut self, position: u64) -> Result<Option<u64>> {
        let end = self.segment.header.base + self.window.end.saturating_sub(DATA_AT);
        let mut at = position + ALIGN;
        while at + HEADER as u64 <= end {
            let piece = (end - at).min(WINDOW as u64 / 2);
            let Some(bytes) = self.window.view(self.offset(at), piece as usize)? else { return Ok(None) };
            for (nth, head) in bytes.chunks(ALIGN as usize).enumerate() {
                // Nearly all bytes here are zeros or payload.
                if !head.starts_with(&MAGIC) {
                    continue;
                }
                let (from, here) = (nth * ALIGN as usize, at + nth as u64 * ALIGN);
                let header = bytes.get(from..from + HEADER);
                let frame = header.and_then(|header| self.segment.codec().decode(header, here));
                if let Some(frame) = frame
                    && here - u64::from(frame.since).min(here) > position
                {
                    return Ok(Some(here));
                }
            }
            // A header that is cut off by the end of the piece is read with the next piece.
            at += if at + piece == end { piece } else { (piece - HEADER as u64) / ALIGN * ALIGN };
        }
        Ok(None)
    }

    fn frame_at(&mut self, position: u64) -> Result<Option<Frame>> {
        let offset = self.offset(position);
        let codec = self.segment.codec();
        Ok(self.window.view(offset, HEADER)?.and_then(|bytes| codec.decode(&bytes, position)))
    }

    fn offset(&self, position: u64) -> u64 {
        position - self.segment.header.base + DATA_AT
    }

    /// Checks that the segment has all the bytes that its header states; called where no frame is
    /// valid.
    pub(crate) fn check_length(&self) -> Result<()> {
        self.segment.check_length(self.window.end)
    }
}
