//! Many leases of one region, searched by overlap in logarithmic time.
//!
//! ```text
//! a treap by (start, end, access)
//! each node knows the greatest end in its subtree, of all leases and of those for writing
//! overlap with R, at a node that does not overlap:
//!     go left if the greatest end there is beyond R's start, else right
//!     (if a lease on the left ends beyond R's start but none there overlaps, it starts behind R;
//!     so do all on the right)
//! ```
//! (Rejected: a map of the lease depth at each border. One long lease over thousands of short ones
//! would change all of them.)

use std::ops::Range;

use super::access::Access;

/// The index that stands for no node.
const NONE: u32 = u32::MAX;

type Key = (usize, usize, bool);

#[derive(Clone)]
struct Node {
    start: usize,
    end: usize,
    writes: bool,
    /// How many equal leases the node stands for.
    count: u32,
    weight: u32,
    left: u32,
    right: u32,
    /// The greatest end in this subtree, of all leases and of leases for writing (0 without any).
    last: usize,
    last_write: usize,
}

impl Node {
    fn key(&self) -> Key {
        (self.start, self.end, self.writes)
    }
}

/// Leases, ordered by range.
#[derive(Clone, Default)]
pub(in crate::memory) struct Intervals {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// The index of the root plus one; 0 without a root.
    root: u32,
    /// The random state that weights are drawn from. A caller cannot choose the weights.
    state: u64,
}

impl Intervals {
    pub(in crate::memory) fn is_empty(&self) -> bool {
        self.root == 0
    }

    fn top(&self) -> u32 {
        self.root.wrapping_sub(1)
    }

