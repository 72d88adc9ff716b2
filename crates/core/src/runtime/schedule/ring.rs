//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over the flows of a class that may
//! go.
//!
//! ```text
//! a flow that comes to the front gets a quantum of bytes; it stays there while its next chunk is within what it has,
//! then goes to the back with the rest; a flow that leaves loses the rest
//! ```
//!
//! The quantum is the largest chunk, so every turn lets at least one chunk go and finding the next
//! is two looks.

use std::collections::VecDeque;

use super::flow::Slab;

/// A chunk counts at least this much: empty requests without end must not keep the turn for ever,
/// and handing over a short chunk costs about as much as copying this many bytes.
const MIN_COST: u64 = 512;

/// What a chunk counts in turns and shares.
pub(super) fn cost(len: u64) -> u64 {
    len.max(MIN_COST)
}

/// Whose turn it is, and how long the chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) index: u32,
    pub(super) len: u64,
    /// The front has used up its turn; the one behind it is meant.
    rotate: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Ring {
    order: VecDeque<u32>,
    /// The front has not had its quantum yet.
    fresh: bool,
    quantum: u64,
}

impl Ring {
    pub(super) fn new(chunk: u64) -> Ring {
        Ring { order: VecDeque::new(), fresh: true, quantum: cost(chunk) }
    }

    /// Makes room for so many flows, so that nothing is allocated later.
    pub(super) fn reserve(&mut self, flows: usize) {
        self.order.reserve(flows.saturating_sub(self.order.len()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn front(&self) -> Option<u32> {
        self.order.front().copied()
    }

    pub(super) fn push(&mut self, index: u32) {
        self.order.push_back(index);
    }

    /// Takes a flow out, wherever it stands.
    pub(super) fn remove(&mut self, index: u32) {
        if self.front() == Some(index) {
            self.order.pop_front();
            self.fresh = true;
        } else if let Some(at) = self.order.iter().position(|&i| i == index) {
            self.order.remove(at);
        }
    }

    /// Whose turn it is, where chunks have at most `most` bytes.
    pub(super) fn head(&self, flows: &Slab, most: u64) -> Option<Head> {
        let index = self.front()?;
        let state = flows.at(index)?;
        let len = state.next_len(most);
        let has = state.deficit.saturating_add(if self.fresh { self.quantum } else { 0 });
        if cost(len) <= has {
            return Some(Head { index, len, rotate: false });
        }
        let index = self.order.get(1).copied().unwrap_or(index);
        Some(Head { index, len: flows.at(index)?.next_len(most), rotate: true })
    }

    /// The chunk goes: its flow pays for it.
    pub(super) fn take(&mut self, head: Head, flows: &mut Slab) {
        if head.rotate {
            self.order.rotate_left(1);
            self.fresh = true;
        }
        if let Some(state) = flows.at_mut(head.index) {
            let quantum = if self.fresh { self.quantum } else { 0 };
            state.deficit = state.deficit.saturating_add(quantum).saturating_sub(cost(head.len));
            self.fresh = false;
        }
    }
}
