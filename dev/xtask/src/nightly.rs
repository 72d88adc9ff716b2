//! `miri`, `asan` and `tsan`: the unsafe code under tools that only the nightly toolchain has.
//! Where the toolchain is absent they say so as a skip; they never pass in silence,
//! and a run in which no test took part is an error.

use crate::TaskResult;
use crate::steps::{first_line, nightly_cargo, root, succeeds};
use crate::test::stream;
use std::path::Path;
use std::process::Command;

pub(crate) fn miri() -> TaskResult<()> {
    let present = || succeeds(&mut nightly_cargo(&["miri", "--version"]));
    if !present() {
        // Output is shown: this downloads, and its message is the reason when it fails.
        let added = Command::new("rustup").args(["+nightly", "component", "add", "miri", "rust-src"]).status();
        if !added.is_ok_and(|s| s.success()) || !present() {
            println!("SKIPPED: miri: not installed and `rustup +nightly component add miri rust-src` did not help");
            return Ok(());
        }
    }
    for (package, tests) in [("datapipes-core", "memory"), ("datapipes-cache", "store::"), ("datapipes-c", "handles")] {
        let mut command = nightly_cargo(&["miri", "test", "-p", package, "--lib", tests, "--", "--show-output"]);
        // The code under test asks for the page size and maps memory; isolation would refuse clocks
        // and files.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("CARGO_TARGET_DIR", root().join("target/miri"));
        stream(&mut command)?;
    }
    Ok(())
}

pub(crate) fn asan() -> TaskResult<()> {
    let Some(host) = host_triple() else {
        println!("SKIPPED: asan: no nightly toolchain; `rustup toolchain install nightly` adds one");
        return Ok(());
    };
    let everything = ["datapipes-core", "datapipes-cpu", "datapipes-file", "datapipes-cache"];
    // The fabric's devices are locked down, and the sanitizer opens files when a thread begins:
    // units only.
    for (packages, kinds) in [(&everything[..], &["--lib", "--tests"][..]), (&["datapipes-fabric"], &["--lib"])] {
        // --target keeps the sanitizer out of build scripts and macros; doc tests do not take part.
        let mut command = nightly_cargo(&["test", "--no-fail-fast", "--target", &host]);
        command.args(packages.iter().flat_map(|p| ["-p", p])).args(kinds).args(["--", "--show-output"]);
        // One leaks on purpose (a panic's payload whose end panics); one takes away the memory that
        // the sanitizer needs.
        command.args(["--skip", "whatever_it_throws", "--skip", "where_no_more_lanes"]);
        // What it allocates beside each allocation is not the cache's.
        command.args(["--skip", "three_hundred_files"]);
        command.env("RUSTFLAGS", "-Zsanitizer=address").env("CARGO_TARGET_DIR", root().join("target/asan"));
        // An allocation that is refused is an error of ours, as it is without the sanitizer; and a
        // test looks at where the stack is.
        command.env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_stack_use_after_return=0");
        stream(&mut command)?;
    }
    Ok(())
}

/// Tests of what several threads share: by package, which of its programs.
const THREADED: [(&str, &[&str]); 4] = [
    ("datapipes-core", &["--lib"]),
    ("datapipes-c", &["--lib"]),
    ("datapipes-cache", &["--lib", "--test", "asynchronous", "--test", "pipes"]),
    (
        "datapipes",
        &["--test", "runtime", "--test", "block_on", "--test", "descriptor", "--test", "graph", "--test", "sound"],
    ),
];

pub(crate) fn tsan() -> TaskResult<()> {
    let Some(host) = host_triple() else {
        println!("SKIPPED: tsan: no nightly toolchain; `rustup toolchain install nightly` adds one");
        return Ok(());
    };
    if let Err(why) = source_of_std() {
        println!("SKIPPED: tsan: {why}");
        return Ok(());
    }
    for (package, programs) in THREADED {
        // The standard library is built anew: of what it does unseen, the sanitizer would take
        // locks for races.
        let mut command = nightly_cargo(&["test", "-Zbuild-std", "--no-fail-fast", "--target", &host, "-p", package]);
        // What the scheduler decides is a value without threads: thousands of steps that have
        // nothing to race with.
        command.args(programs).args(["--", "--show-output", "--skip", "runtime::schedule::tests"]);
        command.env("DATAPIPES_STEPS", "10000");
        // Tests that fork do so with other threads about.
        command.env("RUSTFLAGS", "-Zsanitizer=thread").env("TSAN_OPTIONS", "die_after_fork=0");
        stream(command.env("CARGO_TARGET_DIR", root().join("target/tsan")))?;
    }
    Ok(())
}

/// Sees to the source of the standard library and to what it depends on, or says why it is not to
/// be had.
fn source_of_std() -> Result<(), String> {
    let sysroot = first_line(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]));
    let manifest = Path::new(&sysroot.unwrap_or_default()).join("lib/rustlib/src/rust/library/Cargo.toml");
    if !manifest.exists() {
        let _ = Command::new("rustup").args(["+nightly", "component", "add", "rust-src"]).status();
    }
    if !manifest.exists() {
        return Err("no source of the standard library; `rustup +nightly component add rust-src` did not help".into());
    }
    let manifest = manifest.display().to_string();
    match succeeds(&mut nightly_cargo(&["fetch", "--locked", "--manifest-path", &manifest])) {
        true => Ok(()),
        false => Err("what the standard library depends on cannot be fetched".into()),
    }
}

fn host_triple() -> Option<String> {
    first_line(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "host-tuple"]))
}
