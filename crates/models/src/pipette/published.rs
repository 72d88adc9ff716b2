//! The figures that the paper prints (Bai et al., *Pipette: Efficient Fine-Grained Reads for SSDs*,
//! DAC 2022). Its MB is MiB.

use super::system::SystemKind;

/// The rows of tables 2 and 3: block I/O, the three without cache (which are equal), Pipette;
/// columns A to E, in MiB.
pub(super) struct Traffic {
    pub(super) block: [f64; 5],
    pub(super) uncached: [f64; 5],
    pub(super) pipette: [f64; 5],
}

impl Traffic {
    pub(super) fn row(&self, kind: SystemKind) -> &[f64; 5] {
        match kind {
            SystemKind::BlockIo => &self.block,
            SystemKind::Pipette => &self.pipette,
            SystemKind::Mmio | SystemKind::Dma | SystemKind::PipetteUncached => &self.uncached,
        }
    }
}

const UNCACHED: [f64; 5] = [9765.6, 8819.6, 5035.4, 1251.2, 305.2];

/// Traffic of uniform reads.
pub(super) const TABLE_2: Traffic =
    Traffic { block: [2973.6; 5], uncached: UNCACHED, pipette: [2973.6, 2678.4, 1479.7, 313.45, 79.8] };

/// Traffic of zipf reads with exponent 0.8.
pub(super) const TABLE_3: Traffic =
    Traffic { block: [748.3; 5], uncached: UNCACHED, pipette: [748.3, 684.2, 399.9, 107.0, 33.3] };

/// Table 4: hit ratio in percent and memory in MiB, of the page cache under block I/O and of the
/// fine-grained read cache.
#[derive(Clone, Copy)]
pub(super) struct Application {
    pub(super) name: &'static str,
    pub(super) block: (f64, f64),
    pub(super) pipette: (f64, f64),
    /// Section 4.3 and abstract: throughput of Pipette over block I/O, and its traffic as a
    /// fraction of block I/O's.
    pub(super) speed_up: f64,
    pub(super) traffic_part: f64,
}

pub(super) const RECOMMENDER: Application = Application {
    name: "Recommender System",
    block: (64.50, 2382.0),
    pipette: (93.50, 91.0),
    speed_up: 1.316,
    traffic_part: 1.0 - 0.956,
};

pub(super) const SOCIAL_GRAPH: Application = Application {
    name: "Social Graph",
    block: (66.50, 1112.0),
    pipette: (89.09, 70.0),
    speed_up: 1.335,
    traffic_part: 1.0 - 0.936,
};
