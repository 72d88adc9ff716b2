//! What a scheduler shows of itself.

use super::Scheduler;
use super::flow::Place;
use super::service::PriorityClass;
use super::stats::{ClassStats, FlowStats, ScheduleStats, Served};

impl Scheduler {
    /// What every flow and class has had, and what is at the resource. Allocates; for reports.
    pub(crate) fn stats(&self) -> ScheduleStats {
        let mut throttled_now = [Served::default(); 3];
        let mut flows = Vec::with_capacity(self.flows.capacity());
        for (index, state) in self.flows.iter() {
            let mut served = state.served;
            if let Place::Throttled { since } = state.place {
                let ns = self.now.saturating_sub(since);
                served.throttled(ns);
                throttled_now[state.class() as usize].throttled(ns);
            }
            flows.push(FlowStats {
                index,
                service: state.service.clone(),
                requests: state.queue.len(),
                outstanding_bytes: state.outstanding.bytes,
                throttled: matches!(state.place, Place::Throttled { .. }),
                served,
            });
        }
        let classes = PriorityClass::ALL.into_iter().zip(&self.classes).map(|(class, state)| {
            let mut served = state.served;
            served.throttled(throttled_now[class as usize].throttled_ns);
            let minimum_share = self.policy.shares[class as usize];
            ClassStats { class, minimum_share, outstanding_bytes: state.outstanding.bytes, served }
        });
        ScheduleStats {
            classes: classes.collect(),
            flows,
            requests: self.requests,
            outstanding_bytes: self.outstanding.bytes,
            outstanding_chunks: self.outstanding.chunks,
            most_outstanding_bytes: self.most_outstanding,
            promised: self.promised_rate(),
            past_contended_cap: self.past_contended_cap,
        }
    }
}
