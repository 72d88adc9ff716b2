//! When a result counts: a committed tree, a quiet machine, turns enough for a median.

use std::time::Duration;

use super::machine;
use crate::TaskResult;

/// The load average of one minute above which something else is running.
const MAX_LOAD: f64 = 0.5;
/// A median of fewer turns says little.
const MIN_TURNS: usize = 3;
/// How long the load of what was built just before may take to fade.
const FADING: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_secs(5);

/// The conditions of a run, as far as they speak against its result.
fn objections(tree_is_changed: bool, load: f64, turns: usize) -> Vec<String> {
    let mut found = Vec::new();
    if tree_is_changed {
        found.push("the tree has changes that are not committed".to_owned());
    }
    if load > MAX_LOAD {
        found.push(format!("the machine is busy: its load average is {load:.2}, and at most {MAX_LOAD} is quiet"));
    }
    if turns < MIN_TURNS {
        found.push(format!("{turns} turns are fewer than {MIN_TURNS}"));
    }
    found
}

/// Waits until the machine is quiet, and returns what speaks against the results: nothing, or with
/// `anyway` a line for each reason, which the record keeps.
///
/// # Errors
/// Every reason against it, unless `anyway`.
pub(in crate::bench) fn check(turns: usize, anyway: bool) -> TaskResult<Vec<String>> {
    let is_changed = machine::tree_is_changed();
    let mut waited = Duration::ZERO;
    // What no wait can mend is told at once.
    while !anyway && objections(is_changed, 0.0, turns).is_empty() && machine::load() > MAX_LOAD && waited < FADING {
        if waited.is_zero() {
            println!("waiting until the load average is at most {MAX_LOAD}; it is {:.2}", machine::load());
        }
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
    let found = objections(is_changed, machine::load(), turns);
    if found.is_empty() || anyway {
        return Ok(found);
    }
    let advice = "mend that, or say --anyway, which the record then tells; --small only tests the runner";
    Err(format!("nothing was measured: {}; {advice}", found.join("; ")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_tree_a_busy_machine_and_few_turns_are_objections() {
        assert_eq!(objections(false, MAX_LOAD, MIN_TURNS), Vec::<String>::new());
        let all = objections(true, 0.51, 2);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[1].contains("0.51"), "{all:?}");
    }
}
