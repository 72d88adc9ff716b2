//! A set-associative cache that devices, a core and a load share.
//!
//! ```text
//!            hit                          miss
//!   device   write: in place, any way     write: allocate in the device's ways, memory is not read
//!            read: served                 read: from memory, nothing is allocated
//!   core     served, newest               write: read from memory, allocate in any way
//!                                         read: the same if inclusive, else nothing is allocated
//!   load     as the core                  read from memory, allocate in any way
//! ```
//! Without ways for devices (DDIO off) a device's write goes to memory, and a cached copy is
//! dropped. A dirty line that is replaced is written back.

use serde::Serialize;

use super::parameters::{LlcShape, Replacement, WayMask};

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessAgent {
    /// A device or a DMA engine.
    Device,
    /// The core whose work is looked at.
    Core,
    /// The other cores: a load beside it.
    Load,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// An access to one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAccess {
    /// Who.
    pub agent: AccessAgent,
    /// What.
    pub kind: AccessKind,
    /// The number of the line: its address over its bytes.
    pub line: u64,
    /// Whether it covers the whole line. A device's write of a part needs the rest from memory.
    pub is_whole: bool,
}

/// What an access caused in memory beside its own read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineOutcome {
    /// Whether the line was served by the cache.
    pub is_hit: bool,
    /// The dirty line that was replaced, and is written to memory.
    pub written_back: Option<u64>,
    /// Whether the access itself was a write that went past the cache to memory.
    pub is_written_past: bool,
}

/// The accesses of one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AgentCounts {
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Accesses that the cache served.
    pub hits: u64,
    /// Accesses that it did not serve.
    pub misses: u64,
    /// Lines that memory read for them.
    pub memory_reads: u64,
}

impl AgentCounts {
    /// Returns the number of accesses.
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes
    }

    /// Returns the part of the accesses that missed; 0 without accesses.
    pub fn miss_part(&self) -> f64 {
        if self.accesses() == 0 { 0.0 } else { self.misses as f64 / self.accesses() as f64 }
    }
}

/// What the cache counted, in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LlcCounts {
    /// The device.
    pub device: AgentCounts,
    /// The core.
    pub core: AgentCounts,
    /// The load.
    pub load: AgentCounts,
    /// Dirty lines that were replaced.
    pub write_backs: u64,
    /// Writes of the device that went past the cache.
    pub written_past: u64,
    /// Lines that became dirty.
    pub dirtied: u64,
    /// Dirty lines that were dropped, because a device wrote all of their bytes to memory.
    pub dirty_dropped: u64,
}

impl LlcCounts {
    /// Returns the lines that memory read.
    pub fn memory_reads(&self) -> u64 {
        self.device.memory_reads + self.core.memory_reads + self.load.memory_reads
    }

    /// Returns the lines that memory wrote.
    pub fn memory_writes(&self) -> u64 {
        self.write_backs + self.written_past
    }

    fn of(&mut self, agent: AccessAgent) -> &mut AgentCounts {
        match agent {
            AccessAgent::Device => &mut self.device,
            AccessAgent::Core => &mut self.core,
            AccessAgent::Load => &mut self.load,
        }
    }
}

/// The line number of an empty way: no address has it, because lines have at least 8 bytes.
const EMPTY: u64 = u64::MAX;

/// The cache.
#[derive(Debug)]
pub struct LastLevelCache {
    shape: LlcShape,
    device_ways: WayMask,
    all_ways: WayMask,
    /// Lines by set, then way.
    lines: Vec<u64>,
    /// The times of their last use.
    used: Vec<u64>,
    dirty: Vec<bool>,
    clock: u64,
    random: u64,
    counts: LlcCounts,
}

impl LastLevelCache {
    /// Makes an empty cache. `device_ways` are those in which a device's writes allocate; `seed` is
    /// of random replacement.
    ///
    /// The shape must have passed [`LlcShape::check`].
    pub fn new(shape: LlcShape, device_ways: WayMask, seed: u64) -> LastLevelCache {
        let lines = shape.lines() as usize;
        LastLevelCache {
            shape,
            device_ways,
            all_ways: WayMask::all(shape.ways),
            lines: vec![EMPTY; lines],
            used: vec![0; lines],
            dirty: vec![false; lines],
            clock: 0,
            random: seed,
            counts: LlcCounts::default(),
        }
    }

    /// Returns what was counted since the last [`reset_counts`](Self::reset_counts).
    pub fn counts(&self) -> LlcCounts {
        self.counts
    }

