//! The arguments of the commands, and how they are read and explained.

pub(crate) mod ending;
pub(crate) mod kind;
pub(crate) mod quoting;
pub(crate) mod setting;
pub(crate) mod sort_args;
pub(crate) mod units;
