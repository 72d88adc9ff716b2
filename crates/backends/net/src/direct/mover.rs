//! The mover over the kernel's copies: a transfer is done when the call returns.
//!
//! This module's unsafe code hands leased memory to the kernel for the time of a call.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes_core::backend::{Chunked, Counters, InlineMover, Job};
use datapipes_core::locks::Mutex;
use datapipes_core::memory::{Access, MemoryRange, RawLease};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, Span};
use rustix::io::Errno;

use super::peer::CutShort;
use crate::mover::{Direction, lost};
use crate::remote::{DirectLine, REASON, RemotePlace};

/// The longest time since the control connection was looked at.
const LOOK: Duration = Duration::from_millis(1);
/// The most bytes of one call: what is between two looks.
const MAX_CALL_BYTES: usize = 1 << 20;
/// Transfers of at least this length are timed.
const MIN_TIMED_BYTES: u64 = 64 << 10;

/// A mover between memory of this process and memory of a holder on this machine.
pub(crate) struct DirectMover {
    place: Arc<RemotePlace>,
    direction: Direction,
    local: MemoryRange,
    memory: super::peer::DirectMemory,
    state: Mutex<State>,
    /// When the connection was looked at, in nanoseconds since the mover was opened.
    looked_ns: AtomicU64,
    opened: Instant,
    counts: Counts,
    owner: OwningProcess,
}

struct State {
    /// `None` after the loss.
    line: Option<DirectLine>,
    lost: Option<(ErrorKind, &'static str)>,
}

#[derive(Default)]
struct Counts {
    transfers: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    calls: AtomicU64,
    busy_ns: AtomicU64,
    devices_lost: AtomicU64,
}

impl DirectMover {
    /// Connects to the memory.
    ///
    /// # Errors
    /// As [`RemotePlace::open_direct`].
    pub(crate) fn open(place: Arc<RemotePlace>, direction: Direction, local: MemoryRange) -> Result<DirectMover> {
        let line = place.open_direct()?;
        Ok(DirectMover {
            place,
            direction,
            local,
            memory: line.memory,
            state: Mutex::new(State { line: Some(line), lost: None }),
            looked_ns: AtomicU64::new(0),
            opened: Instant::now(),
            counts: Counts::default(),
            owner: OwningProcess::here(),
        })
    }

    /// Whether the export still exists, as far as the other side has told.
    fn check(&self) -> Result<()> {
        let now = self.opened.elapsed().as_nanos() as u64;
        if now.saturating_sub(self.looked_ns.load(Relaxed)) < LOOK.as_nanos() as u64 {
            return Ok(());
        }
        let mut state = self.state.lock();
        if let Some(line) = &mut state.line
            && line.control.stream.is_readable()
        {
            self.lose(&mut state);
        }
        match state.lost {
            Some((kind, why)) => Err(lost(&self.place.name, kind, why)),
            None => {
                self.looked_ns.store(now, Relaxed);
                Ok(())
            }
        }
    }

    /// The end of the connection, with the reason that the other side tells in a moment.
    fn lose(&self, state: &mut State) {
        let Some(mut line) = state.line.take() else { return };
        self.counts.devices_lost.fetch_add(1, Relaxed);
        let said = line.control.reason_of_end(Instant::now() + REASON);
        state.lost = Some(said.unwrap_or((ErrorKind::Device, "the process that held the memory has ended")));
        // Every transfer from here on looks.
        self.looked_ns.store(0, Relaxed);
    }

    /// Moves the bytes of a span under a lease.
    fn run(&self, lease: &RawLease, span: Span) -> Result<()> {
        let (len, offset) = (span.len, self.far_offset(span));
        let whole = self.place.facts.len;
        if offset.checked_add(len).is_none_or(|end| end > whole) {
            let context = format!("{len} bytes at {offset} of {}, which has {whole}", self.place.name);
            return Err(Error::new(ErrorKind::OutOfRange, "transfer", context));
        }
        let mut done = 0;
        while done < lease.len() {
            self.check().map_err(|e| e.with_bytes_done(done as u64))?;
            let piece = MAX_CALL_BYTES.min(lease.len() - done);
            let (here, there) = (lease.address().wrapping_add(done), offset + done as u64);
            self.counts.calls.fetch_add(1, Relaxed);
            // SAFETY: the piece lies within the lease, which gives the right to read it (put) or
            // to write it (get) and lives during the call.
            let copied = unsafe {
                match self.direction {
                    Direction::Put => self.memory.write(here.cast_const(), piece, there),
                    Direction::Get => self.memory.read(here, piece, there),
                }
            };
            copied.map_err(|cut| self.failed(cut, done, there))?;
            done += piece;
        }
        Ok(())
    }

