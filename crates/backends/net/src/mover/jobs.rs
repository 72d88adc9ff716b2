//! Jobs, cut into pieces, and the pieces in flight.
//!
//! Pieces are started in batches. A put is done here when its bytes may be changed; that they
//! arrived is known by a flush, which each batch of puts ends with. A few batches are in flight, so
//! that the peer has work while another is on its way.
//!
//! This module's unsafe code starts copies of memory that jobs lease. A job and its leases stay in
//! `Jobs` until each of its pieces was found done, or until the connection was dropped.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use datapipes_core::backend::{Counters, Job, JobCompletion};
use datapipes_core::memory::RawLease;
use datapipes_core::{Error, ErrorKind};
use datapipes_ucx::{Outcome, PeerConnection, PeerRequest};

/// Which way the bytes go, seen from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Put,
    Get,
}

/// How pieces are cut and how many are in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) piece_bytes: u64,
    /// Pieces in flight.
    pub(super) pieces: usize,
}

/// A part of a job.
#[derive(Clone, Copy, Debug)]
struct Piece {
    job: u64,
    at: u64,
    len: u64,
}

/// Pieces that were started together, with what they wait for: a request each, if it is not done,
/// and the flush.
struct Batch {
    pieces: Vec<Piece>,
    requests: Vec<PeerRequest>,
}

struct ActiveJob {
    job: Job,
    /// Bytes before this were given out in pieces.
    sent: u64,
    /// Pieces that are not done.
    open: u32,
}

/// The jobs of a mover.
#[derive(Default)]
pub(super) struct Jobs {
    next: u64,
    active: HashMap<u64, ActiveJob>,
    /// Jobs with bytes that were not given out.
    unsent: VecDeque<u64>,
    batches: Vec<Batch>,
    outstanding: usize,
    pub(super) finished: Vec<JobCompletion>,
    pub(super) counters: Counters,
    busy_since: Option<Instant>,
}

impl Jobs {
    pub(super) fn are_done(&self) -> bool {
        self.active.is_empty()
    }

    /// Takes a job, whose leases were checked.
    pub(super) fn take(&mut self, job: Job) {
        self.busy_since.get_or_insert_with(Instant::now);
        let key = self.next;
        self.next += 1;
        self.active.insert(key, ActiveJob { job, sent: 0, open: 0 });
        self.unsent.push_back(key);
        // A job without bytes is done.
        self.end_if_done(key);
    }

    /// Asks what is in flight; whether something was done.
    ///
    /// # Errors
    /// What UCX says of an operation that failed.
    pub(super) fn collect(&mut self, peer: &mut PeerConnection) -> Result<bool, String> {
        let mut any = false;
        let mut at = 0;
        while let Some(batch) = self.batches.get_mut(at) {
            let mut pending = Vec::new();
            for request in std::mem::take(&mut batch.requests) {
                match peer.ask(request) {
                    Outcome::Done => {}
                    Outcome::Pending(request) => pending.push(request),
                    Outcome::Failed(status) => return Err(peer.words_of(status)),
                }
            }
            batch.requests = pending;
            if batch.requests.is_empty() {
                let batch = self.batches.swap_remove(at);
                self.batch_done(&batch);
                any = true;
            } else {
                at += 1;
            }
        }
        Ok(any)
    }

    /// Starts pieces while there is room.
    ///
    /// # Errors
    /// What UCX says of an operation that it refuses.
    pub(super) fn start(
        &mut self,
        peer: &mut PeerConnection,
        direction: Direction,
        window: Window,
    ) -> Result<bool, String> {
        let mut any = false;
        // Half of the window for a batch of puts: one is on its way while the other arrives.
        let batch_pieces = match direction {
            Direction::Put => (window.pieces / 2).max(1),
            Direction::Get => 1,
        };
        while self.outstanding + batch_pieces <= window.pieces.max(batch_pieces) {
            let pieces = self.next_pieces(batch_pieces, window.piece_bytes);
            if pieces.is_empty() {
                break;
            }
            any = true;
            let mut batch = Batch { pieces: Vec::with_capacity(pieces.len()), requests: Vec::new() };
            for piece in pieces {
                let outcome = self.start_piece(peer, direction, piece);
                batch.pieces.push(piece);
                self.outstanding += 1;
                note(&mut batch, outcome, peer)?;
            }
            if direction == Direction::Put {
                let outcome = peer.flush();
                note(&mut batch, outcome, peer)?;
            }
            self.counters.requests += batch.pieces.len() as u64;
            self.counters.max_outstanding = self.counters.max_outstanding.max(self.outstanding as u64);
            if batch.requests.is_empty() {
                self.batch_done(&batch);
            } else {
                self.batches.push(batch);
            }
        }
        Ok(any)
    }

