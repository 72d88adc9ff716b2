//! What a guarded access reports.

/// An access failed because a page is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFault {
    /// The address that was touched, or one on the same page.
    pub address: usize,
    /// Bytes of the piece that were moved before it.
    pub done: usize,
    /// Whether the medium could not be read. Otherwise the file has no such page (any more).
    pub bad_block: bool,
}

impl AccessFault {
    /// Returns what is wrong, and what the caller can do about it.
    pub fn reason(&self) -> (&'static str, &'static str) {
        match self.bad_block {
            true => (
                "the medium cannot read it",
                "restore it from a copy; writing whole pages of zeros may clear the block",
            ),
            false => (
                "the file has no such page (SIGBUS)",
                "check whether the file was truncated, or the file system is full",
            ),
        }
    }
}
