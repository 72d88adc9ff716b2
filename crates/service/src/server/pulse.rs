//! By what the accepting thread shows that it goes on.

use std::time::Duration;

use datapipes_core::locks::{Condvar, Mutex};

/// Answers of the accepting thread.
#[derive(Default)]
pub(super) struct Pulse {
    answers: Mutex<u64>,
    answered: Condvar,
}

impl Pulse {
    /// Answers, which only the accepting thread does.
    pub(super) fn answer(&self) {
        *self.answers.lock() += 1;
        self.answered.notify_all();
    }

    pub(super) fn count(&self) -> u64 {
        *self.answers.lock()
    }

    /// Waits until there are more answers than `before`. Returns whether there are.
    pub(super) fn wait(&self, before: u64, patience: Duration) -> bool {
        let (answers, _) = self.answered.wait_timeout_while(self.answers.lock(), patience, |n| *n <= before);
        *answers > before
    }
}
