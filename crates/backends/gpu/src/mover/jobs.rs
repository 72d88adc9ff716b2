//! Jobs: those whose copies are all under way, and those that go through pinned buffers.
//!
//! This module's unsafe code starts copies of memory that jobs lease. A job and its leases are kept
//! until an event behind its last copy is over, or until the driver told an error after which it
//! does no more work of this process. After any other error that is not of one job they are kept
//! for ever.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::time::Instant;

use datapipes_core::Error;
use datapipes_core::backend::{Counters, Job, JobCompletion};
use datapipes_core::memory::RawLease;
use datapipes_core::memory::guarded::AccessFault;

use super::bell::MoverEvents;
use super::lane::{Lane, Mark, OpenJob};
use super::path::{GpuPath, HostSide};
use crate::driver::device::Device;
use crate::driver::stream::{Event, Stream, StreamPriority};
use crate::driver::{Driver, Failure, abi};
use crate::hbm::{HbmHold, address_in};
use crate::registered::{HostReach, note_staged, piece_len};
use crate::staging::{BUFFER_BYTES, StagingBuffers};

/// Up to here a copy goes on the stream for short ones, and the driver may copy it through its own
/// buffers: it does so at once up to this length.
const SHORT_BYTES: u64 = 64 << 10;

/// How often a thread asks before it lets go of the lock: some microseconds.
const ASKS: usize = 8;

/// A job that goes through buffers.
struct StagedJob {
    number: u64,
    open: OpenJob,
    /// Bytes that were given to the device, and bytes that are where they belong.
    given: u64,
    done: u64,
}

/// A buffer that a copy is to or from.
struct StagedPiece {
    number: u64,
    buffer: usize,
    at: u64,
}

/// The jobs of a mover.
pub(super) struct Jobs {
    device: &'static Device,
    short: Lane<OpenJob>,
    long: Lane<OpenJob>,
    staged: Lane<StagedPiece>,
    staged_jobs: VecDeque<StagedJob>,
    next_number: u64,
    buffers: Option<StagingBuffers>,
    events: Vec<Event>,
    finished: Vec<JobCompletion>,
    pub(super) counters: Counters,
    busy_since: Option<Instant>,
}

impl Jobs {
    pub(super) fn new(device: &'static Device, events: &MoverEvents) -> datapipes_core::Result<Jobs> {
        Ok(Jobs {
            device,
            short: Lane::new(device, StreamPriority::High, events.bell())?,
            long: Lane::new(device, StreamPriority::Usual, events.bell())?,
            staged: Lane::new(device, StreamPriority::Usual, events.bell())?,
            staged_jobs: VecDeque::new(),
            next_number: 0,
            buffers: None,
            events: Vec::new(),
            finished: Vec::new(),
            counters: Counters::default(),
            busy_since: None,
        })
    }

    pub(super) fn are_done(&self) -> bool {
        self.short.is_empty() && self.long.is_empty() && self.staged_jobs.is_empty()
    }

    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(super) fn take_finished(&mut self, done: &mut Vec<JobCompletion>) {
        done.append(&mut self.finished);
    }

    /// When the next copy is expected to be over.
    pub(super) fn next_expected(&self) -> Option<Instant> {
        let each = [self.short.next_expected(), self.long.next_expected(), self.staged.next_expected()];
        each.into_iter().flatten().min()
    }

    /// Asks some times whether a copy is over, until one is.
    pub(super) fn ask(&mut self, driver: &Driver) {
        for _ in 0..ASKS {
            let all = [self.short.ask(driver), self.long.ask(driver), self.staged.ask(driver)];
            // An error is met again by `advance`.
            if all.iter().any(|one| !matches!(one, Ok(false))) {
                return;
            }
        }
    }

    /// Has the driver ring for the oldest copies. Where it refuses, the caller's sleep is limited.
    pub(super) fn arm(&self, driver: &Driver) {
        let _ = self.short.arm(driver).and(self.long.arm(driver)).and(self.staged.arm(driver));
    }

