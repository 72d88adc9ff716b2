//! Runs the tests of a program with its own `main`, because it is also a controller and devices.
//!
//! The crate libtest-mimic does this too. It is not used, because it switches on features of clap
//! that `dpipe` does without: the tests would run another `dpipe` than users do.

use std::process::ExitCode;

/// Runs tests, by name, one after the other: those whose names contain the first argument that is
/// not an option, like the standard harness.
pub fn run_tests(tests: &[(&str, fn())]) -> ExitCode {
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
    let (verdict, left) = (if failed == 0 { "ok" } else { "FAILED" }, tests.len() - chosen.len());
    let passed = chosen.len() - failed;
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {left} filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Makes a list for [`run_tests`] from the names of functions.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test as fn())),*] };
}
