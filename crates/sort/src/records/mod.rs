//! Records: where they end, how two are ordered, how they are counted.

pub(crate) mod entry;
pub(crate) mod folded_lines;
pub(crate) mod layout;
pub(crate) mod memo;
pub(crate) mod number_kind;
pub(crate) mod offset_value;
pub(crate) mod prefetch;
pub(crate) mod record_buffer;
pub(crate) mod stub;
pub(crate) mod tally;
pub(crate) mod terminator;
pub(crate) mod words;
