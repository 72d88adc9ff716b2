//! Words and pairs of words in the lanes of AVX2 registers.
//!
//! AVX2 has no compressing instructions: `Lanes::store_apart` looks up a permutation that puts the
//! lanes of one side first and those of the other side last, and stores the whole register at both
//! ends. It has no unsigned comparisons of 64 bits: words of that size are in registers with their
//! first bit flipped.

mod pairs;
mod rest;
mod words32;
mod words64;

pub(super) use pairs::Words128;
pub(super) use words32::Words32;
pub(super) use words64::Words64;
