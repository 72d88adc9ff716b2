//! Segments in a folder, with an account of how long whoever syncs them waits for a core meanwhile.
//!
//! One batch is under way at a time, by the thread of one appender. If that thread has no core, all
//! others wait for it; what they wait for themselves holds up nothing.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::{Locator, Result};
use datapipes_durable::log::{LogFolder, SegmentSpace, SegmentStorage, UnpublishedSegment};

use crate::report::thread_clock::ThreadClock;

/// The time for which threads waited for a core while they synced, added up.
#[derive(Clone, Debug, Default)]
pub(super) struct CoreWaits(Arc<AtomicU64>);

impl CoreWaits {
    pub(super) fn seconds(&self) -> f64 {
        self.0.load(Relaxed) as f64 / 1e9
    }

    /// Does the work, and counts what this thread waits for a core meanwhile.
    fn count<T>(&self, work: impl FnOnce() -> T) -> T {
        thread_local!(static CLOCK: ThreadClock = ThreadClock::of_this_thread());
        let queued = || CLOCK.with(|clock| clock.read()[1]);
        let before = queued();
        let value = work();
        self.0.fetch_add(((queued() - before).max(0.0) * 1e9) as u64, Relaxed);
        value
    }
}

/// A log folder whose syncs are counted.
pub(super) struct CountedFolder {
    pub(super) folder: LogFolder,
    pub(super) waits: CoreWaits,
}

impl SegmentStorage for CountedFolder {
    fn name(&self) -> String {
        self.folder.name()
    }

    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>> {
        self.folder.lock()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.folder.list()
    }

    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn UnpublishedSegment>> {
        Ok(Box::new(Counted {
            segment: self.folder.prepare(number, len)?,
            waits: self.waits.clone(),
            is_in_log: false,
        }))
    }

    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn SegmentSpace>> {
        Ok(Arc::new(Counted {
            segment: self.folder.open(number, writable)?,
            waits: self.waits.clone(),
            is_in_log: true,
        }))
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        self.folder.note()
    }

    fn set_note(&self, note: Option<&[u8]>) -> Result<()> {
        self.folder.set_note(note)
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.folder.remove(number)
    }
}

/// A segment whose syncs are counted, once it is part of the log: before, they belong to no batch.
struct Counted<S> {
    segment: S,
    waits: CoreWaits,
    is_in_log: bool,
}

impl<S: Deref<Target: SegmentSpace> + Send + Sync> SegmentSpace for Counted<S> {
    fn target(&self) -> &dyn Locator {
        self.segment.target()
    }

    fn source(&self) -> &dyn Locator {
        self.segment.source()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.segment.len_bytes()
    }

    fn sync(&self) -> Result<()> {
        match self.is_in_log {
            true => self.waits.count(|| self.segment.sync()),
            false => self.segment.sync(),
        }
    }
}

impl UnpublishedSegment for Counted<Box<dyn UnpublishedSegment>> {
    fn publish(self: Box<Self>) -> Result<Arc<dyn SegmentSpace>> {
        let Counted { segment, waits, .. } = *self;
        Ok(Arc::new(Counted { segment: segment.publish()?, waits, is_in_log: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn waits_for_a_core_count_and_sleep_does_not() {
        let waits = CoreWaits::default();
        if ThreadClock::of_this_thread().read() == [0.0; 2] {
            return println!("SKIPPED: waits for a core: this kernel does not count them");
        }
        waits.count(|| std::thread::sleep(Duration::from_millis(30)));
        let slept = waits.seconds();
        // Twice as many threads as cores, each with work until one of them has waited.
        let threads = 2 * std::thread::available_parallelism().map_or(2, |n| n.get());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while waits.seconds() < slept + 0.02 {
                        assert!(begin.elapsed() < Duration::from_secs(100), "nobody waited");
                        waits.count(|| std::hint::black_box((0..1_000_000).sum::<u64>()));
                    }
                });
            }
        });
    }
}
