//! The chunk that goes next, and flows behind their promised rate.

use super::ring::Head;
use super::service::PriorityClass;

/// The chunk that goes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) index: u32,
    pub(super) len: u64,
    /// Its class's turn; None for a promised rate, which is served out of turn.
    pub(super) turn: Option<(PriorityClass, Head)>,
    /// It does not fit under the cap of contended bytes, which yields.
    pub(super) past_cap: bool,
}

/// A flow that has had less than it was promised.
pub(super) struct Behind {
    pub(super) index: u32,
    pub(super) class: PriorityClass,
    pub(super) len: u64,
    pub(super) ns: u64,
}

impl Behind {
    pub(super) fn choice(&self, past_cap: bool) -> Choice {
        Choice { index: self.index, len: self.len, turn: None, past_cap }
    }
}

impl Choice {
    pub(super) fn turn(class: PriorityClass, head: Head, past_cap: bool) -> Choice {
        Choice { index: head.index, len: head.len, turn: Some((class, head)), past_cap }
    }
}
