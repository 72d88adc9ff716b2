//! `cargo xtask python-test`: builds the Python package, installs it into a virtual environment of
//! its own, and runs its tests and the type checkers. `cargo xtask test` runs the same, built with
//! fewer optimizations.
//!
//! ```text
//! target/python-venv     the environment: build tool, NumPy, pytest, mypy, pyright, and the package
//! target/python          what is compiled for `python-test`
//! target/python-quick    what is compiled for `test`
//! ```
//! `cargo xtask python-test --objects` builds the package with objects in buckets, and runs their
//! tests with the server of `dev/objectserver`. Because that compiles some 110 crates more, `cargo
//! xtask test` does not.
//!
//! All of it is used again, so a run after which nothing changed compiles nothing. Where Python,
//! the index of pip or the registry of cargo is missing, the tests are skipped by name.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::TaskResult;
use crate::silence::{SILENCE, end};
use crate::steps::{Steps, cargo, finish, root, shown, succeeds};
use crate::tally::{Totals, count};
use crate::test::OPTIONAL;

/// What the tests need beside the package, which brings NumPy. (torch, which would be gigabytes, is
/// tested where it is installed.)
const NEEDED: [&str; 7] =
    ["maturin>=1.9,<2", "pytest>=8", "mypy>=1.11", "fsspec>=2024.2", "uvloop", "anyio", "ml_dtypes>=0.5"];

/// What more is tested where an index has it: neighbours of the package, pyright's engine as a
/// package that brings its own interpreter of JavaScript, and Ray. Ray takes 70 MB to fetch, 260 MB
/// on the disk and 16 s of processor time to install, once; there is none for the newest Python.
const WANTED: [&str; 4] = ["pyarrow", "tqdm", "basedpyright>=1.31", "ray>=2.40"];

/// Settings of a build that is tested and thrown away.
const QUICK: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

/// How the package is built.
struct Build<'a> {
    /// The folder of what is compiled.
    target: &'a str,
    settings: &'a [(&'a str, &'a str)],
    objects: bool,
}

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    let (objects, options) = with_objects(options);
    match Environment::make() {
        Ok(environment) => {
            environment.check(options, &Build { target: "target/python", settings: &[], objects }).0.finish()
        }
        Err(why) => {
            println!("SKIPPED: python-test: {why}");
            Ok(())
        }
    }
}

/// Whether objects are meant, and the other options.
fn with_objects(options: &[String]) -> (bool, &[String]) {
    match options.split_first() {
        Some((first, rest)) if first == "--objects" => (true, rest),
        _ => (false, options),
    }
}

/// Runs everything for `cargo xtask test`, and returns what it adds to the sum.
pub(crate) fn totals() -> Totals {
    match Environment::make() {
        Ok(environment) => {
            let build = Build { target: "target/python-quick", settings: &QUICK, objects: false };
            let (steps, mut totals) = environment.check(&[], &build);
            if let Err(why) = steps.finish() {
                totals.failed = totals.failed.max(1);
                totals.failed_names.push(format!("the Python package ({why})"));
            }
            totals
        }
        Err(why) => {
            println!("SKIPPED: python-test: {why}");
            Totals { skipped: vec![("python-test".into(), why.into())], ..Totals::default() }
        }
    }
}

/// The folder of the package.
fn package() -> PathBuf {
    root().join("bindings/python")
}

fn in_package(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.current_dir(package());
    command
}

/// The platform of this machine's compiler.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().map(|output| output.stdout).unwrap_or_default();
    let lines = String::from_utf8_lossy(&output).into_owned();
    lines.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned()
}

