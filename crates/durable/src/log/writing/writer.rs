//! Writing batches to segments: write, sync, and change to a new segment in time. One thread at a
//! time runs this code.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::process::OwningProcess;
use datapipes_core::{
    Constraints, Dram, Error, ErrorKind, HopReport, Machine, MapOptions, Pages, Pipe, Result, Route, Span, threads,
};

use crate::log::format::segment::{DATA_AT, Header, LogPosition, Segment};
use crate::log::options::LogOptions;
use crate::log::place::storage::{SegmentStorage, UnpublishedSegment};
use crate::movements::Movements;

/// Bytes behind each half of the memory: the end of a write is rounded up to the alignment of the
/// place, but to no more than this.
pub(crate) const SLACK: usize = 4096;
/// The length of a transfer by which the planner weighs latency against rate: records are small.
const TYPICAL: u64 = 4096;

/// Space for the next segment, made ahead of need.
type Prepared = threads::JoinHandle<Result<Box<dyn UnpublishedSegment>>>;

/// The times of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchTiming {
    pub(crate) write: Duration,
    pub(crate) sync: Duration,
    /// The time to begin a segment, if the batch began one.
    pub(crate) rotation: Option<Duration>,
}

/// The segment that is written to.
struct Current {
    segment: Segment,
    pipe: Pipe,
    /// Bytes of frames in it.
    used: u64,
    /// Writes end at multiples of this.
    unit: u64,
}

impl Current {
    fn new(segment: Segment, pipe: Pipe, used: u64) -> Current {
        let alignment = segment.medium.target().endpoint().facts.alignment;
        Current { segment, pipe, used, unit: alignment.clamp(1, SLACK as u64) }
    }
}

pub(crate) struct Writer {
    machine: Machine,
    storage: Arc<dyn SegmentStorage>,
    memory: Dram,
    /// All existing segments, the current one last.
    pub(crate) segments: Vec<Segment>,
    /// Segments before this number may have been removed.
    surely_there: u64,
    current: Option<Current>,
    /// What was moved to segments before the current one.
    earlier: Movements,
    prepared: Option<Prepared>,
    /// Whether no thread could be started for `prepared`: the next segment is made when it is
    /// needed.
    refused: bool,
    segment_bytes: u64,
    frame_limit: u32,
    owner: OwningProcess,
}

impl Writer {
    pub(crate) fn new(
        machine: &Machine,
        storage: Arc<dyn SegmentStorage>,
        memory: Dram,
        segments: Vec<Segment>,
        options: LogOptions,
    ) -> Writer {
        let LogOptions { segment_bytes, batch_bytes: frame_limit } = options;
        Writer {
            machine: machine.clone(),
            storage,
            memory,
            segments,
            surely_there: 0,
            current: None,
            earlier: Movements::default(),
            prepared: None,
            refused: false,
            segment_bytes,
            frame_limit,
            owner: OwningProcess::here(),
        }
    }

    /// Continues the last segment, whose frames end at `tail`.
    pub(crate) fn resume(&mut self, tail: LogPosition) -> Result<()> {
        let Some(segment) = self.segments.last().cloned() else {
            return Err(Error::new(ErrorKind::InvalidInput, "open", "a log without segments cannot be resumed"));
        };
        let pipe = self.connect(&segment)?;
        let used = tail.position - segment.header.base;
        self.current = Some(Current::new(segment, pipe, used));
        Ok(())
    }

    fn connect(&self, segment: &Segment) -> Result<Pipe> {
        let constraints = Constraints::default().typical_len(TYPICAL);
        self.machine.connect_with(&self.memory, segment.medium.target(), &constraints)
    }

