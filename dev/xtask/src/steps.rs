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
    without_own_variables(&mut command);
    command
}

/// Takes away what `cargo run` sets for our own process. Another toolchain must not inherit its
/// libraries, and build scripts that look at its variables would run again after each build by
/// hand.
fn without_own_variables(command: &mut Command) {
    command.env_remove("LD_LIBRARY_PATH");
    let is_own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let own = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_str().is_some_and(is_own));
    own.for_each(|name| _ = command.env_remove(name));
}

/// `cargo` of the nightly toolchain.
pub(crate) fn nightly_cargo(args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(args).current_dir(root());
    without_own_variables(&mut command);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
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

/// What the disk of a folder has room for.
pub(crate) fn free_bytes(folder: &Path) -> TaskResult<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
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
        // Where a disk fills up, whatever writes next fails, and says nothing of who filled it.
        let free =
            free_bytes(&root()).map_or(String::new(), |free| format!(", {:.1} GB of the disk free", free as f64 / 1e9));
        println!("<== {name}: {word} in {:.1} s{free}", time.as_secs_f64());
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
