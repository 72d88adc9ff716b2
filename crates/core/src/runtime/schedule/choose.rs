//! Which chunk is next: the whole policy in one function that changes nothing.

use super::Scheduler;
use super::choice::{Behind, Choice};
use super::flow::Place;
use super::ring::Head;
use super::service::PriorityClass;

/// A promised rate goes before the latency class once its flow is so far behind. Less is made good
/// after it.
const PROMISE_SLACK_NS: u64 = 2_000_000;

impl Scheduler {
    /// The next chunk, whether or not the resource has room for it; None where nothing is ready, or
    /// where what is ready waits for contended bytes to come back.
    ///
    /// Strictly in this order, where what is not ready is passed over:
    ///
    /// 1. classes that are owed a chunk of their minimum share, the most urgent first;
    /// 2. flows 2 ms or more behind their promised rate, the one most behind first;
    /// 3. latency;
    /// 4. flows behind their promised rate;
    /// 5. normal, then bulk.
    ///
    /// 1 before 2: where the resource is slower than was thought, promises suffer and no class
    /// starves. 2 before 3: a promise holds under latency load without end; the slack keeps it out
    /// of the way of latency flows that come and go.
    pub(super) fn choose(&self, now: u64) -> Option<Choice> {
        let contended = self.is_contended(now);
        let heads = PriorityClass::ALL.map(|class| self.head(class, contended));
        let (owed, is_held) = self.owed(heads, contended);
        if owed.is_some() {
            return owed;
        }
        let behind = self.most_behind(now, contended);
        if let Some(flow) = behind.as_ref().filter(|flow| flow.ns >= PROMISE_SLACK_NS) {
            return Some(flow.choice(!self.fits_contended(flow.class, flow.len, contended)));
        }
        let [latency, normal, bulk] = heads;
        if let Some(head) = latency {
            return Some(Choice::turn(PriorityClass::Latency, head, false));
        }
        if is_held {
            return None;
        }
        if let Some(flow) = behind {
            return self.fits_contended(flow.class, flow.len, contended).then(|| flow.choice(false));
        }
        let (class, head) =
            normal.map(|head| (PriorityClass::Normal, head)).or(bulk.map(|head| (PriorityClass::Bulk, head)))?;
        self.fits_contended(class, head.len, contended).then(|| Choice::turn(class, head, false))
    }

    /// The chunk of a class that is owed it by its minimum share; and whether one waits for
    /// contended bytes to come back.
    ///
    /// The first of the lower classes that does not fit holds up the others: a short chunk of a
    /// less urgent class must not take the room for which a longer one waits.
    fn owed(&self, heads: [Option<Head>; 3], contended: bool) -> (Option<Choice>, bool) {
        let mut is_held = false;
        for (class, head) in PriorityClass::ALL.into_iter().zip(heads) {
            let Some(head) = head else { continue };
            let state = &self.classes[class as usize];
            if state.is_owed(head.len) {
                let fits = !is_held && self.fits_contended(class, head.len, contended);
                if fits || state.is_kept_waiting() {
                    return (Some(Choice::turn(class, head, !fits)), is_held);
                }
                is_held = true;
            }
        }
        (None, is_held)
    }

    /// Whether a request of this flow, pushed now, would be released at once and in one chunk: no
    /// class as urgent has a request, no other class and no promise comes first, and limits and
    /// caps have room. In doubt, no.
    #[cfg(test)]
    pub(crate) fn passes(&self, flow: super::Flow, len: u64, now: u64) -> bool {
        let Some(now) = self.reading(now) else { return false };
        let Some(state) = self.flows.get(flow) else { return false };
        let class = state.class();
        let contended = class == PriorityClass::Latency || self.is_contended(now);
        let alone = state.queue.is_empty() && !state.leaving && (self.throttled.is_empty() || now < self.wake_at);
        let limits = len <= state.chunk_limit(self.most(class, contended)) && state.ready_at() <= now;
        let room = self.fits(len) && self.fits_contended(class, len, contended);
        if !(alone && limits && room) {
            return false;
        }
        if self.requests == 0 {
            return true;
        }
        let heads = PriorityClass::ALL.map(|class| self.head(class, contended));
        let first = heads.iter().take(class as usize + 1).all(Option::is_none);
        if !first || self.classes[class as usize].is_owed(len) {
            return first;
        }
        let (owed, is_held) = self.owed(heads, contended);
        let held = is_held && class.is_lower();
        let late = |flow: &Behind| class.is_lower() || flow.ns >= PROMISE_SLACK_NS;
        owed.is_none() && !held && !self.most_behind(now, contended).as_ref().is_some_and(late)
    }

    /// Whether a latency flow has work or had it a moment ago.
    pub(super) fn is_contended(&self, now: u64) -> bool {
        let latency = &self.classes[PriorityClass::Latency as usize];
        let has_work = latency.backlogged > 0 || latency.outstanding.chunks > 0;
        has_work || self.latency_seen.is_some_and(|seen| now.saturating_sub(seen) < self.policy.active_ns)
    }

    /// The most bytes a chunk of a class has.
    fn most(&self, class: PriorityClass, contended: bool) -> u64 {
        if contended && class.is_lower() { self.policy.contended_chunk_bytes } else { self.policy.chunk_bytes }
    }

    fn head(&self, class: PriorityClass, contended: bool) -> Option<Head> {
        self.classes[class as usize].ring.head(&self.flows, self.most(class, contended))
    }

    /// Whether the resource has room for a chunk.
    pub(super) fn fits(&self, len: u64) -> bool {
        let out = self.outstanding;
        let bytes = out.bytes.saturating_add(len) <= self.policy.outstanding_bytes;
        out.chunks == 0 || (bytes && out.chunks < self.policy.outstanding_chunks)
    }

    /// Whether a chunk is no obstacle to latency flows.
    fn fits_contended(&self, class: PriorityClass, len: u64, contended: bool) -> bool {
        if !contended || !class.is_lower() {
            return true;
        }
        let [_, normal, bulk] = &self.classes;
        let bytes = normal.outstanding.bytes.saturating_add(bulk.outstanding.bytes);
        let none = normal.outstanding.chunks == 0 && bulk.outstanding.chunks == 0;
        none || bytes.saturating_add(len) <= self.policy.contended_bytes
    }

    fn most_behind(&self, now: u64, contended: bool) -> Option<Behind> {
        let behind = |&index: &u32| {
            let state = self.flows.at(index).filter(|state| state.place == Place::Ready)?;
            let ns = state.promise.as_ref()?.behind_ns(now)?;
            let class = state.class();
            Some(Behind { index, class, len: state.next_len(self.most(class, contended)), ns })
        };
        self.promised.iter().filter_map(behind).max_by_key(|flow| flow.ns)
    }
}
