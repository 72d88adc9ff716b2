//! The mover: jobs are cut into pieces, pieces go to the work queue, answers come back.
//!
//! ```text
//! job -> pieces of at most `request_bytes`
//! piece:  in flight  -- done -->          the job has it
//!                    -- page fault -->    the rest, from where the engine stopped:
//!                                           a core may help: it copies the rest
//!                                           offload demanded: its pages are touched, it goes again
//!                    -- other error -->   a core copies it, or the job fails
//! queue lost:        in flight and quiet  a core copies it, or the job fails
//!                    not known to be quiet: the job fails, and its leases are never given back
//! ```
//!
//! Where a job is shared with a core, the engine takes pieces from its beginning, up to its share.
//! A thread that waits would poll anyway; it copies pieces from the end instead, until both meet.
//! An engine that has nothing to do goes on beyond its share, unless a core is copying. So a job
//! also ends where nobody waits, or where the shares were planned wrongly.
//!
//! The engine is polled, so there is no descriptor to wait for ([`QueuedMover::event`]).
//!
//! This module's unsafe code submits operations on memory that jobs lease, and copies between such
//! memory. A job and its leases stay in `State` until each of its pieces is answered or the queue
//! is quiet; otherwise they are leaked.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::backend::{Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::memory::guarded::{self, AccessFault};
use datapipes_core::memory::{Access, RawLease};
use datapipes_core::process::page_size;
use datapipes_core::{Error, ErrorKind, Result};

use crate::completion::{CompletionCode, CompletionRecord, CompletionSlot};
use crate::descriptor::{DescriptorFlags, EngineOperation};
use crate::split::SplitRates;
use crate::work_queue::{LostQueue, NotTaken, Work, WorkQueue};

/// The pieces into which jobs are cut by default: several engines of a group share a job.
const PIECE_BYTES: u64 = 1 << 20;

/// The pieces of a core that shares a job with the engine. Between them it looks after the engine.
const CORE_PIECE_BYTES: u64 = 256 << 10;

/// How often a piece may meet a page fault without getting further.
const MAX_FAULTS_IN_PLACE: u32 = 3;

/// How often in a row a full queue may refuse a piece while nothing of this mover is in it.
const MAX_REFUSALS: u32 = 2000;

/// How a mover uses its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveOptions {
    /// Whether written bytes go to the cache.
    pub(crate) to_cache: bool,
    /// Whether a core may copy what the engine does not.
    pub(crate) core_may_help: bool,
    /// The most descriptors in flight, if the caller wants fewer than the queue has entries.
    pub(crate) depth: Option<u32>,
    /// The most bytes of a descriptor, if the caller wants fewer.
    pub(crate) request_bytes: Option<u32>,
    /// The rates by which a core shares jobs, if it does.
    pub(crate) split: Option<SplitRates>,
}

/// A mover over a work queue.
pub(crate) struct EngineMover {
    queue: Arc<WorkQueue>,
    flags: DescriptorFlags,
    core_may_help: bool,
    depth: usize,
    piece_bytes: u64,
    split: Option<SplitRates>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_job: u64,
    jobs: HashMap<u64, ActiveJob>,
    /// Jobs with bytes that were not given out in pieces.
    unsent: VecDeque<u64>,
    /// Pieces that go before new ones.
    again: VecDeque<Piece>,
    in_flight: Vec<(Arc<CompletionSlot>, Piece)>,
    finished: Vec<JobCompletion>,
    counters: Counters,
    refusals: u32,
    noticed_loss: bool,
    busy_since: Option<Instant>,
    /// Looks at the queue since something happened, and when that began.
    idle_rounds: u32,
    idle_since: Option<Instant>,
}

struct ActiveJob {
    job: Job,
    /// Bytes before this were given out in pieces.
    sent: u64,
    /// Bytes from here on were given out too, to a core, or follow a failure.
    end: u64,
    /// Bytes before this are the engine's share, where a core shares the job.
    engine_share: Option<u64>,
    /// Threads that copy pieces of their share.
    cores: u32,
    /// Pieces that are not done.
    open: u32,
    /// The failure nearest to the beginning, and where it is.
    failure: Option<(u64, Error)>,
    /// Whether the engine may still access its memory.
    is_stranded: bool,
}

/// A part of a job.
#[derive(Clone, Copy, Debug)]
struct Piece {
    job: u64,
    at: u64,
    len: u64,
    /// Page faults since it got further.
    faults: u32,
}

