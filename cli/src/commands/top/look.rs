//! What was seen at a moment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use datapipes::service::ClientStatus;
use serde::Serialize;

use super::figures::{Figures, RowKey};

/// All that was seen at a moment.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) processes: Vec<ProcessLook>,
    /// Clients of a service, with its process number.
    pub(super) clients: Vec<(u32, ClientStatus)>,
    pub(super) troubles: Vec<Trouble>,
}

/// What a process offered.
pub(super) struct ProcessLook {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) age: Duration,
    /// Whether it should have been written again by now.
    pub(super) is_late: bool,
    /// What is shown of it; the rest of its page is not kept.
    pub(super) figures: BTreeMap<RowKey, Figures>,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trouble {
    pub(super) place: String,
    pub(super) why: String,
}
