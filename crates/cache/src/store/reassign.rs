//! The division of slabs among size classes (Pipette, section 3.2.3), and the balance between pages
//! and small items (3.2.4).
//!
//! The class of pages takes part like any other: it is the block side of the cache. Pipette decides
//! between its own cache and the page cache. Here the decision is between classes of one budget, so
//! that the memory never leaves it.

use serde::{Deserialize, Serialize};

use super::class::{CLASSES, SLAB};

/// How slabs are divided among size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reassignment {
    /// A slab goes from the class that would lose least to the one that would gain most. The
    /// measure is ghost hits per byte: misses that the policy remembers as evicted recently (the
    /// gradient of Cliffhanger: Cidon et al., NSDI 2016).
    #[default]
    Marginal,
    /// The paper's reassignment (section 3.2.3): a class that evicted nothing since the last look
    /// gives a slab to the one that evicted most.
    EvictionCounts,
    /// The paper's dynamic allocation (section 3.2.4): the side with the higher hit ratio, pages or
    /// small items, takes a slab from the other. Among small items it works as `EvictionCounts`.
    /// With small reads alone the small side always wins, and takes all slabs of the pages but one.
    HitRatios,
    /// Slabs stay in the class that first needed them.
    Never,
}

/// The gain must exceed the loss by this factor, so that slabs do not go back and forth.
const CLEARLY: f64 = 1.5;
/// With fewer misses than this, a period is not significant.
const ENOUGH: u64 = 16;

/// The counts of a class since the last look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lately {
    pub(crate) slabs: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evicted: u64,
    /// Ghost hits: misses that the policy remembers as evicted recently.
    pub(crate) ghost_hits: u64,
}

impl Reassignment {
    /// Chooses the class that gives a slab and the one that receives it.
    pub(super) fn choose(self, of: &[Lately; CLASSES]) -> Option<(usize, usize)> {
        let owning = (0..CLASSES).filter(|&c| of[c].slabs > 0);
        match self {
            Reassignment::Never => None,
            Reassignment::EvictionCounts => by_evictions(of, owning),
            Reassignment::HitRatios => {
                let pages = CLASSES - 1;
                let small = owning.filter(|&c| c != pages);
                let (hits, reads) =
                    small.clone().fold((0, 0), |(h, r), c| (h + of[c].hits, r + of[c].hits + of[c].misses));
                let page_reads = of[pages].hits + of[pages].misses;
                if of[pages].slabs == 0 || reads == 0 && page_reads == 0 {
                    return by_evictions(of, small);
                }
                // This compares hits / reads with hits / reads, without a division.
                let small_side =
                    u128::from(hits) * u128::from(page_reads) >= u128::from(of[pages].hits) * u128::from(reads);
                if small_side && of[pages].slabs > 1 {
                    small.max_by_key(|&c| of[c].evicted).filter(|&c| of[c].evicted > 0).map(|to| (pages, to))
                } else if small_side {
                    by_evictions(of, small)
                } else {
                    let from = small.filter(|&c| of[c].slabs > 1).min_by_key(|&c| of[c].hits);
                    from.filter(|_| of[pages].evicted > 0).map(|from| (from, pages))
                }
            }
            Reassignment::Marginal => {
                let per_byte = |c: usize| of[c].ghost_hits as f64 / (of[c].slabs * SLAB) as f64;
                let to = owning.clone().max_by(|&a, &b| per_byte(a).total_cmp(&per_byte(b)));
                let from = owning.filter(|&c| of[c].slabs > 1).min_by(|&a, &b| per_byte(a).total_cmp(&per_byte(b)));
                from.zip(to)
                    .filter(|&(from, to)| of[to].ghost_hits >= ENOUGH && per_byte(to) > CLEARLY * per_byte(from))
            }
        }
    }
}

/// What was done at a look, and what had happened since the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rebalanced {
    /// Slabs that changed their class.
    pub(crate) moved: u64,
    /// Items that were evicted.
    pub(crate) evicted: u64,
}

/// Moves from the largest class that evicted nothing to the one that evicted most.
fn by_evictions(of: &[Lately; CLASSES], among: impl Iterator<Item = usize> + Clone) -> Option<(usize, usize)> {
    let from = among.clone().filter(|&c| of[c].evicted == 0 && of[c].slabs > 1).max_by_key(|&c| of[c].slabs);
    from.zip(among.filter(|&c| of[c].evicted > 0).max_by_key(|&c| of[c].evicted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = CLASSES - 1;

    /// Classes 3, 7 and pages: slabs, hits, misses, evictions, ghost hits.
    fn lately(of: [[u64; 5]; 3]) -> [Lately; CLASSES] {
        let mut all = [Lately::default(); CLASSES];
        for (class, [slabs, hits, misses, evicted, ghost_hits]) in [3, 7, PAGES].into_iter().zip(of) {
            all[class] = Lately { slabs: slabs as usize, hits, misses, evicted, ghost_hits };
        }
        all
    }

    #[test]
    fn by_evictions_a_class_without_evictions_gives_to_the_one_with_most() {
        let by = Reassignment::EvictionCounts;
        assert_eq!(by.choose(&lately([[4, 1, 1, 0, 99], [9, 5, 5, 7, 0], [3, 0, 0, 2, 0]])), Some((3, 7)));
        // Ghost hits are not evictions, the last slab stays, and nothing moves where no class
        // evicts.
        assert_eq!(by.choose(&lately([[1, 1, 1, 0, 0], [9, 5, 5, 7, 0], [3, 0, 0, 2, 0]])), None);
        assert_eq!(by.choose(&lately([[4, 1, 1, 0, 9], [9, 5, 5, 0, 9], [3, 0, 0, 0, 9]])), None);
    }

    #[test]
    fn by_hit_ratios_the_better_side_takes_from_the_other() {
        let by = Reassignment::HitRatios;
        // Small items have 60 hits of 100, and pages 1 of 10. Then it is the other way round.
        assert_eq!(by.choose(&lately([[4, 30, 20, 5, 0], [4, 30, 20, 9, 0], [5, 1, 9, 3, 0]])), Some((PAGES, 7)));
        assert_eq!(by.choose(&lately([[4, 3, 47, 5, 0], [4, 1, 49, 9, 0], [5, 9, 1, 3, 0]])), Some((7, PAGES)));
        // With small reads alone the small side wins, until pages have one slab left.
        assert_eq!(by.choose(&lately([[4, 0, 50, 5, 0], [4, 0, 50, 9, 0], [5, 0, 0, 0, 0]])), Some((PAGES, 7)));
        assert_eq!(by.choose(&lately([[4, 0, 50, 0, 0], [4, 0, 50, 9, 0], [1, 0, 0, 0, 0]])), Some((3, 7)));
    }

    #[test]
    fn by_the_margin_a_slab_goes_where_a_byte_would_have_saved_most() {
        let by = Reassignment::Marginal;
        assert_eq!(by.choose(&lately([[10, 0, 9, 9, 100], [2, 0, 9, 9, 60], [5, 0, 9, 9, 50]])), Some((3, 7)));
        // A few misses, or a small difference, move nothing.
        assert_eq!(by.choose(&lately([[10, 0, 9, 9, 0], [2, 0, 9, 9, 15], [5, 0, 9, 9, 0]])), None);
        assert_eq!(by.choose(&lately([[10, 0, 9, 9, 100], [10, 0, 9, 9, 120], [10, 0, 9, 9, 110]])), None);
        assert_eq!(Reassignment::Never.choose(&lately([[10, 0, 9, 9, 0], [2, 0, 9, 9, 99], [5, 0, 9, 9, 0]])), None);
    }
}
