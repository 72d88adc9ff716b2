//! The requester (Pipette, section 3.1.2): claims what is missing, reads it, copies it out, and
//! offers it to the store.
//!
//! ```text
//! pieces -> constructor: requests -> info area: mine, or in flight for another thread
//!        -> mine: engine; for each extent: notify waiters, copy out, offer to the store
//!        -> another's: wait, copy out
//!        -> with a check: check the copied bytes, offer them to the store
//!        -> did a byte of the read change meanwhile?  repeat all of it
//! ```

use std::ops::Range;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};

use super::constructor::{Piece, Request, construct};
use super::dispatcher::Path;
use super::info::{Claim, Own};
use crate::coherence::writes::{Since, Writes};
use crate::device::engine::Extent;
use crate::metrics::Tally;
use crate::pool::file::Inner;
use crate::store::{Missing, PAGE};

/// How many extents ahead of the one that is settled memory is prefetched again. The kernel's work
/// on a batch displaces much of what was prefetched before it. Devices answer nearly in order.
const SETTLED_AHEAD: usize = 4;

impl Inner {
    /// Reads bytes that are not cached, or not in one item. `missed` is the store's answer if it
    /// was asked for all of them already.
    #[cold]
    pub(crate) fn read_slowly(&self, offset: u64, out: &mut [u8], missed: Option<Missing>) -> Result<()> {
        if out.is_empty() {
            return self.check_range(offset, 0);
        }
        let mut missed = missed;
        let mut careful = false;
        let range = offset..offset.saturating_add(out.len() as u64);
        let mut attempts = Attempts::new(&self.writes, &range, self.options.patience);
        loop {
            let since = attempts.begin().inspect_err(|_| Tally::add(&self.tally.failed, 1))?;
            careful |= matches!(since, Since::Named(_));
            self.check_range(offset, out.len())?;
            let mut pieces = Vec::new();
            for (at, len) in in_pages(offset, out.len()) {
                let out_at = (at - offset) as usize;
                let found = match missed.take() {
                    Some(missing) => Err(missing),
                    None => self.cached(at, &mut out[out_at..out_at + len]),
                };
                if let Err(missing) = found {
                    let path = if careful { Path::Bytes } else { self.dispatch(at, len, missing) };
                    pieces.push(Piece { offset: at, len, out_at, read: 0, path });
                }
            }
            let mut failure = None;
            let unchanged = |_: &Piece| self.writes.is_same(&range, since);
            if !pieces.is_empty() {
                let whole = pieces.len() == 1 && pieces[0].len == out.len();
                let how = Bring { careful, whole, unchanged: &unchanged };
                self.bring(&mut pieces, out, how, &mut |_, error| _ = failure.get_or_insert(error));
                if failure.is_none() && !whole {
                    failure = self.check_together(offset, out, &|| self.writes.is_same(&range, since)).err();
                }
            }
            // A change may cause an error as well, such as truncation.
            if !self.writes.is_same(&range, since) {
                Tally::add(&self.tally.repeated, 1);
                attempts.again().inspect_err(|_| Tally::add(&self.tally.failed, 1))?;
                continue;
            }
            let Some(error) = failure else { return Ok(()) };
            if !careful && error.kind() != ErrorKind::Corrupt {
                // Perhaps only bytes beside the requested ones failed, or the file became shorter.
                // It tries again with the requested bytes alone.
                careful = true;
                self.look_at_len()?;
                continue;
            }
            Tally::add(&self.tally.failed, 1);
            return Err(error);
        }
    }

    /// Checks and caches a read that came in several pieces, which cannot be checked separately.
    pub(crate) fn check_together(&self, offset: u64, out: &[u8], valid: &dyn Fn() -> bool) -> Result<()> {
        let Some(verify) = &self.options.verify else { return Ok(()) };
        if !valid() {
            return Ok(());
        }
        verify(offset, out).map_err(|why| self.corrupt(offset, out.len(), &why))?;
        for (at, len) in in_pages(offset, out.len()) {
            let from = (at - offset) as usize;
            self.insert(at, &out[from..from + len], at, valid);
        }
        Ok(())
    }

    fn corrupt(&self, offset: u64, len: usize, why: &str) -> Error {
        Error::new(ErrorKind::Corrupt, "read", format!("{}: {len} bytes: {why}", self.name)).with_offset(offset)
    }