impl EngineMover {
    pub(crate) fn new(queue: Arc<WorkQueue>, options: MoveOptions) -> EngineMover {
        let facts = queue.facts();
        let depth = options.depth.map_or(facts.size, |depth| depth.min(facts.size)).max(1);
        let most = facts.max_transfer_bytes.min(u64::from(u32::MAX)).max(1);
        let piece_bytes = options.request_bytes.map_or(PIECE_BYTES, u64::from).clamp(1, most);
        EngineMover {
            flags: DescriptorFlags::default().with(DescriptorFlags::CACHE_CONTROL, options.to_cache),
            core_may_help: options.core_may_help,
            depth: depth as usize,
            piece_bytes,
            split: options.split.filter(|_| options.core_may_help),
            queue,
            state: Mutex::default(),
        }
    }

    /// Takes answers and gives out pieces.
    fn advance(&self, state: &mut State) {
        self.queue.take_note();
        let (mut before, mut any) = (state.open_work(), false);
        loop {
            self.take_answers(state);
            if let Some(lost) = self.queue.lost() {
                self.abandon_in_flight(state, &lost);
            }
            self.give_out(state);
            let now = state.open_work();
            if now == before {
                break;
            }
            (before, any) = (now, true);
        }
        if any {
            (state.idle_rounds, state.idle_since) = (0, None);
        }
    }

    fn take_answers(&self, state: &mut State) {
        let mut at = 0;
        while let Some((slot, _)) = state.in_flight.get(at) {
            match slot.read() {
                None => at += 1,
                Some(record) => {
                    let (_, piece) = state.in_flight.swap_remove(at);
                    self.settle(state, piece, &record);
                }
            }
        }
    }

    /// What follows from an answer.
    fn settle(&self, state: &mut State, piece: Piece, record: &CompletionRecord) {
        match record.status {
            CompletionCode::SUCCESS => state.piece_done(piece),
            status if status.is_page_fault() => {
                let done = u64::from(record.bytes_completed).min(piece.len);
                let rest = Piece {
                    // A copy that ran from the end to the beginning left the beginning.
                    at: if record.result == 0 { piece.at + done } else { piece.at },
                    len: piece.len - done,
                    faults: if done > 0 { 0 } else { piece.faults + 1 },
                    ..piece
                };
                state.counters.short_finished += 1;
                if rest.len == 0 {
                    state.piece_done(rest);
                } else if self.core_may_help {
                    self.copy_by_core(state, rest);
                } else if rest.faults > MAX_FAULTS_IN_PLACE {
                    let why = format!("{}: {:?} again and again", self.queue.facts().name, record.status);
                    state.piece_failed(rest, Error::new(ErrorKind::Device, "transfer", why));
                } else {
                    self.touch_and_repeat(state, rest);
                }
            }
            _ if self.core_may_help => self.copy_by_core(state, piece),
            status => {
                let why = format!("the engine of {} answered: {status:?}", self.queue.facts().name);
                state.piece_failed(piece, Error::new(ErrorKind::Device, "transfer", why));
            }
        }
    }

    /// Brings the pages of a piece, without moving its bytes, and lets the engine go on.
    fn touch_and_repeat(&self, state: &mut State, piece: Piece) {
        let Some((source, target)) = state.leases(piece.job) else { return };
        match touch(source, target, piece) {
            Ok(()) => {
                state.counters.retries += 1;
                state.again.push_back(piece);
            }
            Err(e) => state.piece_failed(piece, e),
        }
    }

    /// Copies a piece that no engine has.
    fn copy_by_core(&self, state: &mut State, piece: Piece) {
        let Some((source, target)) = state.leases(piece.job) else { return };
        let (from, to) = addresses(source, target, piece);
        // SAFETY: the job leases its source for reading and its target for writing, and `submit`
        // checked that both have the job's length, of which the piece is a part. Leases for reading
        // and writing do not overlap. No engine has the piece.
        let copied = unsafe { guarded::copy(from.cast_const(), to, piece.len as usize) };
        if copied.is_ok() {
            state.counters.core_finished_bytes += piece.len;
        }
        state.copied(piece, copied);
    }

    /// Copies a piece of a core's share. Others use the mover meanwhile.
    fn copy_share(&self, state: MutexGuard<'_, State>, piece: Piece) {
        let Some((source, target)) = state.leases(piece.job) else { return };
        let (from, to) = addresses(source, target, piece);
        drop(state);
        // SAFETY: as in `copy_by_core`. The job and its leases stay in `State` until its open
        // pieces are done, and this is one of them.
        let copied = unsafe { guarded::copy(from.cast_const(), to, piece.len as usize) };
        let mut state = self.state.lock();
        if let Some(job) = state.jobs.get_mut(&piece.job) {
            job.cores -= 1;
        }
        if copied.is_ok() {
            state.counters.core_share_bytes += piece.len;
        }
        state.copied(piece, copied);
        (state.idle_rounds, state.idle_since) = (0, None);
    }

