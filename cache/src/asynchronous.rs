//! Reads as futures: hits are ready at once, misses are transfers of a runtime (CIDR'23, section
//! 5.2).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use datapipes_core::{
    ConnectOptions, Constraints, Dram, Error, ErrorKind, Handle, MapOptions, Pages, Result, Runtime, RuntimePipe, Span,
};

use crate::constructor::Piece;
use crate::dispatcher::Path;
use crate::engine::Extent;
use crate::fine::{FineGrained, Inner, zeroed};
use crate::metrics::Tally;
use crate::requester::{Repeats, Settle, in_pages};
use crate::store::PAGE;
use crate::sync::{Arc, Mutex, drop_waker, lock, wake_all};
use crate::writes::{Since, Waits, Writes};

/// Bytes of a buffer: a page's read and what alignment adds on both sides.
const BUFFER: usize = 2 * PAGE as usize;

/// The cache's asynchronous face.
#[derive(Clone)]
pub struct AsyncReader(Arc<Shared>);

struct Shared {
    inner: Arc<Inner>,
    /// So that the file stays open.
    _fine: FineGrained,
    pipe: RuntimePipe,
    buffers: Dram,
    slots: Mutex<Slots>,
    /// Futures that may wait for one.
    may_wait: usize,
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// Who waits for one, by ticket, in the order of their coming.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

/// How many futures may do what at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Reads at the device.
    pub reads: usize,
    /// Futures that wait for their turn; a further one ends with `Busy`.
    pub waiting: usize,
}

impl FineGrained {
    /// Reads by futures: at most `in_flight` are at the device, up to 65,536 more wait for their
    /// turn.
    ///
    /// # Errors
    /// `InvalidInput` for a cache that is not over a file, or for none in flight; what connecting
    /// meets.
    pub fn on(&self, runtime: &Runtime, in_flight: usize) -> Result<AsyncReader> {
        self.on_with(runtime, InFlight { reads: in_flight, waiting: 1 << 16 })
    }

    /// The same, with a limit to those that wait.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn on_with(&self, runtime: &Runtime, limits: InFlight) -> Result<AsyncReader> {
        let InFlight { reads: in_flight, waiting } = limits;
        self.0.owner.check("read")?;
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "the cache is not over a file"));
        };
        if in_flight == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "with nothing in flight"));
        }
        let Some(bytes) = in_flight.checked_mul(BUFFER) else {
            return Err(Error::new(ErrorKind::InvalidInput, "read", format!("with {in_flight} in flight")));
        };
        let options = MapOptions { pages: Pages::Small, ..MapOptions::default() };
        let buffers = Dram::allocate_with(bytes, options)?;
        let direct = self.0.engine.facts().granularity > 1;
        let constraints = Constraints {
            bypass_page_cache: direct,
            queue_depth: Some(in_flight.min(1024) as u32),
            typical_len: Some(512),
            ..Constraints::default()
        };
        let ask = ConnectOptions { constraints, ..ConnectOptions::default() };
        let pipe = runtime.connect_with(ssd, &buffers, &ask)?;
        let slots = Slots { free: (0..in_flight).collect(), ..Slots::default() };
        Ok(AsyncReader(Arc::new(Shared {
            inner: self.0.clone(),
            _fine: self.clone(),
            pipe,
            buffers,
            slots: Mutex::new(slots),
            may_wait: waiting,
        })))
    }
}

impl AsyncReader {
    /// Reads `len` bytes at `offset`; nothing happens until the future is polled. Dropping it
    /// neither cancels the device's work nor frees its buffer before that is over. A read across
    /// pages goes to the device page by page.
    ///
    /// Where somebody is writing there it waits until that is over, or ends with `Busy` after the
    /// file's patience ([`FileOptions::patience`](crate::FileOptions::patience)): found out by the
    /// cache's thread, which looks every 100 ms at least, or by [`FineGrained::maintain`] where it
    /// has none. Of a future that waits one waker is kept, the last that it was polled with; none
    /// of one that is over or dropped. A waker that blocks keeps a thread for itself where the
    /// cache's thread had it woken; where a writer of this process or [`FineGrained::maintain`]
    /// wakes it, it keeps those.
    pub fn read(&self, offset: u64, len: usize) -> ReadFuture {
        ReadFuture {
            shared: self.0.clone(),
            offset,
            len,
            out: Vec::new(),
            done: 0,
            since: None,
            repeats: Repeats::default(),
            careful: false,
            ticket: None,
            waits: None,
            step: Step::Look,
        }
    }
}

