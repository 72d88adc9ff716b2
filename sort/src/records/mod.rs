//! What the engine knows of records: where they end, how two are ordered, what they sum to.

pub(crate) mod entry;
pub(crate) mod layout;
pub(crate) mod memo;
pub(crate) mod prefetch;
pub(crate) mod record_buffer;
pub(crate) mod tally;
