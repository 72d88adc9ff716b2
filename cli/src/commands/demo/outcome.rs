//! What a demo finds.

use std::path::PathBuf;

use datapipes::Route;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::system::child::Usage;

/// The output of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Bytes sorted.
    pub(super) bytes: u64,
    /// Records sorted.
    pub(super) records: u64,
    /// The budget.
    pub(super) memory_bytes: u64,
    /// The folder of the files.
    pub(super) dir: PathBuf,
    /// The resources that writing the input used.
    pub(super) generated: Usage,
    /// The report of `dpipe check` on the input.
    pub(super) input: Checked,
    /// The resources that the sort used, and its report.
    pub(super) dpipe: Sorted,
    /// The ways its bytes took, with reasons.
    pub(super) routes: Vec<Route>,
    /// The report of `dpipe check` on the output.
    pub(super) output: Checked,
    /// The system's sort on the same file with the same memory.
    pub(super) system: Option<Sorted>,
    /// Why it was not run.
    pub(super) system_absent: Option<String>,
    /// Whether both outputs are the same bytes.
    pub(super) same: Option<bool>,
    /// Whether the output is in order and has the input's records, and is the same as the system's.
    pub(super) holds: bool,
}

/// A sort that ran.
#[derive(Debug, Serialize)]
pub(super) struct Sorted {
    /// The program.
    pub(super) name: String,
    /// The command line.
    pub(super) command: String,
    /// The resources that it used.
    pub(super) usage: Usage,
    /// Its own report, where it gives one.
    pub(super) report: Option<Value>,
}

/// The output of `dpipe check --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Checked {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) sorted: bool,
    pub(super) duplicates: u64,
    pub(super) checksum: String,
}
