//! The readers of `fine`: built in a workspace of their own, run one process each.

use crate::bench::contestants::fine_limit::Limits;
use crate::bench::context::Context;
use crate::bench::measuring::measure::measure;
use crate::{TaskResult, steps};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "benchmarks/peers/fine";
pub(in crate::bench) const ITEM_BYTES: u64 = 128;

/// What is read, and within which memory.
pub(in crate::bench) struct Sizes {
    pub(in crate::bench) file_mib: u64,
    pub(in crate::bench) limit_bytes: u64,
    /// Requests before anything is measured.
    pub(in crate::bench) warm_up: u64,
    /// Seconds of a phase.
    pub(in crate::bench) seconds: f64,
}

impl Sizes {
    pub(in crate::bench) fn items(&self) -> u64 {
        (self.file_mib << 20) / ITEM_BYTES
    }
}

/// One process: a reader under a load, and what is measured of it.
pub(in crate::bench) struct Cell {
    pub(in crate::bench) reader: &'static str,
    pub(in crate::bench) load: &'static str,
    /// How the load is called in the tables.
    pub(in crate::bench) called: &'static str,
    pub(in crate::bench) phases: &'static str,
    pub(in crate::bench) item_bytes: u64,
    /// Only so many items of the file, all read once before: everything fits.
    pub(in crate::bench) fits: Option<u64>,
}

/// The program that holds all readers.
pub(in crate::bench) struct Readers {
    program: PathBuf,
    pub(in crate::bench) has_rocksdb: Result<(), String>,
    pub(in crate::bench) file: PathBuf,
    folder: PathBuf,
    pub(in crate::bench) limits: Result<Limits, String>,
}

impl Readers {
    pub(in crate::bench) fn build(context: &Context, sizes: &Sizes) -> TaskResult<Self> {
        let manifest = steps::root().join(FOLDER).join("Cargo.toml");
        let build = |features: &[&str]| {
            let mut command = steps::cargo(&["build", "--release", "--manifest-path"]);
            command.arg(&manifest).args(features);
            println!("    {}", steps::shown(&command));
            steps::finish(&mut command)
        };
        // The C interface is linked: without the library the build says so.
        let has_rocksdb = build(&["--features", "rocksdb"]).map_err(|e| {
            format!("{e}; `apt-get install librocksdb-dev` (or your system's way) adds the library that it needs")
        });
        if has_rocksdb.is_err() {
            build(&[])?;
        }
        let program = target_dir(&manifest)?.join("release/fine-peers");
        let file = context.file(&format!("fine-{}.data", sizes.file_mib));
        let readers = Self { program, has_rocksdb, file, folder: context.file("fine-stores"), limits: Limits::find() };
        Ok(readers)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args);
        command
    }

    /// Writes the file, and RocksDB's table if it is wanted; what is there of the right size stays.
    pub(in crate::bench) fn make(&self, context: &Context, sizes: &Sizes, rocksdb: bool) -> TaskResult<()> {
        let bytes = sizes.file_mib << 20;
        context.need_free(bytes * 4)?;
        if !std::fs::metadata(&self.file).is_ok_and(|m| m.len() == bytes) {
            println!("    writing {} MiB", sizes.file_mib);
            steps::finish(self.command(&["make"]).arg(&self.file).arg(sizes.file_mib.to_string()))?;
        }
        let table = self.rocksdb_folder(sizes);
        if rocksdb && !table.exists() {
            println!("    writing RocksDB's table of the same items");
            std::fs::create_dir_all(&table)?;
            steps::finish(self.command(&["make-rocks"]).arg(&table).arg(sizes.items().to_string()))?;
        }
        Ok(())
    }

    /// Removes what was written.
    pub(in crate::bench) fn remove(&self, sizes: &Sizes) {
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_dir_all(self.rocksdb_folder(sizes));
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    fn rocksdb_folder(&self, sizes: &Sizes) -> PathBuf {
        self.file.with_file_name(format!("fine-{}.rocksdb", sizes.file_mib))
    }

    /// How many items a cache may have so that it keeps the limit, and the bytes that each takes.
    pub(in crate::bench) fn fit(&self, reader: &str, sizes: &Sizes) -> TaskResult<Fit> {
        let stdout = measure(&mut self.command(&["fit", reader, &sizes.limit_bytes.to_string()]))?.stdout;
        let row: Value = serde_json::from_str(&stdout)?;
        let number = |key: &str| row[key].as_f64().ok_or_else(|| format!("fit {reader} gave no {key}"));
        Ok(Fit { capacity: number("capacity")? as u64, bytes_per_item: number("bytes_per_item")? })
    }

    /// The process of a cell. Rows of its phases, and one of the process.
    pub(in crate::bench) fn run(
        &self,
        cell: &Cell,
        sizes: &Sizes,
        capacity: Option<u64>,
    ) -> TaskResult<(String, Vec<Value>)> {
        let mut command = self.command(&["run", cell.reader, "--load", cell.load, "--phases", cell.phases, "--file"]);
        command.arg(&self.file);
        let items = cell.fits.unwrap_or(sizes.file_mib * (1 << 20) / cell.item_bytes);
        let mut option = |name: &str, value: String| {
            command.args([name, &value]);
        };
        option("--items", items.to_string());
        option("--len", cell.item_bytes.to_string());
        option("--limit", sizes.limit_bytes.to_string());
        option("--warm-up", sizes.warm_up.to_string());
        option("--seconds", sizes.seconds.to_string());
        if let Some(capacity) = capacity {
            // Less than fits by trial: what the allocator needs varies from run to run, and the
            // limit is absolute.
            option("--capacity", (capacity * 95 / 100).to_string());
        }
        match cell.reader {
            "foyer" => option("--folder", self.folder.display().to_string()),
            "rocksdb" => option("--folder", self.rocksdb_folder(sizes).display().to_string()),
            _ => {}
        }
        if cell.fits.is_some() {
            command.arg("--fill");
        }
        // Pages that another process left in memory would be hits that nobody paid for.
        forget(&self.file)?;
        let _ = std::fs::remove_dir_all(&self.folder);
        std::fs::create_dir_all(&self.folder)?;
        let shown = steps::shown(&command);
        let (stdout, peak) = match &self.limits {
            Ok(limits) => {
                let (mut command, limit) = limits.within(sizes.limit_bytes, &command)?;
                (measure(&mut command)?.stdout, limit.peak_mib())
            }
            Err(_) => {
                // The page cache is not limited: page readers forget the file whenever it may hold
                // as much as the limit.
                let usage = measure(command.arg("--drop"))?;
                (usage.stdout, Some(usage.peak_rss_mib))
            }
        };
        let mut rows: Vec<Value> = stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        if let (Some(last), Some(peak)) = (rows.last_mut(), peak) {
            last["peak_mib"] = peak.into();
        }
        Ok((shown, rows))
    }
}

/// What fits into the limit.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Fit {
    pub(in crate::bench) capacity: u64,
    pub(in crate::bench) bytes_per_item: f64,
}

fn forget(file: &Path) -> TaskResult<()> {
    Ok(rustix::fs::fadvise(std::fs::File::open(file)?, 0, None, rustix::fs::Advice::DontNeed)?)
}

fn target_dir(manifest: &Path) -> TaskResult<PathBuf> {
    let mut command = steps::cargo(&["metadata", "--format-version", "1", "--no-deps", "--manifest-path"]);
    let metadata: Value = serde_json::from_slice(&command.arg(manifest).output()?.stdout)?;
    Ok(metadata["target_directory"].as_str().ok_or("cargo metadata names no target directory")?.into())
}
