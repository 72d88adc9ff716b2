//! `cargo xtask fuzz [SECONDS]`: each fuzz target for a while, by cargo-fuzz.

use crate::TaskResult;
use crate::steps::{Steps, finish, nightly_cargo, root, succeeds};

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    let seconds: u64 = match args {
        [] => 30,
        [number] => number.parse().map_err(|_| format!("`{number}` is not a number of seconds"))?,
        _ => return Err("usage: cargo xtask fuzz [SECONDS]".into()),
    };
    let targets = targets()?;
    if targets.is_empty() {
        println!("SKIPPED: fuzz: no targets under dev/fuzz/fuzz_targets");
        return Ok(());
    }
    if !succeeds(&mut nightly_cargo(&["fuzz", "--version"])) {
        println!("SKIPPED: fuzz: cargo-fuzz on nightly is absent; `cargo install cargo-fuzz` adds it (about 2 min)");
        return Ok(());
    }
    let mut steps = Steps::default();
    for target in targets {
        // Long inputs from the beginning: a conversation with a service is many steps.
        let options = [&format!("-max_total_time={seconds}"), "-len_control=0"];
        steps.run(&target, || {
            finish(nightly_cargo(&["fuzz", "run", "--fuzz-dir", "dev/fuzz", &target, "--"]).args(options))
        });
    }
    steps.finish()
}

fn targets() -> TaskResult<Vec<String>> {
    let Ok(files) = std::fs::read_dir(root().join("dev/fuzz/fuzz_targets")) else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}
