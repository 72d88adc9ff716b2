//! Reads as futures: hits are ready at once, misses are transfers of a runtime (CIDR'23, section
//! 5.2).

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use datapipes_core::{
    ConnectOptions, Constraints, Dram, Error, ErrorKind, Handle, MapOptions, Pages, Result, Runtime, RuntimePipe, Span,
};

use super::batches::Batches;
use crate::bytes::zeroed;
use crate::coherence::writes::{Since, Waits, Writes};
use crate::device::engine::Extent;
use crate::fine::FineGrained;
use crate::metrics::Tally;
use crate::miss::constructor::Piece;
use crate::miss::dispatcher::Path;
use crate::miss::requester::{Repeats, Settle, in_pages};
use crate::pool::file::Inner;
use crate::store::PAGE;
use crate::sync::{Arc, Mutex, drop_waker, wake_all};

/// Bytes of a buffer: a page's read, and what alignment adds on both sides.
const BUFFER: usize = 2 * PAGE as usize;

/// A reader of the cache whose reads are futures.
#[derive(Clone)]
pub struct AsyncReader(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) inner: Arc<Inner>,
    /// Keeps the file open.
    pub(super) fine: FineGrained,
    pub(super) batches: Arc<Batches>,
    pipe: RuntimePipe,
    buffers: Dram,
    slots: Mutex<Slots>,
    starting: Mutex<Starting>,
    /// The number of futures that may wait for a buffer.
    pub(super) may_wait: usize,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A forked child has not got the thread, and its lock may be held for ever.
        if self.inner.owner.is_here() {
            self.batches.end();
        }
    }
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// The waiting futures by ticket, in order of arrival.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

/// The transfers that futures want to start, each named by its buffer.
///
/// ```text
/// first poll    wanted                   the future wakes itself
/// next poll     wanted -> Waits -> Done  of all that are wanted, by whichever future is polled first
///               Done -> moving           each future takes its own
/// ```
///
/// So the reads of futures that an executor polls one after the other go to the device together.
/// Each one wakes itself, so none depends on another that is polled no more.
#[derive(Default)]
struct Starting {
    wanted: Vec<(usize, Span)>,
    states: HashMap<usize, StartState>,
}

enum StartState {
    /// It is wanted, or a thread is starting it. The waker is that of a future that was polled
    /// meanwhile.
    Waits(Option<Waker>),
    /// The same, and its future was dropped.
    Abandoned,
    Done(Result<Handle>),
}

/// This many go to the device without waiting for more.
const MAX_WANTED: usize = 64;

/// Limits for futures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncReaderOptions {
    /// Reads at the device at once: 64 by default.
    pub reads: usize,
    /// Futures that wait for their turn, 65,536 by default. A further one fails with `Busy`.
    pub waiting: usize,
}

impl Default for AsyncReaderOptions {
    fn default() -> Self {
        AsyncReaderOptions { reads: 64, waiting: 1 << 16 }
    }
}

datapipes_core::setters! {
    AsyncReaderOptions {
        reads: usize,
        waiting: usize,
    }
}

impl FineGrained {
    /// Returns a reader with futures: at most `in_flight` are at the device, and up to 65,536 more
    /// wait for their turn.
    ///
    /// # Errors
    /// `InvalidInput` for a cache that is not over a file, or for `in_flight` 0. Errors of
    /// connecting.
    pub fn on(&self, runtime: &Runtime, in_flight: usize) -> Result<AsyncReader> {
        self.on_with(runtime, AsyncReaderOptions::default().reads(in_flight))
    }

    /// As [`on`](Self::on), with a limit for waiting futures.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn on_with(&self, runtime: &Runtime, options: AsyncReaderOptions) -> Result<AsyncReader> {
        let AsyncReaderOptions { reads: in_flight, waiting } = options;
        self.0.owner.check("read")?;
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "the cache is not over a file"));
        };
        if in_flight == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "at least one read in flight is needed"));
        }
        let Some(bytes) = in_flight.checked_mul(BUFFER) else {
            return Err(Error::new(ErrorKind::InvalidInput, "read", format!("with {in_flight} in flight")));
        };
        let options = MapOptions::default().pages(Pages::Small);
        let buffers = Dram::allocate_with(bytes, options)?;
        let direct = self.0.engine.facts().granularity > 1;
        let constraints =
            Constraints::default().bypass_page_cache(direct).queue_depth(in_flight.min(1024) as u32).typical_len(512);
        let ask = ConnectOptions::default().constraints(constraints);
        let pipe = runtime.connect_with(ssd, &buffers, &ask)?;
        let slots = Slots { free: (0..in_flight).collect(), ..Slots::default() };
        Ok(AsyncReader(Arc::new(Shared {
            inner: self.0.inner().clone(),
            fine: self.clone(),
            batches: Batches::new(),
            pipe,
            buffers,
            slots: Mutex::new(slots),
            starting: Mutex::default(),
            may_wait: waiting,
        })))
    }
}

