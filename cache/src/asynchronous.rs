//! Reads as futures: hits are ready at once, misses are transfers of a runtime (CIDR'23, section 5.2).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use datapipes_core::{
    Connect, Constraints, Dram, Error, ErrorKind, Handle, MapOptions, Pages, Result, Runtime, RuntimePipe, Span,
};

use crate::constructor::Piece;
use crate::dispatcher::Path;
use crate::engine::Extent;
use crate::fine::{FineGrained, Inner};
use crate::metrics::Tally;
use crate::requester::{Settle, in_pages};
use crate::store::PAGE;
use crate::sync::{Arc, Mutex, lock};
use crate::writes::Stamp;

/// Bytes of a buffer: a page's read and what alignment adds on both sides.
const BUFFER: usize = 2 * PAGE as usize;

/// The cache's asynchronous face.
#[derive(Clone)]
pub struct Asynchronous(Arc<Shared>);

struct Shared {
    inner: Arc<Inner>,
    pipe: RuntimePipe,
    buffers: Dram,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// Who waits for one, by ticket, in the order of their coming.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

impl FineGrained {
    /// Reads by futures: at most `in_flight` are at the device, more wait for their turn.
    ///
    /// # Errors
    /// `InvalidInput` for a cache that is not over a file, or for none in flight; what connecting meets.
    pub fn on(&self, runtime: &Runtime, in_flight: usize) -> Result<Asynchronous> {
        let Some(ssd) = &self.0.ssd else {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "the cache is not over a file"));
        };
        if in_flight == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "with nothing in flight"));
        }
        let options = MapOptions { pages: Pages::Small, ..MapOptions::default() };
        let buffers = Dram::allocate_with(in_flight * BUFFER, options)?;
        let direct = self.0.engine.facts().granularity > 1;
        let constraints = Constraints {
            bypass_page_cache: direct,
            queue_depth: Some(in_flight.min(1024) as u32),
            typical_len: Some(512),
            ..Constraints::default()
        };
        let ask = Connect { constraints, ..Connect::default() };
        let pipe = runtime.connect_with(ssd, &buffers, &ask)?;
        let slots = Slots { free: (0..in_flight).collect(), ..Slots::default() };
        Ok(Asynchronous(Arc::new(Shared { inner: self.0.clone(), pipe, buffers, slots: Mutex::new(slots) })))
    }
}

impl Asynchronous {
    /// Reads `len` bytes at `offset`; nothing happens until the future is polled. Dropping it neither cancels the device's work
    /// nor frees its buffer before that is over. A read across pages goes to the device page by page.
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        let out = vec![0; len];
        Reading {
            shared: self.0.clone(),
            offset,
            out,
            done: 0,
            stamp: None,
            careful: false,
            ticket: None,
            step: Step::Look,
        }
    }
}

/// A read on its way. It yields the bytes, or what [`FineGrained::read`] would meet.
pub struct Reading {
    shared: Arc<Shared>,
    offset: u64,
    out: Vec<u8>,
    /// Bytes of `out` that are there.
    done: usize,
    /// From before the first look at what is cached, in this attempt.
    stamp: Option<Stamp>,
    /// After an error: only what was asked for is read.
    careful: bool,
    /// That of a wait for a buffer.
    ticket: Option<u64>,
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

impl Shared {
    /// Takes a buffer, or waits for one.
    fn take(&self, ticket: &mut Option<u64>, context: &Context<'_>) -> Option<usize> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.free.pop() {
            if let Some(mine) = ticket.take() {
                slots.waiting.retain(|(t, _)| *t != mine);
            }
            return Some(slot);
        }
        let mine = ticket.unwrap_or(slots.tickets);
        if ticket.replace(mine).is_none() {
            slots.tickets += 1;
        }
        let waker = context.waker().clone();
        match slots.waiting.iter_mut().find(|(t, _)| *t == mine) {
            Some(waiting) => waiting.1 = waker,
            None => slots.waiting.push_back((mine, waker)),
        }
        None
    }

