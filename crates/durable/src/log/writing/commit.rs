//! Group commit.
//!
//! ```text
//! append: [lock] put the frame into the half that fills; the ticket names its batch
//! wait:   if the batch is durable:      done
//!         if no thread writes a batch:  swap halves, [unlock] write, sync, [lock]
//!                                       wake the waiters of this batch and one of the next
//!         otherwise:                    sleep
//! ```
//! The log has no thread and no timer of its own. A lone appender writes at once, on its own core
//! (a handover to another thread costs about as much as the device does). While one batch is
//! written, all other appenders gather in the next, so batches are as large as the load makes them.
//! The memory is two halves; an appender that finds the half full helps or waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use std::{any::Any, fs::File, io::Read};

use datapipes_core::guard::{self, ForeignCode};
use datapipes_core::locks::{Condvar, Mutex, MutexGuard};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Dram, Error, ErrorKind, HopReport, LeaseMut, Machine, Result, Route};
use datapipes_metrics::Recorder;
use datapipes_metrics::trace::{TraceLevel, follows};

use super::failure::Failure;
use super::stats::{LatencySummary, LogLatencies, LogStats};
use super::writer::{BatchTiming, SLACK, Writer};
use crate::log::format::close_note::CloseNote;
use crate::log::format::frame::{Codec, Frame, FrameKind, HEADER, extent, payload_crc};
use crate::log::format::segment::{Header, LogPosition};
use crate::log::options::LogOptions;
use crate::log::place::storage::SegmentStorage;
use crate::log::reading::chain::{self, Chain, ChainScan};
use crate::log::reading::reader::LogReader;

#[derive(Default)]
struct Counts {
    records: u64,
    payload_bytes: u64,
    written_bytes: u64,
    batches: u64,
    largest_batch: u64,
    waits_for_room: u64,
    segments_begun: u64,
    acknowledged: Recorder,
    write: Recorder,
    sync: Recorder,
    rotation: Recorder,
}

struct State {
    /// The half that fills. It is absent only after a failure.
    fill: Option<LeaseMut>,
    half: usize,
    used: usize,
    records: u64,
    /// The number of the batch that fills.
    batch: u64,
    /// The position where it starts.
    start: LogPosition,
    /// The position of the next frame.
    next: LogPosition,
    /// Whether a thread writes the batch before this one.
    writing: bool,
    /// Everything before this position is durable.
    durable: LogPosition,
    failure: Option<Failure>,
    counts: Counts,
}

/// A log that is open for appending.
///
/// Many threads may append at once; share it in an `Arc`.
///
/// A log belongs to the process that opened it. In a child made by `fork` every fallible call fails
/// (`Forked`), and dropping the log writes nothing. The right to write stays with the parent and
/// ends with its log, even if children live on.
///
/// Once [`Ticket::wait`], [`append_durable`](Self::append_durable), [`sync`](Self::sync) or
/// [`close`](Self::close) has returned without an error, the record and all records before it are
/// durable: they survive the end of the process and of the system, and a power failure if the
/// device keeps what it acknowledged a flush for. Before that, a record may survive or not, but
/// never without all records before it. Opening a log makes the records that it finds durable.
///
/// The space behind a batch is written again with the next one, starting in the middle of a block.
/// The device must not change bytes of a sector that are written with the values they have (drives
/// promise that for 512 bytes).
pub struct Log {
    state: Mutex<State>,
    /// Signal the ends of batches with even and odd numbers.
    ended: [Condvar; 2],
    /// Signals room in the half that fills.
    room: Condvar,
    writer: Mutex<Writer>,
    memory: Dram,
    machine: Machine,
    codec: Codec,
    batch_bytes: usize,
    closed: AtomicBool,
    /// Segments that were begun and that nobody was told of, while somebody follows them.
    untold_segments: AtomicU64,
    owner: OwningProcess,
    _sole: Box<dyn Any + Send + Sync>,
}

