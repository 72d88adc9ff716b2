//! The three numbers of a transfer.

/// What a transfer moves: `len` bytes from offset `source` of the source locator to offset `target` of the target.
///
/// The fields have names because three integers side by side get swapped (CIDR'23, section 5.2, takes them by position).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset in the source locator, in bytes.
    pub source: u64,
    /// Offset in the target locator, in bytes.
    pub target: u64,
    /// Bytes to move.
    pub len: u64,
}

impl Span {
    /// The part of this span that starts `at` bytes into it and has `len` bytes.
    #[must_use]
    pub fn part(self, at: u64, len: u64) -> Span {
        Span { source: self.source + at, target: self.target + at, len }
    }
}