    fn set_top(&mut self, node: u32) {
        self.root = node.wrapping_add(1);
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    /// Returns a lease that overlaps the range, if there is one; with `writing`, a lease for
    /// writing.
    pub(in crate::memory) fn overlap(&self, range: &Range<usize>, writing: bool) -> Option<Range<usize>> {
        let mut at = self.top();
        while let Some(node) = self.node(at) {
            if node.start < range.end && range.start < node.end && (node.writes || !writing) {
                return Some(node.start..node.end);
            }
            let last = |node: &Node| if writing { node.last_write } else { node.last };
            let goes_left = self.node(node.left).is_some_and(|left| last(left) > range.start);
            at = if goes_left { node.left } else { node.right };
        }
        None
    }

    /// Adds a lease, which must not be empty.
    pub(in crate::memory) fn add(&mut self, range: Range<usize>, access: Access) {
        let key = (range.start, range.end, access == Access::Write);
        if let Some(node) = self.find(key) {
            node.count += 1;
            return;
        }
        let made = self.make(key);
        let (below, above) = self.split(self.top(), key);
        let below = self.merge(below, made);
        let whole = self.merge(below, above);
        self.set_top(whole);
    }

    /// Removes a lease; returns false where there is no such lease.
    pub(in crate::memory) fn remove(&mut self, range: &Range<usize>, access: Access) -> bool {
        let key = (range.start, range.end, access == Access::Write);
        match self.find(key) {
            None => return false,
            Some(node) if node.count > 1 => {
                node.count -= 1;
                return true;
            }
            Some(_) => {}
        }
        let (below, rest) = self.split(self.top(), key);
        // The first node of the rest is the lease. It is cut off at the left edge.
        let (gone, rest) = self.cut_first(rest);
        self.free.push(gone);
        let whole = self.merge(below, rest);
        self.set_top(whole);
        if self.is_empty() {
            // The memory that many leases needed is released.
            *self = Intervals { state: self.state, ..Intervals::default() };
        }
        true
    }

    fn find(&mut self, key: Key) -> Option<&mut Node> {
        let mut at = self.top();
        while let Some(node) = self.node(at) {
            if node.key() == key {
                return self.nodes.get_mut(at as usize);
            }
            at = if key < node.key() { node.left } else { node.right };
        }
        None
    }

    fn make(&mut self, (start, end, writes): Key) -> u32 {
        // splitmix64
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let weight = (mixed >> 32) as u32;
        let last_write = if writes { end } else { 0 };
        let node = Node { start, end, writes, count: 1, weight, left: NONE, right: NONE, last: end, last_write };
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    /// Recomputes a node's greatest ends from its children.
    fn update(&mut self, at: u32) {
        let Node { left, right, end, writes, .. } = self.nodes[at as usize];
        let (mut last, mut last_write) = (end, if writes { end } else { 0 });
        for child in [left, right] {
            if let Some(child) = self.node(child) {
                last = last.max(child.last);
                last_write = last_write.max(child.last_write);
            }
        }
        let node = &mut self.nodes[at as usize];
        (node.last, node.last_write) = (last, last_write);
    }

    /// Splits a tree into the keys before `key` and the keys from it on.
    fn split(&mut self, at: u32, key: Key) -> (u32, u32) {
        let Some(node) = self.node(at) else { return (NONE, NONE) };
        if node.key() < key {
            let (below, above) = self.split(node.right, key);
            self.nodes[at as usize].right = below;
            self.update(at);
            (at, above)
        } else {
            let (below, above) = self.split(node.left, key);
            self.nodes[at as usize].left = above;
            self.update(at);
            (below, at)
        }
    }

    /// Merges two trees, where all keys of the first come before those of the second.
    fn merge(&mut self, below: u32, above: u32) -> u32 {
        let (Some(one), Some(other)) = (self.node(below), self.node(above)) else {
            return if self.node(below).is_some() { below } else { above };
        };
        if one.weight > other.weight {
            let right = self.merge(one.right, above);
            self.nodes[below as usize].right = right;
            self.update(below);
            below
        } else {
            let left = self.merge(below, other.left);
            self.nodes[above as usize].left = left;
            self.update(above);
            above
        }
    }

    /// Cuts the first node off a tree that is not empty. Returns it and the rest.
    fn cut_first(&mut self, at: u32) -> (u32, u32) {
        let Node { left, right, .. } = self.nodes[at as usize];
        if left == NONE {
            return (at, right);
        }
        let (first, rest) = self.cut_first(left);
        self.nodes[at as usize].left = rest;
        self.update(at);
        (first, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    impl Intervals {
        fn depth(&self, at: u32) -> usize {
            self.node(at).map_or(0, |node| 1 + self.depth(node.left).max(self.depth(node.right)))
        }
    }

    #[test]
    fn overlaps_agree_with_a_naive_list() {
        for seed in 0..if cfg!(miri) { 2 } else { 30 } {
            let (mut random, mut tree, mut list) = (Random(seed), Intervals::default(), Vec::new());
            for step in 0..if cfg!(miri) { 80 } else { 1500 } {
                let at = random.below(300);
                let longest = if random.below(4) == 0 { 200 } else { 9 };
                let range = at..at + 1 + random.below(longest);
                let access = if random.below(2) == 0 { Access::Write } else { Access::Read };
                // The tree accepts leases that the table would refuse.
                match random.below(5) {
                    0 | 1 => {
                        tree.add(range.clone(), access);
                        list.push((range, access));
                    }
                    2 if !list.is_empty() => {
                        let (range, access) = list.swap_remove(random.below(list.len()));
                        assert!(tree.remove(&range, access), "seed {seed}, step {step}");
                    }
                    2 => assert!(!tree.remove(&range, access)),
                    _ => {
                        for writing in [false, true] {
                            let overlaps = |(held, access): &(Range<usize>, Access)| {
                                held.start < range.end
                                    && range.start < held.end
                                    && (!writing || *access == Access::Write)
                            };
                            let found = tree.overlap(&range, writing);
                            let expected = list.iter().any(overlaps);
                            assert_eq!(found.is_some(), expected, "seed {seed}, step {step}: {range:?} {writing}");
                            if let Some(found) = found {
                                assert!(list.iter().filter(|held| overlaps(held)).any(|held| held.0 == found));
                            }
                        }
                    }
                }
            }
            for (range, access) in list {
                assert!(tree.remove(&range, access));
            }
            assert!(tree.is_empty() && tree.nodes.is_empty());
        }
    }

    #[test]
    fn the_tree_stays_low_in_whatever_order_leases_come() {
        let many = if cfg!(miri) { 40 } else { 100_000 };
        let orders: [fn(usize, usize) -> usize; 3] = [|i, _| i, |i, n| n - i, |i, n| (i * 7919) % n];
        for order in orders {
            let mut tree = Intervals::default();
            for i in 0..many {
                let at = 10 * order(i, many);
                tree.add(at..at + 10, Access::Read);
            }
            // A balanced tree has 17 levels. 100 levels are practically impossible.
            assert!(tree.depth(tree.top()) < 100, "{}", tree.depth(tree.top()));
        }
    }
}
