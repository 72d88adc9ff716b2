//! Commands about this machine: what it has, and what its primitives cost.

pub(crate) mod calibrate;
pub(crate) mod counters;
pub(crate) mod knobs;
pub(crate) mod machine;