    /// Reads pieces from the device into `out`, and offers their bytes to the store. Calls `failed`
    /// with each error and its piece.
    pub(crate) fn bring(
        &self,
        pieces: &mut [Piece],
        out: &mut [u8],
        how: Bring<'_>,
        failed: &mut dyn FnMut(&Piece, Error),
    ) {
        let file_len = self.file_len();
        let verify = self.options.verify.as_ref();
        let requests = construct(pieces, file_len, self.engine.facts());
        let pieces = &*pieces;
        let mut mine = Vec::with_capacity(requests.len());
        let mut extents = Vec::with_capacity(requests.len());
        let mut others = Vec::new();
        let insertion_soon = |request: &Request| {
            let of = pieces[request.first..].iter().take(request.count);
            of.for_each(|piece| self.insert_soon(piece.offset));
        };
        for (number, request) in requests.iter().enumerate() {
            let extent = request.extent;
            if how.careful {
                mine.push((number, None));
                extents.push(extent);
                continue;
            }
            match self.info.claim(extent, &self.writes) {
                Claim::Mine(pending) => {
                    // Memory is prefetched while the device works.
                    insertion_soon(request);
                    mine.push((number, Some(pending)));
                    extents.push(extent);
                }
                Claim::Others(pending) => others.push((number, pending)),
            }
        }
        // The pieces that are to be checked, and whether this thread read them.
        let mut unchecked: Vec<(usize, bool)> = Vec::new();
        // The sums are local, because an atomic addition waits for all earlier loads, and so for
        // memory.
        let (mut came, mut came_bytes, mut by_path) = (0, 0, [0; 3]);
        let mut settle =
            |number: usize, extent: Extent, result: std::result::Result<&[u8], &Error>, read_here: bool| {
                let request = &requests[number];
                let mut last_kept = None;
                for (at, piece) in pieces.iter().enumerate().skip(request.first).take(request.count) {
                    match result {
                        Ok(bytes) => {
                            let from = (piece.offset - extent.offset) as usize;
                            let Some(wanted) = bytes.get(from..from + piece.len) else {
                                failed(piece, self.short(piece, extent, bytes.len()));
                                continue;
                            };
                            out[piece.out_at..piece.out_at + piece.len].copy_from_slice(wanted);
                            let kept = piece.kept(file_len);
                            if verify.is_some() {
                                unchecked.push((at, read_here));
                            } else if read_here && last_kept != Some(kept) {
                                by_path[piece.path as usize] += 1;
                                self.keep(piece, kept, extent, bytes, &|| (how.unchanged)(piece));
                                last_kept = Some(kept);
                            }
                        }
                        Err(error) => failed(piece, self.of_piece(piece, error)),
                    }
                }
            };
        if !extents.is_empty() {
            let started = (extents.len() == 1).then(|| self.engine.now_ns());
            let mut told = vec![false; extents.len()];
            self.engine.read(&extents, &mut |at, result| {
                told[at] = true;
                if let Some((number, pending)) = mine.get(at + SETTLED_AHEAD) {
                    insertion_soon(&requests[*number]);
                    pending.iter().for_each(Own::end_soon);
                }
                let (number, pending) = &mut mine[at];
                let result = result.as_ref();
                if let Ok(bytes) = result {
                    came += 1;
                    came_bytes += bytes.len() as u64;
                }
                if let Some(pending) = pending.take() {
                    pending.finish(result.map(|b| &**b));
                }
                settle(*number, extents[at], result.map(|b| &**b), true);
            });
            for (at, _) in told.iter().enumerate().filter(|(_, told)| !**told) {
                // Waiters hear of the failure before this thread waits for others.
                mine[at].1 = None;
                settle(mine[at].0, extents[at], Err(&silence()), true);
            }
            if let Some(started) = started {
                self.dispatcher.took(u64::from(extents[0].len), self.engine.now_ns().saturating_sub(started));
            }
        }
        for (number, pending) in others {
            Tally::add(&self.tally.joined, 1);
            let result = pending.wait();
            let extent = requests[number].extent;
            settle(number, extent, result.as_deref(), false);
        }
        Tally::add(&self.tally.device_reads, came);
        Tally::add(&self.tally.device_bytes, came_bytes);
        self.tally.by_path.iter().zip(by_path).filter(|(_, n)| *n > 0).for_each(|(sum, n)| Tally::add(sum, n));
        // The check is foreign code, which may read through this cache. At this point no lane to
        // the device is held, and nobody waits for an extent of this read.
        for (at, read_here) in unchecked.into_iter().filter(|_| how.whole) {
            let piece = &pieces[at];
            let settle = Settle { keep: read_here, whole: true, unchanged: &|| (how.unchanged)(piece) };
            if let Err(error) = self.check_read(piece, &out[piece.out_at..piece.out_at + piece.len], settle) {
                failed(piece, error);
            }
        }
    }

    /// Offers bytes that were read to the store. `valid` asks about the read's stripes. They cover
    /// the bytes cached beside it as well, which lie in the same page.
    pub(crate) fn keep(&self, piece: &Piece, kept: (u64, u64), extent: Extent, bytes: &[u8], valid: &dyn Fn() -> bool) {
        if piece.path == Path::Blocks && !self.options.keep_blocks {
            return;
        }
        let (from, to) = kept;
        let Some(bytes) = bytes.get((from - extent.offset) as usize..(to - extent.offset) as usize) else { return };
        self.insert(from, bytes, piece.offset, valid);
    }

