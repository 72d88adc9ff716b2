//! Consistency of cache and file: changes by this process and by others.

pub(crate) mod doubt;
pub(crate) mod events;
pub(crate) mod identity;
pub(crate) mod marks;
pub(crate) mod outside;
pub(crate) mod writes;
