//! What every definition needs: the options, the built programs, the data folder, the machine's
//! facts.

use crate::bench::contestants::peers::Python;
use crate::bench::measuring::machine::{self, Machine};
use crate::bench::options::Options;
use crate::bench::records::record::Record;
use crate::bench::{measuring::measure, measuring::page_cache};
use crate::steps::{self, cargo, finish};
use crate::{TaskResult, bench::records::record};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How much smaller `--small` is.
const SMALL_DIVISOR: u64 = 50;
/// Below this no contestant starts at all, so `--small` does not divide a budget further.
const MIN_BUDGET_BYTES: u64 = 64 << 20;

pub(super) struct Context {
    pub(super) options: Options,
    pub(super) machine: Machine,
    /// The dpipe binary, or why there is none.
    pub(super) dpipe: Result<PathBuf, String>,
    release_dir: PathBuf,
    python: OnceCell<Python>,
}

impl Context {
    pub(super) fn new(options: Options) -> TaskResult<Self> {
        std::fs::create_dir_all(&options.dir)?;
        let options = Options { dir: options.dir.canonicalize()?, ..options };
        let release_dir = release_dir()?;
        let dpipe = match &options.dpipe {
            Some(path) => Ok(path.canonicalize()?),
            None => finish(&mut cargo(&["build", "--release", "-p", "dpipe"]))
                .map(|()| release_dir.join("dpipe"))
                .map_err(|e| e.to_string()),
        };
        let machine = machine::facts(&options.dir);
        Ok(Self { options, machine, dpipe, release_dir, python: OnceCell::new() })
    }

    /// An example program of one of our packages, built, or why it cannot be.
    pub(super) fn example(&self, Example { package, name }: Example) -> Result<PathBuf, String> {
        finish(&mut cargo(&["build", "--release", "-p", package, "--example", name])).map_err(|e| e.to_string())?;
        Ok(self.release_dir.join("examples").join(name))
    }

    /// The Python that holds DuckDB and Polars; installed when first asked for.
    pub(super) fn python(&self) -> &Python {
        self.python.get_or_init(Python::install)
    }

    /// A full size, or its small stand-in; a multiple of 200, so that records and integers stay
    /// whole.
    pub(super) fn size(&self, full_bytes: u64) -> u64 {
        let bytes = if self.options.small { full_bytes / SMALL_DIVISOR } else { full_bytes };
        bytes / 200 * 200
    }

    pub(super) fn budget(&self, full_bytes: u64) -> u64 {
        if self.options.small { (full_bytes / SMALL_DIVISOR).max(MIN_BUDGET_BYTES) } else { full_bytes }
    }

    pub(super) fn wants(&self, contestant: &str) -> bool {
        let name = contestant.to_lowercase();
        self.options.only.is_empty() || self.options.only.iter().any(|word| name.contains(word))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.options.dir.join(name)
    }

    pub(super) fn need_free(&self, bytes: u64) -> TaskResult<()> {
        let free = steps::free_bytes(&self.options.dir)?;
        if free >= bytes {
            return Ok(());
        }
        let (need, free) = (bytes as f64 / 1e9, free as f64 / 1e9);
        let dir = self.options.dir.display();
        Err(format!("needs {need:.1} GB free under {dir}, has {free:.1} GB; use --dir or --small").into())
    }

    /// Makes an input by `dpipe gen`; with --keep one of the right size that is already there will
    /// do.
    pub(super) fn generate(&self, kind: &str, bytes: u64) -> TaskResult<Input> {
        let path = self.file(&format!("{kind}-{bytes}.in"));
        let input = Input { path, keep: self.options.keep };
        // Lines end where they end, so a generated file may miss the wish by less than one line.
        let there = std::fs::metadata(&input.path).is_ok_and(|m| m.len().abs_diff(bytes) < 4096);
        if !(self.options.keep && there) {
            let dpipe = self.dpipe.as_ref().map_err(|why| format!("no input without dpipe: {why}"))?;
            let mut command = Command::new(dpipe);
            command.args(["gen", kind, "--size", &bytes.to_string()]).arg(&input.path).args(["--seed", "1"]);
            println!("    {}", steps::shown(&command));
            finish(&mut command)?;
        }
        Ok(input)
    }

    /// A record with the facts filled in; the caller adds what was measured.
    pub(super) fn record(&self) -> Record {
        Record {
            date: machine::date_and_time(),
            small: self.options.small,
            turns: self.options.runs,
            machine: self.machine.clone(),
            page_cache: page_cache::method().to_string(),
            measured_by: measure::METHOD.to_string(),
            notes: self.options.note.iter().cloned().collect(),
            ..record::Record::default()
        }
    }
}

/// A program that a definition measures: an example of one of our packages.
#[derive(Clone, Copy)]
pub(super) struct Example {
    pub(super) package: &'static str,
    pub(super) name: &'static str,
}

/// An input file, removed when no longer needed.
pub(super) struct Input {
    pub(super) path: PathBuf,
    keep: bool,
}

impl Input {
    pub(super) fn bytes(&self) -> TaskResult<u64> {
        Ok(std::fs::metadata(&self.path)?.len())
    }

    /// Removes it before its end, unless it is to be kept.
    pub(super) fn remove(&self) {
        if !self.keep {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// The same file, which goes with the first.
    pub(super) fn of_another(first: &Input) -> Self {
        Self { path: first.path.clone(), keep: true }
    }

    pub(super) fn temporary(path: &Path) -> Self {
        Self { path: path.to_path_buf(), keep: false }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Where release builds land: cargo knows, whatever the environment and the configuration say.
fn release_dir() -> TaskResult<PathBuf> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let target = metadata["target_directory"].as_str().ok_or("cargo metadata names no target directory")?;
    Ok(Path::new(target).join("release"))
}