/// A read on its way. It yields the bytes, or what [`FineGrained::read`] would meet.
pub struct ReadFuture {
    shared: Arc<Shared>,
    offset: u64,
    len: usize,
    /// Empty until it is known that the file has so many bytes.
    out: Vec<u8>,
    /// Bytes of `out` that are there.
    done: usize,
    /// From before the first look at what is cached, in this attempt.
    since: Option<Since>,
    repeats: Repeats,
    /// After an error: only what was asked for is read.
    careful: bool,
    /// That of a wait for a buffer.
    ticket: Option<u64>,
    /// That for a change to be over.
    waits: Option<Waits>,
    step: Step,
}

enum Step {
    /// To look at what is cached of the next piece.
    Look,
    /// A piece is on its way into a buffer.
    Moving {
        handle: Handle,
        slot: usize,
        extent: Extent,
        piece: Piece,
    },
    Over,
}

impl Slots {
    fn remove(&mut self, ticket: u64) -> Option<Waker> {
        let at = self.waiting.iter().position(|(t, _)| *t == ticket)?;
        self.waiting.remove(at).map(|(_, waker)| waker)
    }
}

impl Shared {
    /// Takes a buffer, or waits for one.
    ///
    /// # Errors
    /// `Busy` where as many wait as may.
    fn take(&self, ticket: &mut Option<u64>, context: &Context<'_>) -> Result<Option<usize>> {
        // Wakers are code of others: none is cloned or dropped under the lock.
        let mut waker = None;
        loop {
            let mut slots = lock(&self.slots);
            if let Some(slot) = slots.free.pop() {
                let left = ticket.take().and_then(|mine| slots.remove(mine));
                drop(slots);
                // Whatever they do, the buffer is taken.
                [left, waker].into_iter().flatten().for_each(drop_waker);
                return Ok(Some(slot));
            }
            if ticket.is_none() && slots.waiting.len() >= self.may_wait {
                drop(slots);
                let context = format!("{} futures wait for their turn", self.may_wait);
                return Err(
                    Error::new(ErrorKind::Busy, "read", context).advice("read with fewer at once, or let more wait")
                );
            }
            let Some(waker) = waker.take() else {
                drop(slots);
                waker = Some(context.waker().clone());
                continue;
            };
            let mine = ticket.unwrap_or(slots.tickets);
            if ticket.replace(mine).is_none() {
                slots.tickets += 1;
            }
            let replaced = match slots.waiting.iter_mut().find(|(t, _)| *t == mine) {
                Some(waiting) => Some(std::mem::replace(&mut waiting.1, waker)),
                None => {
                    slots.waiting.push_back((mine, waker));
                    None
                }
            };
            drop(slots);
            replaced.into_iter().for_each(drop_waker);
            return Ok(None);
        }
    }

    fn give(&self, slot: usize) {
        let mut slots = lock(&self.slots);
        slots.free.push(slot);
        let next = slots.waiting.pop_front();
        drop(slots);
        wake_all(next.map(|(_, waker)| waker));
    }

    /// Waits no longer. Who was chosen for a buffer and does not want it any more hands that on.
    fn leave(&self, ticket: u64) {
        let mut slots = lock(&self.slots);
        let left = slots.remove(ticket);
        let chosen = left.is_none() && !slots.free.is_empty();
        let next = if chosen { slots.waiting.pop_front() } else { None };
        drop(slots);
        left.into_iter().for_each(drop_waker);
        wake_all(next.map(|(_, waker)| waker));
    }

    /// The extent that brings a piece: what is kept of it, aligned.
    fn extent(&self, piece: &Piece) -> Extent {
        let (grain, file_len) = (u64::from(self.inner.engine.facts().granularity), self.inner.file_len());
        let (from, to) = piece.kept(file_len);
        let from = from / grain * grain;
        Extent { offset: from, len: (to.next_multiple_of(grain).min(file_len.max(to)) - from) as u32 }
    }