/// A virtual environment with what the tests need.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Makes it, or returns why that cannot be done here.
    fn make() -> Result<Environment, &'static str> {
        let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
        if !succeeds(Command::new("python3").args(["-c", recent])) {
            return Err("python3 3.11 or later is absent");
        }
        let environment = Environment { folder: root().join("target/python-venv") };
        if !succeeds(Command::new(environment.python()).arg("--version"))
            && !succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment.folder))
        {
            return Err("python3 cannot make a virtual environment (the module venv, or ensurepip)");
        }
        if !succeeds(environment.pip().args(NEEDED).arg("numpy>=2.0")) {
            return Err("pip cannot install what the tests need (no index can be reached?)");
        }
        for wanted in WANTED {
            if !succeeds(environment.pip().arg(wanted)) {
                println!("SKIPPED: python-test with {wanted}: pip cannot install it");
            }
        }
        // What cannot be fetched is told apart from what cannot be built. Without a platform, cargo
        // would fetch what other systems need, too.
        let metadata = ["metadata", "--format-version", "1"];
        if succeeds(in_package(&metadata).arg("--no-deps"))
            && !succeeds(in_package(&metadata).args(["--filter-platform", &host()]))
        {
            return Err("cargo cannot fetch what the package is built of (no registry can be reached?)");
        }
        Ok(environment)
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    fn pip(&self) -> Command {
        let mut command = Command::new(self.python());
        // An index that cannot be reached is soon known.
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "2", "install"]);
        command
    }

    /// Builds, installs, and runs the checks and the tests. The build shares no target folder with
    /// the main workspace.
    fn check(&self, options: &[String], build: &Build<'_>) -> (Steps, Totals) {
        let package = package();
        let target = root().join(build.target);
        let mut steps = Steps::default();
        let mut totals = Totals::default();
        let own = |args: &[&str]| {
            let mut command = in_package(args);
            command.env("CARGO_TARGET_DIR", &target).envs(build.settings.iter().copied());
            command
        };
        steps.run("format", || finish(&mut own(&["fmt", "--check"])));
        steps.run("clippy", || finish(&mut own(&["clippy", "--release", "--", "-D", "warnings"])));
        steps.run("free-threaded", || {
            // With the profile of clippy, so that what both need is checked once.
            let mut check = own(&["check", "--release", "--quiet"]);
            refuses_free_threads(check.env("PYO3_CONFIG_FILE", package.join("tests/free-threaded.cfg")))
        });
        steps.run("install", || {
            // What is built here is used here: pip shall not fetch the build tool again.
            let mut command = self.pip();
            command.args(["--no-build-isolation", "--force-reinstall", "--no-deps"]).arg(&package);
            if build.objects {
                command.args(["--config-settings", "build-args=--features=object"]);
            }
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(self.folder.join("bin")).chain(std::env::split_paths(&path));
            command.env("CARGO_TARGET_DIR", &target).envs(build.settings.iter().copied());
            finish(command.env("PATH", std::env::join_paths(folders)?))
        });
        let within = |module: &str| {
            let mut command = Command::new(self.python());
            command.args(["-m", module]).current_dir(&package);
            command
        };
        steps.run("types", || finish(within("mypy").args(["--strict", "python/datapipes", "tests/typed.py"])));
        if succeeds(within("basedpyright").arg("--version")) {
            steps.run("types by pyright", || {
                let mut check = within("basedpyright");
                finish(check.args(["--level", "error", "--pythonpath"]).arg(self.python()))
            });
        }
        if build.objects {
            // With the features of the other tests, so that nothing is compiled twice.
            let serve = ["build", "--workspace", "--features", OPTIONAL, "--example", "serve"];
            steps.run("server of objects", || finish(&mut cargo(&serve)));
        }
        steps.run("tests", || {
            let mut tests = within("pytest");
            if build.objects {
                tests.env("DATAPIPES_TEST_SERVER", root().join("target/debug/examples/serve"));
            }
            tests.args(["-q", "-rsfE", "-p", "no:cacheprovider"]).args(options);
            count_tests(&mut tests, SILENCE, &mut totals)
        });
        (steps, totals)
    }
}

/// A build for an interpreter without the interpreter's lock ends with an error that names it. The
/// interpreter itself is not needed for that.
fn refuses_free_threads(check: &mut Command) -> TaskResult<()> {
    let output = check.output().map_err(|e| format!("{}: {e}", shown(check)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match !output.status.success() && said.contains("does not support the free-threaded build of CPython") {
        true => Ok(()),
        false => Err(format!("{}: it is not refused by name: {said}", shown(check)).into()),
    }
}

/// Runs pytest, shows what it prints, and adds up what came of the tests. If it prints nothing for
/// so long, it is ended.
fn count_tests(command: &mut Command, silence: Duration, totals: &mut Totals) -> TaskResult<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{}: {e}", shown(command)))?;
    let (to, lines) = mpsc::channel();
    let output = child.stdout.take();
    std::thread::spawn(move || {
        // Where the receiver is gone, nobody counts any more.
        let _ = output.into_iter().flat_map(|output| BufReader::new(output).split(b'\n')).try_for_each(|l| to.send(l));
    });
    loop {
        match lines.recv_timeout(silence) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
                println!("{line}");
                note(&line, totals);
            }
            Err(RecvTimeoutError::Timeout) => {
                println!("FAILED: nothing was printed for {silence:?}: the tests are ended");
                end(child.id());
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", shown(command)).into()) }
}

/// Takes a line of pytest: a test that was skipped, or the sum at the end.
fn note(line: &str, totals: &mut Totals) {
    if let Some((_, skipped)) = line.strip_prefix("SKIPPED [").and_then(|rest| rest.split_once("] ")) {
        let (test, why) = skipped.split_once(": ").unwrap_or((skipped, "no reason given"));
        totals.skipped.push((format!("python-test {test}"), why.to_owned()));
    } else if let Some(test) = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR ")) {
        totals.failed_names.push(test.split(" - ").next().unwrap_or(test).to_owned());
    } else if line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" in ") {
        totals.passed += count(line, "passed");
        totals.failed += count(line, "failed") + count(line, "error") + count(line, "errors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_hang_are_ended_and_fail() {
        let mut totals = Totals::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo 3 passed in 1s; sh -c 'sleep 1000; true'; echo 4 passed in 2s"]);
        let error = count_tests(&mut command, Duration::from_secs(5), &mut totals).unwrap_err();
        assert!(error.to_string().contains("signal"), "{error}");
        assert_eq!(totals.passed, 3);
    }

    #[test]
    fn the_sum_of_pytest_is_understood() {
        let mut totals = Totals::default();
        let lines = [
            "......s.F [100%]",
            "SKIPPED [1] tests/test_torch.py:11: could not import 'torch': No module named 'torch'",
            "FAILED tests/test_files.py::test_x - assert 1 == 2",
            "1 failed, 99 passed, 1 skipped, 2 errors in 63.52s (0:01:03)",
        ];
        lines.iter().for_each(|line| note(line, &mut totals));
        assert_eq!((totals.passed, totals.failed), (99, 3));
        assert_eq!(totals.failed_names, ["tests/test_files.py::test_x"]);
        let why = "could not import 'torch': No module named 'torch'".to_owned();
        assert_eq!(totals.skipped, [("python-test tests/test_torch.py:11".to_owned(), why)]);
        note("101 passed in 9.52s", &mut totals);
        assert_eq!(totals.passed, 200);
    }
}
