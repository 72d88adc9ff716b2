//! Which of two policies would serve better at present: both are played on a sample of the keys, with a cache in proportion.
//!
//! One key in 256 takes part (SHARDS: Waldspurger et al., FAST 2015). The two are S3-FIFO, good where some items are wanted again
//! and again, and a clock, good where the hot set drifts.

use std::collections::{HashMap, VecDeque};

use crate::store::index::mix;

/// One key in this many is sampled.
const SAMPLE: u64 = 256;
/// Samples after which the two are compared.
const WINDOW: u32 = 8192;
/// The other must have so many more hits, in percent, before it is changed.
const CLEARLY: u64 = 105;

/// Whether a read takes part.
#[inline]
pub(crate) fn is_sampled(offset: u64) -> bool {
    mix(offset ^ 0x6a09_e667_f3bc_c908).is_multiple_of(SAMPLE)
}

/// A FIFO whose items are given another round for each time they were read.
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

    fn push(&mut self, key: u64) {
        self.queue.push_back(key);
        self.counts.insert(key, 0);
    }

    /// Takes the first one out, with its count.
    fn pop(&mut self) -> Option<(u64, u8)> {
        let key = self.queue.pop_front()?;
        Some((key, self.counts.remove(&key).unwrap_or(0)))
    }

    /// Evicts one that was not read.
    fn evict(&mut self) -> Option<u64> {
        while let Some((key, count)) = self.pop() {
            if count == 0 {
                return Some(key);
            }
            self.queue.push_back(key);
            self.counts.insert(key, count - 1);
        }
        None
    }

    fn len(&self) -> usize {
        self.counts.len()
    }
}

/// The two, and who is ahead.
#[derive(Default)]
pub(crate) struct Shadow {
    small: Rounds,
    main: Rounds,
    ghosts: Rounds,
    clock: Rounds,
    by_frequency: u64,
    by_recency: u64,
    seen: u32,
    recency: bool,
}

impl Shadow {
    /// Plays a read on both, each with room for `items` of the cache's items in proportion. Some if the preference changes now:
    /// whether recency serves better.
    pub(crate) fn read(&mut self, key: u64, items: usize) -> Option<bool> {
        let room = items / SAMPLE as usize;
        if room < 16 {
            return None;
        }
        self.frequency(key, room);
        if self.clock.hit(key, 1) {
            self.by_recency += 1;
        } else {
            while self.clock.len() >= room && self.clock.evict().is_some() {}
            self.clock.push(key);
        }
        self.seen += 1;
        if self.seen < WINDOW {
            return None;
        }
        let (mine, other) = match self.recency {
            true => (self.by_recency, self.by_frequency),
            false => (self.by_frequency, self.by_recency),
        };
        // Halved, not cleared: what was before counts a little.
        (self.seen, self.by_frequency, self.by_recency) = (0, self.by_frequency / 2, self.by_recency / 2);
        if other * 100 > mine * CLEARLY {
            self.recency = !self.recency;
            return Some(self.recency);
        }
        None
    }

    fn frequency(&mut self, key: u64, room: usize) {
        if self.small.hit(key, 3) || self.main.hit(key, 3) {
            self.by_frequency += 1;
            return;
        }
        while self.small.len() + self.main.len() >= room {
            if self.small.len() * 10 > room || self.main.len() == 0 {
                let Some((old, count)) = self.small.pop() else { break };
                if count >= 2 {
                    self.main.push(old);
                } else {
                    while self.ghosts.len() >= room && self.ghosts.pop().is_some() {}
                    self.ghosts.push(old);
                }
            } else {
                self.main.evict();
            }
        }
        if self.ghosts.counts.remove(&key).is_some() {
            self.ghosts.queue.retain(|&k| k != key);
            self.main.push(key);
        } else {
            self.small.push(key);
        }
    }

    /// Bytes that it allocated, about.
    pub(crate) fn bytes(&self) -> usize {
        [&self.small, &self.main, &self.ghosts, &self.clock]
            .iter()
            .map(|r| r.queue.capacity() * 8 + r.counts.capacity() * 17)
            .sum()
    }
}