    /// Why the kernel stopped.
    #[cold]
    fn failed(&self, cut: CutShort, before: usize, offset: u64) -> Error {
        let done = (before + cut.done) as u64;
        let errno = cut.errno.raw_os_error();
        if matches!(cut.errno, Errno::FAULT | Errno::NOMEM) {
            let why = "a page of this process's memory or of the export is not there, or may not be written";
            return Error::new(ErrorKind::Device, "transfer", format!("{}: {why}", self.place.name))
                .with_errno(errno)
                .with_offset(offset + cut.done as u64)
                .with_bytes_done(done);
        }
        let mut state = self.state.lock();
        self.lose(&mut state);
        let (kind, why) = state.lost.unwrap_or((ErrorKind::Device, "the exporter has gone"));
        lost(&self.place.name, kind, why).with_errno(errno).with_bytes_done(done)
    }

    fn far_offset(&self, span: Span) -> u64 {
        if self.direction == Direction::Put { span.target } else { span.source }
    }

    fn access(&self) -> Access {
        if self.direction == Direction::Put { Access::Read } else { Access::Write }
    }

    fn move_span(&self, span: Span) -> Result<()> {
        let near = if self.direction == Direction::Put { span.source } else { span.target };
        let (Ok(at), Ok(len)) = (usize::try_from(near), usize::try_from(span.len)) else {
            let context = format!("{span:?} is beyond this machine's memory");
            return Err(Error::new(ErrorKind::OutOfRange, "transfer", context));
        };
        let lease = self.local.range(at, len)?.raw_lease(self.access())?;
        self.run(&lease, span)
    }

    fn count(&self, len: u64, transfer: impl FnOnce() -> Result<()>) -> Result<()> {
        self.owner.check("transfer")?;
        let since = (len >= MIN_TIMED_BYTES).then(Instant::now);
        let result = transfer();
        if let Some(since) = since {
            self.counts.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Relaxed);
        }
        match &result {
            Ok(()) => {
                self.counts.transfers.fetch_add(1, Relaxed);
                self.counts.bytes.fetch_add(len, Relaxed);
            }
            Err(_) => _ = self.counts.failed.fetch_add(1, Relaxed),
        }
        result
    }
}

impl InlineMover for DirectMover {
    fn transfer(&self, span: Span) -> Result<()> {
        self.count(span.len, || self.move_span(span))
    }

    fn parts(&self) -> Option<&dyn Chunked> {
        Some(self)
    }

    fn counters(&self) -> Counters {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        Counters::default()
            .transfers(of(&self.counts.transfers))
            .failed(of(&self.counts.failed))
            .bytes(of(&self.counts.bytes))
            .requests(of(&self.counts.calls))
            .system_calls(of(&self.counts.calls))
            .busy_ns(of(&self.counts.busy_ns))
            .devices_lost(of(&self.counts.devices_lost))
    }
}

impl Chunked for DirectMover {
    fn transfer_part(&self, part: &mut Job, _whole: u64) -> Result<()> {
        self.count(part.span.len, || {
            let lease = if self.direction == Direction::Put { &part.source } else { &part.target };
            let may = |lease: &&RawLease| self.access() == Access::Read || lease.access() == Access::Write;
            let Some(lease) = lease.as_ref().filter(|lease| lease.len() as u64 == part.span.len).filter(may) else {
                let why = "a part whose lease is missing or does not fit its span";
                return Err(Error::new(ErrorKind::InvalidInput, "transfer", why));
            };
            self.run(lease, part.span)
        })
    }
}
