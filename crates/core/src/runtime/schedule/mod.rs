//! Who goes next at a resource (a device, or those who copy memory): classes, shares, rates and
//! caps.
//!
//! ```text
//! push ──> flow's queue ──> limit (at_most)? ──> ring of its class ──> next: choose ──> Chunk ──> resource ──> done
//!                                │ over it                               │ owed minimum share       caps on bytes
//!                                └─> throttled until paid for            │ promise far behind       and chunks
//!                                                                        │ latency
//!                                                                        │ promise behind
//!                                                                        └ normal, bulk
//! ```
//!
//! *Platform IO DMA*, section 3, asks the platform's data mover for "multiple priorities and QoS
//! [...] to prevent a large storage transaction from blocking a latency sensitive network
//! operation". Here:
//!
//! * Requests are cut into chunks, so that what is short never waits for more than chunks.
//! * `latency` goes before `normal` before `bulk`. A class with work always gets its minimum share
//!   of the bytes; what it gets beyond it is not held against it, and a share that is not used is
//!   not saved up (4 chunks at most).
//! * In a class flows take turns by deficit round robin, with equal weights. Requests of a flow
//!   keep their order.
//! * `at_most` is a token bucket. Its burst is what the rate gives in 10 ms (at low rates two
//!   chunks, which then are as small as 4 KiB).
//! * `at_least` is served out of turn whenever the flow is behind, before the latency class from 2
//!   ms on. It counts what the flow gets in its turn, too. Time without work does not count;
//!   arrears of 10 ms (or two chunks) are made good.
//! * Caps bound what is outstanding, and so how long a latency request waits for what went before
//!   it:
//!
//! > A latency request of at most one chunk, pushed while its class is empty and a latency flow is
//! > active, waits for at most
//! > `contended_bytes` and one chunk of lower classes, plus a chunk for each lower class that is
//! > owed its minimum share and
//! > for each promise in arrears. Where no latency flow was active, `outstanding_bytes` takes the
//! > place of `contended_bytes`.
//!
//! No threads, no I/O and no clock: time is a parameter, in nanoseconds from any origin. It may
//! stand still, jump, and go back: by up to 10 ms it is then taken to stand still (threads read the
//! clock and then come in another order). [`Scheduler::next`] allocates nothing and looks at each
//! flow once at most; with `done` it takes some 70 ns.

mod admission;
mod choice;
mod choose;
mod class;
mod flow;
mod meter;
mod observe;
mod ring;
mod service;
mod stats;
#[cfg(test)]
mod tests;

use choice::Choice;
use class::ClassState;
use flow::{Outstanding, Place, Request, Slab};

use crate::error::{Error, ErrorKind, Result};

pub(crate) use flow::Flow;
pub use service::{PriorityClass, SchedulePolicy, ServiceLevel};
pub use stats::{ClassStats, FlowStats, ScheduleStats, Served};

/// A clock that is back by less than this is one that was read a moment earlier.
const CLOCK_SLACK_NS: u64 = 10_000_000;

/// A piece of a request, to be carried out now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The flow whose bytes these are.
    pub(crate) flow: Flow,
    /// The caller's name for the request.
    pub(crate) request: u64,
    /// Offset in the request.
    pub(crate) at: u64,
    /// Length; zero for an empty request.
    pub(crate) len: u64,
    /// Nothing of the request comes after it.
    pub(crate) last: bool,
}

/// The scheduler's next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This; and ask again.
    Chunk(Chunk),
    /// Nothing before this time unless something is pushed or comes back: limits to rates stand in
    /// the way.
    At(u64),
    /// Nothing before something is pushed or comes back.
    Nothing,
}

/// Decides who goes next at one resource.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    policy: SchedulePolicy,
    flows: Slab,
    /// The state of each class, in the order of urgency.
    classes: [ClassState; 3],
    /// Flows with a promised rate.
    promised: Vec<u32>,
    /// Flows over their limit.
    throttled: Vec<u32>,
    /// When the first of them may go; no later than that.
    wake_at: u64,
    now: u64,
    /// When a latency flow last had work.
    latency_seen: Option<u64>,
    outstanding: Outstanding,
    most_outstanding: u64,
    /// Requests not fully released.
    requests: u64,
    past_contended_cap: u64,
}

