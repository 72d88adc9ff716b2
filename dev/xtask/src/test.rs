//! `cargo xtask test`: every test there is, then one line that sums them up. Those of the Python
//! package are among them, unless options choose a part of the tests or `--no-python` is first.
//! `--python` first adds them to a part, too.
//!
//! The dev profile is used (the workspace sets opt-level 1 there): it keeps the debug assertions
//! and overflow checks, which are half of what the tests are for, and it builds in a third of the
//! time of a release build. `--release` is passed on for those who want it.

use crate::silence::{SILENCE, children, end};
use crate::tally::{TestOutputParser, Totals, by_reason};
use crate::{TaskResult, python_test, steps};
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What the tests lean on beyond a Rust toolchain; what is absent leads to skipped cases, named at
/// the end.
const TOOLS: [(&str, &str); 4] =
    [("cc", "C interface"), ("c++", "C++ interface"), ("python3", "Python"), ("sort", "comparison with sort(1)")];

/// What is off by default and has tests: objects in buckets, TLS between machines, spans and events
/// of all products, the recorder of the crate `metrics`. What is built without them is compiled for
/// the Python package and for the program of a newcomer.
pub(crate) const OPTIONAL: &str = "dpipe/object,datapipes-net/tls,datapipes-fabric/tls,datapipes/sort,\
     datapipes/cache,datapipes/log,datapipes/fabric,datapipes/tracing,datapipes-metrics/facade";

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    for (tool, purpose) in TOOLS {
        let version = steps::first_line(Command::new(tool).arg("--version"));
        println!("{tool} ({purpose}): {}", version.as_deref().unwrap_or("not found"));
    }
    let (python, options) = with_python(options);
    let (cargo_options, test_options) = match options.iter().position(|o| o == "--") {
        Some(at) => (&options[..at], &options[at + 1..]),
        None => (options, &[][..]),
    };
    let chosen = cargo_options.iter().any(|o| o.starts_with("-p") || o.starts_with("--package"));
    // A developer at work on one crate may name it; otherwise all of them.
    let workspace = (!chosen).then_some("--workspace");
    let features: &[&str] = if chosen { &[] } else { &["--features", OPTIONAL] };
    // First everything is built, because a compiler may be silent for as long as it needs.
    // What documentation shows is built as it runs.
    if !cargo_options.iter().any(|o| o == "--doc") {
        steps::finish(steps::cargo(&["test", "--no-run"]).args(workspace).args(features).args(cargo_options))?;
    }
    let mut command = steps::cargo(&["test", "--no-fail-fast"]);
    command.args(workspace).args(features);
    // Without --show-output libtest would swallow the SKIPPED lines of tests that then count as
    // passed.
    command.args(cargo_options).args(["--", "--show-output"]).args(test_options);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    stream_within(&mut command, SILENCE, print, || if python { python_test::totals() } else { Totals::default() })
}

/// Whether the tests of the Python package are among those that are meant, and the other options.
fn with_python(options: &[String]) -> (bool, &[String]) {
    match options.split_first() {
        Some((first, rest)) if first == "--python" => (true, rest),
        Some((first, rest)) if first == "--no-python" => (false, rest),
        // Any other option may choose a part of the tests.
        _ => (options.iter().all(|option| option == "--release"), options),
    }
}

/// Runs the tests, shows their output as it comes, prints the sum. That no test ran at all is an
/// error: a filter that matches nothing must not look like success.
pub(crate) fn stream(command: &mut Command) -> TaskResult<()> {
    stream_within(command, Duration::MAX, print, Totals::default)
}

