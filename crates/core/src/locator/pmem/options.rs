//! The options for opening persistent memory.

/// The options for opening a [`Pmem`](super::Pmem).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PmemOptions {
    /// Bytes to map. A missing file is created, and a shorter one is extended with its space
    /// reserved. `None` maps all that exists.
    pub len: Option<u64>,
    /// Accepts a file on which `MAP_SYNC` is refused. As in any file, its bytes survive a power
    /// failure once [`Pmem::persist`](super::Pmem::persist) or [`Pmem::sync`](super::Pmem::sync)
    /// has returned. Every route that names the place says "emulated".
    pub emulated: bool,
}

crate::setters! {
    PmemOptions {
        len: into Option<u64>,
        emulated: bool,
    }
}
