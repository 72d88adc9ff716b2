//! The Info Area: the table of reads in flight (Pipette, section 3.1.2).
//!
//! A thread that finds an extent in this table waits for that read instead of reading the extent
//! again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use datapipes_core::{Error, ErrorKind, Result};

use crate::coherence::writes::{Stamp, Writes};
use crate::device::engine::Extent;
use crate::store::arena::prefetch;
use crate::store::index::mix;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Condvar, Mutex};

/// Parts of the table, so that threads seldom contend.
const PARTS: usize = 16;

/// A hash of offsets. It need not withstand an attacker, who could only slow down his own table.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mix(self.0 ^ n);
    }
}

type PendingReads = HashMap<u64, Arc<PendingRead>, BuildHasherDefault<Mixed>>;

/// The bytes that arrived, or why they did not.
type Arrival = std::result::Result<Arc<[u8]>, (ErrorKind, String)>;

#[derive(Default)]
struct Progress {
    over: bool,
    arrival: Option<Arrival>,
}

/// An extent that is being read.
pub(crate) struct PendingRead {
    extent: Extent,
    /// The versions of all of the extent's own bytes at the start, whatever part others want.
    stamp: Stamp,
    whole: bool,
    /// The number of waiters. It changes only under the lock of its part of the table.
    waiting: AtomicUsize,
    progress: Mutex<Progress>,
    finished: Condvar,
}

impl PendingRead {
    /// Whether its bytes were unchanged in the file from its start until now, and it has all of
    /// `extent`. All bytes of the pending read are checked: a reader that wants only a part has
    /// fewer stripes, whose versions do not cover the pending read.
    fn serves(&self, extent: Extent, writes: &Writes) -> bool {
        let own = self.extent.offset..self.extent.end();
        self.extent.offset == extent.offset
            && self.extent.len >= extent.len
            && self.whole
            && writes.unchanged(&own, self.stamp)
    }
}

/// A pending read that this thread must finish. If it is dropped without a report, perhaps by a
/// panic, the waiters get an error.
pub(crate) struct Own<'a> {
    area: &'a InfoArea,
    pending: Option<Arc<PendingRead>>,
}

/// The result of claiming an extent.
pub(crate) enum Claim<'a> {
    /// The caller must read it, and report to [`Own::finish`].
    Mine(Own<'a>),
    /// Another thread reads it.
    Others(Arc<PendingRead>),
}

/// The table of pending reads.
pub(crate) struct InfoArea {
    parts: [Mutex<PendingReads>; PARTS],
}

impl Default for InfoArea {
    fn default() -> InfoArea {
        InfoArea { parts: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl InfoArea {
    fn part(&self, offset: u64) -> &Mutex<PendingReads> {
        &self.parts[mix(offset) as usize % PARTS]
    }

    /// Claims the extent, or returns the pending read that reads it. A pending read that began
    /// before a change of its bytes does not help the caller. Nor does one that began while any of
    /// its bytes was changing: its reader may not want the changing bytes, and the caller may.
    pub(crate) fn claim(&self, extent: Extent, writes: &Writes) -> Claim<'_> {
        let range = extent.offset..extent.end();
        // The stamp comes first: it reveals a change that begins after the look at the list.
        let stamp = writes.stamp(&range);
        let whole = !writes.is_changing(&range);
        let mut part = self.part(extent.offset).lock();
        if let Some(pending) = part.get(&extent.offset)
            && pending.serves(extent, writes)
        {
            pending.waiting.fetch_add(1, Ordering::Relaxed);
            return Claim::Others(pending.clone());
        }
        let waiting = AtomicUsize::new(0);
        let pending = Arc::new(PendingRead {
            extent,
            stamp,
            whole,
            waiting,
            progress: Mutex::default(),
            finished: Condvar::new(),
        });
        // If a shorter or older pending read is there, both go on. Later callers find the newer
        // one.
        part.insert(extent.offset, pending.clone());
        Claim::Mine(Own { area: self, pending: Some(pending) })
    }

    fn finish(&self, pending: &Arc<PendingRead>, result: Result<&[u8], &Error>) {
        let mut part = self.part(pending.extent.offset).lock();
        if part.get(&pending.extent.offset).is_some_and(|f| Arc::ptr_eq(f, pending)) {
            part.remove(&pending.extent.offset);
        }
        // Nobody can join any more: waiters join under this lock.
        let waiting = pending.waiting.load(Ordering::Relaxed);
        drop(part);
        if waiting == 0 {
            return;
        }
        let mut progress = pending.progress.lock();
        progress.over = true;
        progress.arrival = Some(match result {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err((error.kind(), error.to_string())),
        });
        pending.finished.notify_all();
    }

    /// Returns the number of reads in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.parts.iter().map(|p| p.lock().len()).sum()
    }
}

impl Own<'_> {
    /// Whether this is its pending read.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_of(&self, pending: &Arc<PendingRead>) -> bool {
        self.pending.as_ref().is_some_and(|own| Arc::ptr_eq(own, pending))
    }

    /// Prefetches what [`finish`](Self::finish) accesses of the pending read.
    pub(crate) fn end_soon(&self) {
        self.pending.iter().for_each(|pending| prefetch(Arc::as_ptr(pending)));
    }

    /// Reports the result of the read.
    pub(crate) fn finish(mut self, result: Result<&[u8], &Error>) {
        if let Some(pending) = self.pending.take() {
            self.area.finish(&pending, result);
        }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            let error =
                Error::new(ErrorKind::System, "read", "the read that was to bring these bytes ended without them");
            self.area.finish(&pending, Err(&error));
        }
    }
}

impl PendingRead {
    /// Whether it has ended, so that `wait` returns at once.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_over(&self) -> bool {
        self.progress.lock().over
    }

    /// Waits for another thread's pending read and returns all of its bytes.
    ///
    /// # Errors
    /// The error of the other thread's read.
    pub(crate) fn wait(&self) -> Result<Arc<[u8]>> {
        let mut progress = self.progress.lock();
        while !progress.over {
            progress = self.finished.wait(progress);
        }
        match &progress.arrival {
            Some(Ok(bytes)) => Ok(bytes.clone()),
            Some(Err((kind, text))) => Err(Error::relayed(*kind, text.clone())),
            None => Err(Error::new(ErrorKind::System, "read", "a read in flight ended without a result")),
        }
    }
}
