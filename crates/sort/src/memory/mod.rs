//! Memory and descriptors of a job, and how threads divide them.

pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod descriptors;
pub(crate) mod parallel;
pub(crate) mod short_copy;
pub(crate) mod streaming;
