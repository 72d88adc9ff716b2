//! Which numbers a file has, and their direction.

use serde::{Deserialize, Serialize};

/// The types of numbers that can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberKind {
    /// 32 bits, unsigned.
    U32,
    /// 64 bits, unsigned.
    U64,
    /// 64 bits, two's complement.
    I64,
    /// IEEE 754 double, in its total order: -NaN, -infinity, ..., -0, +0, ..., infinity, NaN.
    F64,
}

impl NumberKind {
    /// Returns the bytes of a number.
    pub fn width(self) -> usize {
        match self {
            NumberKind::U32 => 4,
            NumberKind::U64 | NumberKind::I64 | NumberKind::F64 => 8,
        }
    }
}

/// Numbers and their direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) kind: NumberKind,
    pub(crate) reverse: bool,
}

impl Numbers {
    /// Whether encoding changes nothing.
    pub(crate) fn plain(self) -> bool {
        !self.reverse && matches!(self.kind, NumberKind::U32 | NumberKind::U64) && cfg!(target_endian = "little")
    }
}
