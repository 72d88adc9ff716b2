//! How long blocks are on their way, for a sender that wants to know.

use std::collections::VecDeque;

use datapipes_metrics::{Histogram, Recorder};

use crate::sync::monotonic_ns;

/// Times from the push of a block until its receiver replied. A receiver that does not say when
/// that was replied when its sender knew it.
#[derive(Default)]
pub(super) struct BlockTimes {
    /// The blocks without a reply, by their numbers.
    under_way: VecDeque<(u64, u64)>,
    times: Recorder,
}

impl BlockTimes {
    /// A block was pushed that began its way then. Of blocks without replies at most `credits` are
    /// kept.
    pub(super) fn pushed(&mut self, sequence: u64, since_ns: u64, credits: u32) {
        if self.under_way.len() >= credits as usize {
            self.under_way.pop_front();
        }
        self.under_way.push_back((sequence, since_ns));
    }

    /// Its reply is here, made at a moment that the receiver may have told. One of a block that was
    /// pushed before all this is not counted.
    pub(super) fn replied(&mut self, sequence: u64, at_ns: Option<u64>) {
        // Replies come mostly in order.
        let at = self.under_way.iter().position(|(number, _)| *number == sequence);
        if let Some((_, since_ns)) = at.and_then(|at| self.under_way.remove(at)) {
            // Whatever the receiver says: it was after the push, and it is over.
            let now = monotonic_ns().max(since_ns);
            self.times.record_ns(at_ns.map_or(now, |at| at.clamp(since_ns, now)) - since_ns);
        }
    }

    pub(super) fn histogram(&self) -> Histogram {
        self.times.histogram()
    }
}
