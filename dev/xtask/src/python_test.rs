//! `cargo xtask python-test`: builds the Python package, installs it into a virtual environment of
//! its own, and runs its tests and the type checker.

use std::process::Command;

use crate::TaskResult;
use crate::steps::{Steps, cargo, finish, root, succeeds};

/// What the tests need beside the package, which brings NumPy.
const NEEDED: [&str; 3] = ["maturin>=1.9,<2", "pytest>=8", "mypy>=1.11"];

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    let skip = |why: &str| {
        println!("SKIPPED: python-test: {why}");
        Ok(())
    };
    let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !succeeds(Command::new("python3").args(["-c", recent])) {
        return skip("python3 3.11 or later is absent");
    }
    let package = root().join("bindings/python");
    let environment = root().join("target/python-venv");
    let python = environment.join("bin/python");
    if !succeeds(Command::new(&python).arg("--version"))
        && !succeeds(Command::new("python3").args(["-m", "venv"]).arg(&environment))
    {
        return skip("python3 cannot make a virtual environment (the module venv, or ensurepip)");
    }
    let pip = || {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install"]);
        command
    };
    if !succeeds(pip().args(NEEDED).arg("numpy>=2.0")) {
        return skip("pip cannot install maturin, pytest, mypy and numpy (no index can be reached?)");
    }
    let target = root().join("target/python");
    let mut steps = Steps::default();
    let own = |args: &[&str]| {
        let mut command = cargo(args);
        command.current_dir(&package).env("CARGO_TARGET_DIR", &target);
        command
    };
    steps.run("format", || finish(&mut own(&["fmt", "--check"])));
    steps.run("clippy", || finish(&mut own(&["clippy", "--release", "--", "-D", "warnings"])));
    steps.run("install", || {
        // What is built here is used here: pip shall not fetch the build tool again.
        let mut command = pip();
        command.args(["--no-build-isolation", "--force-reinstall", "--no-deps"]).arg(&package);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(environment.join("bin")).chain(std::env::split_paths(&path));
        finish(command.env("CARGO_TARGET_DIR", &target).env("PATH", std::env::join_paths(folders)?))
    });
    let within = |module: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", module]).current_dir(&package);
        command
    };
    steps.run("types", || finish(within("mypy").args(["--strict", "python/datapipes", "tests/typed.py"])));
    steps.run("tests", || finish(within("pytest").args(["-q", "-p", "no:cacheprovider"]).args(options)));
    steps.finish()
}
