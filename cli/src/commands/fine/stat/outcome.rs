//! What a load over a cache finds.

use datapipes_cache::Metrics;
use datapipes_cache::engine::RejectedWay;
use serde::Serialize;

/// The output of `--json` for a file.
#[derive(Serialize)]
pub(super) struct Outcome {
    pub(super) file: String,
    pub(super) seconds: f64,
    pub(super) reads: u64,
    pub(super) reads_per_second: f64,
    pub(super) metrics: Metrics,
    /// How bytes come from the device.
    pub(super) explain: String,
    /// How they do not come.
    #[serde(skip)]
    pub(super) rejected: Vec<RejectedWay>,
}
