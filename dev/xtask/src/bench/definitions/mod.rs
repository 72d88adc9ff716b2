//! One file a benchmark: its contestants and what they are asked.

pub(super) mod copy;
pub(super) mod durable;
pub(super) mod fabric;
pub(super) mod fine;
pub(super) mod runtime;
pub(super) mod sort;