impl Scheduler {
    pub(crate) fn new(policy: SchedulePolicy) -> Scheduler {
        let policy = policy.normalized();
        Scheduler {
            flows: Slab::default(),
            classes: policy.shares.map(|share| ClassState::new(share, policy.chunk_bytes)),
            promised: Vec::new(),
            throttled: Vec::new(),
            wake_at: 0,
            now: 0,
            latency_seen: None,
            outstanding: Outstanding::default(),
            most_outstanding: 0,
            requests: 0,
            past_contended_cap: 0,
            policy,
        }
    }

    /// The policy that is in force.
    pub(crate) fn policy(&self) -> &SchedulePolicy {
        &self.policy
    }

    /// Sets the cap on outstanding bytes beside latency flows; what is outstanding is not called
    /// back.
    #[cfg(test)]
    pub(crate) fn set_contended_bytes(&mut self, bytes: u64) {
        self.policy.contended_bytes = bytes;
    }

    /// Takes in a flow.
    ///
    /// # Errors
    /// `InvalidInput` for rates that make no sense; `Unsupported` for a promise that cannot be kept
    /// beside the minimum shares and what was promised before, with what is left.
    pub(crate) fn connect(&mut self, service: ServiceLevel) -> Result<Flow> {
        let state = self.admit(service)?;
        let has_promise = state.promise.is_some();
        let class = state.class();
        let full = || Error::new(ErrorKind::OutOfMemory, "connect", "a resource has 2^32 flows");
        let flow = self.flows.insert(state).ok_or_else(full)?;
        self.classes[class as usize].ring.reserve(self.flows.capacity());
        self.throttled.reserve(self.flows.capacity().saturating_sub(self.throttled.len()));
        if has_promise {
            self.promised.push(flow.index);
        }
        Ok(flow)
    }

    /// Lets a flow go. Requests that it still has are dropped; chunks at the resource still come
    /// back.
    pub(crate) fn disconnect(&mut self, flow: Flow) {
        let Some(state) = self.flows.get_mut(flow) else { return };
        state.leaving = true;
        let left = state.queue.len() as u64;
        state.queue.clear();
        let is_idle = state.outstanding.chunks == 0;
        self.requests -= left;
        if left > 0 {
            self.emptied(flow.index);
        }
        self.promised.retain(|&index| index != flow.index);
        if is_idle {
            self.flows.remove(flow.index);
        }
    }

    /// A request of so many bytes arrives; `request` is the caller's name for it. An empty one is
    /// released as one chunk. False, and nothing is done, if the flow was disconnected.
    pub(crate) fn push(&mut self, flow: Flow, request: u64, len: u64, now: u64) -> bool {
        let now = self.clock(now);
        let Some(state) = self.flows.get_mut(flow).filter(|state| !state.leaving) else { return false };
        if state.is_idle()
            && let Some(promise) = &mut state.promise
        {
            promise.skip(now.saturating_sub(state.idle_since), now);
        }
        let first = state.queue.is_empty();
        state.queue.push_back(Request { id: request, len, released: 0, pushed_at: now });
        let (class, ready_at) = (state.class(), state.ready_at());
        self.requests += 1;
        if first {
            self.classes[class as usize].backlogged += 1;
            self.place(flow.index, class, ready_at, now);
        }
        self.seen(class, now);
        true
    }

    /// The next chunk. It counts as outstanding until it is [`done`](Self::done).
    pub(crate) fn next(&mut self, now: u64) -> Next {
        let now = self.clock(now);
        if !self.throttled.is_empty() && self.wake_at <= now {
            self.wake(now);
        }
        if self.outstanding.chunks >= self.policy.outstanding_chunks {
            return Next::Nothing;
        }
        match self.choose(now) {
            Some(choice) if self.fits(choice.len) => self.release(choice, now).map_or(Next::Nothing, Next::Chunk),
            Some(_) => Next::Nothing,
            None if self.throttled.is_empty() => Next::Nothing,
            None => Next::At(self.wake_at),
        }
    }

