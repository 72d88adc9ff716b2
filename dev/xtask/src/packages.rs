//! `cargo xtask packages`: what can be checked of the packages before anybody publishes them.
//!
//! Each step runs as far as this machine allows. A tool, toolchain or target that is absent is
//! named in a line `SKIPPED: packages: ...`.

use crate::TaskResult;
use crate::steps::{Steps, cargo, finish, succeeds};
use std::process::Command;

/// Packages that build C sources, and so need a C compiler for the other processor.
const WITH_C_SOURCES: [&str; 4] = ["datapipes-c", "datapipes-fabric", "datapipes-object", "dpipe"];
const ARM: &str = "aarch64-unknown-linux-gnu";
const ARM_C_COMPILER: &str = "aarch64-linux-gnu-gcc";
/// What only tests need, and needs a newer toolchain than what is published.
const TESTS_ONLY: &str = "datapipes-objectserver";
/// The oldest toolchain that the manifests promise (`rust-version`).
const OLDEST_TOOLCHAIN: &str = "1.89";

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    if let Some(unknown) = args.first() {
        return Err(format!("`{unknown}`: `cargo xtask packages` takes no options").into());
    }
    let mut steps = Steps::default();
    add_steps(&mut steps);
    steps.finish()
}

/// The steps, for `ci` as well.
pub(crate) fn add_steps(steps: &mut Steps) {
    steps.run("package", package);
    // Advisories need their database from the network: `cargo deny check advisories` by hand.
    steps.run("deny", || {
        tool("deny", &["deny", "--offline", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
    });
    steps.run("machete", || tool("machete", &["machete", "bindings", "cli", "crates", "dev/testkit", "dev/xtask"]));
    steps.run("oldest toolchain", oldest_toolchain);
    steps.run("aarch64", aarch64);
}

/// Each package can be put together: its manifest is complete, its files are there.
fn package() -> TaskResult<()> {
    let words = ["package", "--workspace", "--no-verify", "--offline", "--allow-dirty", "--quiet"];
    let unpublished = ["datapipes-c", "datapipes-objectserver", "datapipes-testkit", "xtask"];
    finish(cargo(&words).args(unpublished.iter().flat_map(|name| ["--exclude", name])))
}

/// A command of cargo that is not part of it, where it is installed.
fn tool(name: &str, words: &[&str]) -> TaskResult<()> {
    let mut version = cargo(&[name, "--version"]);
    // cargo-machete takes this, which `cargo run` sets, for a sign that it is being developed.
    if !succeeds(version.env_remove("CARGO_PKG_NAME")) {
        println!("SKIPPED: packages: cargo-{name} is absent; `cargo install cargo-{name}` adds it");
        return Ok(());
    }
    finish(cargo(words).env_remove("CARGO_PKG_NAME"))
}

fn oldest_toolchain() -> TaskResult<()> {
    let oldest = |words: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(["run", OLDEST_TOOLCHAIN, "cargo"]).args(words).current_dir(crate::steps::root());
        command.env_remove("LD_LIBRARY_PATH").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
        command
    };
    if !succeeds(&mut oldest(&["--version"])) {
        println!("SKIPPED: packages: the toolchain {OLDEST_TOOLCHAIN} is absent; clippy's `incompatible_msrv` was run");
        return Ok(());
    }
    finish(&mut oldest(&[
        "check",
        "--workspace",
        "--exclude",
        TESTS_ONLY,
        "--offline",
        "--target-dir",
        "target/oldest-toolchain",
    ]))
}

/// Everything compiles for 64-bit Arm, tests included: only the kernels of x86-64 are left out.
fn aarch64() -> TaskResult<()> {
    let mut installed = Command::new("rustup");
    let targets = installed.args(["target", "list", "--installed"]).output().map(|output| output.stdout);
    if !targets.is_ok_and(|names| String::from_utf8_lossy(&names).lines().any(|name| name == ARM)) {
        println!("SKIPPED: packages: the target {ARM} is absent; `rustup target add {ARM}` adds it");
        return Ok(());
    }
    let mut check = cargo(&["check", "--workspace", "--all-targets", "--target", ARM]);
    if succeeds(Command::new(ARM_C_COMPILER).arg("--version")) {
        check.env("CC_aarch64_unknown_linux_gnu", ARM_C_COMPILER);
    } else {
        println!("SKIPPED: packages: {} for {ARM}: there is no {ARM_C_COMPILER}", WITH_C_SOURCES.join(" and "));
        check = cargo(&["check", "--target", ARM]);
        let alone = ["datapipes-core", "datapipes-bundle", "datapipes-sort", "datapipes-durable", "datapipes-cache"];
        check.args(alone.iter().chain(&["datapipes-service", "datapipes-data"]).flat_map(|name| ["-p", name]));
    }
    finish(&mut check)
}