    fn give(&self, slot: usize) {
        let mut slots = lock(&self.slots);
        slots.free.push(slot);
        let next = slots.waiting.pop_front();
        drop(slots);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// Waits no longer. Who was chosen for a buffer and does not want it any more hands that on.
    fn leave(&self, ticket: u64) {
        let mut slots = lock(&self.slots);
        let before = slots.waiting.len();
        slots.waiting.retain(|(t, _)| *t != ticket);
        let chosen = slots.waiting.len() == before && !slots.free.is_empty();
        let next = if chosen { slots.waiting.pop_front() } else { None };
        drop(slots);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// The extent that brings a piece: what is kept of it, aligned.
    fn extent(&self, piece: &Piece) -> Extent {
        let (grain, file_len) = (u64::from(self.inner.engine.facts().granularity), self.inner.file_len());
        let (from, to) = piece.kept(file_len);
        let from = from / grain * grain;
        Extent { offset: from, len: (to.next_multiple_of(grain).min(file_len.max(to)) - from) as u32 }
    }

    /// Takes what arrived for a piece.
    fn arrived(&self, slot: usize, extent: Extent, piece: &Piece, out: &mut [u8], settle: Settle<'_>) -> Result<()> {
        let inner = &*self.inner;
        let bytes = self.buffers.range(slot * BUFFER, extent.len as usize)?.lease()?;
        Tally::add(&inner.tally.device_reads, 1);
        Tally::add(&inner.tally.device_bytes, bytes.len() as u64);
        let at = (piece.offset - extent.offset) as usize;
        out.copy_from_slice(&bytes[at..at + piece.len]);
        inner.settle_read(*piece, extent, &bytes, settle)
    }
}

impl Reading {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.out.len() as u64)
    }

    /// The next piece: all that is left of one page.
    fn piece(&self) -> Option<Piece> {
        let offset = self.offset + self.done as u64;
        let (offset, len) = in_pages(offset, self.out.len() - self.done).next()?;
        Some(Piece { offset, len, out_at: self.done, read: 0, path: Path::Bytes })
    }

    /// Looks in the cache, and starts a transfer for what is not there. None where it went on.
    fn look(&mut self, context: &Context<'_>) -> Option<Poll<Result<Vec<u8>>>> {
        let shared = self.shared.clone();
        let inner = &*shared.inner;
        let range = self.range();
        if self.stamp.is_none() {
            self.done = 0;
            self.stamp = Some(inner.writes.stamp(&range));
            if let Err(error) = inner.check_range(self.offset, self.out.len()) {
                return Some(Poll::Ready(Err(error)));
            }
            if inner.writes.wake_when_quiet(&range, context.waker()) {
                self.stamp = None;
                if let Some(ticket) = self.ticket.take() {
                    shared.leave(ticket);
                }
                return Some(Poll::Pending);
            }
        }
        let Some(mut piece) = self.piece() else {
            // All is there; of one moment?
            let unchanged = || self.stamp.is_some_and(|stamp| inner.writes.unchanged(&range, stamp));
            if unchanged() {
                let checked = match in_pages(self.offset, self.out.len()).nth(1) {
                    Some(_) => inner.check_together(self.offset, &self.out, &unchanged),
                    // One piece, which was checked by itself.
                    None => Ok(()),
                };
                return Some(Poll::Ready(checked.map(|()| std::mem::take(&mut self.out))));
            }
            Tally::add(&inner.tally.repeated, 1);
            self.stamp = None;
            return None;
        };
        inner.sample(piece.offset);
        let missing = match inner.store.read(piece.offset, &mut self.out[self.done..self.done + piece.len]) {
            Ok(()) => {
                self.done += piece.len;
                return None;
            }
            Err(missing) => missing,
        };
        let Some(slot) = shared.take(&mut self.ticket, context) else { return Some(Poll::Pending) };
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
        let stamp = self.stamp.unwrap_or_else(|| inner.writes.stamp(&range));
        let whole = piece.len == self.out.len();
        let settle = Settle { whole, unchanged: &|| inner.writes.unchanged(&range, stamp) };
        let out = &mut self.out[piece.out_at..piece.out_at + piece.len];
        let outcome = result.and_then(|()| shared.arrived(slot, extent, &piece, out, settle));
        shared.give(slot);
        match outcome {
            Ok(()) => self.done += piece.len,
            // An error may come of a change as well: a file that was cut.
            Err(_) if !inner.writes.unchanged(&range, stamp) => self.stamp = None,
            // Perhaps only bytes beside those that were asked for cannot be had, or the file is shorter than it was.
            Err(error) if !self.careful && error.kind() != ErrorKind::Corrupt => {
                (self.careful, self.stamp) = (true, None);
                if let Err(error) = inner.look_at_len() {
                    return Some(Poll::Ready(Err(error)));
                }
            }
            Err(error) => return Some(Poll::Ready(Err(error))),
        }
        None
    }
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket;
        let outcome = self.as_mut().drive(context);
        if let Some(ticket) = ticket.filter(|_| outcome.is_ready() || !matches!(self.step, Step::Look)) {
            self.ticket = None;
            self.shared.leave(ticket);
        }
        outcome
    }
}

impl Reading {
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
                    self.step = Step::Over;
                    return Poll::Ready(result);
                }
                Some(Poll::Pending) => return Poll::Pending,
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
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
