//! Counts of the transfers of several pipes together, such as those of one client of a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_metrics::{Histogram, Recorder};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::sync;

/// Counts the transfers of the pipes that it is given to
/// ([`ConnectOptions::meter`](super::ConnectOptions::meter)), those of closed ones too.
#[derive(Debug, Default)]
pub struct TransferMeter {
    /// Those that waited for a slot of their pipe or a device; short copies never are.
    under_way: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    times: Recorder,
}

/// What a [`TransferMeter`] counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeteredTransfers {
    /// Transfers that were started and have not ended.
    pub under_way: u64,
    /// Transfers that moved all their bytes.
    pub completed: u64,
    /// Transfers that failed or were cancelled.
    pub failed: u64,
    /// Bytes that were moved, by failed transfers too as far as that is known.
    pub bytes: u64,
    /// Times from the call to the end.
    pub times: Histogram,
}

impl TransferMeter {
    /// Returns what was counted so far.
    pub fn read(&self) -> MeteredTransfers {
        MeteredTransfers {
            under_way: self.under_way.load(Relaxed),
            completed: self.completed.load(Relaxed),
            failed: self.failed.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            times: self.times.histogram(),
        }
    }
}

/// Who records the transfers of a pipe: the recorder of its class, its meter, or both.
pub(super) struct TransferRecorders {
    of_class: Option<sync::Arc<Recorder>>,
    meter: Option<Arc<TransferMeter>>,
}

impl TransferRecorders {
    /// `None` where nobody records.
    pub(super) fn new(
        of_class: Option<sync::Arc<Recorder>>,
        meter: Option<Arc<TransferMeter>>,
    ) -> Option<TransferRecorders> {
        (of_class.is_some() || meter.is_some()).then_some(TransferRecorders { of_class, meter })
    }

    /// A transfer has a slot of its pipe.
    pub(super) fn began(&self) {
        if let Some(meter) = &self.meter {
            meter.under_way.fetch_add(1, Relaxed);
        }
    }

    /// A transfer that had a slot has ended, or was not started after all.
    pub(super) fn left(&self) {
        if let Some(meter) = &self.meter {
            meter.under_way.fetch_sub(1, Relaxed);
        }
    }

    /// Records a transfer that has ended.
    pub(super) fn record(&self, ns: u64, len: u64, result: &Result<()>) {
        if let Some(times) = &self.of_class {
            times.record_ns(ns);
        }
        let Some(meter) = &self.meter else { return };
        meter.times.record_ns(ns);
        let (ended, bytes) = match result {
            Ok(()) => (&meter.completed, len),
            Err(e) => (&meter.failed, e.bytes_done()),
        };
        ended.fetch_add(1, Relaxed);
        meter.bytes.fetch_add(bytes, Relaxed);
    }
}
