//! How long blocks are on their way, for a sender that wants to know.

use std::collections::VecDeque;
use std::time::Instant;

use datapipes_metrics::{Histogram, Recorder};

/// Times from the push of a block until its sender knew the reply.
#[derive(Default)]
pub(super) struct BlockTimes {
    /// The blocks without a reply, by their numbers.
    under_way: VecDeque<(u64, Instant)>,
    times: Recorder,
}

impl BlockTimes {
    /// A block was pushed that began its way then. Of blocks without replies at most `credits` are
    /// kept.
    pub(super) fn pushed(&mut self, sequence: u64, since: Instant, credits: u32) {
        if self.under_way.len() >= credits as usize {
            self.under_way.pop_front();
        }
        self.under_way.push_back((sequence, since));
    }

    /// Its reply is here. One of a block that was pushed before all this is not counted.
    pub(super) fn replied(&mut self, sequence: u64) {
        // Replies come mostly in order.
        let at = self.under_way.iter().position(|(number, _)| *number == sequence);
        if let Some((_, since)) = at.and_then(|at| self.under_way.remove(at)) {
            self.times.record(since.elapsed());
        }
    }

    pub(super) fn histogram(&self) -> Histogram {
        self.times.histogram()
    }
}