    /// The queue is lost: what it has is answered by nobody.
    fn abandon_in_flight(&self, state: &mut State, lost: &LostQueue) {
        if !state.noticed_loss {
            state.noticed_loss = true;
            state.counters.devices_lost += 1;
        }
        // Some were answered before the queue became quiet.
        self.take_answers(state);
        for (_, piece) in std::mem::take(&mut state.in_flight) {
            if lost.is_quiet {
                self.do_without_engine(state, piece, lost);
                continue;
            }
            if let Some(job) = state.jobs.get_mut(&piece.job) {
                job.is_stranded = true;
            }
            let e = self.lost_error(lost).with_advice("its memory stays leased: the engine may still write to it");
            state.piece_failed(piece, e);
        }
    }

    fn do_without_engine(&self, state: &mut State, piece: Piece, lost: &LostQueue) {
        if self.core_may_help {
            self.copy_by_core(state, piece);
        } else {
            state.piece_failed(piece, self.lost_error(lost));
        }
    }

    fn lost_error(&self, lost: &LostQueue) -> Error {
        let why = format!("{} was lost: {}", self.queue.facts().name, lost.why);
        Error::new(ErrorKind::Device, "transfer", why)
    }

    /// Submits pieces while there is room, several as a batch where the queue takes that.
    fn give_out(&self, state: &mut State) {
        while state.in_flight.len() < self.depth {
            let room = self.depth - state.in_flight.len();
            let pieces = self.next_pieces(state, room.min(self.queue.max_batch()));
            if pieces.is_empty() {
                return;
            }
            let work: Vec<Work> = pieces.iter().filter_map(|piece| self.work(state, *piece)).collect();
            // SAFETY: each operation is on memory that a job leases, and jobs stay in `state` until
            // their pieces are answered or the queue is quiet, or for ever.
            match unsafe { self.queue.submit(&work) } {
                Ok(slots) => {
                    state.refusals = 0;
                    state.counters.requests += 1;
                    state.in_flight.extend(slots.into_iter().zip(pieces));
                    let outstanding = state.in_flight.len() as u64;
                    state.counters.max_outstanding = state.counters.max_outstanding.max(outstanding);
                }
                Err(NotTaken::Full) => return self.refused(state, pieces),
                Err(NotTaken::Lost) => {
                    let gone = LostQueue { why: "it takes no descriptors".into(), is_quiet: false };
                    let lost = self.queue.lost().unwrap_or(gone);
                    self.abandon_in_flight(state, &lost);
                    pieces.into_iter().for_each(|piece| self.do_without_engine(state, piece, &lost));
                }
            }
        }
    }

    /// The queue is full. Where that does not end and nothing of ours is in it, others keep it
    /// full.
    fn refused(&self, state: &mut State, pieces: Vec<Piece>) {
        state.refusals = if state.in_flight.is_empty() { state.refusals + 1 } else { 0 };
        if state.refusals <= MAX_REFUSALS {
            pieces.into_iter().rev().for_each(|piece| state.again.push_front(piece));
            return;
        }
        state.refusals = 0;
        for piece in pieces {
            if self.core_may_help {
                self.copy_by_core(state, piece);
                continue;
            }
            let why = format!("{} stays full", self.queue.facts().name);
            let e =
                Error::new(ErrorKind::Busy, "transfer", why).with_advice("try again when other processes use it less");
            state.piece_failed(piece, e);
        }
    }

    /// Takes up to `most` pieces: first those that go again, then new ones.
    fn next_pieces(&self, state: &mut State, most: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while pieces.len() < most {
            if let Some(piece) = state.again.pop_front() {
                pieces.push(piece);
                continue;
            }
            let is_idle = state.in_flight.is_empty() && pieces.is_empty();
            match state.next_piece(self.piece_bytes, is_idle) {
                Some(piece) => pieces.push(piece),
                None => break,
            }
        }
        pieces
    }

    fn work(&self, state: &State, piece: Piece) -> Option<Work> {
        let (source, target) = state.leases(piece.job)?;
        let (from, to) = addresses(source, target, piece);
        // A piece is at most `u32::MAX` bytes long.
        let len = piece.len as u32;
        Some((
            EngineOperation::Memmove {
                source: from.expose_provenance() as u64,
                target: to.expose_provenance() as u64,
                len,
            },
            self.flags,
        ))
    }
}