    /// Takes a job, whose leases were checked, and starts what can be started. A job that the
    /// driver refuses ends with its error.
    ///
    /// # Errors
    /// The device is lost. The job is among those that [`fail_all`](Self::fail_all) ends.
    pub(super) fn take(&mut self, driver: &Driver, path: &GpuPath, mut open: OpenJob) -> Result<(), Failure> {
        self.busy_since.get_or_insert_with(Instant::now);
        let len = open.job.span.len;
        if len == 0 {
            self.finish(open);
            return Ok(());
        }
        let is_short = len <= SHORT_BYTES;
        let (side, lease) = match path {
            GpuPath::Upload(side, _) => (Some(side), open.job.source.as_ref()),
            GpuPath::Download(_, side) => (Some(side), open.job.target.as_ref()),
            GpuPath::Copy(..) | GpuPath::Peer(..) => (None, None),
        };
        // The driver's own copy of plain memory blocks until it is done, so nothing may come first.
        let may_be_plain = is_short && !open.holds.iter().flatten().any(|hold| hold.is_awaited(driver));
        let reach = match (side, lease) {
            (Some(side), Some(lease)) => {
                let reach = side.reach(driver, lease, may_be_plain);
                count_fixed(&mut self.counters, matches!(reach, HostReach::Pinned(_)));
                Some(reach)
            }
            _ => None,
        };
        let is_reached = !matches!(reach, Some(HostReach::Staged));
        if let Some(HostReach::Pinned(copy) | HostReach::Plain(copy)) = reach {
            open.host = Some(copy);
        }
        if is_reached {
            return self.start(driver, path, open, is_short);
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.staged_jobs.push_back(StagedJob { number, open, given: 0, done: 0 });
        self.feed(driver, path)
    }

    /// Starts all copies of a job, with an event behind them.
    fn start(&mut self, driver: &Driver, path: &GpuPath, mut open: OpenJob, is_short: bool) -> Result<(), Failure> {
        let len = open.job.span.len;
        let event = match self.event(driver) {
            Ok(event) => event,
            Err(failure) => return self.refuse(driver, open, failure),
        };
        let lane = if is_short { &mut self.short } else { &mut self.long };
        let mut begun = false;
        let outcome = order(driver, &lane.stream, &open).and_then(|()| {
            let mut at = 0;
            while at < len {
                let piece = piece_of(path, &open.job, at);
                // SAFETY: the job's leases give the right to these bytes, which were found to lie
                // within both places. The job is kept until the event behind the copies is over,
                // below, or until the device is lost.
                unsafe { start_piece(driver, &lane.stream, path, &open, (at, piece)) }?;
                begun = true;
                self.counters.requests += 1;
                at += piece;
            }
            Ok(())
        });
        if let Err(failure) = outcome {
            if !begun {
                self.events.push(event);
                return self.refuse(driver, open, failure);
            }
            // What was begun is waited for.
            open.error = Some(refused(driver, self.device, failure, (&open.job, 0)));
        }
        if let Err((open, failure)) = lane.mark(driver, event, len, open) {
            // Nothing tells when the copies end but the stream's own end.
            let ended = lane.stream.synchronize(driver);
            return match ended {
                Ok(()) => self.refuse(driver, open, failure),
                Err(lost) => {
                    self.keep_lost(open);
                    Err(lost)
                }
            };
        }
        let outstanding = (self.short.len() + self.long.len() + self.staged.len()) as u64;
        self.counters.max_outstanding = self.counters.max_outstanding.max(outstanding);
        Ok(())
    }

    /// Ends a job of which nothing is under way.
    fn refuse(&mut self, driver: &Driver, mut open: OpenJob, failure: Failure) -> Result<(), Failure> {
        if is_lasting(failure) {
            self.keep_lost(open);
            return Err(failure);
        }
        open.error = Some(refused(driver, self.device, failure, (&open.job, 0)));
        self.finish(open);
        Ok(())
    }

    /// Keeps a job for [`fail_all`](Self::fail_all).
    fn keep_lost(&mut self, open: OpenJob) {
        self.staged_jobs.push_back(StagedJob { number: u64::MAX, open, given: 0, done: 0 });
    }

    /// Takes what is done, and gives the device more. `is_prompt` as for [`Lane::next_done`].
    ///
    /// # Errors
    /// The device is lost.
    pub(super) fn advance(&mut self, driver: &Driver, path: &GpuPath, is_prompt: bool) -> Result<(), Failure> {
        for is_short in [true, false] {
            loop {
                let lane = if is_short { &mut self.short } else { &mut self.long };
                let Some(Mark { event, what, .. }) = lane.next_done(driver, is_prompt)? else { break };
                self.events.push(event);
                self.finish(what);
            }
        }
        while let Some(Mark { event, bytes, what }) = self.staged.next_done(driver, is_prompt)? {
            self.events.push(event);
            self.piece_done(path, &what, bytes);
        }
        self.feed(driver, path)
    }

    /// A piece went through its buffer.
    fn piece_done(&mut self, path: &GpuPath, piece: &StagedPiece, len: u64) {
        let Some(index) = self.staged_jobs.iter().position(|job| job.number == piece.number) else { return };
        let (Some(job), Some(buffers)) = (self.staged_jobs.get_mut(index), &mut self.buffers) else { return };
        if let (GpuPath::Download(..), Some(lease), None) = (path, &job.open.job.target, &job.open.error) {
            // SAFETY: the lease is for writing, the piece lies within it, and the copy into the
            // buffer is over.
            let copied = unsafe { buffers.empty(piece.buffer, address_of(lease, piece.at), len as usize) };
            if let Err(fault) = copied {
                job.open.error = Some(fault_error(fault, lease, job.done));
            }
        }
        buffers.give_back(piece.buffer);
        if job.open.error.is_none() {
            job.done += len;
        }
        self.end_if_done(index);
    }

    /// Ends a staged job of which nothing is left to do.
    fn end_if_done(&mut self, index: usize) {
        let Some(job) = self.staged_jobs.get(index) else { return };
        let under_way = self.staged_has(job.number);
        let is_given = job.given >= job.open.job.span.len || job.open.error.is_some();
        if is_given
            && !under_way
            && let Some(job) = self.staged_jobs.remove(index)
        {
            self.finish(job.open);
        }
    }

    fn staged_has(&self, number: u64) -> bool {
        self.staged.has(|piece| piece.number == number)
    }

    /// Gives the device pieces of staged jobs while buffers are free.
    ///
    /// # Errors
    /// The device is lost.
    fn feed(&mut self, driver: &Driver, path: &GpuPath) -> Result<(), Failure> {
        loop {
            let wants = |job: &StagedJob| job.given < job.open.job.span.len && job.open.error.is_none();
            let Some(index) = self.staged_jobs.iter().position(wants) else { return Ok(()) };
            if self.buffers.is_none() {
                match StagingBuffers::new(driver, self.device) {
                    Ok(buffers) => self.buffers = Some(buffers),
                    Err(failure) => {
                        self.fail_staged(driver, index, failure)?;
                        continue;
                    }
                }
            }
            if !self.buffers.as_ref().is_some_and(StagingBuffers::has_free) {
                return Ok(());
            }
            let event = match self.event(driver) {
                Ok(event) => event,
                Err(failure) => {
                    self.fail_staged(driver, index, failure)?;
                    continue;
                }
            };
            self.feed_one(driver, path, index, event)?;
        }
    }

    /// Gives the device the next piece of a staged job; a buffer is free.
    fn feed_one(&mut self, driver: &Driver, path: &GpuPath, index: usize, event: Event) -> Result<(), Failure> {
        let (Some(job), Some(buffers)) = (self.staged_jobs.get_mut(index), &mut self.buffers) else { return Ok(()) };
        let Some(buffer) = buffers.take() else { return Ok(()) };
        let (at, len) = (job.given, (job.open.job.span.len - job.given).min(BUFFER_BYTES as u64));
        if let (GpuPath::Upload(..), Some(lease)) = (path, &job.open.job.source) {
            let begun = Instant::now();
            // SAFETY: the lease is for reading, the piece lies within it, and the buffer is free.
            let copied = unsafe { buffers.fill(buffer, address_of(lease, at).cast_const(), len as usize) };
            note_staged(len as usize, begun.elapsed());
            if let Err(fault) = copied {
                job.open.error = Some(fault_error(fault, lease, job.given));
                buffers.give_back(buffer);
                self.events.push(event);
                self.end_if_done(index);
                return Ok(());
            }
        }
        let stream = &self.staged.stream;
        let begun = match at {
            0 => order(driver, stream, &job.open),
            _ => Ok(()),
        };
        let begun = begun.and_then(|()| match &job.open.holds {
            // SAFETY: the buffer and the leased bytes are kept until the event behind the copy is
            // over, or until the device is lost.
            [None, Some(to)] => unsafe {
                stream.upload(driver, address_in(to, at), buffers.address(buffer), len as usize)
            },
            // SAFETY: as above.
            [Some(from), _] => unsafe {
                stream.download(driver, buffers.address(buffer), address_in(from, at), len as usize)
            },
            [None, None] => Ok(()),
        });
        let piece = StagedPiece { number: job.number, buffer, at };
        job.given += len;
        let marked = begun.and_then(|()| self.staged.mark(driver, event, len, piece).map_err(|(_, failure)| failure));
        if let Err(failure) = marked {
            // Nothing tells when the copy ends but the stream's own end.
            self.staged.stream.synchronize(driver)?;
            if let Some(buffers) = &mut self.buffers {
                buffers.give_back(buffer);
            }
            return self.fail_staged(driver, index, failure);
        }
        self.counters.requests += 1;
        self.counters.bounces += 1;
        self.counters.bounced_bytes += len;
        self.counters.max_outstanding = self.counters.max_outstanding.max(self.staged.len() as u64);
        Ok(())
    }

    /// A staged job gets no further.
    fn fail_staged(&mut self, driver: &Driver, index: usize, failure: Failure) -> Result<(), Failure> {
        if is_lasting(failure) {
            return Err(failure);
        }
        let Some(job) = self.staged_jobs.get(index) else { return Ok(()) };
        let error = refused(driver, self.device, failure, (&job.open.job, job.done));
        if let Some(job) = self.staged_jobs.get_mut(index) {
            job.open.error = Some(error);
        }
        self.end_if_done(index);
        Ok(())
    }

    /// Ends a job of which nothing is under way: its leases end before anybody hears of it.
    fn finish(&mut self, open: OpenJob) {
        let OpenJob { job, holds, host, error } = open;
        let (token, len) = (job.token, job.span.len);
        drop((host, job, holds));
        self.tell(token, len, error);
    }

    /// Ends a job without giving back what it leases: the device may still use it.
    fn abandon(&mut self, open: OpenJob) {
        let OpenJob { job, holds, host, error } = open;
        let (token, len) = (job.token, job.span.len);
        std::mem::forget((host, job, holds));
        self.tell(token, len, error);
    }

    fn tell(&mut self, token: u64, len: u64, error: Option<Error>) {
        match &error {
            None => {
                self.counters.transfers += 1;
                self.counters.bytes += len;
            }
            Some(_) => self.counters.failed += 1,
        }
        self.finished.push(JobCompletion { token, result: error.map_or(Ok(()), Err) });
        if self.are_done()
            && let Some(since) = self.busy_since.take()
        {
            self.counters.busy_ns += since.elapsed().as_nanos() as u64;
        }
    }

    /// Ends all jobs with an error. `is_over` where the driver is known to touch nothing any more;
    /// otherwise what they lease is never given back, nor are the buffers.
    pub(super) fn fail_all(&mut self, error: &Error, is_over: bool) {
        self.counters.devices_lost += 1;
        let open = self.short.take_all().into_iter().chain(self.long.take_all()).map(|mark| (mark.what, 0));
        let mut lost: Vec<_> = open.collect();
        drop(self.staged.take_all());
        if !is_over {
            std::mem::forget(self.buffers.take());
        }
        lost.extend(std::mem::take(&mut self.staged_jobs).into_iter().map(|job| (job.open, job.done)));
        for (mut open, done) in lost {
            open.error = Some(Error::relayed(error.kind(), error.to_string()).with_bytes_done(done));
            match is_over {
                true => self.finish(open),
                false => self.abandon(open),
            }
        }
    }

    /// An event, used before if possible.
    fn event(&mut self, driver: &Driver) -> Result<Event, Failure> {
        match self.events.pop() {
            Some(event) => Ok(event),
            None => Event::new(driver, self.device),
        }
    }

    /// What must not be dropped in a child.
    pub(super) fn take_apart(&mut self) -> impl Sized + use<> {
        (
            self.short.take_all(),
            self.long.take_all(),
            self.staged.take_all(),
            std::mem::take(&mut self.staged_jobs),
            std::mem::take(&mut self.events),
            self.buffers.take(),
        )
    }
}

/// The error of a job that the driver refused.
fn refused(driver: &Driver, device: &Device, failure: Failure, (job, done): (&Job, u64)) -> Error {
    let what = format!("{:?} by {}", job.span, device.shown());
    driver.error("transfer", failure, &what).with_offset(job.span.source.saturating_add(done)).with_bytes_done(done)
}

/// Whether the driver has ended all work of the context with such an error, and refuses more.
pub(super) fn is_lasting(failure: Failure) -> bool {
    const DEINITIALIZED: abi::Status = 4;
    const DEVICE_UNAVAILABLE: abi::Status = 46;
    const CONTEXT_IS_DESTROYED: abi::Status = 709;
    match failure.status {
        DEINITIALIZED | DEVICE_UNAVAILABLE | CONTEXT_IS_DESTROYED => true,
        // Uncorrectable errors of memory and links; addresses, instructions and time-outs of
        // kernels.
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 => true,
        _ => false,
    }
}

fn count_fixed(counters: &mut Counters, is_ready: bool) {
    match is_ready {
        true => counters.fixed_buffer_hits += 1,
        false => counters.fixed_buffer_misses += 1,
    }
}

/// The work of a job comes after what streams of the program were to do with its bytes.
fn order(driver: &Driver, stream: &Stream, open: &OpenJob) -> Result<(), Failure> {
    open.holds.iter().flatten().try_for_each(|hold: &HbmHold| hold.order(driver, stream))
}

/// The length of the piece of a job at an offset.
fn piece_of(path: &GpuPath, job: &Job, at: u64) -> u64 {
    let left = job.span.len - at;
    let lease = match path {
        GpuPath::Upload(HostSide { .. }, _) => job.source.as_ref(),
        GpuPath::Download(..) => job.target.as_ref(),
        GpuPath::Copy(..) | GpuPath::Peer(..) => None,
    };
    let Some(lease) = lease else { return left };
    let (region, begin) = lease.place();
    // A lease is no longer than the address space.
    piece_len(region, begin.saturating_add(at as usize), left as usize) as u64
}

/// Starts the copy of a piece.
///
/// # Safety
/// The piece lies within the job's span; the job's leases fit the span, and are kept until an event
/// that is recorded afterwards is over or the device is lost. The context is current.
unsafe fn start_piece(
    driver: &Driver,
    stream: &Stream,
    path: &GpuPath,
    open: &OpenJob,
    (at, len): (u64, u64),
) -> Result<(), Failure> {
    let bytes = len as usize;
    let OpenJob { job, holds, .. } = open;
    match (path, holds, &job.source, &job.target) {
        // SAFETY: as the caller promises.
        (GpuPath::Upload(..), [_, Some(to)], Some(lease), _) => unsafe {
            stream.upload(driver, address_in(to, at), address_of(lease, at).cast_const(), bytes)
        },
        // SAFETY: as above.
        (GpuPath::Download(..), [Some(from), _], _, Some(lease)) => unsafe {
            stream.download(driver, address_of(lease, at), address_in(from, at), bytes)
        },
        // SAFETY: as above.
        (GpuPath::Copy(..), [Some(from), Some(to)], ..) => unsafe {
            stream.copy(driver, address_in(to, at), address_in(from, at), bytes)
        },
        (GpuPath::Peer(..), [Some(from), Some(to)], ..) => {
            let to_context = to.on().known_context()?;
            let from_context = from.on().known_context()?;
            let (to, from) = ((address_in(to, at), to_context), (address_in(from, at), from_context));
            // SAFETY: as above.
            unsafe { stream.copy_peer(driver, to, from, bytes) }
        }
        _ => Err(Failure { call: "a copy without its leases", status: abi::INVALID_VALUE }),
    }
}

/// The address of a byte in a lease. It lies within, as the caller checked.
fn address_of(lease: &RawLease, at: u64) -> *mut u8 {
    lease.address().wrapping_add(at as usize)
}

/// A page of memory of this process is gone.
fn fault_error(fault: AccessFault, lease: &RawLease, done: u64) -> Error {
    let (region, _) = lease.place();
    fault.error("transfer", region).with_bytes_done(done)
}