    /// A chunk of so many bytes came back from the resource.
    pub(crate) fn done(&mut self, flow: Flow, bytes: u64, now: u64) {
        let now = self.clock(now);
        let Some(state) = self.flows.get_mut(flow).filter(|state| state.outstanding.chunks > 0) else { return };
        state.outstanding.sub(bytes);
        let (class, is_idle, leaving) = (state.class(), state.is_idle(), state.leaving);
        if is_idle {
            state.idle_since = now;
        }
        self.classes[class as usize].outstanding.sub(bytes);
        self.outstanding.sub(bytes);
        self.seen(class, now);
        if is_idle && leaving {
            self.flows.remove(flow.index);
        }
    }

    /// Takes back what was not released of a request and says how much had been; None if nothing of
    /// it is left here.
    pub(crate) fn cancel(&mut self, flow: Flow, request: u64) -> Option<u64> {
        let now = self.now;
        let state = self.flows.get_mut(flow)?;
        let at = state.queue.iter().position(|other| other.id == request)?;
        let released = state.queue.remove(at)?.released;
        if state.is_idle() {
            state.idle_since = now;
        }
        let (class, is_empty) = (state.class(), state.queue.is_empty());
        self.requests -= 1;
        self.seen(class, now);
        if is_empty {
            self.emptied(flow.index);
        }
        Some(released)
    }

    /// The requests of a flow that are not fully released, the oldest first.
    pub(crate) fn waiting(&self, flow: Flow) -> impl Iterator<Item = u64> {
        self.flows.get(flow).into_iter().flat_map(|state| &state.queue).map(|request| request.id)
    }

    /// Neither a request waits nor a chunk is outstanding.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.requests == 0 && self.outstanding.chunks == 0
    }

    /// Requests that are not fully released.
    pub(crate) fn backlog(&self) -> u64 {
        self.requests
    }

    /// The one flow with requests, if there is just one and no limit holds it: its next chunk goes
    /// whatever the time is.
    #[cfg(test)]
    pub(crate) fn only_flow(&self) -> Option<Flow> {
        let flows: u32 = self.classes.iter().map(|class| class.backlogged).sum();
        let index = self.classes.iter().find_map(|class| class.ring.front()).filter(|_| flows == 1)?;
        self.flows.name(index).filter(|_| self.flows.at(index).is_some_and(|state| state.limit.is_none()))
    }
}

/// What is released, to those who count.
struct Piece {
    len: u64,
    wait_ns: u64,
    /// In the turn of its class, not for a promise.
    in_turn: bool,
}

impl Scheduler {
    /// The time that is meant where the clock says this; None if it was set back.
    fn reading(&self, now: u64) -> Option<u64> {
        if now >= self.now { Some(now) } else { Some(self.now).filter(|last| last - now <= CLOCK_SLACK_NS) }
    }

    fn clock(&mut self, now: u64) -> u64 {
        match self.reading(now) {
            Some(now) => self.now = now,
            None => self.set_back(now),
        }
        self.now
    }

    /// The clock went back: what lies in the future by its measure is brought near.
    fn set_back(&mut self, now: u64) {
        self.now = now;
        self.wake_at = now;
        self.latency_seen = self.latency_seen.map(|seen| seen.min(now));
        for state in self.flows.iter_mut() {
            state.idle_since = state.idle_since.min(now);
            state.limit.iter_mut().for_each(|limit| limit.meter.forgive(now));
            state.promise.iter_mut().for_each(|promise| promise.forgive(now));
            if let Place::Throttled { since } = &mut state.place {
                *since = (*since).min(now);
            }
        }
    }

    fn seen(&mut self, class: PriorityClass, now: u64) {
        if class == PriorityClass::Latency {
            self.latency_seen = Some(now);
        }
    }

    /// A flow with a request goes where it belongs.
    fn place(&mut self, index: u32, class: PriorityClass, ready_at: u64, now: u64) {
        let Some(state) = self.flows.at_mut(index) else { return };
        if ready_at <= now {
            state.place = Place::Ready;
            self.classes[class as usize].ring.push(index);
        } else {
            state.place = Place::Throttled { since: now };
            self.wake_at = if self.throttled.is_empty() { ready_at } else { self.wake_at.min(ready_at) };
            self.throttled.push(index);
        }
    }

