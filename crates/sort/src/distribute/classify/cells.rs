//! Finds buckets by a table over ranges of prefixes, the cells.
//!
//! ```text
//! cell     of the distance from the least splitter: its first bits (all cells are equally wide),
//!          or its length in bits and the bits behind the first one (a cell's width grows with it)
//! first    how many splitters lie in the cells before it
//! search   the splitters of the cell by halves: as many steps as the fullest cell needs
//! ```
//! If keys are spread evenly, no cell has more than one splitter, and one step is enough. Cells
//! that grow do the same for keys most of which are small. If all splitters lie in one cell, this
//! is a binary search. There is no branch that depends on a key.

/// Cells for each splitter. The widths of buckets differ by chance; with so many cells even the
/// narrowest one is wider than a cell.
const CELLS_A_SPLITTER: usize = 16;
/// The table stays in half of a first-level cache of 32 KiB.
const MAX_CELLS: usize = 1 << 13;
/// The bits behind the first one that choose a growing cell.
const BITS_BEHIND_FIRST: u32 = 6;
/// With at most so many steps, growing cells are not tried: they cost as much as a step more.
const FEW_STEPS: u32 = 2;
/// Searches of several steps at once hide each other's latency.
const SEARCHES: usize = 8;

/// A table for ascending splitters.
pub(super) struct Cells {
    low: u64,
    width: Width,
    /// The splitters before each cell.
    first: Vec<u16>,
    /// The splitters, and `MAX` behind them: no prefix is above it.
    splitters: Vec<u64>,
    steps: u32,
}

/// How wide the cells are.
#[derive(Clone, Copy)]
enum Width {
    /// Each has so many bits.
    Equal { bits: u32 },
    /// As wide as its distance requires.
    Growing,
}

impl Width {
    #[inline(always)]
    fn cell(self, distance: u64) -> usize {
        match self {
            Width::Equal { bits } => (distance >> bits) as usize,
            Width::Growing => {
                let distance = distance | 1;
                let zeros = distance.leading_zeros();
                let behind_first = (distance << zeros) << 1 >> (u64::BITS - BITS_BEHIND_FIRST);
                (((u64::BITS - 1 - zeros) << BITS_BEHIND_FIRST) as u64 | behind_first) as usize
            }
        }
    }
}

impl Cells {
    pub(super) fn new(splitters: &[u64]) -> Cells {
        let (low, high) = (splitters.first().copied().unwrap_or(0), splitters.last().copied().unwrap_or(0));
        let count = (splitters.len() * CELLS_A_SPLITTER).clamp(2, MAX_CELLS).next_power_of_two();
        let bits = (u64::BITS - (high - low).leading_zeros()).saturating_sub(count.trailing_zeros());
        let equal = Cells::with(splitters, low, Width::Equal { bits }, count);
        if equal.steps <= FEW_STEPS {
            return equal;
        }
        let growing = Cells::with(splitters, low, Width::Growing, (u64::BITS as usize) << BITS_BEHIND_FIRST);
        if growing.steps < equal.steps { growing } else { equal }
    }

    fn with(splitters: &[u64], low: u64, width: Width, count: usize) -> Cells {
        let mut first = vec![0; count];
        let (mut before, mut fullest) = (0, 0);
        for (cell, first) in first.iter_mut().enumerate() {
            *first = before as u16;
            let within = splitters[before..].iter().take_while(|splitter| width.cell(**splitter - low) == cell).count();
            fullest = fullest.max(within);
            before += within;
        }
        let steps = usize::BITS - fullest.leading_zeros();
        // A search looks at no more splitters than these behind the first one of a cell.
        let mut splitters = splitters.to_vec();
        splitters.resize(splitters.len() + (1 << steps), u64::MAX);
        Cells { low, width, first, splitters, steps }
    }

    /// Sets the bucket of each prefix.
    pub(super) fn classify(&self, prefixes: &[u64], buckets: &mut [u16]) {
        // The usual searches are compiled for their cells and steps.
        match (self.width, self.steps) {
            (Width::Equal { bits }, 0 | 1) => self.search(Width::Equal { bits }, 1, prefixes, buckets),
            (Width::Equal { bits }, 2) => self.search(Width::Equal { bits }, 2, prefixes, buckets),
            (Width::Growing, 0 | 1) => self.search(Width::Growing, 1, prefixes, buckets),
            (Width::Growing, 2) => self.search(Width::Growing, 2, prefixes, buckets),
            (width, 3) => self.search(width, 3, prefixes, buckets),
            (width, steps) => self.search(width, steps, prefixes, buckets),
        }
    }

    #[inline(always)]
    fn search(&self, width: Width, steps: u32, prefixes: &[u64], buckets: &mut [u16]) {
        let (groups, rest) = prefixes.as_chunks::<SEARCHES>();
        let (targets, last) = buckets.as_chunks_mut::<SEARCHES>();
        for (group, target) in groups.iter().zip(targets) {
            let mut at = [0; SEARCHES];
            for (at, prefix) in at.iter_mut().zip(group) {
                *at = self.first(width, *prefix);
            }
            for step in (0..steps).rev() {
                for (at, prefix) in at.iter_mut().zip(group) {
                    *at = self.step(*at, step, *prefix);
                }
            }
            *target = at.map(|at| at as u16);
        }
        for (bucket, prefix) in last.iter_mut().zip(rest) {
            let mut at = self.first(width, *prefix);
            for step in (0..steps).rev() {
                at = self.step(at, step, *prefix);
            }
            *bucket = at as u16;
        }
    }

    /// The splitters before the cell of a prefix.
    #[inline(always)]
    fn first(&self, width: Width, prefix: u64) -> usize {
        let cell = width.cell(prefix.saturating_sub(self.low));
        usize::from(self.first[cell.min(self.first.len() - 1)])
    }

    /// Goes on behind `2^step` splitters if the last of them is below the prefix.
    #[inline(always)]
    fn step(&self, at: usize, step: u32, prefix: u64) -> usize {
        at + (usize::from(self.splitters[at + (1 << step) - 1] < prefix) << step)
    }
}
