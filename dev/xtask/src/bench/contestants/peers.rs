//! The Python in which DuckDB, Polars and ClickHouse live (`.venv/bench`), and the sort of uutils
//! (`.venv/uutils`). Both are made on first use.

use crate::steps;
use std::path::PathBuf;
use std::process::Command;

const PACKAGES: [&str; 4] = ["duckdb", "polars", "numpy", "chdb"];

pub(in crate::bench) struct Python {
    /// The interpreter, or why there is none.
    program: Result<PathBuf, String>,
}

impl Python {
    pub(in crate::bench) fn install() -> Self {
        Self { program: install() }
    }

    /// The interpreter and the version of a package, or why it cannot be measured.
    pub(in crate::bench) fn package(&self, name: &str) -> Result<(PathBuf, String), String> {
        let program = self.program.clone()?;
        let code = format!("import {name}; print({name}.__version__)");
        let version = steps::first_line(Command::new(&program).args(["-c", &code]));
        version.map(|version| (program, version)).ok_or(format!("{name} cannot be imported in .venv/bench"))
    }
}

/// Returns the sort of uutils and its version, or why it cannot be measured.
pub(in crate::bench) fn uutils_sort() -> Result<(PathBuf, String), String> {
    let folder = steps::root().join(".venv/uutils");
    let program = folder.join("bin/sort");
    let version = || steps::first_line(Command::new(&program).arg("--version"));
    if version().is_none() {
        println!("    building the sort of uutils into {}", folder.display());
        steps::finish(Command::new("cargo").args(["install", "-q", "uu_sort", "--root"]).arg(&folder))
            .map_err(|e| format!("the sort of uutils cannot be built: {e}"))?;
    }
    let version = version().ok_or(format!("{} does not run", program.display()))?;
    Ok((program, version))
}

pub(in crate::bench) fn script(name: &str) -> PathBuf {
    steps::root().join("dev/xtask/src/bench/contestants/peers").join(name)
}

fn install() -> Result<PathBuf, String> {
    let folder = steps::root().join(".venv/bench");
    let python = folder.join("bin/python");
    let imports = PACKAGES.map(|p| format!("import {p}")).join("; ");
    if steps::succeeds(Command::new(&python).args(["-c", &imports])) {
        return Ok(python);
    }
    println!("    installing {} into {}", PACKAGES.join(", "), folder.display());
    steps::finish(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .map_err(|e| format!("no virtual environment: {e}"))?;
    // One that does not install must not take the others along.
    for package in PACKAGES {
        if let Err(why) = steps::finish(Command::new(&python).args(["-m", "pip", "install", "-q", package])) {
            println!("    {package} is left out: {why}");
        }
    }
    Ok(python)
}