impl AsyncReader {
    /// Reads `len` bytes at `offset`. Nothing happens until the future is polled. The first poll
    /// copies what is cached. Where bytes are missing it wakes the future, and the next poll goes
    /// to the device, together with what other futures miss. (To begin to read and do something
    /// else meanwhile, use [`FineGrained::prefetch`].) Dropping it neither cancels the device's
    /// work nor frees its buffer before that is done. A read across pages goes to the device page
    /// by page.
    ///
    /// If somebody writes to these bytes, the read waits for the end of the write. It fails with
    /// `Busy` after the file's patience ([`FileOptions::patience`](crate::FileOptions::patience)).
    /// The cache's thread checks this at least every 100 ms, or [`FineGrained::maintain`] where
    /// there is no thread. The cache keeps one waker of a waiting future, the last one, and none of
    /// a future that ended or was dropped. If the cache's thread must wake a waker that blocks, the
    /// waker blocks a thread of its own. If a writer of this process or [`FineGrained::maintain`]
    /// wakes it, it blocks those.
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

/// A read in progress. It yields the bytes, or the errors of [`FineGrained::read`].
pub struct ReadFuture {
    shared: Arc<Shared>,
    offset: u64,
    len: usize,
    /// Empty until the file is known to have so many bytes.
    out: Vec<u8>,
    /// The number of bytes of `out` that were read.
    done: usize,
    /// The stamp from before this attempt's first look into the cache.
    since: Option<Since>,
    repeats: Repeats,
    /// Set after an error: only the requested bytes are read.
    careful: bool,
    /// The ticket of a wait for a buffer.
    ticket: Option<u64>,
    /// The ticket of a wait for the end of a change.
    waits: Option<Waits>,
    step: Step,
}

enum Step {
    /// Looks into the cache for the next piece.
    Look,
    /// Wants the transfer of a piece into a buffer.
    Starting {
        slot: usize,
        extent: Extent,
        piece: Piece,
    },
    /// Reads a piece into a buffer.
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
    /// Takes a buffer, or registers a wait for one.
    ///
    /// # Errors
    /// `Busy` where the limit of waiting futures is reached.
    fn take(&self, ticket: &mut Option<u64>, context: &Context<'_>) -> Result<Option<usize>> {
        // Wakers are foreign code: none is cloned or dropped under the lock.
        let mut waker = None;
        loop {
            let mut slots = self.slots.lock();
            if let Some(slot) = slots.free.pop() {
                let left = ticket.take().and_then(|mine| slots.remove(mine));
                drop(slots);
                // The buffer is taken, whatever the wakers do.
                [left, waker].into_iter().flatten().for_each(drop_waker);
                return Ok(Some(slot));
            }
            if ticket.is_none() && slots.waiting.len() >= self.may_wait {
                drop(slots);
                let context = format!("{} futures are waiting for their turn", self.may_wait);
                return Err(Error::new(ErrorKind::Busy, "read", context)
                    .with_advice("read with fewer at once, or let more wait"));
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
        let mut slots = self.slots.lock();
        slots.free.push(slot);
        let next = slots.waiting.pop_front();
        drop(slots);
        wake_all(next.map(|(_, waker)| waker));
    }

    /// Gives up a wait. If this future was chosen for a buffer, it passes the buffer on.
    fn leave(&self, ticket: u64) {
        let mut slots = self.slots.lock();
        let left = slots.remove(ticket);
        let chosen = left.is_none() && !slots.free.is_empty();
        let next = if chosen { slots.waiting.pop_front() } else { None };
        drop(slots);
        left.into_iter().for_each(drop_waker);
        wake_all(next.map(|(_, waker)| waker));
    }

    /// Notes that a transfer into a buffer is wanted. True where many are.
    fn want(&self, slot: usize, span: Span) -> bool {
        let mut starting = self.starting.lock();
        starting.wanted.push((slot, span));
        starting.states.insert(slot, StartState::Waits(None));
        starting.wanted.len() >= MAX_WANTED
    }

    /// Starts all transfers that are wanted, that of the polled future first.
    fn start_wanted(self: &Arc<Self>, polled: usize) {
        let mut wanted = std::mem::take(&mut self.starting.lock().wanted);
        if wanted.is_empty() {
            return;
        }
        wanted.sort_by_key(|(slot, _)| *slot != polled);
        let outcomes = self.pipe.transfer_each(wanted.iter().map(|(_, span)| *span));
        let (mut wakers, mut abandoned) = (Vec::new(), Vec::new());
        let mut starting = self.starting.lock();
        for ((slot, span), outcome) in wanted.into_iter().zip(outcomes) {
            let is_busy = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
            if slot != polled
                && is_busy
                && let Some(StartState::Waits(waker)) = starting.states.get_mut(&slot)
            {
                // There may be no room within what polls here. Its own future tries again.
                wakers.extend(waker.take());
                starting.wanted.push((slot, span));
                continue;
            }
            match starting.states.insert(slot, StartState::Done(outcome)) {
                Some(StartState::Waits(waker)) => wakers.extend(waker),
                Some(StartState::Abandoned) => {
                    if let Some(StartState::Done(outcome)) = starting.states.remove(&slot) {
                        abandoned.push((slot, outcome));
                    }
                }
                Some(StartState::Done(_)) | None => {}
            }
        }
        drop(starting);
        wake_all(wakers);
        abandoned.into_iter().for_each(|(slot, outcome)| self.let_go(slot, outcome));
    }

    /// The transfer into a buffer, or nothing where another thread is starting it: then the waker
    /// is woken.
    fn started(self: &Arc<Self>, slot: usize, context: &Context<'_>) -> Option<Result<Handle>> {
        self.start_wanted(slot);
        // Wakers are foreign code: none is cloned or dropped under the lock.
        let mut waker = None;
        loop {
            let mut starting = self.starting.lock();
            let state = starting.states.get_mut(&slot);
            let Some(StartState::Waits(kept)) = state else {
                let state = starting.states.remove(&slot);
                drop(starting);
                waker.into_iter().for_each(drop_waker);
                let gone = || Error::new(ErrorKind::System, "read", "its transfer was not started");
                return Some(if let Some(StartState::Done(outcome)) = state { outcome } else { Err(gone()) });
            };
            let Some(waker) = waker.take() else {
                drop(starting);
                waker = Some(context.waker().clone());
                continue;
            };
            let replaced = kept.replace(waker);
            drop(starting);
            replaced.into_iter().for_each(drop_waker);
            return None;
        }
    }

    /// A future that wanted a transfer is dropped.
    fn abandon(self: &Arc<Self>, slot: usize) {
        let mut starting = self.starting.lock();
        let wanted = starting.wanted.iter().position(|(other, _)| *other == slot);
        let state = match (wanted, starting.states.remove(&slot)) {
            (Some(at), state) => {
                starting.wanted.remove(at);
                drop(starting);
                self.give(slot);
                state
            }
            (None, Some(StartState::Done(outcome))) => {
                drop(starting);
                self.let_go(slot, outcome);
                None
            }
            (None, state) => {
                starting.states.insert(slot, StartState::Abandoned);
                drop(starting);
                state
            }
        };
        if let Some(StartState::Waits(Some(waker))) = state {
            drop_waker(waker);
        }
    }

    /// Frees a buffer when its transfer is done: the device may still write into it.
    fn let_go(self: &Arc<Self>, slot: usize, started: Result<Handle>) {
        let shared = self.clone();
        match started {
            Ok(handle) => handle.on_done(move |_| shared.give(slot)),
            Err(_) => self.give(slot),
        }
    }

    /// The extent to read for a piece: the bytes to cache, aligned.
    fn extent(&self, piece: &Piece) -> Extent {
        let (grain, file_len) = (u64::from(self.inner.engine.facts().granularity), self.inner.file_len());
        let (from, to) = piece.kept(file_len);
        let from = from / grain * grain;
        Extent { offset: from, len: (to.next_multiple_of(grain).min(file_len.max(to)) - from) as u32 }
    }

    /// Copies out what arrived for a piece. Caches it if there is no check.
    fn arrived(&self, slot: usize, extent: Extent, piece: &Piece, out: &mut [u8], settle: &Settle<'_>) -> Result<()> {
        let inner = &*self.inner;
        let bytes = self.buffers.range(slot * BUFFER, extent.len as usize)?.lease()?;
        Tally::add(&inner.tally.device_reads, 1);
        Tally::add(&inner.tally.device_bytes, bytes.len() as u64);
        let at = (piece.offset - extent.offset) as usize;
        out.copy_from_slice(&bytes[at..at + piece.len]);
        if inner.options.verify.is_none() {
            Tally::add(&inner.tally.by_path[piece.path as usize], 1);
            inner.keep(piece, piece.kept(inner.file_len()), extent, &bytes, settle.unchanged);
        }
        Ok(())
    }
}

impl ReadFuture {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.len as u64)
    }

