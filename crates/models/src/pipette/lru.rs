//! A least-recently-used set of numbers: a hash table, and a list in an array.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash function for offsets of our own: mixing is enough, and five times as fast as a hash that
/// resists attacks.
#[derive(Debug, Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    newer: u32,
    older: u32,
}

/// The most recently used keys.
#[derive(Debug)]
pub struct LruSet {
    capacity: usize,
    places: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    nodes: Vec<Node>,
    newest: u32,
    oldest: u32,
}

impl LruSet {
    /// Makes a set of up to `capacity` keys; with 0 none are kept.
    pub fn new(capacity: usize) -> LruSet {
        let capacity = capacity.min(NONE as usize - 1);
        LruSet { capacity, places: HashMap::default(), nodes: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether a key is there, and makes it the newest.
    pub fn touch(&mut self, key: u64) -> bool {
        let Some(&at) = self.places.get(&key) else { return false };
        self.unlink(at);
        self.link(at);
        true
    }

    /// Inserts a key that is not there. If the set is full, it replaces the oldest key.
    pub fn insert(&mut self, key: u64) {
        if self.capacity == 0 || self.touch(key) {
            return;
        }
        let at = if self.nodes.len() < self.capacity {
            self.nodes.push(Node { key, newer: NONE, older: NONE });
            (self.nodes.len() - 1) as u32
        } else {
            let at = self.oldest;
            self.unlink(at);
            self.places.remove(&self.nodes[at as usize].key);
            self.nodes[at as usize].key = key;
            at
        };
        self.places.insert(key, at);
        self.link(at);
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        self.nodes[at as usize].older = newest;
        self.nodes[at as usize].newer = NONE;
        match self.nodes.get_mut(newest as usize) {
            Some(node) => node.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the set with a list that is searched.
    #[test]
    fn it_keeps_what_a_list_would_keep() {
        for capacity in [0usize, 1, 2, 7, 50] {
            let (mut recency, mut list) = (LruSet::new(capacity), Vec::new());
            let mut random = 1u64;
            for step in 0..5000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let key = (random >> 33) % 80;
                let place = list.iter().position(|&k| k == key);
                assert_eq!(recency.touch(key), place.is_some(), "step {step}, capacity {capacity}");
                if let Some(place) = place {
                    list.remove(place);
                }
                list.push(key);
                recency.insert(key);
                if list.len() > capacity {
                    list.remove(0);
                }
                assert_eq!(recency.len(), list.len());
            }
        }
    }
}
