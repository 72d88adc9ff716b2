//! What was seen at a moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datapipes::service::ClientStatus;
use serde::Serialize;

use super::figures::{Figures, FoundRows, MAX_ROWS, RowKey};

/// All that was seen at a moment.
pub(super) struct Look {
    pub(super) processes: Vec<ProcessLook>,
    /// Clients of a service, with its process number.
    pub(super) clients: Vec<(u32, ClientStatus)>,
    pub(super) troubles: Vec<Trouble>,
}

/// What tells apart all that offers figures: the process's number and beginning, and the number of
/// the page among its pages.
pub(super) type Offerer = (u32, u64, u32);

/// What a process offered on a page.
pub(super) struct ProcessLook {
    pub(super) offerer: Offerer,
    pub(super) program: String,
    pub(super) age: Duration,
    /// How often it is written; zero where that is not known.
    pub(super) every: Duration,
    /// When it was written, since the boot.
    pub(super) written: Duration,
    /// Whether it should have been written again by now.
    pub(super) is_late: bool,
    /// What is shown of it; the rest of its page is not kept.
    pub(super) figures: Arc<BTreeMap<RowKey, Figures>>,
    /// The last page that differs from this one: rates are by the time between the two.
    pub(super) earlier: Option<EarlierPage>,
}

/// A page that was written before another.
#[derive(Clone)]
pub(super) struct EarlierPage {
    pub(super) written: Duration,
    pub(super) figures: Arc<BTreeMap<RowKey, Figures>>,
}

impl ProcessLook {
    /// A page of which no row is known yet, written at a moment since the boot.
    pub(super) fn new(offerer: Offerer, program: String, written: Duration) -> ProcessLook {
        ProcessLook {
            offerer,
            program,
            age: Duration::ZERO,
            every: Duration::ZERO,
            written,
            is_late: false,
            figures: Arc::default(),
            earlier: None,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.offerer.0
    }

    fn is_of(&self, other: &ProcessLook) -> bool {
        self.offerer == other.offerer && self.program == other.program
    }

    /// Takes what an earlier look knew of it.
    fn follow(&mut self, before: &ProcessLook) {
        self.earlier = match before.written < self.written {
            true => Some(EarlierPage { written: before.written, figures: before.figures.clone() }),
            // It was not written again: what was before it is what is before it still.
            false => before.earlier.clone(),
        };
    }
}

impl Look {
    /// Adds a process with the rows that were found of it, and says how many were left out.
    pub(super) fn add(&mut self, mut process: ProcessLook, found: FoundRows) {
        process.figures = Arc::new(found.rows);
        if found.left_out > 0 {
            let place = format!("{} {}", process.program, process.pid());
            let why = format!("{} of its rows are left out: it has more than {MAX_ROWS}", found.left_out);
            self.troubles.push(Trouble { place, why });
        }
        self.processes.push(process);
    }

    /// Takes what an earlier look knew.
    pub(super) fn follow(&mut self, before: &Look) {
        for process in &mut self.processes {
            if let Some(earlier) = before.processes.iter().find(|earlier| process.is_of(earlier)) {
                process.follow(earlier);
            }
        }
    }

    /// How long to wait until all pages that an earlier look found are written again; zero where
    /// they were, or are late.
    pub(super) fn until_written_again(&self, before: &Look) -> Duration {
        let same = self.processes.iter().filter(|process| {
            let is_same = |earlier: &ProcessLook| process.is_of(earlier) && process.written == earlier.written;
            !process.is_late && before.processes.iter().any(is_same)
        });
        same.map(|process| process.every.saturating_sub(process.age)).max().unwrap_or_default()
    }
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trouble {
    pub(super) place: String,
    pub(super) why: String,
}