    /// The next piece: the rest of the bytes in one page.
    fn piece(&self) -> Option<Piece> {
        let offset = self.offset + self.done as u64;
        let (offset, len) = in_pages(offset, self.len - self.done).next()?;
        Some(Piece { offset, len, out_at: self.done, read: 0, path: Path::Bytes })
    }

    /// Begins an attempt. Returns None where bytes are changing: the future is woken later.
    fn begin(&mut self, range: &std::ops::Range<u64>, context: &Context<'_>) -> Result<Option<Since>> {
        let inner = self.shared.inner.clone();
        self.done = 0;
        inner.check_range(self.offset, self.len)?;
        if self.out.len() < self.len {
            self.out = zeroed(self.len).map_err(|e| e.with_offset(self.offset))?;
        }
        loop {
            let stamp = inner.writes.stamp(range);
            if inner.writes.wake_when_quiet(range, context.waker(), &mut self.waits) {
                // The model has no time.
                let has_patience = self.waits.is_none_or(|waits| waits.since.elapsed() < inner.options.patience);
                return if has_patience || cfg!(shuttle) { Ok(None) } else { Err(Writes::busy(range)) };
            }
            if !self.repeats.are_many() {
                return Ok(Some(Since::Versions(stamp)));
            }
            self.careful = true;
            // It does not wait for writers: the polling thread may be the writer.
            if let Ok(named) = inner.writes.insist(range, false, Duration::ZERO) {
                return Ok(Some(Since::Named(named)));
            }
        }
    }

