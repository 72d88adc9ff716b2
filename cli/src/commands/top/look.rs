//! What was seen at a moment, and words of others that can be shown.

use std::time::{Duration, Instant};

use datapipes::service::ClientStatus;
use serde::Serialize;
use serde_json::Value;

use crate::outcome::harmless;

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
    pub(super) measurements: Value,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trouble {
    pub(super) place: String,
    pub(super) why: String,
}

/// The longest words of others that are shown.
const MAX_WORDS: usize = 80;

/// The longest reason why something could not be read.
pub(super) const MAX_REASON: usize = 300;

/// Words of others without what a terminal would obey.
pub(super) fn printable(words: &str) -> String {
    harmless(words, MAX_WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n\u{9b}\u{202e}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c");
        assert_eq!(printable(&"x".repeat(1000)).len(), MAX_WORDS);
    }
}
