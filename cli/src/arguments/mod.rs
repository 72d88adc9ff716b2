//! What a user writes, and how it is read.

pub(crate) mod command_line;
pub(crate) mod kind;
pub(crate) mod quoting;
pub(crate) mod sort_args;
pub(crate) mod units;