    /// Ends the read: its waker is not needed any more.
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

    /// Prepares another attempt because bytes changed.
    fn again(&mut self) -> Result<()> {
        self.leave();
        let shared = self.shared.clone();
        Tally::add(&shared.inner.tally.repeated, 1);
        let range = self.range();
        self.repeats.one_more(&range, shared.inner.options.patience)
    }

    /// Looks into the cache, and starts a transfer for what is missing. Returns None on progress.
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
            // All bytes are there. Are they of one moment?
            let since = self.since;
            let unchanged = || since.is_some_and(|since| inner.writes.is_same(&range, since));
            if unchanged() {
                let checked = match in_pages(self.offset, self.len).nth(1) {
                    Some(_) => inner.check_together(self.offset, &self.out, &unchanged),
                    // A single piece was already checked.
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
            Err(error) => return Some(Poll::Ready(Err(error.with_offset(self.offset).with_bytes_done(0)))),
        };
        if !self.careful {
            piece.path = inner.dispatch(piece.offset, piece.len, missing);
        }
        let extent = shared.extent(&piece);
        let span = Span { source: extent.offset, target: (slot * BUFFER) as u64, len: u64::from(extent.len) };
        self.step = Step::Starting { slot, extent, piece };
        if shared.want(slot, span) {
            return None;
        }
        // Others that are polled before this one go with it.
        wake_all([context.waker().clone()]);
        Some(Poll::Pending)
    }

    /// Has the transfer started, with those that others want.
    fn start(&mut self, context: &Context<'_>) -> Option<Poll<Result<Vec<u8>>>> {
        let Step::Starting { slot, extent, piece } = self.step else { return None };
        match self.shared.started(slot, context)? {
            Ok(handle) => {
                self.step = Step::Moving { handle, slot, extent, piece };
                None
            }
            Err(error) => {
                self.step = Step::Look;
                self.shared.give(slot);
                Some(Poll::Ready(Err(error)))
            }
        }
    }

    /// Polls the transfer.
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
        // The check may read through this cache, also by futures, so it runs without the buffer.
        let outcome = outcome.and_then(|()| inner.check_read(&piece, out, settle));
        match outcome {
            Ok(()) => self.done += piece.len,
            // A change may cause an error as well, such as truncation.
            Err(_) if !inner.writes.is_same(&range, since) => {
                return self.again().err().map(|error| Poll::Ready(Err(error)));
            }
            // Perhaps only bytes beside the requested ones cannot be read, or the file became
            // shorter.
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

/// A buffer in use. Dropping this frees the buffer, also on a panic of its user.
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
                Step::Starting { .. } => match self.start(context) {
                    None if matches!(self.step, Step::Starting { .. }) => Some(Poll::Pending),
                    outcome => outcome,
                },
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
        // A forked child does not take part in its parent's cache.
        if !self.shared.inner.owner.is_here() {
            return;
        }
        self.end();
        if let Some(ticket) = self.ticket.take() {
            self.shared.leave(ticket);
        }
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Starting { slot, .. } => self.shared.abandon(slot),
            Step::Moving { handle, slot, .. } => self.shared.let_go(slot, Ok(handle)),
            Step::Look | Step::Over => {}
        }
    }
}