/// A record that was appended and may not be durable yet. Dropping the ticket changes nothing: the
/// record goes with the next batch that is waited for.
#[must_use = "a record is durable when `wait` has returned"]
pub struct Ticket<'a> {
    log: &'a Log,
    number: u64,
    batch: u64,
    since: Instant,
}

impl Ticket<'_> {
    /// Returns the record's number. Numbers start at 1 and have no gaps.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the record, and all before it, is durable. Returns its number.
    ///
    /// # Errors
    /// Errors of writing or syncing, the same for all waiters: the record may be lost. The log is
    /// never synced again after an error, because a kernel that dropped a page would then report
    /// success.
    pub fn wait(self) -> Result<u64> {
        self.log.owner.check("wait")?;
        let mut state = self.log.lock();
        state = self.log.wait_durable(state, self.batch)?;
        state.counts.acknowledged.record(self.since.elapsed());
        drop(state);
        self.log.tell_of_segments();
        Ok(self.number)
    }

    /// Returns whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        if !self.log.owner.is_here() {
            // `wait` returns `Forked` at once.
            return true;
        }
        let state = self.log.lock();
        state.failure.is_some() || state.durable.number > self.number
    }
}

impl Log {
    /// Opens a log for appending, and creates it if there is none. If a crash left the log, its end
    /// is found: a torn tail is cut off, and damage anywhere else is an error.
    ///
    /// # Errors
    /// `Busy` if another writer has the log. `Corrupt`, with the offset, if bytes that were durable
    /// are damaged (only the segment in use is checked; older ones are checked when they are read),
    /// if a segment is shorter than it was made, or if anything is missing of a log that was
    /// closed. `NoSpace`. Errors of the place.
    pub fn open(machine: &Machine, storage: impl SegmentStorage + 'static, options: LogOptions) -> Result<Log> {
        Log::open_shared(machine, Arc::new(storage), options)
    }

