//! Splitters in the order of the levels of a complete binary tree: the children of node i are 2i
//! and 2i + 1, so a walk down has no branch.

/// A tree of ascending splitters.
pub(super) struct Tree {
    /// The root has the index 1. The length is a power of two: the number of leaves.
    pub(super) nodes: Vec<u64>,
    levels: u32,
}

/// Several walks at once hide each other's latency.
const WALKS: usize = 16;

impl Tree {
    /// Makes a tree with at least so many leaves, a power of two.
    pub(super) fn new(splitters: &[u64], least_leaves: usize) -> Tree {
        let leaves = (splitters.len() + 1).next_power_of_two().max(least_leaves);
        // No prefix is above the padding, so no walk ends behind it.
        let mut padded = splitters.to_vec();
        padded.resize(leaves - 1, u64::MAX);
        let mut nodes = vec![0; leaves];
        fill(&mut nodes, &padded, 1);
        Tree { nodes, levels: leaves.trailing_zeros() }
    }

    /// Sets the bucket of each prefix, one prefix a word.
    pub(super) fn classify_by_words(&self, prefixes: &[u64], buckets: &mut [u16]) {
        let (groups, rest) = prefixes.as_chunks::<WALKS>();
        let (targets, last) = buckets.as_chunks_mut::<WALKS>();
        for (group, target) in groups.iter().zip(targets) {
            let mut at = [1_usize; WALKS];
            for _ in 0..self.levels {
                for (at, prefix) in at.iter_mut().zip(group) {
                    *at = 2 * *at + usize::from(self.nodes[*at] < *prefix);
                }
            }
            for (bucket, at) in target.iter_mut().zip(at) {
                *bucket = (at - self.nodes.len()) as u16;
            }
        }
        for (bucket, prefix) in last.iter_mut().zip(rest) {
            let mut at = 1;
            for _ in 0..self.levels {
                at = 2 * at + usize::from(self.nodes[at] < *prefix);
            }
            *bucket = (at - self.nodes.len()) as u16;
        }
    }
}

fn fill(nodes: &mut [u64], sorted: &[u64], node: usize) {
    if sorted.is_empty() {
        return;
    }
    let middle = sorted.len() / 2;
    nodes[node] = sorted[middle];
    fill(nodes, &sorted[..middle], 2 * node);
    fill(nodes, &sorted[middle + 1..], 2 * node + 1);
}
