//! `cargo xtask python-test`: builds the Python package, installs it into a virtual environment of
//! its own, and runs its tests and the type checker. `cargo xtask test --python` runs the same,
//! built with fewer optimizations.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::TaskResult;
use crate::steps::{Steps, cargo, finish, root, shown, succeeds};
use crate::tally::{Totals, count};

/// What the tests need beside the package, which brings NumPy.
const NEEDED: [&str; 4] = ["maturin>=1.9,<2", "pytest>=8", "mypy>=1.11", "fsspec>=2024.2"];

/// Settings of a build that is tested and thrown away.
const QUICK: [(&str, &str); 3] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    match Environment::make() {
        Ok(environment) => environment.check(options, &[]).0.finish(),
        Err(why) => {
            println!("SKIPPED: python-test: {why}");
            Ok(())
        }
    }
}

/// Runs everything for `cargo xtask test`, and returns what it adds to the sum.
pub(crate) fn totals() -> Totals {
    match Environment::make() {
        Ok(environment) => {
            let (steps, mut totals) = environment.check(&[], &QUICK);
            if steps.finish().is_err() {
                totals.failed = totals.failed.max(1);
            }
            totals
        }
        Err(why) => {
            println!("SKIPPED: python-test: {why}");
            Totals { skipped: vec![("python-test".into(), why.into())], ..Totals::default() }
        }
    }
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
            return Err("pip cannot install maturin, pytest, mypy, fsspec and numpy (no index can be reached?)");
        }
        Ok(environment)
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    fn pip(&self) -> Command {
        let mut command = Command::new(self.python());
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]);
        command
    }

    /// Builds, installs, and runs the checks and the tests. The build shares no target folder with
    /// the main workspace.
    fn check(&self, options: &[String], build: &[(&str, &str)]) -> (Steps, Totals) {
        let package = root().join("bindings/python");
        let target = root().join("target/python");
        let mut steps = Steps::default();
        let mut totals = Totals::default();
        let own = |args: &[&str]| {
            let mut command = cargo(args);
            command.current_dir(&package).env("CARGO_TARGET_DIR", &target).envs(build.iter().copied());
            command
        };
        steps.run("format", || finish(&mut own(&["fmt", "--check"])));
        steps.run("clippy", || finish(&mut own(&["clippy", "--release", "--", "-D", "warnings"])));
        steps.run("install", || {
            // What is built here is used here: pip shall not fetch the build tool again.
            let mut command = self.pip();
            command.args(["--no-build-isolation", "--force-reinstall", "--no-deps"]).arg(&package);
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(self.folder.join("bin")).chain(std::env::split_paths(&path));
            command.env("CARGO_TARGET_DIR", &target).envs(build.iter().copied());
            finish(command.env("PATH", std::env::join_paths(folders)?))
        });
        let within = |module: &str| {
            let mut command = Command::new(self.python());
            command.args(["-m", module]).current_dir(&package);
            command
        };
        steps.run("types", || finish(within("mypy").args(["--strict", "python/datapipes", "tests/typed.py"])));
        steps.run("tests", || {
            count_tests(within("pytest").args(["-q", "-rs", "-p", "no:cacheprovider"]).args(options), &mut totals)
        });
        (steps, totals)
    }
}

/// Runs pytest, shows what it prints, and adds up what came of the tests.
fn count_tests(command: &mut Command, totals: &mut Totals) -> TaskResult<()> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{}: {e}", shown(command)))?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
            println!("{line}");
            note(&line, totals);
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
    } else if line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" in ") {
        totals.passed += count(line, "passed");
        totals.failed += count(line, "failed") + count(line, "error") + count(line, "errors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let why = "could not import 'torch': No module named 'torch'".to_owned();
        assert_eq!(totals.skipped, [("python-test tests/test_torch.py:11".to_owned(), why)]);
        note("101 passed in 9.52s", &mut totals);
        assert_eq!(totals.passed, 200);
    }
}
