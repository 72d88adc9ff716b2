//! Commands over data: write it, check it, move it, and explain how it would move.

pub(crate) mod check;
mod constraints;
pub(crate) mod copy;
pub(crate) mod explain;
pub(crate) mod generate;
mod share;
