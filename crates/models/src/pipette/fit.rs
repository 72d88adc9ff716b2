//! One set of costs for all figures: a search, and what remains out.
//!
//! How often caches hit does not depend on what a step costs. So the reads run once, and the mean
//! time of a read is a sum of costs, weighted by the counters:
//!
//! ```text
//! block I/O          page_hit + misses * (block_command + ahead * flash_read + 4096 * link)
//! 2B-SSD by MMIO     mmio_command + flash_read + words * mmio_word
//! 2B-SSD by DMA      byte_command + dma_mapping + flash_read + bytes * link
//! Pipette w/o cache  byte_command + flash_read + bytes * link
//! Pipette            page_hit or fine_hit, + misses * (byte_command + flash_read + bytes * link)
//! ```
//! (`ahead`: flash pages that a block's read-ahead reads.) A test holds these sums against the
//! simulation. The search tries sets within [`BOUNDS`], and moves from the better ones in smaller
//! and smaller steps.

use datapipes_data::access::{Mixed, Popularity, Workload};
use serde::Serialize;

use super::experiment::{FittedParameters, SIZES, Scale, ZIPF, latencies};
use super::system::{System, SystemCounters, SystemKind};

/// The costs of the steps, in us; `ahead` in flash pages, `link` in us a byte.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepCosts {
    /// A read that the page cache serves.
    pub page_hit: f64,
    /// A read that the fine-grained read cache serves.
    pub fine_hit: f64,
    /// A flash page.
    pub flash_read: f64,
    /// Flash pages that a block's read-ahead reads.
    pub ahead: f64,
    /// The command of a block.
    pub block_command: f64,
    /// The command of bytes.
    pub byte_command: f64,
    /// Mapping for 2B-SSD by DMA.
    pub dma_mapping: f64,
    /// Command and fault of 2B-SSD by MMIO.
    pub mmio_command: f64,
    /// Eight bytes by MMIO.
    pub mmio_word: f64,
    /// A byte on the link.
    pub link: f64,
}

/// The smallest and the largest cost of each step that the search tries.
pub const BOUNDS: [(f64, f64); 10] = [
    (0.05, 60.0),
    (0.05, 60.0),
    (0.5, 200.0),
    (1.0, 64.0),
    (0.1, 200.0),
    (0.1, 200.0),
    (0.1, 60.0),
    (0.1, 200.0),
    (0.15, 0.25),
    (0.0001, 0.001),
];

impl StepCosts {
    /// The set of the model.
    pub fn of_the_model() -> StepCosts {
        let timing = FittedParameters::fitted().timing;
        StepCosts {
            page_hit: timing.page_hit.as_us(),
            fine_hit: timing.fine_hit.as_us(),
            flash_read: timing.flash_read.as_us(),
            ahead: (timing.read_ahead_bytes / timing.flash_page_bytes) as f64,
            block_command: timing.block_command.as_us(),
            byte_command: timing.byte_command.as_us(),
            dma_mapping: timing.dma_mapping.as_us(),
            mmio_command: timing.mmio_command.as_us(),
            mmio_word: timing.mmio_word.as_us(),
            link: 1e6 / timing.link_bytes_per_s,
        }
    }

    fn from(values: [f64; 10]) -> StepCosts {
        let [
            page_hit,
            fine_hit,
            flash_read,
            ahead,
            block_command,
            byte_command,
            dma_mapping,
            mmio_command,
            mmio_word,
            link,
        ] = values;
        StepCosts {
            page_hit,
            fine_hit,
            flash_read,
            ahead,
            block_command,
            byte_command,
            dma_mapping,
            mmio_command,
            mmio_word,
            link,
        }
    }

    fn values(self) -> [f64; 10] {
        [
            self.page_hit,
            self.fine_hit,
            self.flash_read,
            self.ahead,
            self.block_command,
            self.byte_command,
            self.dma_mapping,
            self.mmio_command,
            self.mmio_word,
            self.link,
        ]
    }

    /// The mean time of a read of workload E or of figure 8, in us.
    pub fn small(&self, kind: SystemKind, counted: &SystemCounters, bytes: f64) -> f64 {
        let reads = counted.reads.max(1) as f64;
        let by_bytes = self.byte_command + self.flash_read + bytes * self.link;
        match kind {
            SystemKind::BlockIo => self.page_hit + (reads - counted.page_hits as f64) / reads * self.block(),
            SystemKind::Mmio => self.mmio_command + self.flash_read + (bytes / 8.0).ceil() * self.mmio_word,
            SystemKind::Dma => by_bytes + self.dma_mapping,
            SystemKind::PipetteUncached => by_bytes,
            SystemKind::Pipette => {
                let (fine, misses) = (counted.fine_reads as f64, (counted.fine_reads - counted.fine_hits) as f64);
                (counted.page_hits as f64 * self.page_hit + fine * self.fine_hit + misses * by_bytes) / reads
            }
        }
    }

