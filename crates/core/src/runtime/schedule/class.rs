//! A class: its flows in turn, and what it is owed of its minimum share.

use super::flow::Outstanding;
use super::ring::{Ring, cost};
use super::stats::Served;

/// A class that could not use its share keeps a claim to so many chunks, not more.
const MAX_OWED_CHUNKS: f64 = 4.0;

/// A class that is owed so many chunks was kept from them by the cap of contended bytes, which then
/// yields.
const PATIENCE_CHUNKS: f64 = 2.0;

#[derive(Clone, Debug)]
pub(super) struct ClassState {
    pub(super) ring: Ring,
    /// Bytes of its minimum share that it has not had, while it had work.
    owed: f64,
    share: f64,
    chunk: f64,
    /// Flows with a request of which something is not released yet, throttled ones included.
    pub(super) backlogged: u32,
    pub(super) outstanding: Outstanding,
    pub(super) served: Served,
}

impl ClassState {
    pub(super) fn new(share: f64, chunk: u64) -> ClassState {
        ClassState {
            ring: Ring::new(chunk),
            owed: 0.0,
            share,
            chunk: cost(chunk) as f64,
            backlogged: 0,
            outstanding: Outstanding::default(),
            served: Served::default(),
        }
    }

    /// Whether its minimum share says that a chunk of this length goes now, whatever others want.
    pub(super) fn is_owed(&self, len: u64) -> bool {
        self.owed >= cost(len) as f64
    }

    /// Whether it was kept from its share too long.
    pub(super) fn is_kept_waiting(&self) -> bool {
        self.owed >= self.chunk * PATIENCE_CHUNKS
    }

    /// A chunk of any class went out: while this one has work its share of that is owed to it.
    pub(super) fn earn(&mut self, len: u64) {
        if self.ring.is_empty() && self.outstanding.chunks == 0 {
            self.owed = 0.0;
        } else {
            self.owed = (self.owed + self.share * cost(len) as f64).min(self.chunk * MAX_OWED_CHUNKS);
        }
    }

    /// A chunk of this class goes out in its own turn. What it gets beyond its share is not held
    /// against it.
    pub(super) fn spend(&mut self, len: u64) {
        self.owed = (self.owed - cost(len) as f64).max(0.0);
    }
}
