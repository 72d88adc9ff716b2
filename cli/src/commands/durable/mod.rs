//! Commands over durable data: logs and checkpoints.

pub(crate) mod checkpoint;
pub(crate) mod log;
