//! What a benchmark leaves behind.

pub(super) mod record;
pub(super) mod report;
