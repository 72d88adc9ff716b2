//! Which class should have which slabs (Pipette, section 3.2.3), and the balance between pages and small items (3.2.4).
//!
//! The pages' class takes part like any other: it is the block side of the cache, and what Pipette decides between its own
//! cache and the page cache is decided here between classes of one budget, so that nothing ever leaves it.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::store::Shard;
use crate::store::class::{CLASSES, SLAB};

/// How slabs are divided among size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reassignment {
    /// A slab goes from the class that would lose least to the one that would gain most: misses that the policy remembers
    /// as evicted not long ago, per byte (the gradient of Cliffhanger: Cidon et al., NSDI 2016).
    #[default]
    Marginal,
    /// The paper's: a class that evicted nothing since the last look gives a slab to the one that evicted most.
    EvictionCounts,
    /// Slabs stay where they were first needed.
    Never,
}

/// The gain must be larger than the loss by this factor, so that slabs do not go to and fro.
const CLEARLY: f64 = 1.5;
/// Misses below which a period says nothing.
const ENOUGH: u64 = 16;

impl Reassignment {
    /// Moves a few slabs of the shard at most; returns how many it moved.
    pub(crate) fn apply<P: Policy>(self, shard: &mut Shard<P>) -> u64 {
        let regrets = shard.regrets();
        if self == Reassignment::Never || shard.has_free_slabs() {
            return 0;
        }
        let mut moved = 0;
        for _ in 0..shard.slabs() / 32 + 1 {
            match self.choose(&regrets, &shard.classes().map(|c| c.slabs)) {
                Some((from, to)) if from != to && shard.reassign(from as u8, to as u8) => moved += 1,
                _ => break,
            }
        }
        moved
    }

    /// Who gives a slab to whom.
    fn choose(self, regrets: &[u64; CLASSES], slabs: &[usize; CLASSES]) -> Option<(usize, usize)> {
        let owning = (0..CLASSES).filter(|&c| slabs[c] > 0);
        match self {
            Reassignment::Never => None,
            Reassignment::EvictionCounts => {
                let from = owning.clone().filter(|&c| regrets[c] == 0 && slabs[c] > 1).max_by_key(|&c| slabs[c]);
                from.zip(owning.filter(|&c| regrets[c] > 0).max_by_key(|&c| regrets[c]))
            }
            Reassignment::Marginal => {
                let per_byte = |c: usize| regrets[c] as f64 / (slabs[c] * SLAB) as f64;
                let to = owning.clone().max_by(|&a, &b| per_byte(a).total_cmp(&per_byte(b)));
                let from = owning.filter(|&c| slabs[c] > 1).min_by(|&a, &b| per_byte(a).total_cmp(&per_byte(b)));
                from.zip(to).filter(|&(from, to)| regrets[to] >= ENOUGH && per_byte(to) > CLEARLY * per_byte(from))
            }
        }
    }
}