    /// Checks what a read of one piece brought and caches it, if there is a check. It holds nothing
    /// that others could wait for.
    pub(crate) fn check_read(&self, piece: &Piece, bytes: &[u8], how: Settle<'_>) -> Result<()> {
        let Some(verify) = self.options.verify.as_ref().filter(|_| how.whole) else { return Ok(()) };
        verify(piece.offset, bytes).map_err(|why| self.corrupt(piece.offset, piece.len, &why))?;
        if how.keep {
            // Only the checked bytes are cached.
            let extent = Extent { offset: piece.offset, len: bytes.len() as u32 };
            Tally::add(&self.tally.by_path[piece.path as usize], 1);
            self.keep(piece, (piece.offset, piece.end()), extent, bytes, how.unchanged);
        }
        Ok(())
    }

    fn short(&self, piece: &Piece, extent: Extent, got: usize) -> Error {
        let context = format!("{}: the device gave {got} of {} bytes", self.name, extent.len);
        Error::new(ErrorKind::EndOfFile, "read", context).with_offset(piece.offset).with_bytes_done(0)
    }

    /// Turns the error of an extent into that of a piece of it.
    fn of_piece(&self, piece: &Piece, error: &Error) -> Error {
        let told = Error::new(error.kind(), "read", format!("{}: {} bytes: {error}", self.name, piece.len));
        let told = told.with_offset(piece.offset).with_bytes_done(0);
        match error.errno() {
            Some(errno) => told.with_errno(errno),
            None => told,
        }
    }
}

/// The attempts of one read, which is repeated while its bytes change.
struct Attempts<'a> {
    writes: &'a Writes,
    range: &'a Range<u64>,
    patience: Duration,
    repeats: Repeats,
    named: Option<u64>,
}

impl<'a> Attempts<'a> {
    fn new(writes: &'a Writes, range: &'a Range<u64>, patience: Duration) -> Attempts<'a> {
        Attempts { writes, range, patience, repeats: Repeats::default(), named: None }
    }

    /// Waits until no byte of the range is changing.
    fn begin(&mut self) -> Result<Since> {
        self.leave();
        if !self.repeats.are_many() {
            // The stamp comes first: it reveals a change that begins after the wait.
            let stamp = self.writes.stamp(self.range);
            self.writes.wait_quiet(self.range, self.patience)?;
            return Ok(Since::Versions(stamp));
        }
        let named = self.writes.insist(self.range, true, self.patience)?;
        self.named = Some(named);
        Ok(Since::Named(named))
    }

    fn again(&mut self) -> Result<()> {
        self.repeats.one_more(self.range, self.patience)
    }

    fn leave(&mut self) {
        if let Some(named) = self.named.take() {
            self.writes.leave(named);
        }
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How often a read was repeated, and since when.
#[derive(Default)]
pub(crate) struct Repeats {
    count: u32,
    since: Option<Instant>,
}

/// The number of repeats after which a read makes writers wait.
const FEW: u32 = 3;

impl Repeats {
    /// Whether the read should make writers wait now.
    pub(crate) fn are_many(&self) -> bool {
        self.count >= FEW
    }

    /// Counts a further repeat.
    ///
    /// # Errors
    /// `Busy` where the read made writers wait and its patience is over.
    pub(crate) fn one_more(&mut self, range: &Range<u64>, patience: Duration) -> Result<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.count = self.count.saturating_add(1);
        // The model has no time, and its writers end.
        if cfg!(shuttle) || self.count <= FEW || since.elapsed() < patience {
            return Ok(());
        }
        let (len, count) = (range.end - range.start, self.count);
        Err(Error::new(ErrorKind::Busy, "read", format!("{len} bytes changed during each of {count} reads of them"))
            .with_offset(range.start)
            .with_bytes_done(0)
            .with_advice("let the writers pause, or write through the cache's own writer, which lets readers finish"))
    }
}

/// The error for an extent of which the engine did not report a result.
fn silence() -> Error {
    Error::new(ErrorKind::System, "read", "the engine did not report a result for an extent")
}

/// How pieces are read.
pub(crate) struct Bring<'a> {
    /// Each request is made by itself: a read of another thread may cover more bytes than the
    /// requested ones, and fail because of that.
    pub(crate) careful: bool,
    /// Each piece is a whole read, and may be checked and cached by itself.
    pub(crate) whole: bool,
    /// Whether a piece's read is unchanged since before its lookup, by the stripes of the whole
    /// read.
    pub(crate) unchanged: &'a dyn Fn(&Piece) -> bool,
}

/// How the bytes of a piece are handled when they arrive.
pub(crate) struct Settle<'a> {
    /// The piece is a whole read, and may be checked by itself.
    pub(crate) whole: bool,
    /// This thread read the piece. If another did, that one caches it.
    pub(crate) keep: bool,
    /// Whether nothing changed since before the lookup, by the stripes of the whole read.
    pub(crate) unchanged: &'a dyn Fn() -> bool,
}

/// Splits a range at the borders of pages into (offset, length) parts.
pub(crate) fn in_pages(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = offset.saturating_add(len as u64);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let to = (at / PAGE + 1).saturating_mul(PAGE).min(end);
        let part = (at, (to - at) as usize);
        at = to;
        Some(part)
    })
}