    /// Starts the copy of a piece.
    fn start_piece(&self, peer: &mut PeerConnection, direction: Direction, piece: Piece) -> Outcome {
        let Some(ActiveJob { job, .. }) = self.active.get(&piece.job) else { return Outcome::Done };
        let (lease, offset) = match direction {
            Direction::Put => (&job.source, job.span.target),
            Direction::Get => (&job.target, job.span.source),
        };
        let Some(lease) = lease else { return Outcome::Done };
        let (here, len) = (address_in(lease, piece.at), piece.len as usize);
        // SAFETY: the job's lease gives the right to these bytes, for reading (put) or writing
        // (get), and `RemoteMover::submit` checked that it has the span's length and that the span
        // lies in the peer's memory. The job stays in `active` until each of its pieces was found
        // done, or until `fail_all`, which is called after the connection was dropped.
        unsafe {
            match direction {
                Direction::Put => peer.put(here.cast_const(), len, offset + piece.at),
                Direction::Get => peer.get(here, len, offset + piece.at),
            }
        }
    }

    fn next_pieces(&mut self, most: usize, piece_bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while pieces.len() < most
            && let Some(key) = self.unsent.front().copied()
        {
            let Some(job) = self.active.get_mut(&key).filter(|job| job.sent < job.job.span.len) else {
                self.unsent.pop_front();
                continue;
            };
            let len = piece_bytes.min(job.job.span.len - job.sent);
            pieces.push(Piece { job: key, at: job.sent, len });
            job.sent += len;
            job.open += 1;
        }
        pieces
    }

    fn batch_done(&mut self, batch: &Batch) {
        self.outstanding -= batch.pieces.len();
        for piece in &batch.pieces {
            if let Some(job) = self.active.get_mut(&piece.job) {
                job.open -= 1;
            }
            self.end_if_done(piece.job);
        }
    }

    /// Ends a job of which nothing is left to do.
    fn end_if_done(&mut self, key: u64) {
        let is_done = |job: &ActiveJob| job.open == 0 && job.sent >= job.job.span.len;
        if !self.active.get(&key).is_some_and(is_done) {
            return;
        }
        let Some(ActiveJob { job, .. }) = self.active.remove(&key) else { return };
        let (token, len) = (job.token, job.span.len);
        // The leases end before anybody hears of it.
        drop(job);
        self.counters.transfers += 1;
        self.counters.bytes += len;
        self.finished.push(JobCompletion { token, result: Ok(()) });
        self.note_idle();
    }

    /// Ends all jobs with an error. The connection is gone, so nothing touches their memory.
    pub(super) fn fail_all(&mut self, error: impl Fn() -> Error) {
        self.batches.clear();
        self.unsent.clear();
        self.outstanding = 0;
        for (_, ActiveJob { job, .. }) in std::mem::take(&mut self.active) {
            let token = job.token;
            drop(job);
            self.counters.failed += 1;
            self.finished.push(JobCompletion { token, result: Err(error()) });
        }
        self.note_idle();
    }

    fn note_idle(&mut self) {
        if self.active.is_empty()
            && let Some(since) = self.busy_since.take()
        {
            self.counters.busy_ns += since.elapsed().as_nanos() as u64;
        }
    }
}

fn note(batch: &mut Batch, outcome: Outcome, peer: &PeerConnection) -> Result<(), String> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Pending(request) => {
            batch.requests.push(request);
            Ok(())
        }
        Outcome::Failed(status) => Err(peer.words_of(status)),
    }
}

/// The address of a byte in a lease. It lies within, as its caller checked.
fn address_in(lease: &RawLease, at: u64) -> *mut u8 {
    lease.address().wrapping_add(at as usize)
}

/// The error of jobs whose other side is lost.
pub(crate) fn lost(name: &str, kind: ErrorKind, why: &str) -> Error {
    Error::new(kind, "transfer", format!("{name}: {why}"))
        .with_advice("how much arrived is not known; connect again where the export still exists")
}
