//! `cargo xtask test`: every test there is, then one line that sums them up.
//!
//! The dev profile is used (the workspace sets opt-level 1 there): it keeps the debug assertions
//! and overflow checks, which are half of what the tests are for, and it builds in a third of the
//! time of a release build. `--release` is passed on for those who want it.

use crate::tally::TestOutputParser;
use crate::{TaskResult, steps};
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// What the tests lean on beyond a Rust toolchain; what is absent leads to skipped cases, named at
/// the end.
const TOOLS: [(&str, &str); 4] =
    [("cc", "C interface"), ("c++", "C++ interface"), ("python3", "Python"), ("sort", "comparison with sort(1)")];

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    for (tool, purpose) in TOOLS {
        let version = steps::first_line(Command::new(tool).arg("--version"));
        println!("{tool} ({purpose}): {}", version.as_deref().unwrap_or("not found"));
    }
    let (cargo_options, test_options) = match options.iter().position(|o| o == "--") {
        Some(at) => (&options[..at], &options[at + 1..]),
        None => (options, &[][..]),
    };
    let chosen = cargo_options.iter().any(|o| o.starts_with("-p") || o.starts_with("--package"));
    let mut command = steps::cargo(&["test", "--no-fail-fast"]);
    // A developer at work on one crate may name it; otherwise all of them.
    command.args((!chosen).then_some("--workspace"));
    // Without --show-output libtest would swallow the SKIPPED lines of tests that then count as
    // passed.
    command.args(cargo_options).args(["--", "--show-output"]).args(test_options);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    stream(&mut command)
}

/// Runs the tests, shows their output as it comes, prints the sum. That no test ran at all is an
/// error: a filter that matches nothing must not look like success.
pub(crate) fn stream(command: &mut Command) -> TaskResult<()> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let tally = Mutex::new(TestOutputParser::default());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| out.map(|out| follow(out, &tally)));
        scope.spawn(|| err.map(|err| follow(err, &tally)));
    });
    let status = child.wait()?;
    let totals = tally.into_inner().map_err(|_| "a reader of the test output panicked")?.totals();

    println!();
    for (name, why) in &totals.skipped {
        println!("skipped {name}: {why}");
    }
    let mut failed = totals.failed;
    if totals.unfinished_programs > 0 {
        println!("{} test program(s) ended without a result, counted as failed", totals.unfinished_programs);
        failed += totals.unfinished_programs;
    } else if failed == 0 && !status.success() {
        println!("cargo test: {status}, counted as one failure (see above; a build error?)");
        failed = 1;
    }
    println!("{} passed, {failed} failed, {} skipped", totals.passed, totals.skipped.len());
    match (failed, totals.passed + totals.skipped.len()) {
        (0, 0) => Err("no test ran".into()),
        (0, _) => Ok(()),
        _ => Err("tests failed".into()),
    }
}

fn follow(from: impl Read, tally: &Mutex<TestOutputParser>) {
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        // The lock is also what keeps lines of the two streams whole on the terminal.
        let Ok(mut tally) = tally.lock() else { return };
        if tally.line(line) {
            let mut out = std::io::stdout().lock();
            // A closed terminal must not stop the count.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
        bytes.clear();
    }
}
