//! Reads as futures: hits are ready at once, misses are transfers of a runtime (CIDR'23, section 5.2).

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
    waiting: Vec<Waker>,
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
        let slots = Slots { free: (0..in_flight).collect(), waiting: Vec::new() };
        Ok(Asynchronous(Arc::new(Shared { inner: self.0.clone(), pipe, buffers, slots: Mutex::new(slots) })))
    }
}

impl Asynchronous {
    /// Reads `len` bytes at `offset`; nothing happens until the future is polled. Dropping it neither cancels the device's work
    /// nor frees its buffer before that is over.
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        Reading { shared: self.0.clone(), offset, len, step: Step::Begin }
    }
}

/// A read on its way. It yields the bytes, or what [`FineGrained::read`] would meet.
pub struct Reading {
    shared: Arc<Shared>,
    offset: u64,
    len: usize,
    step: Step,
}

enum Step {
    Begin,
    Moving { handle: Handle, slot: usize, extent: Extent, path: Path, stamp: Stamp },
    Over,
}

impl Shared {
    fn take(&self, context: &Context<'_>) -> Option<usize> {
        let mut slots = lock(&self.slots);
        let slot = slots.free.pop();
        if slot.is_none() {
            slots.waiting.push(context.waker().clone());
        }
        slot
    }

    fn give(&self, slot: usize) {
        let mut slots = lock(&self.slots);
        slots.free.push(slot);
        let next = slots.waiting.pop();
        drop(slots);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl Reading {
    /// Looks in the cache; otherwise starts a transfer.
    fn begin(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        let shared = self.shared.clone();
        let inner = &*shared.inner;
        let (offset, len) = (self.offset, self.len);
        let range = offset..offset.saturating_add(len as u64);
        let in_page = len > 0 && len as u64 <= PAGE - offset % PAGE;
        let mut out = vec![0; len];
        let stamp = inner.writes.stamp(&range);
        let missing = match in_page.then(|| inner.store.read(offset, &mut out)) {
            Some(Ok(())) => return Poll::Ready(Ok(out)),
            Some(Err(missing)) => missing,
            None => {
                // Across pages, or empty: in parts, on this thread.
                return Poll::Ready(inner.read_slowly(offset, &mut out, false).map(|()| out));
            }
        };
        inner.sample(offset);
        inner.check_range(offset, len)?;
        if inner.writes.is_changing(&range) {
            // A change lasts about as long as a transfer; whoever drives this future looks again.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let path = inner.dispatch(offset, len, missing);
        let piece = Piece { offset, len, out_at: 0, read: 0, path };
        let Some(slot) = shared.take(context) else { return Poll::Pending };
        let grain = u64::from(inner.engine.facts().granularity);
        let (from, to) = piece.kept(inner.file_len());
        let (from, to) = (from / grain * grain, to.next_multiple_of(grain).min(inner.file_len()));
        let extent = Extent { offset: from, len: (to - from) as u32 };
        let span = Span { source: from, target: (slot * BUFFER) as u64, len: to - from };
        match shared.pipe.transfer(span) {
            Ok(handle) => self.step = Step::Moving { handle, slot, extent, path, stamp },
            Err(error) => {
                shared.give(slot);
                return Poll::Ready(Err(error));
            }
        }
        self.proceed(context)
    }

    /// Looks after the transfer.
    fn proceed(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        let Step::Moving { handle, slot, extent, path, stamp } = &mut self.step else { return Poll::Pending };
        let Poll::Ready(result) = Pin::new(handle).poll(context) else { return Poll::Pending };
        let (slot, extent, path, stamp) = (*slot, *extent, *path, *stamp);
        self.step = Step::Begin;
        let shared = self.shared.clone();
        let inner = &*shared.inner;
        let range = self.offset..self.offset.saturating_add(self.len as u64);
        let outcome = result.and_then(|()| {
            let bytes = shared.buffers.range(slot * BUFFER, extent.len as usize)?.lease()?;
            Tally::add(&inner.tally.device_reads, 1);
            Tally::add(&inner.tally.device_bytes, bytes.len() as u64);
            let at = (self.offset - extent.offset) as usize;
            let out = bytes[at..at + self.len].to_vec();
            if inner.writes.unchanged(&range, stamp) {
                inner.settle_read(Piece { offset: self.offset, len: self.len, out_at: 0, read: 0, path }, extent, &bytes, stamp)?;
            }
            Ok(out)
        });
        shared.give(slot);
        if !inner.writes.unchanged(&range, stamp) {
            Tally::add(&inner.tally.repeated, 1);
            return self.begin(context);
        }
        Poll::Ready(outcome)
    }
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.step {
            Step::Begin => self.begin(context),
            Step::Moving { .. } => self.proceed(context),
            Step::Over => Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, "read", "this future has ended"))),
        };
        if outcome.is_ready() {
            self.step = Step::Over;
        }
        outcome
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Step::Moving { handle, slot, .. } = std::mem::replace(&mut self.step, Step::Over) {
            // The device may still write into the buffer: it is free when that is over.
            let shared = self.shared.clone();
            handle.on_done(move |_| shared.give(slot));
        }
    }
}
