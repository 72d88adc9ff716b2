//! `cargo xtask check-all`: every command of this program, one after the other, each with short
//! settings.
//!
//! Commands that nobody runs rot. Each one here passes, or says with a line `SKIPPED: COMMAND: why`
//! that it cannot run on this machine; a table at the end says which. A command that is in the help
//! and not in the list is an error.

use std::io::{BufRead, BufReader};
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use crate::steps::cargo;
use crate::{HELP, TaskResult};

/// A command, and the settings with which it is over soon.
struct Check {
    command: &'static str,
    settings: &'static [&'static str],
}

const CHECKS: [Check; 16] = [
    Check { command: "ci", settings: &[] },
    // All tests are a part of `ci`; this shows that the command takes options.
    Check { command: "test", settings: &["-p", "xtask"] },
    Check { command: "packages", settings: &[] },
    Check { command: "install", settings: &["--prefix", "/opt/datapipes", "--destdir", "target/installed"] },
    Check { command: "deb", settings: &["target/packages"] },
    // Definitions that are over in seconds, and that need nothing from the network.
    Check {
        command: "bench",
        settings: &[
            "copy-file",
            "copy-memory",
            "log",
            "checkpoint",
            "flavors",
            "qos",
            "fabric",
            "--small",
            "--runs",
            "1",
        ],
    },
    Check { command: "shuttle", settings: &["200"] },
    Check { command: "soak", settings: &["--minutes", "0.5"] },
    Check { command: "asan", settings: &[] },
    Check { command: "tsan", settings: &[] },
    Check { command: "miri", settings: &[] },
    Check { command: "python-test", settings: &[] },
    // What is no part of `test`, because it compiles some 110 crates more.
    Check { command: "python-test", settings: &["--objects"] },
    Check { command: "fuzz", settings: &["5"] },
    Check { command: "pictures", settings: &["target/pictures"] },
    Check { command: "guest", settings: &["--fetch"] },
];

#[derive(Debug, PartialEq)]
enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    if let Some(unknown) = args.iter().find(|arg| CHECKS.iter().all(|check| check.command != **arg)) {
        return Err(format!("`{unknown}` is not a command that check-all knows\n\n{HELP}").into());
    }
    let mut rows = Vec::new();
    for check in CHECKS.iter().filter(|check| args.is_empty() || args.iter().any(|arg| arg == check.command)) {
        println!("==> cargo xtask {} {}", check.command, check.settings.join(" "));
        let begun = Instant::now();
        let verdict = run_one(check).unwrap_or_else(|e| Verdict::Failed(e.to_string()));
        rows.push((check, verdict, begun.elapsed()));
    }
    println!("\n{:<10}{:>8}  verdict", "command", "seconds");
    for (check, verdict, took) in &rows {
        let word = match verdict {
            Verdict::Passed => "passed".to_owned(),
            Verdict::Skipped(why) => format!("skipped: {why}"),
            Verdict::Failed(why) => format!("FAILED: {why}"),
        };
        println!("{:<10}{:>8.0}  {word}", check.command, took.as_secs_f64());
    }
    let failed: Vec<_> = rows.iter().filter(|r| matches!(r.1, Verdict::Failed(_))).map(|r| r.0.command).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Runs a command as a person would, shows what it prints, and looks for the line by which it says
/// that it was skipped.
fn run_one(check: &Check) -> TaskResult<Verdict> {
    let mut command = cargo(&["xtask", check.command]);
    // Tests of a change repeat their seeds; here they try others.
    command.env("DATAPIPES_SEED", std::env::var_os("DATAPIPES_SEED").unwrap_or_else(|| "random".into()));
    let mut child = command.args(check.settings).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut skipped = None;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
            println!("{line}");
            skipped = skipped.or_else(|| skip_of(check.command, &line));
        }
    }
    Ok(verdict(child.wait()?, skipped))
}

fn verdict(status: ExitStatus, skipped: Option<String>) -> Verdict {
    match (status.success(), skipped) {
        (false, _) => Verdict::Failed(status.to_string()),
        (true, Some(why)) => Verdict::Skipped(why),
        (true, None) => Verdict::Passed,
    }
}

/// Why a whole command was skipped, if this is the line that says so; skips of single tests are the
/// command's own business.
fn skip_of(command: &str, line: &str) -> Option<String> {
    line.strip_prefix("SKIPPED: ")?.strip_prefix(command)?.strip_prefix(": ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn every_command_of_the_help_is_checked() {
        let commands = HELP.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let mut commands: Vec<_> = commands.filter(|word| !word.is_empty() && *word != "check-all").collect();
        let mut checked: Vec<_> = CHECKS.iter().map(|check| check.command).collect();
        commands.sort_unstable();
        checked.sort_unstable();
        // One may be there with several settings.
        checked.dedup();
        assert_eq!(commands, checked);
    }

    #[test]
    fn only_a_skip_of_the_command_itself_counts() {
        assert_eq!(skip_of("miri", "SKIPPED: miri: no nightly"), Some("no nightly".to_owned()));
        assert_eq!(skip_of("miri", "SKIPPED: a_test: no disk"), None);
        assert_eq!(skip_of("ci", "skipped ci: x"), None);
        let (good, bad) = (ExitStatus::from_raw(0), ExitStatus::from_raw(256));
        assert_eq!(verdict(good, None), Verdict::Passed);
        assert_eq!(verdict(good, Some("why".to_owned())), Verdict::Skipped("why".to_owned()));
        assert!(matches!(verdict(bad, Some("why".to_owned())), Verdict::Failed(_)));
    }
}
