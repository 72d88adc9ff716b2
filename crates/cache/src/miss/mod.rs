//! Misses: the path of their bytes, and the thread that reads them.

pub(crate) mod constructor;
pub(crate) mod detector;
pub(crate) mod dispatcher;
pub(crate) mod gather;
pub(crate) mod info;
pub(crate) mod requester;