/// Copies all bytes of a lease to those of another, as a mover's core does.
///
/// # Errors
/// `InvalidInput` where their lengths differ or the target may not be written; the error of a page
/// that is missing.
pub(crate) fn copy(source: &RawLease, target: &RawLease) -> Result<()> {
    if source.len() != target.len() || target.access() != Access::Write {
        return Err(Error::new(ErrorKind::InvalidInput, "copy", "leases that do not fit each other"));
    }
    // SAFETY: both have the length, and one for writing overlaps no other.
    let copied = unsafe { guarded::copy(source.address().cast_const(), target.address(), source.len()) };
    copied.map_err(|gone| gone.error("copy", target.place().0))
}

/// The addresses of a piece of a job with these leases.
fn addresses(source: &RawLease, target: &RawLease, piece: Piece) -> (*mut u8, *mut u8) {
    let at = piece.at as usize;
    (source.address().wrapping_add(at), target.address().wrapping_add(at))
}

/// Touches the pages of a piece: it reads the source's and populates the target's.
fn touch(source: &RawLease, target: &RawLease, piece: Piece) -> Result<()> {
    let (from, _) = addresses(source, target, piece);
    let mut done = 0;
    while done < piece.len as usize {
        // SAFETY: the byte lies within the bytes that the job leases for reading.
        let loaded = unsafe { guarded::load(from.wrapping_add(done).cast_const(), 1) };
        loaded.map_err(|gone| gone.error("transfer", source.place().0))?;
        done += page_size() - (from.addr() + done) % page_size();
    }
    let (region, at) = target.place();
    region.range(at + piece.at as usize, piece.len as usize)?.prefault()
}

impl ActiveJob {
    /// Cuts off the next piece for the engine, unless nothing is left for it. Where the engine is
    /// idle and no core copies, what is the core's is left for it too.
    fn cut(&mut self, key: u64, most: u64, is_idle: bool) -> Option<Piece> {
        let beyond = is_idle && self.cores == 0;
        let end = self.engine_share.filter(|_| !beyond).map_or(self.end, |share| share.min(self.end));
        let len = end.saturating_sub(self.sent).min(most);
        if len == 0 {
            return None;
        }
        let piece = Piece { job: key, at: self.sent, len, faults: 0 };
        self.sent += len;
        self.open += 1;
        Some(piece)
    }

    /// Cuts off the last piece for a core, if the job is shared and anything is left.
    fn cut_for_core(&mut self, key: u64) -> Option<Piece> {
        let len = self.end.saturating_sub(self.sent).min(CORE_PIECE_BYTES);
        if len == 0 || self.engine_share.is_none() {
            return None;
        }
        self.end -= len;
        self.open += 1;
        self.cores += 1;
        Some(Piece { job: key, at: self.end, len, faults: 0 })
    }
}

impl State {
    /// Changes with each step forward: pieces to send, pieces in flight, bytes given out.
    fn open_work(&self) -> (usize, usize, usize, u64) {
        (self.jobs.len(), self.again.len(), self.in_flight.len(), self.counters.requests + self.counters.short_finished)
    }

    /// Cuts the next piece for the engine off the first job that has one.
    fn next_piece(&mut self, most: u64, is_idle: bool) -> Option<Piece> {
        let mut at = 0;
        while let Some(key) = self.unsent.get(at).copied() {
            match self.jobs.get_mut(&key).filter(|job| job.sent < job.end) {
                Some(job) => match job.cut(key, most, is_idle) {
                    Some(piece) => return Some(piece),
                    None => at += 1,
                },
                None => _ = self.unsent.remove(at),
            }
        }
        None
    }

    /// Cuts a piece for a core off the first job that is shared.
    fn next_core_piece(&mut self) -> Option<Piece> {
        let keys = self.unsent.iter().copied();
        let mut jobs = keys.filter_map(|key| Some((key, self.jobs.get_mut(&key)?.cut_for_core(key))));
        jobs.find_map(|(_, piece)| piece)
    }

    fn leases(&self, job: u64) -> Option<(&RawLease, &RawLease)> {
        let job = &self.jobs.get(&job)?.job;
        Some((job.source.as_ref()?, job.target.as_ref()?))
    }

