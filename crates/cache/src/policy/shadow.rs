//! A comparison of two policies: both are simulated on a sample of the keys, with a cache in
//! proportion.
//!
//! One key in 256 takes part (SHARDS: Waldspurger et al., FAST 2015). The two policies are S3-FIFO,
//! good where some items are read again and again, and a clock, good where the hot set drifts. Both
//! see the same reads, so only reads count that one of them has and the other has not. In this way
//! a few thousand samples show a difference of two points.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::store::index::mix;

/// One key in this many is sampled.
const SAMPLE: u64 = 256;
/// The number of samples after which the two are compared.
const WINDOW: u32 = 2048;
/// The other policy must have this percentage of the hits before it is chosen.
const CLEARLY: u64 = 102;
/// It must also be ahead by this many standard deviations of chance (a sign test).
const DEVIATIONS: u64 = 4;

/// Whether a read takes part.
#[inline]
pub(crate) fn is_sampled(offset: u64) -> bool {
    mix(offset ^ 0x6a09_e667_f3bc_c908).is_multiple_of(SAMPLE)
}

/// A FIFO whose items get another round for each time they were read.
#[derive(Default)]
struct Rounds {
    queue: VecDeque<u64>,
    counts: HashMap<u64, u8>,
}

impl Rounds {
    fn hit(&mut self, key: u64, most: u8) -> bool {
        match self.counts.get_mut(&key) {
            Some(count) => {
                *count = (*count + 1).min(most);
                true
            }
            None => false,
        }
    }

    fn push(&mut self, key: u64, count: u8) {
        self.queue.push_back(key);
        self.counts.insert(key, count);
    }

    /// Removes the first key, with its count.
    fn pop(&mut self) -> Option<(u64, u8)> {
        let key = self.queue.pop_front()?;
        Some((key, self.counts.remove(&key).unwrap_or(0)))
    }

    /// Evicts a key that was not read.
    fn evict(&mut self) -> Option<u64> {
        while let Some((key, count)) = self.pop() {
            if count == 0 {
                return Some(key);
            }
            self.push(key, count - 1);
        }
        None
    }

    fn len(&self) -> usize {
        self.counts.len()
    }
}

/// The two simulated policies and their hits.
#[derive(Default)]
pub(crate) struct Shadow {
    small: Rounds,
    main: Rounds,
    /// Evicted keys, in two generations.
    young: HashSet<u64>,
    old: HashSet<u64>,
    clock: Rounds,
    by_frequency: u64,
    by_recency: u64,
    /// Reads that were a hit for only one of them.
    split: u64,
    seen: u32,
    recency: bool,
}

impl Shadow {
    /// Simulates a read on both, each with room for `items` of the cache's items in proportion.
    /// Returns whether recency serves better, if the preference changes now.
    pub(crate) fn read(&mut self, key: u64, items: usize) -> Option<bool> {
        let room = items / SAMPLE as usize;
        if room < 16 {
            return None;
        }
        let (frequency, recency) = (self.frequency(key, room), self.recency(key, room));
        self.by_frequency += u64::from(frequency);
        self.by_recency += u64::from(recency);
        self.split += u64::from(frequency != recency);
        self.seen += 1;
        if self.seen < WINDOW {
            return None;
        }
        let (mine, other) = match self.recency {
            true => (self.by_recency, self.by_frequency),
            false => (self.by_frequency, self.by_recency),
        };
        let ahead = other.saturating_sub(mine);
        let sure = ahead * ahead > DEVIATIONS * DEVIATIONS * self.split;
        // The counts are halved, not cleared, so that earlier samples count a little.
        self.seen = 0;
        [&mut self.by_frequency, &mut self.by_recency, &mut self.split].into_iter().for_each(|n| *n /= 2);
        if sure && other * 100 > mine * CLEARLY {
            self.recency = !self.recency;
            return Some(self.recency);
        }
        None
    }

    /// Simulates a clock. Returns whether it is a hit.
    fn recency(&mut self, key: u64, room: usize) -> bool {
        if self.clock.hit(key, 1) {
            return true;
        }
        while self.clock.len() >= room && self.clock.evict().is_some() {}
        self.clock.push(key, 0);
        false
    }

    /// Simulates S3-FIFO as in `policy/s3fifo.rs`. Returns whether it is a hit.
    fn frequency(&mut self, key: u64, room: usize) -> bool {
        if self.small.hit(key, 3) || self.main.hit(key, 3) {
            return true;
        }
        let remembered = self.young.contains(&key) || self.old.contains(&key);
        while self.small.len() + self.main.len() >= room {
            if self.small.len() * 10 > room || self.main.len() == 0 {
                let Some((old, count)) = self.small.pop() else { break };
                if count >= 2 {
                    self.main.push(old, 1);
                } else {
                    self.note(old, room);
                }
            } else if let Some(old) = self.main.evict() {
                self.note(old, room);
            }
        }
        if remembered {
            self.main.push(key, 0);
            return false;
        }
        self.small.push(key, 0);
        if self.small.len() * 8 > self.small.len() + self.main.len() + 8 {
            // While there is room, the first items move to main.
            if let Some((first, count)) = self.small.pop() {
                self.main.push(first, count);
            }
        }
        false
    }

    /// Remembers an evicted key.
    fn note(&mut self, key: u64, room: usize) {
        if self.young.len() >= room {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key);
    }

    /// The approximate number of bytes that it allocated.
    pub(crate) fn bytes(&self) -> usize {
        let queues = [&self.small, &self.main, &self.clock];
        let queues = queues.iter().map(|r| r.queue.capacity() * 8 + r.counts.capacity() * 17).sum::<usize>();
        queues + (self.young.capacity() + self.old.capacity()) * 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_data::access::{ItemLayout, Items, Popularity};

    const ITEMS: u64 = 1 << 20;
    const HELD: usize = ITEMS as usize / 10;

    /// Returns the final preference, and the number of changes.
    fn play(popularity: Popularity, reads: usize) -> (bool, usize) {
        let layout = ItemLayout { items: ITEMS, item_bytes: 128, stride_bytes: 128 };
        let mut shadow = Shadow::default();
        let sampled = Items::new(layout, popularity, 5).take(reads).filter(|r| is_sampled(r.offset));
        let changes = sampled.filter_map(|r| shadow.read(r.offset, HELD)).count();
        (shadow.recency, changes)
    }

    #[test]
    fn a_load_that_stays_is_left_to_frequency() {
        for popularity in [Popularity::Uniform, Popularity::Zipf { exponent: 0.8 }, Popularity::Zipf { exponent: 0.99 }]
        {
            assert_eq!(play(popularity, 4_000_000), (false, 0), "{popularity:?}");
        }
    }

    #[test]
    fn a_load_that_drifts_is_left_to_recency() {
        let popularity = Popularity::Drifting { exponent: 0.9, period: ITEMS / 56, step: ITEMS / 100 };
        assert_eq!(play(popularity, 4_000_000), (true, 1));
    }
}
