//! The latencies of reads, measured on demand.

use std::sync::OnceLock;
use std::time::Duration;

use datapipes_metrics::{Histogram, Recorder};
use serde::{Deserialize, Serialize};

use crate::sync::atomic::{AtomicBool, Ordering};

/// The latencies of calls that read. A call that reads several ranges counts once, with all of its
/// time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latencies {
    /// Calls whose bytes were all cached.
    pub hits: Histogram,
    /// Calls that needed the device, waited for another thread's read, or failed.
    pub misses: Histogram,
}

impl Latencies {
    /// Adds the calls of another one.
    pub fn add(&mut self, other: &Latencies) {
        self.hits.add(&other.hits);
        self.misses.add(&other.misses);
    }
}

/// Latencies, measured on demand: nothing is allocated or counted before that.
#[derive(Default)]
pub(crate) struct Measuring {
    on: AtomicBool,
    of: OnceLock<[Recorder; 2]>,
}

impl Measuring {
    #[inline]
    pub(crate) fn are_measured(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn measure(&self, on: bool) {
        if on {
            self.of.get_or_init(Default::default);
        }
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, hit: bool, time: Duration) {
        if let Some([hits, misses]) = self.of.get() {
            if hit { hits } else { misses }.record(time);
        }
    }

    pub(crate) fn now(&self) -> Option<Latencies> {
        self.of.get().map(|[hits, misses]| Latencies { hits: hits.histogram(), misses: misses.histogram() })
    }
}
