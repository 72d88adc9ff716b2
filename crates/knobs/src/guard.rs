//! The process that restores settings when another one dies.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use datapipes_core::Result;

use crate::journal::{Journal, Turn};
use crate::transaction::{DONE, RestoredKnobs, restore_journal};
use crate::tree::MachineTree;

/// The time between two looks at whether the turn is free.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `input`, the reading end of a pipe that only the process with the transaction can
/// write, is closed, and restores what that process left. `None` where it left nothing.
///
/// # Errors
/// The first refusal of the kernel, after all others were tried; errors of reading the journal.
pub fn restore_when_closed(tree: &MachineTree, id: &str, mut input: impl Read) -> Result<Option<RestoredKnobs>> {
    let mut word = [0; 1];
    loop {
        match input.read(&mut word) {
            // Closed without a word: it died, or could not restore.
            Ok(0) => break,
            Ok(_) if word[0] == DONE => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // What cannot be read says no more than what is closed.
            Err(_) => break,
        }
    }
    loop {
        // Another process may have restored it already, and have begun a transaction of its own.
        if Journal::find(tree)?.is_none_or(|journal| journal.id != id) {
            return Ok(None);
        }
        if let Some(_turn) = Turn::take(tree)? {
            return restore_journal(tree, Some(id), &mut |_| {}).map(Some);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
