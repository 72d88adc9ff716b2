//! To which bucket a record belongs, without a branch that depends on its key.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod cells;
#[cfg(target_arch = "x86_64")]
mod tree;

use cells::Cells;
#[cfg(target_arch = "x86_64")]
use tree::Tree;

#[cfg(target_arch = "x86_64")]
use crate::numbers::vector::Avx512;

/// Finds buckets. Bucket i holds the prefixes above splitter i - 1 and up to splitter i.
pub(crate) struct Classifier(Way);

enum Way {
    /// A walk down a tree in AVX-512 registers.
    #[cfg(target_arch = "x86_64")]
    Vectors(Avx512, Tree),
    /// A table. It is faster than a walk down a tree one word at a time.
    Table(Cells),
}

impl Classifier {
    /// Makes a classifier of ascending splitters.
    pub(crate) fn new(splitters: &[u64]) -> Classifier {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = Avx512::detect() {
            return Classifier(Way::Vectors(vectors, Tree::new(splitters, avx512::MIN_LEAVES)));
        }
        Classifier(Way::Table(Cells::new(splitters)))
    }

    /// Sets the bucket of each prefix.
    #[inline]
    pub(crate) fn classify(&self, prefixes: &[u64], buckets: &mut [u16]) {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Way::Vectors(vectors, tree) => {
                let done = avx512::classify(*vectors, &tree.nodes, prefixes, buckets);
                tree.classify_by_words(&prefixes[done..], &mut buckets[done..]);
            }
            Way::Table(cells) => cells.classify(prefixes, buckets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_are_those_of_a_binary_search(
            splitters in prop_oneof![
                proptest::collection::btree_set(prop_oneof![0_u64..60, any::<u64>()], 0..70),
                proptest::collection::btree_set(prop_oneof![0_u64..900, any::<u64>()], 0..700),
                proptest::collection::btree_set(prop_oneof![0_u64..900, Just(u64::MAX)], 0..700),
                (1_u64..300, any::<u64>()).prop_map(|(n, x)| (1..n).map(|i| (u64::MAX / n * i).wrapping_add(x >> 56)).collect()),
            ],
            prefixes in proptest::collection::vec(prop_oneof![0_u64..60, 0_u64..900, any::<u64>(), Just(u64::MAX)], 0..50),
        ) {
            let splitters: Vec<u64> = splitters.into_iter().collect();
            // Around each splitter too.
            let around = splitters.iter().flat_map(|s| [s.saturating_sub(1), *s, s.saturating_add(1)]);
            let prefixes: Vec<u64> = prefixes.into_iter().chain(around).collect();
            let expected: Vec<u16> = prefixes.iter().map(|p| splitters.partition_point(|s| s < p) as u16).collect();
            let mut buckets = vec![0; prefixes.len()];
            Classifier::new(&splitters).classify(&prefixes, &mut buckets);
            prop_assert_eq!(&buckets, &expected);
            Cells::new(&splitters).classify(&prefixes, &mut buckets);
            prop_assert_eq!(&buckets, &expected);
            #[cfg(target_arch = "x86_64")]
            {
                Tree::new(&splitters, 1).classify_by_words(&prefixes, &mut buckets);
                prop_assert_eq!(&buckets, &expected);
            }
        }
    }
}