/// As [`stream`], and ends the programs that print nothing for this long. `show` gets their lines.
/// What `more` runs after them is a part of the sum.
fn stream_within(
    command: &mut Command,
    silence: Duration,
    show: fn(&str),
    more: impl FnOnce() -> Totals,
) -> TaskResult<()> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let output = Mutex::new((TestOutputParser::default(), Instant::now()));
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (over, is_over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let readers = [
            scope.spawn(|| _ = out.map(|out| follow(out, &output, show))),
            scope.spawn(|| _ = err.map(|err| follow(err, &output, show))),
        ];
        let (output, pid) = (&output, child.id());
        scope.spawn(move || end_the_silent(pid, silence, output, &is_over));
        readers.into_iter().for_each(|reader| _ = reader.join());
        drop(over);
    });
    let status = child.wait()?;
    let mut totals = output.into_inner().map_err(|_| "a reader of the test output panicked")?.0.totals();
    let is_unexplained = totals.failed == 0 && totals.unfinished_programs == 0 && !status.success();
    totals.add(more());

    println!();
    for line in by_reason(&totals.not_applicable) {
        println!("not applicable, {line}");
    }
    for line in by_reason(&totals.skipped) {
        println!("skipped, {line}");
    }
    let mut failed = totals.failed;
    if totals.unfinished_programs > 0 {
        println!("{} test program(s) ended without a result, counted as failed", totals.unfinished_programs);
        failed += totals.unfinished_programs;
    } else if is_unexplained {
        println!("cargo test: {status}, counted as one failure (see above; a build error?)");
        failed += 1;
    }
    // What failed lies far above in a log of thousands of lines.
    for line in &totals.failures {
        println!("| {line}");
    }
    let (passed, skipped, not_applicable) = (totals.passed, totals.skipped.len(), totals.not_applicable.len());
    println!("{passed} passed, {failed} failed, {skipped} skipped, {not_applicable} not applicable");
    match (failed, passed + skipped + not_applicable) {
        (0, 0) => Err("no test ran".into()),
        (0, _) => Ok(()),
        // The table of steps ends a log of which people may see the end alone.
        _ => Err(failure(failed, &totals.failed_names).into()),
    }
}

/// How many tests failed, and the names of the first ones.
fn failure(failed: usize, names: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut said = format!("{failed} of the tests failed");
    for (at, name) in names.iter().take(SHOWN).enumerate() {
        said += if at == 0 { ": " } else { ", " };
        said += name;
    }
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => said,
        Some(more) => format!("{said}, and {more} more"),
    }
}

/// What was printed, added up, and when the last line came.
type Heard = Mutex<(TestOutputParser, Instant)>;

/// Ends what `cargo` runs whenever nothing was printed for so long, until the output is over.
/// `cargo` goes on with the next program.
fn end_the_silent(cargo: u32, silence: Duration, heard: &Heard, is_over: &Receiver<()>) {
    while is_over.recv_timeout(silence.min(Duration::from_secs(1))) == Err(RecvTimeoutError::Timeout) {
        let Ok(mut heard) = heard.lock() else { return };
        if heard.1.elapsed() >= silence {
            println!("FAILED: nothing was printed for {silence:?}: what runs is ended");
            children(cargo).into_iter().for_each(end);
            heard.1 = Instant::now();
        }
    }
}

fn follow(from: impl Read, heard: &Heard, show: fn(&str)) {
    let mut reader = BufReader::new(from);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        // The lock is also what keeps lines of the two streams whole on the terminal.
        let Ok(mut heard) = heard.lock() else { return };
        heard.1 = Instant::now();
        if heard.0.line(line) {
            show(line);
        }
        bytes.clear();
    }
}

/// Prints a line at once.
fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed terminal must not stop the count.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_package_is_a_part_of_all_tests() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (line, python, rest) in [
            ("", true, ""),
            ("--release", true, "--release"),
            ("--no-python", false, ""),
            ("--no-python --release", false, "--release"),
            ("-p xtask", false, "-p xtask"),
            ("--release a_test", false, "--release a_test"),
            ("-- --ignored", false, "-- --ignored"),
            ("--python -p xtask", true, "-p xtask"),
        ] {
            assert_eq!(with_python(&words(line)), (python, &words(rest)[..]), "{line}");
        }
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_fails() {
        let mut command = Command::new("sh");
        // The shell is in the place of `cargo`, and goes on after what it started was killed.
        command
            .args(["-c", "echo running 1 test; sh -c 'sleep 1000; true'; echo running 0 tests; echo test result: ok."]);
        // Lines that are printed here would be counted by who runs this test.
        let silent = |_: &str| ();
        let error = stream_within(&mut command, Duration::from_millis(300), silent, Totals::default).unwrap_err();
        assert_eq!(error.to_string(), "1 of the tests failed");
    }

    #[test]
    fn a_failure_names_the_tests() {
        let names = |count: usize| (0..count).map(|at| format!("t{at}")).collect::<Vec<_>>();
        assert_eq!(failure(3, &names(2)), "3 of the tests failed: t0, t1");
        let many = failure(30, &names(30));
        assert!(many.starts_with("30 of the tests failed: t0, t1, ") && many.ends_with(", t19, and 10 more"), "{many}");
        assert!(!many.contains("t20"), "{many}");
    }
}
