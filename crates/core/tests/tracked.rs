//! What the repository keeps: sources, records and pictures, no data of a run.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// The largest file that is kept: the longest record of a benchmark has an eighth of it.
const MAX_FILE: u64 = 1 << 20;

#[test]
fn no_file_of_a_run_is_tracked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap();
    let Ok(listed) = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output() else { return };
    if !listed.status.success() {
        // An unpacked archive has no list.
        return;
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    let large: Vec<&str> = names
        .split_terminator('\0')
        .filter(|name| {
            root.join(name).symlink_metadata().is_ok_and(|facts| facts.len() > MAX_FILE || facts.is_symlink())
        })
        .collect();
    assert!(large.is_empty(), "data or links are tracked: {large:?}");
}
