//! What pipes moved that are gone: one sum for each primitive.

use datapipes_core::{HopReport, PipeReport};

/// The sums, in the order in which their primitives were first used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Movements(Vec<HopReport>);

impl Movements {
    /// Adds what a pipe did until now.
    pub(crate) fn add(&mut self, report: PipeReport) {
        for hop in report.hops {
            match self.0.iter_mut().find(|sum| sum.primitive == hop.primitive) {
                Some(sum) => sum.counters.add(&hop.counters),
                None => self.0.push(hop),
            }
        }
    }

    pub(crate) fn into_hops(self) -> Vec<HopReport> {
        self.0
    }
}
