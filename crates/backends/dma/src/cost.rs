//! What a move by an engine costs, assumed or measured, and its file.

use std::path::Path;

use datapipes_core::{AtomicFile, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// What a move by the engine costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoveCost {
    /// Time of an empty move, in nanoseconds.
    pub latency_ns: f64,
    /// Rate of a long move, in bytes per second.
    pub bytes_per_s: f64,
    /// Whether it was measured here.
    pub measured: bool,
    /// What a copy that an engine and a core share costs, where it was measured.
    #[serde(default)]
    pub split: Option<SplitCost>,
}

/// What a copy that an engine and a core share costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitCost {
    /// Rate of the core alone, in bytes per second.
    pub core_bytes_per_s: f64,
    /// Rate of both together in a long copy, in bytes per second.
    pub bytes_per_s: f64,
}

impl MoveCost {
    /// Costs that are assumed until they are measured: above those of a core, so that no route
    /// takes an engine that nobody measured unless the caller asks for it.
    pub const ASSUMED: MoveCost = MoveCost { latency_ns: 2_000.0, bytes_per_s: 1e9, measured: false, split: None };

    /// Reads costs from a file.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Corrupt` where it holds no costs; errors of reading.
    pub fn load_from(path: &Path) -> Result<MoveCost> {
        let shown = path.display().to_string();
        let text = std::fs::read(path).map_err(|e| Error::io("read", e, &shown))?;
        let corrupt = |why: String| {
            Error::new(ErrorKind::Corrupt, "read", format!("{shown}: {why}"))
                .with_advice("run `dpipe calibrate --redo`")
        };
        let cost: MoveCost = serde_json::from_slice(&text).map_err(|e| corrupt(e.to_string()).with_source(e))?;
        let is_positive = |number: f64| number.is_finite() && number > 0.0;
        let split = cost.split.map_or([1.0; 2], |split| [split.core_bytes_per_s, split.bytes_per_s]);
        if ![cost.latency_ns, cost.bytes_per_s].into_iter().chain(split).all(is_positive) {
            return Err(corrupt("a cost that is not a positive number".into()));
        }
        Ok(cost)
    }

    /// Saves the costs, so that a reader sees the old file or the new one.
    ///
    /// # Errors
    /// Errors of writing, with the path.
    pub fn save_as(&self, path: &Path) -> Result<()> {
        let shown = path.display().to_string();
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::new(ErrorKind::System, "write", format!("{shown}: {e}")).with_source(e))?;
        let draft = AtomicFile::create(path)?;
        draft.write(&text)?;
        draft.publish(text.len() as u64).map(|_| ())
    }
}
