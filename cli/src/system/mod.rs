//! What is asked of the system.

pub(crate) mod afterwards;
pub(crate) mod child;
pub(crate) mod files;
pub(crate) mod heap;
pub(crate) mod side_files;
pub(crate) mod signals;
pub(crate) mod standard_streams;
pub(crate) mod threads;
pub(crate) mod window;