    /// The mean time of a read of workload B by Pipette, where small reads ask no pages.
    pub fn mixed(&self, counted: &SystemCounters, bytes: f64) -> f64 {
        let reads = counted.reads.max(1) as f64;
        let large = reads - counted.fine_reads as f64;
        let (missed, small) = (large - counted.page_hits as f64, counted.fine_reads as f64);
        let misses = (counted.fine_reads - counted.fine_hits) as f64;
        let by_bytes = self.byte_command + self.flash_read + bytes * self.link;
        (large * self.page_hit + missed * self.block() + small * self.fine_hit + misses * by_bytes) / reads
    }

    fn block(&self) -> f64 {
        self.block_command + self.ahead * self.flash_read + 4096.0 * self.link
    }
}

/// The counters of the experiments whose times the paper gives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FitCounters {
    /// Workload E, uniform and zipf: block I/O and Pipette.
    pub e: [[SystemCounters; 2]; 2],
    /// Workload B, zipf: block I/O and Pipette.
    pub b: [SystemCounters; 2],
    /// Figure 8, by size.
    pub by_size: Vec<[SystemCounters; 5]>,
    /// Bytes of a small read.
    pub small_bytes: f64,
}

impl FitCounters {
    /// Runs the experiments.
    pub fn run(scale: &Scale) -> FitCounters {
        let fit = FittedParameters::fitted();
        let two = |workload: Workload, popularity: Popularity| {
            let fit = fit.for_reads(popularity);
            [SystemKind::BlockIo, SystemKind::Pipette].map(|kind| {
                let reads = Mixed::new(fit.layout(fit.small_bytes), fit.large_bytes, workload, popularity, scale.seed);
                let pages = fit.page_cache(kind, workload, &reads);
                let mut system =
                    System::new(kind, fit.timing, pages, fit.fine_items).asking_pages(fit.small_reads_ask_pages);
                reads.take(scale.reads as usize).for_each(|read| system.read(read));
                system.account()
            })
        };
        FitCounters {
            e: [two(Workload::E, Popularity::Uniform), two(Workload::E, ZIPF)],
            b: two(Workload::B, ZIPF),
            by_size: SIZES.iter().map(|&size| latencies(&fit, size, scale)).collect(),
            small_bytes: f64::from(fit.small_bytes),
        }
    }
}

/// A figure of the paper beside that of a set of costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitFigure {
    /// Its name: the paper's figure, and what is compared in it.
    pub what: &'static str,
    /// The smallest and the largest value that the paper has.
    pub published: (f64, f64),
    /// Ours, over all sizes where the figure has several.
    pub ours: (f64, f64),
}

impl FitFigure {
    /// How far it is out, as a part: 0.1 is 10 %. 0 where it is met.
    pub fn deviation(&self) -> f64 {
        let (low, high) = self.published;
        let below = libm::log(low / self.ours.0.max(1e-9));
        let above = libm::log(self.ours.1.max(1e-9) / high);
        libm::expm1(below.max(above).max(0.0))
    }
}

/// Returns the figures whose values the paper prints, with these costs.
pub fn figures_with(costs: &StepCosts, counted: &FitCounters) -> Vec<FitFigure> {
    use SystemKind::{BlockIo, Dma, Mmio, Pipette, PipetteUncached};
    let at = |size: usize, kind: SystemKind, nth: usize| {
        costs.small(kind, &counted.by_size[size][nth], f64::from(SIZES[size]))
    };
    let over_sizes = |of: &dyn Fn(usize) -> f64| {
        let values = (0..SIZES.len()).map(of);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let e = |nth: usize| {
        let [block, pipette] = &counted.e[nth];
        costs.small(BlockIo, block, counted.small_bytes) / costs.small(Pipette, pipette, counted.small_bytes)
    };
    let b = costs.small(BlockIo, &counted.b[0], counted.small_bytes) / costs.mixed(&counted.b[1], counted.small_bytes);
    let size_of = |bytes: u32| SIZES.iter().position(|&size| size == bytes).unwrap_or(0);
    // A line that passes another at a size is level with it there.
    let passes = |size: u32, over: SystemKind, nth: usize| at(size_of(size), Mmio, 1) / at(size_of(size), over, nth);
    let one = |value: f64| (value, value);
    let figure = |what, published, ours| FitFigure { what, published, ours };
    vec![
        figure("figure 6, E: Pipette over block I/O", one(31.2), one(e(0))),
        figure("figure 7, B: Pipette over block I/O", one(1.1), one(b)),
        figure("figure 7, E: Pipette over block I/O", one(1.4), one(e(1))),
        figure("figure 8: Pipette (us)", one(2.0), over_sizes(&|s| at(s, Pipette, 4))),
        figure("figure 8: block I/O over Pipette", one(33.8), over_sizes(&|s| at(s, BlockIo, 0) / at(s, Pipette, 4))),
        figure("figure 8: 2B-SSD DMA less Pipette w/o cache (us)", (21.79, 25.06), {
            over_sizes(&|s| at(s, Dma, 2) - at(s, PipetteUncached, 3))
        }),
        figure("figure 8: block I/O less 2B-SSD DMA (us)", (14.56, 38.89), {
            over_sizes(&|s| at(s, BlockIo, 0) - at(s, Dma, 2))
        }),
        figure("figure 8: MMIO for each 8 B (us)", (0.18, 0.20), one(costs.mmio_word)),
        figure("figure 8: MMIO over Pipette w/o cache at 32 B", one(1.0), one(passes(32, PipetteUncached, 3))),
        figure("figure 8: MMIO over 2B-SSD DMA at 1 KiB", one(1.0), one(passes(1024, Dma, 2))),
    ]
}

/// What a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FitGoal {
    /// The largest deviation is as small as it can be.
    Nearest,
    /// As [`FitGoal::Nearest`], without the figure of this number.
    NearestWithout(usize),
}

