//! Long reads of bytes that the page cache has: several cores share them.
//!
//! Such a read is a copy, and its memory gets its pages while it is written. Both are the work of
//! cores, and one core does not reach what the memory could.

use std::sync::atomic::{AtomicU64, Ordering};

use datapipes::locks::Mutex;
use datapipes::{Dram, Error, Pipe, Result, Span, Ssd};

use crate::machine;
use crate::opened::{Moved, constraints, note};

/// Bytes that a core takes at a time: a few huge pages.
const PART: u64 = 8 << 20;

/// The most cores that share a read: four reach what most memories can.
const MAX_CORES: u64 = 4;

/// The primitive by which each core copies.
const PRIMITIVE: &str = "pread-cached";

/// How many cores a read of `len` bytes by this pipe is for.
pub(crate) fn workers(pipe: &Pipe, len: u64) -> u64 {
    let is_copy = pipe.route().hops.iter().all(|hop| hop.primitive.ends_with("-cached"));
    let cores = machine().topology().usable_cores().count() as u64;
    if is_copy { cores.min(MAX_CORES).min(len / PART) } else { 1 }
}

/// Reads `len` bytes at `offset` into the target by so many cores, of which the caller's is one.
pub(crate) fn read(ssd: &Ssd, (offset, target, len): (u64, &Dram, u64), workers: u64) -> Result<Moved> {
    let connect = || {
        let one = constraints(PART).only(vec![PRIMITIVE.to_owned()]);
        machine().connect_with(ssd, target, &one)
    };
    let prepare = |at: u64, part: u64| {
        // Pages that come while the kernel copies cost twice as much. Where they cannot be had
        // now, the copy says why.
        let _ = target.memory().range(at as usize, part as usize).and_then(|pages| pages.prefault());
    };
    let span = Span { source: offset, target: 0, len };
    Shares { span, first: PART, part: PART, workers }.carry_out(connect()?, &connect, &prepare)
}

/// A transfer that several threads share.
pub(crate) struct Shares {
    pub(crate) span: Span,
    /// Bytes of the first part.
    pub(crate) first: u64,
    /// Bytes of the others.
    pub(crate) part: u64,
    /// Threads, of which the caller's is one.
    pub(crate) workers: u64,
}

impl Shares {
    /// The part with a number, by its first byte and its length.
    fn nth(&self, number: u64) -> Option<(u64, u64)> {
        let (at, longest) = match number.checked_sub(1) {
            None => (0, self.first),
            Some(before) => (before.checked_mul(self.part)?.checked_add(self.first)?, self.part),
        };
        let left = self.span.len.checked_sub(at).filter(|left| *left > 0)?;
        Some((at, longest.min(left)))
    }

    /// Moves all parts, by this pipe and those that the other threads connect. Each prepares a part
    /// before it moves it.
    pub(crate) fn carry_out(
        self,
        pipe: Pipe,
        connect: &(dyn Fn() -> Result<Pipe> + Sync),
        prepare: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Moved> {
        let next = AtomicU64::new(0);
        let failed: Mutex<Option<(u64, Error)>> = Mutex::new(None);
        let moved = Mutex::new(Moved::new());
        let fail = |at: u64, error: Error| {
            // The others begin no further part. Those before this one are carried out.
            next.store(u64::MAX / 2, Ordering::Relaxed);
            let error_at = at + error.bytes_done();
            let mut failed = failed.lock();
            if failed.as_ref().is_none_or(|(before, _)| at < *before) {
                *failed = Some((at, error.with_bytes_done(error_at)));
            }
        };
        let work = |pipe: Pipe| {
            while let Some((at, len)) = self.nth(next.fetch_add(1, Ordering::Relaxed)) {
                prepare(at, len);
                let part = Span { source: self.span.source + at, target: self.span.target + at, len };
                if let Err(error) = pipe.transfer(part) {
                    fail(at, error);
                    break;
                }
            }
            note(&mut moved.lock(), &pipe);
        };
        std::thread::scope(|scope| {
            for _ in 1..self.workers {
                // Where the kernel refuses a thread, the others do its part.
                let _ = datapipes::threads::spawn_scoped(scope, "dp-py-read", || match connect() {
                    Ok(pipe) => work(pipe),
                    Err(error) => fail(0, error),
                });
            }
            work(pipe);
        });
        match failed.into_inner() {
            Some((_, error)) => Err(error),
            None => Ok(moved.into_inner()),
        }
    }
}
