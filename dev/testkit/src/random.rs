//! Seeds of tests, and what follows from them.

use std::hash::{BuildHasher, RandomState};

/// The variable that replays a seed of any test, or asks for seeds that nobody has tried.
const VARIABLE: &str = "DATAPIPES_SEED";

/// Returns the seed that the environment asks for: `DATAPIPES_SEED=7` replays a failure, and
/// `DATAPIPES_SEED=random` returns another seed at each call.
///
/// # Panics
/// If the variable is set and is neither: another seed would replay nothing.
pub fn replayed_seed() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok()?;
    match text.parse() {
        Ok(seed) => Some(seed),
        Err(_) if text == "random" => Some(RandomState::new().hash_one(0) >> 32),
        Err(e) => panic!("{VARIABLE}={text} is no seed: {e}"),
    }
}

/// Returns the seed of a test: the one that the environment asks for, else this one, so that a run
/// repeats the last one. Tests name it where they fail.
pub fn seed(default: u64) -> u64 {
    replayed_seed().unwrap_or(default)
}

/// A small generator (SplitMix64): a case follows from its seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    #[allow(clippy::should_implement_trait)] // It has no end, which an iterator may have.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns one of them; there is at least one.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
