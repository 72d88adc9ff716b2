//! What a load over a cache finds.

use datapipes_cache::Metrics;
use datapipes_cache::engine::RejectedWay;
use serde::Serialize;

use crate::objects::ObjectAccount;

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
    /// What was asked of the server, where an object was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<ObjectAccount>,
    /// How they do not come.
    #[serde(skip)]
    pub(super) rejected: Vec<RejectedWay>,
}