    /// Notes what became of a piece that a core copied.
    fn copied(&mut self, piece: Piece, outcome: std::result::Result<(), AccessFault>) {
        let Err(gone) = outcome else { return self.piece_done(piece) };
        let Some((source, target)) = self.leases(piece.job) else { return };
        let (_, to) = addresses(source, target, piece);
        let is_of_target = (to.addr()..to.addr() + piece.len as usize).contains(&gone.address);
        let region = if is_of_target { target } else { source };
        let (done, e) = (gone.done as u64, gone.error("transfer", region.place().0));
        self.piece_failed(Piece { at: piece.at + done, ..piece }, e);
    }

    fn piece_done(&mut self, piece: Piece) {
        if let Some(job) = self.jobs.get_mut(&piece.job) {
            job.open -= 1;
        }
        self.end_if_done(piece.job);
    }

    fn piece_failed(&mut self, piece: Piece, e: Error) {
        if let Some(job) = self.jobs.get_mut(&piece.job) {
            job.open -= 1;
            if job.failure.as_ref().is_none_or(|(at, _)| piece.at < *at) {
                job.failure = Some((piece.at, e));
                // What is before it is still moved, so that the bytes done are a prefix.
                job.end = job.end.min(piece.at);
            }
        }
        self.end_if_done(piece.job);
    }

    /// Ends a job of which nothing is left to do.
    fn end_if_done(&mut self, key: u64) {
        let is_done = |job: &ActiveJob| job.open == 0 && job.sent >= job.end;
        if !self.jobs.get(&key).is_some_and(is_done) {
            return;
        }
        let Some(ActiveJob { job, failure, is_stranded, .. }) = self.jobs.remove(&key) else { return };
        self.unsent.retain(|unsent| *unsent != key);
        let (token, len) = (job.token, job.span.len);
        if is_stranded {
            // Its leases never end: the engine may still use the bytes.
            std::mem::forget(job);
        } else {
            // The leases end before anybody hears of it.
            drop(job);
        }
        let result = match failure {
            None => {
                self.counters.transfers += 1;
                self.counters.bytes += len;
                Ok(())
            }
            Some((at, e)) => {
                self.counters.failed += 1;
                Err(e.with_bytes_done(at))
            }
        };
        self.finished.push(JobCompletion { token, result });
        if self.jobs.is_empty()
            && let Some(since) = self.busy_since.take()
        {
            self.counters.busy_ns += since.elapsed().as_nanos() as u64;
        }
    }
}

impl QueuedMover for EngineMover {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let fits = |lease: &Option<RawLease>| lease.as_ref().is_some_and(|lease| lease.len() as u64 == job.span.len);
        let writable = job.target.as_ref().is_some_and(|lease| lease.access() == Access::Write);
        if !fits(&job.source) || !fits(&job.target) || !writable {
            let why = "a job whose leases are missing or do not fit its span";
            return Err((job, Error::new(ErrorKind::InvalidInput, "transfer", why)));
        }
        let mut state = self.state.lock();
        state.busy_since.get_or_insert_with(Instant::now);
        let key = state.next_job;
        state.next_job += 1;
        let len = job.span.len;
        let engine_share = self.split.and_then(|split| split.engine_share(len));
        let new =
            ActiveJob { job, sent: 0, end: len, engine_share, cores: 0, open: 0, failure: None, is_stranded: false };
        state.jobs.insert(key, new);
        state.unsent.push_back(key);
        // A job without bytes is done.
        state.end_if_done(key);
        self.advance(&mut state);
        Ok(())
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let before = done.len();
        loop {
            let mut state = self.state.lock();
            self.advance(&mut state);
            done.append(&mut state.finished);
            if done.len() > before || state.jobs.is_empty() {
                return Ok(());
            }
            if wait && let Some(piece) = state.next_core_piece() {
                self.copy_share(state, piece);
                continue;
            }
            // Who only looks, again and again, finds out about a lost engine too.
            let round = state.idle_rounds;
            let since = *state.idle_since.get_or_insert_with(Instant::now);
            state.idle_rounds = round.wrapping_add(1);
            let answer = state.in_flight.first().map(|(slot, _)| slot.clone());
            drop(state);
            self.queue.look_after(round, since);
            if !wait {
                return Ok(());
            }
            self.queue.pause(answer.as_deref(), round);
        }
    }

    fn counters(&self) -> Counters {
        self.state.lock().counters.clone()
    }
}

impl Drop for EngineMover {
    fn drop(&mut self) {
        if !self.queue.is_here() {
            // A child has copies of jobs that its parent's engine works on.
            return std::mem::forget(std::mem::take(self.state.get_mut()));
        }
        // This ends: each job is done, or the queue is lost.
        let mut done = Vec::new();
        while !self.state.get_mut().jobs.is_empty() && self.complete(true, &mut done).is_ok() {}
    }
}
