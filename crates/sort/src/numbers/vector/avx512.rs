//! Words and pairs of words in the lanes of AVX-512 registers.

mod pairs;
mod words;

pub(super) use pairs::Words128;
pub(super) use words::{Words32, Words64};
