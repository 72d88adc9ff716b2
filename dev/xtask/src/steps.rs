//! Running another program as a named, timed step; where the project is.

use crate::TaskResult;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The root of the workspace: the folder with the lock file above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap_or(here).to_path_buf()
}

/// `cargo` through PATH, so that a rustup proxy can answer for another toolchain, run in the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root());
    // `cargo run` sets this for our own process; another toolchain must not inherit it.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// `cargo` of the nightly toolchain.
pub(crate) fn nightly_cargo(args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(args).current_dir(root());
    command.env_remove("LD_LIBRARY_PATH").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
    command
}

/// Whether a program starts and says that all is well.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The first line a program prints, if it runs at all.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().next().unwrap_or_default().trim().to_string())
}

/// Runs a command to its end, its output going where ours goes.
pub(crate) fn finish(command: &mut Command) -> TaskResult<()> {
    let status = command.status().map_err(|e| format!("{}: {e}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", shown(command)).into()) }
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    // Relative to the checkout, where commands run: records are read on other machines.
    let root = format!("{}/", root().display());
    words.map(|word| quoted(&word.to_string_lossy().replace(&root, ""))).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_string() } else { format!("'{word}'") }
}

/// Steps that all run, even after one has failed, so that one look at a log shows everything.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<(String, Duration, Result<(), String>)>,
}

impl Steps {
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> TaskResult<()>) {
        println!("==> {name}");
        let start = Instant::now();
        let result = step().map_err(|e| e.to_string());
        let time = start.elapsed();
        let word = if result.is_ok() { "ok" } else { "FAILED" };
        println!("<== {name}: {word} in {:.1} s", time.as_secs_f64());
        self.done.push((name.to_string(), time, result));
    }

    /// The table of all steps; an error if any of them failed.
    pub(crate) fn finish(self) -> TaskResult<()> {
        println!();
        for (name, time, result) in &self.done {
            let word = result.as_ref().map_or_else(|why| format!("FAILED: {why}"), |()| "ok".to_string());
            println!("{:>8.1} s  {name:<10} {word}", time.as_secs_f64());
        }
        let failed: Vec<&str> = self.done.iter().filter(|d| d.2.is_err()).map(|d| d.0.as_str()).collect();
        if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
    }
}
