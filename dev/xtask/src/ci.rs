//! `cargo xtask ci`: what must hold before a change goes in. `.ci/run` calls this and nothing else.

use crate::steps::{self, Steps, cargo, finish};
use crate::{TaskResult, packages, shuttle, test};
use std::process::Command;

pub(crate) fn run() -> TaskResult<()> {
    let mut steps = Steps::default();
    steps.run("tools", tools);
    steps.run("format", || finish(&mut cargo(&["fmt", "--all", "--check"])));
    steps.run("clippy", || {
        finish(&mut cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            test::OPTIONAL,
            "--",
            "-D",
            "warnings",
        ]))
    });
    // With the features of the step before and of the tests, so that nothing is compiled twice.
    let docs = ["doc", "--workspace", "--no-deps", "--features", test::OPTIONAL];
    steps.run("docs", || finish(cargo(&docs).env("RUSTDOCFLAGS", "-D warnings")));
    steps.run("test", || test::run(&[]));
    steps.run("shuttle", || shuttle::run(&[]));
    packages::add_steps(&mut steps);
    steps.run("demo", demo);
    steps.finish()
}

/// By the program that the tests ran: one without debug assertions takes five minutes to build.
fn demo() -> TaskResult<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| steps::root().join("target"), Into::into);
    let mut demo = Command::new(target.join("debug/dpipe"));
    finish(demo.args(["demo", "--size", "64M", "--memory", "16M"]).current_dir(steps::root()))
}

/// A bare toolchain may lack rustfmt and clippy; rustup can add them.
fn tools() -> TaskResult<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !steps::succeeds(&mut cargo(&[subcommand, "--version"])) {
            finish(Command::new("rustup").args(["component", "add", component]).current_dir(steps::root()))?;
        }
    }
    Ok(())
}
