//! To which bucket a record belongs, without a branch that depends on its key.

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use crate::numbers::vector::Avx512;

/// Splitters in the order of the levels of a complete binary tree: the children of node i are 2i
/// and 2i + 1, so a walk down has no branch. Bucket i holds the prefixes above splitter i - 1 and
/// up to splitter i.
pub(crate) struct Classifier {
    tree: Vec<u64>,
    levels: u32,
    #[cfg(target_arch = "x86_64")]
    vectors: Option<Avx512>,
}

/// Several walks at once hide each other's latency.
const WALKS: usize = 16;

impl Classifier {
    /// Makes a classifier of ascending splitters.
    pub(crate) fn new(splitters: &[u64]) -> Classifier {
        let leaves = (splitters.len() + 1).next_power_of_two();
        #[cfg(target_arch = "x86_64")]
        let (vectors, leaves) = match Avx512::detect() {
            Some(vectors) => (Some(vectors), leaves.max(avx512::MIN_LEAVES)),
            None => (None, leaves),
        };
        // No prefix is above the padding, so no walk ends behind it.
        let mut padded = splitters.to_vec();
        padded.resize(leaves - 1, u64::MAX);
        let mut tree = vec![0; leaves];
        fill(&mut tree, &padded, 1);
        Classifier {
            #[cfg(target_arch = "x86_64")]
            vectors,
            tree,
            levels: leaves.trailing_zeros(),
        }
    }

    /// Sets the bucket of each prefix.
    #[inline]
    pub(crate) fn classify(&self, prefixes: &[u64], buckets: &mut [u16]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = self.vectors {
            let done = avx512::classify(vectors, &self.tree, prefixes, buckets);
            return self.classify_by_words(&prefixes[done..], &mut buckets[done..]);
        }
        self.classify_by_words(prefixes, buckets);
    }

    fn classify_by_words(&self, prefixes: &[u64], buckets: &mut [u16]) {
        let (groups, rest) = prefixes.as_chunks::<WALKS>();
        let (targets, last) = buckets.as_chunks_mut::<WALKS>();
        for (group, target) in groups.iter().zip(targets) {
            let mut at = [1_usize; WALKS];
            for _ in 0..self.levels {
                for (at, prefix) in at.iter_mut().zip(group) {
                    *at = 2 * *at + usize::from(self.tree[*at] < *prefix);
                }
            }
            for (bucket, at) in target.iter_mut().zip(at) {
                *bucket = (at - self.tree.len()) as u16;
            }
        }
        for (bucket, prefix) in last.iter_mut().zip(rest) {
            let mut at = 1;
            for _ in 0..self.levels {
                at = 2 * at + usize::from(self.tree[at] < *prefix);
            }
            *bucket = (at - self.tree.len()) as u16;
        }
    }
}

fn fill(tree: &mut [u64], sorted: &[u64], node: usize) {
    if sorted.is_empty() {
        return;
    }
    let middle = sorted.len() / 2;
    tree[node] = sorted[middle];
    fill(tree, &sorted[..middle], 2 * node);
    fill(tree, &sorted[middle + 1..], 2 * node + 1);
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
            ],
            prefixes in proptest::collection::vec(prop_oneof![0_u64..60, 0_u64..900, any::<u64>(), Just(u64::MAX)], 0..50),
        ) {
            let splitters: Vec<u64> = splitters.into_iter().collect();
            let (mut buckets, mut by_words) = (vec![0; prefixes.len()], vec![0; prefixes.len()]);
            let classifier = Classifier::new(&splitters);
            classifier.classify(&prefixes, &mut buckets);
            classifier.classify_by_words(&prefixes, &mut by_words);
            for (prefix, bucket) in prefixes.iter().zip(&buckets) {
                prop_assert_eq!(usize::from(*bucket), splitters.partition_point(|s| s < prefix));
            }
            prop_assert_eq!(buckets, by_words);
        }
    }
}
