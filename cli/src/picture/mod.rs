//! Pictures.

pub(crate) mod pyramid;
pub(crate) mod svg;