    /// Takes what arrived for a piece, and keeps it where nothing is checked.
    fn arrived(&self, slot: usize, extent: Extent, piece: &Piece, out: &mut [u8], settle: &Settle<'_>) -> Result<()> {
        let inner = &*self.inner;
        let bytes = self.buffers.range(slot * BUFFER, extent.len as usize)?.lease()?;
        Tally::add(&inner.tally.device_reads, 1);
        Tally::add(&inner.tally.device_bytes, bytes.len() as u64);
        let at = (piece.offset - extent.offset) as usize;
        out.copy_from_slice(&bytes[at..at + piece.len]);
        if inner.options.verify.is_none() {
            inner.keep(piece, piece.kept(inner.file_len()), extent, &bytes, settle.unchanged);
        }
        Ok(())
    }
}

impl ReadFuture {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }

    /// The next piece: all that is left of one page.
    fn piece(&self) -> Option<Piece> {
        let offset = self.offset + self.done as u64;
        let (offset, len) = in_pages(offset, self.len - self.done).next()?;
        Some(Piece { offset, len, out_at: self.done, read: 0, path: Path::Bytes })
    }

    /// Begins an attempt. None where bytes are changing: then it is woken.
    fn begin(&mut self, range: &std::ops::Range<u64>, context: &Context<'_>) -> Result<Option<Since>> {
        let inner = self.shared.inner.clone();
        self.done = 0;
        inner.check_range(self.offset, self.len)?;
        if self.out.len() < self.len {
            self.out = zeroed(self.len).map_err(|e| e.offset(self.offset))?;
        }
        loop {
            let stamp = inner.writes.stamp(range);
            if inner.writes.wake_when_quiet(range, context.waker(), &mut self.waits) {
                // The model knows no time.
                let has_patience = self.waits.is_none_or(|waits| waits.since.elapsed() < inner.options.patience);
                return if has_patience || cfg!(shuttle) { Ok(None) } else { Err(Writes::busy(range)) };
            }
            if !self.repeats.are_many() {
                return Ok(Some(Since::Versions(stamp)));
            }
            self.careful = true;
            // No writer waits for it: it may be that writer's thread which polls.
            if let Ok(named) = inner.writes.insist(range, false, Duration::ZERO) {
                return Ok(Some(Since::Named(named)));
            }
        }
    }

    /// Ends the read: nobody is to be woken for it.
    fn end(&mut self) {
        self.leave();
        if let Some(waits) = self.waits.take() {
            self.shared.inner.writes.wait_no_more(waits);
        }
    }

    /// Ends an attempt.
    fn leave(&mut self) {
        if let Some(Since::Named(named)) = self.since.take() {
            self.shared.inner.writes.leave(named);
        }
    }

    /// Ends an attempt because bytes changed.
    fn again(&mut self) -> Result<()> {
        self.leave();
        let shared = self.shared.clone();
        Tally::add(&shared.inner.tally.repeated, 1);
        let range = self.range();
        self.repeats.one_more(&range, shared.inner.options.patience)
    }

    /// Looks in the cache, and starts a transfer for what is not there. None where it went on.
    fn look(&mut self, context: &Context<'_>) -> Option<Poll<Result<Vec<u8>>>> {
        let shared = self.shared.clone();
        let inner = &*shared.inner;
        let range = self.range();
        if self.since.is_none() {
            match self.begin(&range, context) {
                Ok(Some(since)) => self.since = Some(since),
                Ok(None) => {
                    if let Some(ticket) = self.ticket.take() {
                        shared.leave(ticket);
                    }
                    return Some(Poll::Pending);
                }
                Err(error) => return Some(Poll::Ready(Err(error))),
            }
        }
        let Some(mut piece) = self.piece() else {
            // All is there; of one moment?
            let since = self.since;
            let unchanged = || since.is_some_and(|since| inner.writes.is_same(&range, since));
            if unchanged() {
                let checked = match in_pages(self.offset, self.len).nth(1) {
                    Some(_) => inner.check_together(self.offset, &self.out, &unchanged),
                    // One piece, which was checked by itself.
                    None => Ok(()),
                };
                return Some(Poll::Ready(checked.map(|()| std::mem::take(&mut self.out))));
            }
            return self.again().err().map(|error| Poll::Ready(Err(error)));
        };
        inner.sample(piece.offset);
        let missing = match inner.cached(piece.offset, &mut self.out[self.done..self.done + piece.len]) {
            Ok(()) => {
                self.done += piece.len;
                return None;
            }
            Err(missing) => missing,
        };
        let slot = match shared.take(&mut self.ticket, context) {
            Ok(Some(slot)) => slot,
            Ok(None) => return Some(Poll::Pending),
            Err(error) => return Some(Poll::Ready(Err(error.offset(self.offset).bytes_done(0)))),
        };
        if !self.careful {
            piece.path = inner.dispatch(piece.offset, piece.len, missing);
        }
        let extent = shared.extent(&piece);
        let span = Span { source: extent.offset, target: (slot * BUFFER) as u64, len: u64::from(extent.len) };
        match shared.pipe.transfer(span) {
            Ok(handle) => self.step = Step::Moving { handle, slot, extent, piece },
            Err(error) => {
                shared.give(slot);
                return Some(Poll::Ready(Err(error)));
            }
        }
        None
    }

    /// Looks after the transfer.
    fn proceed(&mut self, context: &mut Context<'_>) -> Option<Poll<Result<Vec<u8>>>> {
        let Step::Moving { handle, slot, extent, piece } = &mut self.step else { return None };
        let Poll::Ready(result) = Pin::new(handle).poll(context) else { return Some(Poll::Pending) };
        let (slot, extent, piece) = (*slot, *extent, *piece);
        self.step = Step::Look;
        let shared = self.shared.clone();
        let (range, inner) = (self.range(), &*shared.inner);
        let since = self.since.unwrap_or_else(|| Since::Versions(inner.writes.stamp(&range)));
        let whole = piece.len == self.len;
        let settle = Settle { whole, keep: true, unchanged: &|| inner.writes.is_same(&range, since) };
        let out = &mut self.out[piece.out_at..piece.out_at + piece.len];
        let buffer = Taken { shared: &shared, slot };
        let outcome = result.and_then(|()| shared.arrived(slot, extent, &piece, out, &settle));
        drop(buffer);
        // A check may read through this cache, by futures, too: without the buffer.
        let outcome = outcome.and_then(|()| inner.check_read(&piece, out, settle));
        match outcome {
            Ok(()) => self.done += piece.len,
            // An error may come of a change as well: a file that was cut.
            Err(_) if !inner.writes.is_same(&range, since) => {
                return self.again().err().map(|error| Poll::Ready(Err(error)));
            }
            // Perhaps only bytes beside those that were asked for cannot be had, or the file is
            // shorter than it was.
            Err(error) if !self.careful && error.kind() != ErrorKind::Corrupt => {
                self.careful = true;
                self.leave();
                if let Err(error) = inner.look_at_len() {
                    return Some(Poll::Ready(Err(error)));
                }
            }
            Err(error) => return Some(Poll::Ready(Err(error))),
        }
        None
    }
}