    /// A flow without a request leaves where it was.
    fn emptied(&mut self, index: u32) {
        let now = self.now;
        let Some(state) = self.flows.at_mut(index) else { return };
        let class = &mut self.classes[state.class() as usize];
        match std::mem::replace(&mut state.place, Place::Idle) {
            Place::Idle => return,
            Place::Ready => class.ring.remove(index),
            Place::Throttled { since } => {
                self.throttled.retain(|&other| other != index);
                let ns = now.saturating_sub(since);
                for served in [&mut state.served, &mut class.served] {
                    served.throttled(ns);
                }
            }
        }
        state.deficit = 0;
        class.backlogged -= 1;
    }

    /// Lets flows go that are no longer over their limit.
    fn wake(&mut self, now: u64) {
        let (flows, classes) = (&mut self.flows, &mut self.classes);
        let mut wake_at = u64::MAX;
        self.throttled.retain(|&index| {
            let Some(state) = flows.at_mut(index) else { return false };
            let Place::Throttled { since } = state.place else { return false };
            let ready_at = state.ready_at();
            if ready_at > now {
                wake_at = wake_at.min(ready_at);
                return true;
            }
            let class = &mut classes[state.class() as usize];
            let ns = now.saturating_sub(since);
            for served in [&mut state.served, &mut class.served] {
                served.throttled(ns);
            }
            state.place = Place::Ready;
            class.ring.push(index);
            false
        });
        self.wake_at = wake_at;
    }

    /// Releases what was chosen.
    fn release(&mut self, choice: Choice, now: u64) -> Option<Chunk> {
        if let Some((class, head)) = choice.turn {
            self.classes[class as usize].ring.take(head, &mut self.flows);
        }
        let flow = self.flows.name(choice.index)?;
        let state = self.flows.at_mut(choice.index)?;
        let class = state.class();
        let request = state.queue.front_mut()?;
        let at = request.released;
        request.released += choice.len;
        let last = request.released == request.len;
        let wait_ns = if at == 0 { now.saturating_sub(request.pushed_at) } else { 0 };
        let chunk = Chunk { flow, request: request.id, at, len: choice.len, last };
        if last {
            state.queue.pop_front();
            self.requests -= 1;
        }
        let is_empty = state.queue.is_empty();
        let piece = Piece { len: choice.len, wait_ns, in_turn: choice.turn.is_some() };
        self.past_contended_cap += u64::from(choice.past_cap);
        let ready_at = self.account(choice.index, class, piece, now);
        if is_empty {
            self.emptied(choice.index);
        } else if ready_at > now {
            self.classes[class as usize].ring.remove(choice.index);
            if let Some(state) = self.flows.at_mut(choice.index) {
                state.deficit = 0;
            }
            self.place(choice.index, class, ready_at, now);
        }
        Some(chunk)
    }

    /// Counts a chunk that goes to the resource, against limit, promise and shares; says when its
    /// flow may go on.
    fn account(&mut self, index: u32, class: PriorityClass, piece: Piece, now: u64) -> u64 {
        let Piece { len, wait_ns, in_turn } = piece;
        self.outstanding.add(len);
        self.most_outstanding = self.most_outstanding.max(self.outstanding.bytes);
        let own = &mut self.classes[class as usize];
        own.outstanding.add(len);
        own.served.count(len, wait_ns);
        self.classes.iter_mut().for_each(|class| class.earn(len));
        if in_turn {
            self.classes[class as usize].spend(len);
        }
        self.seen(class, now);
        let Some(state) = self.flows.at_mut(index) else { return now };
        state.outstanding.add(len);
        state.served.count(len, wait_ns);
        if let Some(promise) = &mut state.promise {
            promise.forgive(now);
            promise.charge(len, now);
        }
        if let Some(limit) = &mut state.limit {
            limit.meter.charge(len, now);
        }
        state.ready_at()
    }
}