    /// Opens a log on storage that others hold too.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub fn open_shared(machine: &Machine, storage: Arc<dyn SegmentStorage>, options: LogOptions) -> Result<Log> {
        let options = options.check()?;
        let sole = storage.lock()?;
        let Chain { segments, closing } = chain::open(machine, &*storage, true)?;
        for segment in &segments {
            segment.check_length(segment.medium.len_bytes()?)?;
        }
        let batch_bytes = options.batch_bytes as usize;
        let memory = Dram::allocate(2 * (batch_bytes + SLACK))?;
        let last = segments.last().cloned();
        let mut writer = Writer::new(machine, storage.clone(), memory.clone(), segments, options);
        let (log_id, tail, is_new) = match last {
            None => {
                let log_id = random_id()?;
                let tail = LogPosition { position: 0, number: 1, epoch: 1 };
                writer.begin(log_id, tail)?;
                (log_id, tail, true)
            }
            Some(segment) => {
                let Header { log_id, base, first, epoch, .. } = segment.header;
                let mut walk = ChainScan::to_end(machine, Chain { segments: vec![segment], closing });
                while walk.next()?.is_some() {}
                let found = walk.tail().unwrap_or(LogPosition { position: base, number: first, epoch });
                let tail = LogPosition { epoch: found.epoch + 1, ..found };
                writer.resume(tail)?;
                // The note goes before anything is written behind the end that it states.
                if closing.is_some() {
                    storage.set_note(None)?;
                }
                (log_id, tail, false)
            }
        };
        let fill = memory.range(0, batch_bytes + SLACK)?.lease_mut()?;
        let state = State {
            fill: Some(fill),
            half: 0,
            used: 0,
            records: 0,
            batch: 0,
            start: tail,
            next: tail,
            writing: false,
            durable: tail,
            failure: None,
            counts: Counts::default(),
        };
        let log = Log {
            state: Mutex::new(state),
            ended: [Condvar::new(), Condvar::new()],
            room: Condvar::new(),
            writer: Mutex::new(writer),
            memory,
            machine: machine.clone(),
            codec: Codec::new(&log_id),
            batch_bytes,
            closed: AtomicBool::new(false),
            untold_segments: AtomicU64::new(0),
            owner: OwningProcess::here(),
            _sole: sole,
        };
        if !is_new {
            // The mark is alone in its batch and durable before anything else: from here on no
            // frame of an older epoch counts.
            log.mark()?;
        }
        Ok(log)
    }

    /// Appends a record. It is durable when the ticket's `wait` returns. If the batch that fills is
    /// full, this waits for the one before it, or writes it.
    ///
    /// # Errors
    /// `InvalidInput` for a record longer than [`record_limit`](Self::record_limit); errors of an
    /// earlier write or sync.
    pub fn append(&self, record: &[u8]) -> Result<Ticket<'_>> {
        let ticket = self.append_frame(FrameKind::Record, record, true);
        self.tell_of_segments();
        ticket
    }

    /// Tells of new segments, while this thread has no lock and its batch is written.
    #[inline]
    fn tell_of_segments(&self) {
        if follows(TraceLevel::Debug) {
            let segments = self.untold_segments.swap(0, Relaxed);
            if segments > 0 {
                datapipes_metrics::event!(Debug, "log_rotation", [segments = segments]);
            }
        }
    }

    /// Appends a record, or returns `Busy` if that would wait for the device.
    ///
    /// # Errors
    /// The same as for [`append`](Self::append), and `Busy`.
    pub fn try_append(&self, record: &[u8]) -> Result<Ticket<'_>> {
        self.append_frame(FrameKind::Record, record, false)
    }

    /// Appends a record and returns its number when it is durable.
    ///
    /// # Errors
    /// Those of [`append`](Self::append) and [`Ticket::wait`].
    pub fn append_durable(&self, record: &[u8]) -> Result<u64> {
        self.append(record)?.wait()
    }

    /// Waits until everything appended before is durable.
    ///
    /// # Errors
    /// The same as for [`Ticket::wait`].
    pub fn sync(&self) -> Result<()> {
        self.owner.check("sync")?;
        let state = self.lock();
        let batch = if state.used > 0 { state.batch } else { state.batch.wrapping_sub(1) };
        if state.used == 0 && !state.writing {
            return state.failure.as_ref().map_or(Ok(()), |f| Err(f.error()));
        }
        self.wait_durable(state, batch).map(drop)
    }

    /// Returns the longest possible record, in bytes.
    pub fn record_limit(&self) -> usize {
        self.batch_bytes - HEADER
    }

    /// Returns the records from number `from` on that are durable now (0: from the first that
    /// exists).
    ///
    /// # Errors
    /// The same as for [`LogReader::open`].
    pub fn read_from(&self, from: u64) -> Result<LogReader> {
        self.owner.check("read")?;
        let until = self.lock().durable.position;
        let segments = self.writer().segments.clone();
        LogReader::until(&self.machine, segments, from, until)
    }

    /// Frees the space of records before `number`, which the caller no longer needs. Space is freed
    /// by whole segments, so some of these records may stay. Returns how many segments were
    /// removed.
    ///
    /// # Errors
    /// Errors of removing.
    pub fn release_before(&self, number: u64) -> Result<usize> {
        self.owner.check("release")?;
        // Only durable records count: a segment must not go because of a record that may yet be
        // lost.
        let number = number.min(self.lock().durable.number);
        self.writer().release_before(number)
    }

    /// Returns what the log did since it was opened. In a child of the process that opened it, all
    /// is 0.
    pub fn stats(&self) -> LogStats {
        if !self.owner.is_here() {
            return LogStats::default();
        }
        let state = self.lock();
        let c = &state.counts;
        let latencies = LogLatencies {
            acknowledged: c.acknowledged.histogram(),
            write: c.write.histogram(),
            sync: c.sync.histogram(),
            rotation: c.rotation.histogram(),
        };
        LogStats {
            records: c.records,
            payload_bytes: c.payload_bytes,
            written_bytes: c.written_bytes,
            batches: c.batches,
            largest_batch: c.largest_batch,
            waits_for_room: c.waits_for_room,
            segments_begun: c.segments_begun,
            acknowledged: LatencySummary::from(&latencies.acknowledged),
            write: LatencySummary::from(&latencies.write),
            sync: LatencySummary::from(&latencies.sync),
            rotation: LatencySummary::from(&latencies.rotation),
            next: state.next.number,
            durable_before: state.durable.number,
            failed: state.failure.as_ref().map(|f| f.error().to_string()),
            latencies,
        }
    }

    /// Returns the route of batches to the present segment.
    pub fn route(&self) -> Option<Route> {
        if !self.owner.is_here() {
            return None;
        }
        self.writer().route()
    }

    /// Returns what batches moved since the log was opened, by primitive.
    pub fn movements(&self) -> Vec<HopReport> {
        if !self.owner.is_here() {
            return Vec::new();
        }
        self.writer().movements()
    }

    /// Makes everything durable, and leaves a closing mark and a close note. Until the log is
    /// opened again, missing or damaged records are `Corrupt`, the last ones too. Dropping the log
    /// does the same, but cannot report errors.
    ///
    /// # Errors
    /// The same as for [`Ticket::wait`].
    pub fn close(self) -> Result<()> {
        self.finish()
    }

    fn finish(&self) -> Result<()> {
        if self.closed.swap(true, Relaxed) {
            return Ok(());
        }
        self.sync()?;
        self.mark()?;
        // No thread appends any more: this position is the end.
        let tail = self.lock().durable;
        let writer = self.writer();
        let segments = writer.first_surely_there().zip(writer.segments.last());
        let note = segments.map(|(first, last)| CloseNote::of(first, last, tail).encode());
        let noted = guard::call(ForeignCode::Storage, || note.map_or(Ok(()), |note| writer.note(&note)));
        noted.unwrap_or_else(|panicked| Err(panicked.error("close")))
    }

    fn mark(&self) -> Result<()> {
        let ticket = self.append_frame(FrameKind::Mark, &[], true)?;
        self.wait_durable(self.lock(), ticket.batch).map(drop)
    }

    fn append_frame(&self, kind: FrameKind, payload: &[u8], wait: bool) -> Result<Ticket<'_>> {
        self.owner.check("append")?;
        if payload.len() > self.record_limit() {
            let why = format!("a record of {} bytes; this log takes at most {}", payload.len(), self.record_limit());
            return Err(Error::new(ErrorKind::InvalidInput, "append", why).with_advice("open it with larger batches"));
        }
        let since = Instant::now();
        let payload_crc = payload_crc(payload);
        // The length is at most 1 GiB, which `LogOptions::check` ensured.
        let (len, bytes) = (payload.len() as u32, extent(payload.len() as u64) as usize);
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.error());
            }
            if state.used + bytes <= self.batch_bytes {
                break;
            }
            if !wait {
                let why = "the current batch is full, and the one before it is still being written";
                return Err(Error::new(ErrorKind::Busy, "append", why).with_advice("wait for an earlier record"));
            }
            state.counts.waits_for_room += 1;
            state = if state.writing { self.asleep(&self.room, state) } else { self.write_batch(state) };
        }
        let State { fill, used, records, batch, start, next, counts, .. } = &mut *state;
        let Some(fill) = fill else { return Err(no_buffer()) };
        let since_start = (next.position - start.position) as u32;
        let frame = Frame { kind, number: next.number, epoch: next.epoch, since: since_start, len, payload_crc };
        let target = &mut fill[*used..*used + bytes];
        target[..HEADER].copy_from_slice(&self.codec.encode(&frame, next.position));
        target[HEADER..HEADER + payload.len()].copy_from_slice(payload);
        target[HEADER + payload.len()..].fill(0);
        *used += bytes;
        next.position += bytes as u64;
        if kind == FrameKind::Record {
            next.number += 1;
            *records += 1;
            counts.records += 1;
            counts.payload_bytes += payload.len() as u64;
        }
        Ok(Ticket { log: self, number: frame.number, batch: *batch, since })
    }

    /// Waits until a batch is durable, and writes it if no other thread does.
    fn wait_durable<'a>(&'a self, mut state: MutexGuard<'a, State>, batch: u64) -> Result<MutexGuard<'a, State>> {
        loop {
            // Of the batches before the one that fills, only the last can be in flight.
            let durable = batch < state.batch && !(state.writing && batch + 1 == state.batch);
            if durable && (state.failure.is_none() || state.batch > batch + 1) {
                return Ok(state);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.error());
            }
            state = if state.writing {
                self.asleep(&self.ended[(batch % 2) as usize], state)
            } else {
                self.write_batch(state)
            };
        }
    }

    /// Writes the batch that fills, with the lock released meanwhile.
    fn write_batch<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let stride = self.batch_bytes + SLACK;
        let (source, len, at, records) = (state.half * stride, state.used, state.start, state.records);
        let batch = state.batch;
        // The lease ends, so that the pipe can read the bytes. The other half is free, because its
        // batch has ended.
        if let Some(mut fill) = state.fill.take() {
            fill[len..len + SLACK].fill(0);
        }
        state.half = 1 - state.half;
        let other = self.memory.range(state.half * stride, stride).and_then(|r| r.lease_mut());
        let (mut state, outcome) = match other {
            Err(e) => (state, Err(e)),
            Ok(lease) => {
                state.fill = Some(lease);
                (state.used, state.records, state.batch, state.start) = (0, 0, batch + 1, state.next);
                state.writing = true;
                let end = state.next;
                drop(state);
                // Storage is foreign code: if its panic were not caught here, all others would wait
                // for ever.
                let took = guard::call(ForeignCode::Storage, || self.writer().write(source as u64, len as u64, at));
                let took = took.unwrap_or_else(|panicked| Err(panicked.error("append")));
                if follows(TraceLevel::Debug) && took.as_ref().is_ok_and(|took| took.rotation.is_some()) {
                    self.untold_segments.fetch_add(1, Relaxed);
                }
                (self.lock(), took.map(|took| (took, end)))
            }
        };
        state.writing = false;
        match outcome {
            Ok((took, end)) => {
                state.durable = end;
                state.counts.note(took, len, records);
            }
            Err(e) => {
                state.failure = Some(Failure::of(&e));
                self.ended.iter().for_each(Condvar::notify_all);
            }
        }
        self.room.notify_all();
        self.ended[(batch % 2) as usize].notify_all();
        // One waiter of the next batch writes it; the others sleep on.
        self.ended[((batch + 1) % 2) as usize].notify_one();
        state
    }

    fn asleep<'a>(&self, on: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        on.wait(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No foreign code runs under the lock, so a poisoned lock still guards a consistent state.
        self.state.lock()
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }
}

impl Counts {
    fn note(&mut self, took: BatchTiming, len: usize, records: u64) {
        self.batches += 1;
        self.written_bytes += len as u64;
        self.largest_batch = self.largest_batch.max(records);
        self.write.record(took.write);
        self.sync.record(took.sync);
        if let Some(rotation) = took.rotation {
            self.segments_begun += 1;
            self.rotation.record(rotation);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A child writes nothing: the bytes in its copy of the memory are the parent's to write. In
        // a child `finish` fails. Earlier errors went to the waiters; an error now cannot be
        // reported.
        let _ = self.finish();
    }
}

fn no_buffer() -> Error {
    Error::new(ErrorKind::System, "append", "the log has no buffer")
}

/// Makes an id that no other log has.
fn random_id() -> Result<[u8; 16]> {
    let mut id = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut id));
    read.map_err(|e| Error::io("read", e, "/dev/urandom"))?;
    Ok(id)
}