    /// Begins a segment at a position before which everything is durable.
    pub(crate) fn begin(&mut self, log_id: [u8; 16], at: LogPosition) -> Result<()> {
        let number = self.segments.last().map_or(1, |s| s.header.number + 1);
        self.refused = false;
        let spare = match self.prepared.take().map(threads::join) {
            Some(Ok(Ok(spare))) => spare,
            // The cause of that error (a full place, a panic) may be gone by now; if not, this
            // returns the error.
            Some(Ok(Err(_)) | Err(_)) | None => self.storage.prepare(number, self.segment_bytes)?,
        };
        let header = Header {
            log_id,
            number,
            base: at.position,
            first: at.number,
            epoch: at.epoch,
            frame_limit: self.frame_limit,
            len: self.segment_bytes,
        };
        let options = MapOptions::default().pages(Pages::Small).prefault(false);
        let block = Dram::allocate_with(DATA_AT as usize, options)?;
        block.lease_mut()?.copy_from_slice(&header.encode());
        let pipe = self.machine.connect(&block, spare.target())?;
        pipe.transfer(Span { source: 0, target: 0, len: DATA_AT })?;
        spare.sync()?;
        let medium = spare.publish()?;
        let segment = Segment { header, medium, name: format!("{} segment {number}", self.storage.name()) };
        let next = Current::new(segment.clone(), self.connect(&segment)?, 0);
        if let Some(full) = self.current.replace(next) {
            self.earlier.add(full.pipe.report());
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Writes a batch and returns when it is durable. The bytes are at `source` of the memory, with
    /// zeros behind them.
    pub(crate) fn write(&mut self, source: u64, len: u64, at: LogPosition) -> Result<BatchTiming> {
        let mut took = BatchTiming::default();
        let Some(current) = &self.current else {
            return Err(Error::new(ErrorKind::InvalidInput, "append", "no segment is open"));
        };
        let header = &current.segment.header;
        // A segment of an older log may be limited to shorter frames: readers would refuse these.
        let is_too_long = len > u64::from(header.frame_limit) && header.frame_limit < self.frame_limit;
        if is_too_long || current.used + len > header.room() {
            let since = Instant::now();
            self.begin(header.log_id, at)?;
            took.rotation = Some(since.elapsed());
        }
        let Some(current) = &mut self.current else {
            return Err(Error::new(ErrorKind::InvalidInput, "append", "no segment is open"));
        };
        let since = Instant::now();
        let target = DATA_AT + current.used;
        // The write is padded with zeros to the end of the page. If the page cache does not have a
        // page, a write that ends within it makes the kernel read it first. That took 90 us here;
        // the write takes 7 us.
        let padded = (target + len).next_multiple_of(current.unit) - target;
        current.pipe.transfer(Span { source, target, len: padded })?;
        took.write = since.elapsed();
        current.segment.medium.sync()?;
        took.sync = since.elapsed() - took.write;
        current.used += len;
        // The next segment is prepared in time, but not before it is likely to be needed: a short
        // log has one segment.
        if self.prepared.is_none() && !self.refused && current.used > current.segment.header.room() / 2 {
            let (storage, number, len) = (self.storage.clone(), current.segment.header.number + 1, self.segment_bytes);
            // If no thread can be started, the segment is made when it is needed, and the appender
            // waits for it.
            self.prepared = threads::spawn("dp-log-segment", move || storage.prepare(number, len)).ok();
            self.refused = self.prepared.is_none();
        }
        Ok(took)
    }

    /// Removes the segments all of whose records are before `number`, the oldest first.
    pub(crate) fn release_before(&mut self, number: u64) -> Result<usize> {
        let keep = self.segments.partition_point(|s| s.header.first <= number).saturating_sub(1);
        for removed in 0..keep {
            let number = self.segments[removed].header.number;
            self.surely_there = number + 1;
            if let Err(e) = self.storage.remove(number) {
                // It is not known whether this segment still exists: a later call tries again, or
                // it stays.
                self.segments.drain(..removed);
                return Err(e);
            }
        }
        self.segments.drain(..keep);
        Ok(keep)
    }

    /// The first segment that was never tried to be removed.
    pub(crate) fn first_surely_there(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.header.number >= self.surely_there)
    }

    /// Keeps the close note.
    pub(crate) fn note(&self, note: &[u8]) -> Result<()> {
        self.storage.set_note(Some(note))
    }

    pub(crate) fn route(&self) -> Option<Route> {
        self.current.as_ref().map(|current| current.pipe.route().clone())
    }

    /// What was moved by batches, by primitive.
    pub(crate) fn movements(&self) -> Vec<HopReport> {
        let mut all = self.earlier.clone();
        if let Some(current) = &self.current {
            all.add(current.pipe.report());
        }
        all.into_hops()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(thread) = self.prepared.take() {
            if !self.owner.is_here() {
                // A child does not have the thread.
                return std::mem::forget(thread);
            }
            // Its result no longer matters; unused space leaves nothing behind.
            let _ = threads::join(thread);
        }
    }
}
