//! Pictures.

pub(crate) mod pyramid;
