//! Moving a span under leases, and reporting a missing page.
//!
//! Unsafe code: the addresses of leases are passed to `store` and `load`.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use datapipes_core::backend::{Chunked, InlineMover, Job};
use datapipes_core::memory::{Access, MemoryRange, copy_pair};
use datapipes_core::{Counters, Endpoint, Error, ErrorKind, Result, Span};

use crate::guard::{AccessFault, Guarded};
use crate::store::{self, Load, Store};

/// Transfers of at least this length are timed.
const MIN_TIMED_BYTES: u64 = 64 << 10;

/// What a mover does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Store(Store),
    Load(Load),
    /// The bytes are in place; their lines are written back.
    Flush,
}

#[derive(Default)]
struct Tally {
    transfers: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

/// An open primitive.
pub(crate) struct DaxMover {
    guarded: Guarded,
    work: Work,
    source: End,
    target: End,
    tally: Tally,
}

struct End {
    range: MemoryRange,
    name: String,
}

impl End {
    fn of(endpoint: &Endpoint) -> Option<End> {
        Some(End { range: endpoint.memory()?.clone(), name: endpoint.facts.name.clone() })
    }
}

/// The addresses and the length of the bytes to move, and their span.
#[derive(Clone, Copy)]
struct Piece {
    from: *const u8,
    to: *mut u8,
    len: usize,
    span: Span,
}

impl DaxMover {
    /// Returns `None` where one of the two is not memory.
    pub(crate) fn new(guarded: Guarded, work: Work, source: &Endpoint, target: &Endpoint) -> Option<DaxMover> {
        let (source, target) = (End::of(source)?, End::of(target)?);
        Some(DaxMover { guarded, work, source, target, tally: Tally::default() })
    }

    /// # Safety
    /// `piece.len` bytes must be leased for reading at `from` and for writing at `to`, and must not
    /// overlap; `whole` is at least `len`.
    unsafe fn run(&self, piece: Piece, whole: usize) -> Result<()> {
        let Piece { from, to, len, .. } = piece;
        // SAFETY: the caller guarantees what this function demands.
        let result = unsafe {
            match self.work {
                Work::Store(how) => store::store(self.guarded, (from, to), len, how, whole),
                Work::Load(how) => store::load(self.guarded, (from, to), len, how),
                Work::Flush => self.guarded.write_back(to, len),
            }
        };
        result.map_err(|gone| self.gone(piece, gone))
    }

    /// Makes the error for a missing page: which end lost it, and where.
    #[cold]
    fn gone(&self, piece: Piece, gone: AccessFault) -> Error {
        let page = 4096;
        let within = |start: usize| (start / page * page..start + piece.len).contains(&gone.address);
        let (end, at) = match (within(piece.to.addr()), within(piece.from.addr())) {
            (true, _) => (&self.target, piece.span.target + gone.address.saturating_sub(piece.to.addr()) as u64),
            (_, true) => (&self.source, piece.span.source + gone.address.saturating_sub(piece.from.addr()) as u64),
            // For a bad block, the reported address may be inexact.
            _ => (&self.source, piece.span.source + gone.done as u64),
        };
        let (why, advice) = gone.reason();
        let context = format!("{} to {}: a page of {} is gone: {why}", self.source.name, self.target.name, end.name);
        Error::new(ErrorKind::Device, "transfer", context)
            .with_offset(at)
            .with_bytes_done(gone.done as u64)
            .with_advice(advice)
    }

    fn move_span(&self, span: Span) -> Result<()> {
        let (Ok(source), Ok(target), Ok(len)) = (span.source.try_into(), span.target.try_into(), span.len.try_into())
        else {
            let context = format!("{span:?} is beyond this machine's memory");
            return Err(Error::new(ErrorKind::OutOfRange, "transfer", context));
        };
        let (source, target): (usize, usize) = (source, target);
        if self.work == Work::Flush {
            let (from, to) = (self.source.range.range(source, len)?, self.target.range.range(target, len)?);
            if !from.same_bytes(&to) {
                let context = format!("{span:?} of a flush in place");
                return Err(
                    Error::new(ErrorKind::InvalidInput, "transfer", context).with_advice("give the same offset twice")
                );
            }
            let lease = to.raw_lease(Access::Read)?;
            let piece = Piece { from: lease.address(), to: lease.address(), len, span };
            // SAFETY: the lease gives the bytes for reading, and a flush writes none.
            return unsafe { self.run(piece, len) };
        }
        copy_pair((&self.source.range, source), (&self.target.range, target), len, |from, to| {
            // SAFETY: `copy_pair` calls this with `len` bytes leased for reading at `from` and for
            // writing at `to`, and refuses overlapping ranges.
            unsafe { self.run(Piece { from, to, len, span }, len) }
        })?
    }

    /// Moves a part under the leases of the job.
    fn move_part(&self, part: &mut Job, whole: u64) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidInput, "transfer", format!("a part {why}")));
        let (Some(source), Some(target)) = (&part.source, &part.target) else { return refuse("without its leases") };
        let (len, in_place) = (source.len(), self.work == Work::Flush);
        let writable = in_place || target.access() == Access::Write;
        if target.len() != len || len as u64 != part.span.len || !writable {
            return refuse("whose leases do not fit its span");
        }
        let (from, to) = (source.address().cast_const(), target.address());
        let overlap = len > 0 && from.addr() < to.addr() + len && to.addr() < from.addr() + len;
        if overlap != (in_place && len > 0) {
            return refuse("whose source and target overlap, or differ where they must be the same bytes");
        }
        let whole = usize::try_from(whole).unwrap_or(usize::MAX).max(len);
        // SAFETY: the leases give `len` bytes for reading at `from` and, unless none is written,
        // for writing at `to`. The code that made them as parts of larger leases promises that no
        // other part with these bytes is in use.
        unsafe { self.run(Piece { from, to, len, span: part.span }, whole) }
    }

    fn count(&self, len: u64, transfer: impl FnOnce() -> Result<()>) -> Result<()> {
        let since = (len >= MIN_TIMED_BYTES).then(Instant::now);
        let result = transfer();
        if let Some(since) = since {
            self.tally.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        match &result {
            Ok(()) => {
                self.tally.transfers.fetch_add(1, Ordering::Relaxed);
                self.tally.bytes.fetch_add(len, Ordering::Relaxed);
            }
            Err(_) => {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }
}

impl InlineMover for DaxMover {
    fn transfer(&self, span: Span) -> Result<()> {
        self.count(span.len, || self.move_span(span))
    }

    fn parts(&self) -> Option<&dyn Chunked> {
        Some(self)
    }

    fn counters(&self) -> Counters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters::default()
            .transfers(of(&self.tally.transfers))
            .failed(of(&self.tally.failed))
            .bytes(of(&self.tally.bytes))
            .busy_ns(of(&self.tally.busy_ns))
    }
}

impl Chunked for DaxMover {
    fn transfer_part(&self, part: &mut Job, whole: u64) -> Result<()> {
        self.count(part.span.len, || self.move_part(part, whole))
    }
}
