//! The requester (Pipette, section 3.1.2): what is missing is claimed, read, given out, and offered
//! to the store.
//!
//! ```text
//! pieces -> constructor: requests -> info area: mine, or on their way for another
//!        -> mine: engine;  each extent as it comes: tell who waits, copy out, offer to the store
//!        -> others': wait, copy out
//!        -> with a check: check what was copied out, offer to the store
//!        -> did a byte of the read change meanwhile?  all of it again
//! ```

use std::ops::Range;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};

use crate::constructor::{Piece, construct};
use crate::dispatcher::Path;
use crate::engine::Extent;
use crate::fine::Inner;
use crate::info::Claim;
use crate::metrics::Tally;
use crate::store::{Missing, PAGE};
use crate::writes::{Since, Writes};

impl Inner {
    /// Reads what is not there, or not in one piece. `missed` is what the store said if it was
    /// asked already, for all of it.
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
            // An error may come of a change as well: a file that was cut.
            if !self.writes.is_same(&range, since) {
                Tally::add(&self.tally.repeated, 1);
                attempts.again().inspect_err(|_| Tally::add(&self.tally.failed, 1))?;
                continue;
            }
            let Some(error) = failure else { return Ok(()) };
            if !careful && error.kind() != ErrorKind::Corrupt {
                // Of a request that failed, perhaps only bytes beside those that were asked for; or
                // the file is shorter than it was. Once more, for these bytes alone.
                careful = true;
                self.look_at_len()?;
                continue;
            }
            Tally::add(&self.tally.failed, 1);
            return Err(error);
        }
    }

    /// Checks and keeps what came in several pieces, none of which could be checked by itself.
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
        Error::new(ErrorKind::Corrupt, "read", format!("{}: {len} bytes: {why}", self.name)).offset(offset)
    }

    /// Reads pieces from the device into `out`, and offers what they bring to the store. Errors go
    /// to `failed`, with the piece they concern.
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
        for (number, request) in requests.iter().enumerate() {
            let extent = request.extent;
            if how.careful {
                mine.push((number, None));
                extents.push(extent);
                continue;
            }
            match self.info.claim(extent, &self.writes) {
                Claim::Mine(flight) => {
                    mine.push((number, Some(flight)));
                    extents.push(extent);
                }
                Claim::Others(flight) => others.push((number, flight)),
            }
        }
        // Numbers of pieces that are to be checked, and whether they were read here.
        let mut unchecked: Vec<(usize, bool)> = Vec::new();
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
                let (number, flight) = &mut mine[at];
                let result = result.as_ref();
                if let Ok(bytes) = result {
                    Tally::add(&self.tally.device_reads, 1);
                    Tally::add(&self.tally.device_bytes, bytes.len() as u64);
                }
                if let Some(flight) = flight.take() {
                    flight.landed(result.map(|b| &**b));
                }
                settle(*number, extents[at], result.map(|b| &**b), true);
            });
            for (at, _) in told.iter().enumerate().filter(|(_, told)| !**told) {
                // Whoever waits for it hears of it before anybody is waited for.
                mine[at].1 = None;
                settle(mine[at].0, extents[at], Err(&silence()), true);
            }
            if let Some(started) = started {
                self.dispatcher.took(u64::from(extents[0].len), self.engine.now_ns().saturating_sub(started));
            }
        }
        for (number, flight) in others {
            Tally::add(&self.tally.joined, 1);
            let result = flight.wait();
            let extent = requests[number].extent;
            settle(number, extent, result.as_deref(), false);
        }
        // A check is code of others, which may read through this cache: no way to the device is
        // held any more, and nobody waits for an extent of this read.
        for (at, read_here) in unchecked.into_iter().filter(|_| how.whole) {
            let piece = &pieces[at];
            let settle = Settle { keep: read_here, whole: true, unchanged: &|| (how.unchanged)(piece) };
            if let Err(error) = self.check_read(piece, &out[piece.out_at..piece.out_at + piece.len], settle) {
                failed(piece, error);
            }
        }
    }

    /// Offers bytes that were read to the store. `valid` is about the read's stripes, which have
    /// what is kept beside it, too: that lies in the same page.
    pub(crate) fn keep(&self, piece: &Piece, kept: (u64, u64), extent: Extent, bytes: &[u8], valid: &dyn Fn() -> bool) {
        Tally::add(&self.tally.by_path[piece.path as usize], 1);
        if piece.path == Path::Blocks && !self.options.keep_blocks {
            return;
        }
        let (from, to) = kept;
        let Some(bytes) = bytes.get((from - extent.offset) as usize..(to - extent.offset) as usize) else { return };
        self.insert(from, bytes, piece.offset, valid);
    }

    /// Checks what a read of one piece brought, and keeps it, where bytes are checked. Nothing that
    /// others could wait for is held.
    pub(crate) fn check_read(&self, piece: &Piece, bytes: &[u8], how: Settle<'_>) -> Result<()> {
        let Some(verify) = self.options.verify.as_ref().filter(|_| how.whole) else { return Ok(()) };
        verify(piece.offset, bytes).map_err(|why| self.corrupt(piece.offset, piece.len, &why))?;
        if how.keep {
            // Just what was checked.
            let extent = Extent { offset: piece.offset, len: bytes.len() as u32 };
            self.keep(piece, (piece.offset, piece.end()), extent, bytes, how.unchanged);
        }
        Ok(())
    }

    fn short(&self, piece: &Piece, extent: Extent, got: usize) -> Error {
        let context = format!("{}: the device gave {got} of {} bytes", self.name, extent.len);
        Error::new(ErrorKind::EndOfFile, "read", context).offset(piece.offset).bytes_done(0)
    }

    /// The error of an extent as that of a piece of it.
    fn of_piece(&self, piece: &Piece, error: &Error) -> Error {
        let told = Error::new(error.kind(), "read", format!("{}: {} bytes: {error}", self.name, piece.len));
        let told = told.offset(piece.offset).bytes_done(0);
        match error.raw_os_error() {
            Some(errno) => told.errno(errno),
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

    /// Waits until nothing of the range is changing.
    fn begin(&mut self) -> Result<Since> {
        self.leave();
        if !self.repeats.are_many() {
            // In this order: what begins to change after the wait is told by the stamp.
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

/// Repeats after which a read insists.
const FEW: u32 = 3;

impl Repeats {
    /// Whether it is time to insist.
    pub(crate) fn are_many(&self) -> bool {
        self.count >= FEW
    }

    /// Notes one more.
    ///
    /// # Errors
    /// `Busy` where it insisted, and its patience is at an end.
    pub(crate) fn one_more(&mut self, range: &Range<u64>, patience: Duration) -> Result<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.count = self.count.saturating_add(1);
        // The model knows no time, and its writers come to an end.
        if cfg!(shuttle) || self.count <= FEW || since.elapsed() < patience {
            return Ok(());
        }
        let (len, count) = (range.end - range.start, self.count);
        Err(Error::new(
            ErrorKind::Busy,
            "read",
            format!("{len} bytes that changed during each of {count} reads of them"),
        )
        .offset(range.start)
        .bytes_done(0)
        .advice("let whoever writes there pause, or write through the cache's own writer, which lets readers finish"))
    }
}

/// An engine that says nothing of an extent has not read it.
fn silence() -> Error {
    Error::new(ErrorKind::System, "read", "the engine said nothing of an extent")
}

/// How pieces are brought.
pub(crate) struct Bring<'a> {
    /// Each request by itself: what others are reading may be more than what was asked for, and
    /// fail for that.
    pub(crate) careful: bool,
    /// Each piece is a whole read, and may be checked and kept by itself.
    pub(crate) whole: bool,
    /// Whether a piece's read has not changed since before it was looked up: by the stripes of the
    /// whole read.
    pub(crate) unchanged: &'a dyn Fn(&Piece) -> bool,
}

/// How a piece that arrived is settled.
pub(crate) struct Settle<'a> {
    /// It is a whole read, and may be checked by itself.
    pub(crate) whole: bool,
    /// It was not read for another, who keeps it.
    pub(crate) keep: bool,
    /// Whether nothing changed since before the read was looked up: by the stripes of the whole
    /// read.
    pub(crate) unchanged: &'a dyn Fn() -> bool,
}

/// A range cut at the borders of pages: offset and length of each part.
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
