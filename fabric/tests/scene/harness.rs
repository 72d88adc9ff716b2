//! The tests of a program that is also a controller and devices, and so has a `main` of its own.

use std::process::ExitCode;

/// A test and its name.
pub(crate) type Test = (&'static str, fn());

/// Runs the tests whose names contain the first argument that is no option, as the standard harness
/// does.
pub(crate) fn run(tests: &[Test]) -> ExitCode {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let chosen: Vec<_> =
        tests.iter().filter(|(name, _)| filter.as_ref().is_none_or(|f| name.contains(f.as_str()))).collect();
    if std::env::args().any(|a| a == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let passed = std::panic::catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {} passed; {failed} failed\n", chosen.len() - failed);
    ExitCode::from(u8::from(failed > 0))
}

/// The list of tests by their functions' names.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test as fn())),*] };
}