impl FitGoal {
    /// What is to be small.
    fn badness(self, figures: &[FitFigure]) -> f64 {
        let counts = |nth: &usize| self != FitGoal::NearestWithout(*nth);
        let deviations = (0..figures.len()).filter(counts).map(|nth| libm::log1p(figures[nth].deviation()));
        // The sum breaks ties, so that figures that do not decide are met too.
        let (largest, sum) = deviations.fold((0.0f64, 0.0), |(most, sum), d| (most.max(d), sum + d));
        largest + 0.01 * sum
    }
}

/// Searches the set of costs that comes nearest. Equal arguments give the same set.
pub fn search(counted: &FitCounters, goal: FitGoal, tries: u32) -> StepCosts {
    let mut random = 0x0123_4567_89ab_cdefu64;
    let mut part = move || {
        // A linear congruential generator (Knuth, MMIX) is enough to spread points.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    let badness = |costs: &StepCosts| goal.badness(&figures_with(costs, counted));
    let start = StepCosts::of_the_model();
    let mut best = (badness(&start), start);
    for begin in 0..4 {
        // Once from the model's set, then from anywhere.
        let anywhere = BOUNDS.map(|(low, high)| low * libm::pow(high / low, part()));
        let first = if begin == 0 { start } else { StepCosts::from(anywhere) };
        let mut here = (badness(&first), first);
        for step in 0..tries {
            // From a factor of 20 down to a per mille.
            let reach = 3.0 * (1.0 - f64::from(step) / f64::from(tries)).powi(3) + 0.001;
            let mut values = here.1.values();
            let only = (part() * 20.0) as usize;
            for (nth, (value, (low, high))) in values.iter_mut().zip(BOUNDS).enumerate() {
                // Half of the steps move one cost, the others all.
                if only >= BOUNDS.len() || only == nth {
                    *value = (*value * libm::exp(reach * (part() - 0.5))).clamp(low, high);
                }
            }
            let there = StepCosts::from(values);
            let found = badness(&there);
            if found < here.0 {
                here = (found, there);
            }
        }
        if here.0 < best.0 {
            best = here;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums are the simulation's, read by read.
    #[test]
    fn the_sums_of_costs_are_the_times_of_the_simulation() {
        let costs = StepCosts::of_the_model();
        let near = |ours: f64, simulated: f64| assert!((ours / simulated - 1.0).abs() < 1e-3, "{ours} {simulated}");
        // The caches of figure 6 begin empty, so its figure is that of all reads.
        let counted = FitCounters::run(&Scale::default());
        for of in &counted.e {
            near(costs.small(SystemKind::BlockIo, &of[0], 128.0), of[0].latency_us());
            near(costs.small(SystemKind::Pipette, &of[1], 128.0), of[1].latency_us());
        }
        near(costs.small(SystemKind::BlockIo, &counted.b[0], 128.0), counted.b[0].latency_us());
        near(costs.mixed(&counted.b[1], 128.0), counted.b[1].latency_us());
        for (size, column) in SIZES.iter().zip(&counted.by_size) {
            for (kind, of) in SystemKind::ALL.into_iter().zip(column) {
                near(costs.small(kind, of, f64::from(*size)), of.latency_us());
            }
        }
        one_set_meets_all_but_one(&counted);
    }

    /// A set of costs meets every figure within 5 % but the 1.4 of figure 7; the model's, whose
    /// link is a real one, within 11 %. No set comes nearer to all than a factor of 2.
    fn one_set_meets_all_but_one(counted: &FitCounters) {
        let deviations =
            |costs: &StepCosts| -> Vec<f64> { figures_with(costs, counted).iter().map(FitFigure::deviation).collect() };
        const OUT: usize = 2;
        let ours = deviations(&StepCosts::of_the_model());
        let without = deviations(&search(counted, FitGoal::NearestWithout(OUT), 4000));
        let most = |all: &[f64]| (0..all.len()).filter(|nth| *nth != OUT).map(|nth| all[nth]).fold(0.0, f64::max);
        println!("the model's set: {ours:.3?}\nwithout figure 7, E: {without:.3?}");
        let nearest = deviations(&search(counted, FitGoal::Nearest, 4000));
        println!("nearest: {nearest:.3?}");
        let all = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        assert!(all(&nearest) > 1.0, "one set for all figures was found: docs/models.md says that there is none");
        assert!(most(&ours) < 0.11, "{ours:?}");
        assert!(most(&without) < 0.05, "{without:?}");
    }
}
