//! Flows: the requests of a pipe at a resource, in order, with what the flow may and must have.

use std::collections::VecDeque;

use super::meter::Meter;
use super::service::{PriorityClass, ServiceLevel};
use super::stats::Served;

/// Names a connected flow. Of one that was disconnected nothing is known any more; its name is not
/// given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(super) index: u32,
    generation: u32,
}

/// What is at the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outstanding {
    pub(super) bytes: u64,
    pub(super) chunks: u32,
}

impl Outstanding {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.chunks += 1;
    }

    pub(super) fn sub(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.chunks = self.chunks.saturating_sub(1);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) len: u64,
    pub(super) released: u64,
    pub(super) pushed_at: u64,
}

/// Where a flow stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The flow has no request.
    Idle,
    /// In the ring of its class.
    Ready,
    /// Over its limit since then.
    Throttled { since: u64 },
}

/// `at_most`.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    pub(super) meter: Meter,
    pub(super) chunk: u64,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) service: ServiceLevel,
    pub(super) queue: VecDeque<Request>,
    pub(super) place: Place,
    /// Bytes it may still have in this turn of its class.
    pub(super) deficit: u64,
    pub(super) limit: Option<Limit>,
    pub(super) promise: Option<Meter>,
    pub(super) outstanding: Outstanding,
    /// When it was last left without request and without chunk.
    pub(super) idle_since: u64,
    /// Disconnected; it stays until its last chunk is back.
    pub(super) leaving: bool,
    pub(super) served: Served,
}

impl State {
    pub(super) fn new(service: ServiceLevel, limit: Option<Limit>, promise: Option<Meter>) -> State {
        State {
            service,
            queue: VecDeque::new(),
            place: Place::Idle,
            deficit: 0,
            limit,
            promise,
            outstanding: Outstanding::default(),
            idle_since: 0,
            leaving: false,
            served: Served::default(),
        }
    }

    pub(super) fn class(&self) -> PriorityClass {
        self.service.class
    }

    /// When its limit lets the next chunk go.
    pub(super) fn ready_at(&self) -> u64 {
        self.limit.as_ref().map_or(0, |limit| limit.meter.paid_until())
    }

    /// The most that a chunk of it may have where others of its class may have `most`.
    pub(super) fn chunk_limit(&self, most: u64) -> u64 {
        self.limit.as_ref().map_or(most, |limit| limit.chunk.min(most))
    }

    /// The length of its next chunk; zero also for an empty request, and without a request.
    pub(super) fn next_len(&self, most: u64) -> u64 {
        self.queue.front().map_or(0, |request| (request.len - request.released).min(self.chunk_limit(most)))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.outstanding.chunks == 0
    }
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    state: Option<State>,
}

/// The flows by index.
#[derive(Clone, Debug, Default)]
pub(super) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slab {
    /// Takes a flow in; None when there are as many as an index can name.
    pub(super) fn insert(&mut self, state: State) -> Option<Flow> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = Some(state);
        Some(Flow { index, generation: slot.generation })
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && slot.state.take().is_some()
        {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
        }
    }

    pub(super) fn get(&self, flow: Flow) -> Option<&State> {
        let slot = self.slots.get(flow.index as usize)?;
        slot.state.as_ref().filter(|_| slot.generation == flow.generation)
    }

    pub(super) fn get_mut(&mut self, flow: Flow) -> Option<&mut State> {
        let slot = self.slots.get_mut(flow.index as usize)?;
        slot.state.as_mut().filter(|_| slot.generation == flow.generation)
    }

    /// By index, of those that the scheduler keeps itself.
    pub(super) fn at(&self, index: u32) -> Option<&State> {
        self.slots.get(index as usize)?.state.as_ref()
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut State> {
        self.slots.get_mut(index as usize)?.state.as_mut()
    }

    /// The name of the flow at an index.
    pub(super) fn name(&self, index: u32) -> Option<Flow> {
        let slot = self.slots.get(index as usize).filter(|slot| slot.state.is_some())?;
        Some(Flow { index, generation: slot.generation })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &State)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.state.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut State> {
        self.slots.iter_mut().filter_map(|slot| slot.state.as_mut())
    }

    /// How many have ever been connected at once.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }
}
