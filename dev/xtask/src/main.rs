//! The commands a developer runs, as `cargo xtask COMMAND`. CI runs the same ones.

mod bench;
mod check_all;
mod ci;
mod fuzz;
mod guest;
mod install;
mod nightly;
mod packages;
mod pictures;
mod python_test;
mod shuttle;
mod silence;
mod slow_disk;
mod soak;
mod steps;
mod tally;
mod test;

use std::process::ExitCode;

/// What any command returns: the message is for a person, so a boxed error is enough here.
pub(crate) type TaskResult<T> = Result<T, Box<dyn std::error::Error>>;

pub(crate) const HELP: &str = "\
usage: cargo xtask COMMAND

  test [--no-python] [CARGO TEST OPTIONS] every test, ends with passed, failed, skipped, not applicable
  ci                                      formatting, clippy, docs, test, shuttle, packages, a small demo
  packages                                what can be checked before publishing; 64-bit Arm, the oldest toolchain
  miri                                    the memory code of the core under Miri (nightly)
  asan                                    core, cpu and file backends, cache under AddressSanitizer (nightly)
  tsan                                    core, runtime and cache under ThreadSanitizer (nightly, rust-src)
  python-test [--objects] [PYTEST OPTIONS] the Python package: built, installed, its types and tests (needs an index)
  fuzz [SECONDS]                          each fuzz target for SECONDS (default 30)
  shuttle [SCHEDULES] [NAME]              queue and runtime under SCHEDULES random schedules a test (default 2000)
  soak [--minutes N] [--seed S]           random pipes, faults, forks, leaving clients for N minutes (default 10)
  guest [NAMES] [--fetch]                 tests on hardware that is absent here, in virtual machines that have it
  bench [NAMES] [OPTIONS]                 side-by-side measurements; `bench --help` lists them
  install --prefix DIR [--destdir DIR]    libraries and headers for C and C++, for pkg-config and CMake
  deb DIR                                 the same as a package for Debian (needs dpkg-deb)
  pictures [DIR]                          the pages of docs/seeing, and what they look like in a browser
  check-all [COMMANDS]                    all of the above with short settings, and a table of what passed
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let outcome = match command.as_str() {
        "test" => test::run(&rest),
        "ci" => ci::run(),
        "packages" => packages::run(&rest),
        "miri" => nightly::miri(),
        "asan" => nightly::asan(),
        "tsan" => nightly::tsan(),
        "python-test" => python_test::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "shuttle" => shuttle::run(&rest),
        "soak" => soak::run(&rest),
        "guest" => guest::run(&rest),
        "install" => install::run(&rest),
        "deb" => install::run_deb(&rest),
        "bench" => bench::run(&rest),
        "pictures" => pictures::run(&rest),
        "check-all" => check_all::run(&rest),
        "" | "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown command `{other}`\n\n{HELP}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