    /// Sets all counts to zero. The lines stay.
    pub fn reset_counts(&mut self) {
        self.counts = LlcCounts::default();
    }

    /// Returns the number of lines that are cached.
    pub fn cached_lines(&self) -> u64 {
        self.lines.iter().filter(|line| **line != EMPTY).count() as u64
    }

    /// Returns the number of dirty lines.
    pub fn dirty_lines(&self) -> u64 {
        self.dirty.iter().filter(|dirty| **dirty).count() as u64
    }

    /// Returns the way of its set in which a line is cached.
    pub fn way_of(&self, line: u64) -> Option<usize> {
        let first = self.first_of_set(line);
        self.lines[first..first + self.shape.ways as usize].iter().position(|cached| *cached == line)
    }

    /// Makes an access.
    pub fn access(&mut self, access: LineAccess) -> LineOutcome {
        self.clock += 1;
        let place = self.way_of(access.line).map(|way| self.first_of_set(access.line) + way);
        let is_past =
            access.agent == AccessAgent::Device && access.kind == AccessKind::Write && self.device_ways.is_none();
        let counts = self.counts.of(access.agent);
        match access.kind {
            AccessKind::Read => counts.reads += 1,
            AccessKind::Write => counts.writes += 1,
        }
        match place {
            _ if is_past => self.write_past(place, access),
            Some(place) => {
                counts.hits += 1;
                self.used[place] = self.clock;
                self.mark(place, access.kind);
                LineOutcome { is_hit: true, ..LineOutcome::default() }
            }
            None => self.miss(access),
        }
    }

    fn first_of_set(&self, line: u64) -> usize {
        (line % self.shape.sets) as usize * self.shape.ways as usize
    }

    /// A device's write to memory: a cached copy is old now.
    fn write_past(&mut self, place: Option<usize>, access: LineAccess) -> LineOutcome {
        self.counts.device.misses += 1;
        self.counts.written_past += 1;
        let mut outcome = LineOutcome { is_written_past: true, ..LineOutcome::default() };
        let Some(place) = place else { return outcome };
        self.lines[place] = EMPTY;
        if std::mem::take(&mut self.dirty[place]) {
            if access.is_whole {
                self.counts.dirty_dropped += 1;
            } else {
                self.counts.write_backs += 1;
                outcome.written_back = Some(access.line);
            }
        }
        outcome
    }

    fn miss(&mut self, access: LineAccess) -> LineOutcome {
        let is_device = access.agent == AccessAgent::Device;
        let is_covered = is_device && access.kind == AccessKind::Write && access.is_whole;
        let counts = self.counts.of(access.agent);
        counts.misses += 1;
        counts.memory_reads += u64::from(!is_covered);
        let is_kept = match access.agent {
            AccessAgent::Device => false,
            AccessAgent::Core => self.shape.is_inclusive,
            // What the other cores' caches evict.
            AccessAgent::Load => true,
        };
        if access.kind == AccessKind::Read && !is_kept {
            return LineOutcome::default();
        }
        let ways = if is_device { self.device_ways } else { self.all_ways };
        let place = self.victim(self.first_of_set(access.line), ways);
        let old = std::mem::replace(&mut self.lines[place], access.line);
        let was_dirty = std::mem::take(&mut self.dirty[place]);
        self.used[place] = self.clock;
        self.mark(place, access.kind);
        self.counts.write_backs += u64::from(was_dirty);
        LineOutcome { written_back: was_dirty.then_some(old), ..LineOutcome::default() }
    }

    fn mark(&mut self, place: usize, kind: AccessKind) {
        if kind == AccessKind::Write && !self.dirty[place] {
            self.dirty[place] = true;
            self.counts.dirtied += 1;
        }
    }

    /// Chooses a place of a set among `ways`: an empty one, or the one that is replaced. Some way
    /// is in `ways`.
    fn victim(&mut self, first: usize, ways: WayMask) -> usize {
        let allowed = || (0..self.shape.ways as usize).filter(|way| ways.has(*way)).map(|way| first + way);
        if let Some(empty) = allowed().find(|place| self.lines[*place] == EMPTY) {
            return empty;
        }
        let chosen = match self.shape.replacement {
            Replacement::Lru => allowed().min_by_key(|place| self.used[*place]),
            Replacement::Random => {
                let nth = mixed(self.random.wrapping_add(self.clock)) % u64::from(ways.count().max(1));
                allowed().nth(nth as usize)
            }
        };
        chosen.unwrap_or(first)
    }
}

/// Spreads a number over 64 bits (the finalizer of splitmix64).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
