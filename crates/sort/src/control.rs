//! The state that the threads of a sort share: its progress, and the request to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datapipes_core::in_flight_limit::InFlightLimit;
use datapipes_core::{Error, ErrorKind, Pipe, Result, Span, Transfer};

use crate::report::SpacePlan;
use crate::waits::{SortWait, SortWaitGuard, SortWaits};

/// The progress of a sort. Any thread may read it at any time.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct SortProgress {
    /// Bytes of the whole input; 0 while that is not known.
    pub total: AtomicU64,
    /// Bytes of input that were read.
    pub read: AtomicU64,
    /// Bytes of sorted runs written to the spill places.
    pub spilled: AtomicU64,
    /// Bytes of spilled runs that were merged; bytes that are merged twice count twice.
    pub merged: AtomicU64,
    /// Bytes written to the output.
    pub written: AtomicU64,
    /// Whether all is written, and the output is synced and given its name.
    pub publishes: AtomicBool,
    /// The resources that the sort will use: memory, spill space and places. It is set before the
    /// sort reads or writes anything.
    pub plan: OnceLock<SpacePlan>,
    /// How long its threads waited, and for what.
    pub waits: SortWaits,
}

/// A handle to watch a sort, and to stop it from another thread or a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// The progress of the sort.
    pub progress: Arc<SortProgress>,
    stop: Arc<AtomicBool>,
}

/// So many bytes are under way at least, and at first.
pub(crate) const MIN_UNDER_WAY: u64 = 256 << 10;
const FIRST_UNDER_WAY: u64 = 1 << 20;

/// Makes a limit for what is under way. What was begun is waited for, also by whoever was asked to
/// stop, so on a slow place little is begun at once.
pub(crate) fn limit_under_way(most: u64) -> InFlightLimit {
    InFlightLimit::new(MIN_UNDER_WAY, FIRST_UNDER_WAY, most.max(FIRST_UNDER_WAY))
}

/// Whether a pipe's ends are files and disks of this machine, for which that limit is. A server
/// gives more the more it is asked for.
pub(crate) fn is_of_file(pipe: &Pipe) -> bool {
    pipe.route().hops.iter().all(|hop| hop.backend == "file")
}

impl Control {
    /// Asks the sort to stop. It returns `Interrupted` soon, and leaves no files behind. It waits
    /// no longer for streams and compress programs that say nothing.
    ///
    /// A request is not taken back: every later sort with this handle stops at once.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Returns whether the sort was asked to stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Notes that this thread waits from here on, until what is returned is dropped.
    pub(crate) fn waits_for(&self, what: SortWait) -> SortWaitGuard<'_> {
        self.progress.waits.begin(what, 1)
    }

    /// Notes that this thread makes a call that may wait, until what is returned is dropped. What
    /// it copies meanwhile is work.
    pub(crate) fn calls_for(&self, what: SortWait) -> SortWaitGuard<'_> {
        self.progress.waits.begin_call(what)
    }

    /// Starts a read. Where the route has no queue, the read is done when it has started, so
    /// that may be a wait.
    pub(crate) fn start_read(&self, what: SortWait, pipe: &Pipe, span: Span) -> Result<Transfer> {
        let _waits = (!pipe.is_queued()).then(|| self.calls_for(what));
        pipe.start(span)
    }

    /// Returns `Interrupted` if the sort was asked to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "sort", "it was asked to stop"));
        }
        Ok(())
    }
}

pub(crate) fn count(counter: &AtomicU64, bytes: u64) {
    counter.fetch_add(bytes, Relaxed);
}