/// A buffer that is in use, and free when this is dropped, whatever happens to who looks at its
/// bytes.
struct Taken<'a> {
    shared: &'a Shared,
    slot: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.shared.give(self.slot);
    }
}

impl Future for ReadFuture {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.inner.owner.check("read")?;
        let ticket = self.ticket;
        let outcome = self.as_mut().drive(context);
        if let Some(ticket) = ticket.filter(|_| outcome.is_ready() || !matches!(self.step, Step::Look)) {
            self.ticket = None;
            self.shared.leave(ticket);
        }
        outcome
    }
}

impl ReadFuture {
    fn drive(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        loop {
            let outcome = match self.step {
                Step::Look => self.look(context),
                Step::Moving { .. } => self.proceed(context),
                Step::Over => {
                    Some(Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, "read", "this future has ended"))))
                }
            };
            match outcome {
                None => {}
                Some(Poll::Ready(result)) => {
                    self.end();
                    self.step = Step::Over;
                    return Poll::Ready(result);
                }
                Some(Poll::Pending) => return Poll::Pending,
            }
        }
    }
}

impl Drop for ReadFuture {
    fn drop(&mut self) {
        // A child has no part in what its parent's cache does.
        if !self.shared.inner.owner.is_here() {
            return;
        }
        self.end();
        if let Some(ticket) = self.ticket.take() {
            self.shared.leave(ticket);
        }
        if let Step::Moving { handle, slot, .. } = std::mem::replace(&mut self.step, Step::Over) {
            // The device may still write into the buffer: it is free when that is over.
            let shared = self.shared.clone();
            handle.on_done(move |_| shared.give(slot));
        }
    }
}
