//! The paper's listings as programs (examples/), run on real files. `cargo test` builds them with
//! the tests.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example without arguments. It makes its own files, checks its own result and removes
/// what it made.
fn run(example: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(example);
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(example);
    std::fs::create_dir_all(&scratch).unwrap();
    let output = Command::new(&program).env("TMPDIR", &scratch).output();
    let output =
        output.unwrap_or_else(|e| panic!("{}: {e}: run `cargo test -p datapipes`, which builds it", program.display()));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example}: {}\n{out}{err}", output.status);
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{example} left {left:?}");
    out.into_owned()
}

#[test]
fn figure_6a_sorts_runs_in_caches() {
    assert!(run("fig6a").contains("sorted runs"));
}

#[test]
fn figure_6b_stores_runs_on_persistent_memory_and_says_that_it_is_emulated() {
    let out = run("fig6b");
    assert!(out.contains("in sorted runs") && out.contains("emulated"), "{out}");
}

#[test]
fn figure_6c_loads_and_merges_by_a_descriptor() {
    assert!(run("fig6c").contains("merged by 4"));
}

#[test]
fn figure_7_moves_on_to_the_next_place_when_one_is_full() {
    let out = run("fig7");
    assert!(out.contains("left: full") && out.contains("by way of 2 places"), "{out}");
}
