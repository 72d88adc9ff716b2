//! One input to be sorted in one memory budget, and the command line of each contestant for it.

use crate::TaskResult;
use crate::bench::contestants::peers;
use crate::bench::context::{Context, Input};
use crate::bench::measuring::machine::cores;
use crate::bench::measuring::turns::{Contestant, MakeCommand, spill_dir};
use crate::bench::measuring::verify::Order;
use std::path::Path;
use std::process::Command;

type Flags = &'static [&'static str];

pub(in crate::bench) struct SortJob<'a> {
    pub(in crate::bench) context: &'a Context,
    pub(in crate::bench) input: &'a Input,
    /// Appended to each name when one record holds several inputs.
    pub(in crate::bench) label: &'a str,
    pub(in crate::bench) order: Order,
    /// Lines end in CRLF, as gensort's ASCII records do.
    pub(in crate::bench) crlf: bool,
    pub(in crate::bench) budget_bytes: u64,
}

impl SortJob<'_> {
    /// `dpipe sort`; the flags say what the input is.
    pub(in crate::bench) fn dpipe(&self, flags: Flags) -> Contestant {
        self.dpipe_as("dpipe", "output synced before exit", &[], flags)
    }

    /// As its peers, it exits before its output is durable.
    pub(in crate::bench) fn dpipe_without_sync(&self, flags: Flags) -> Contestant {
        self.dpipe_as("dpipe --no-sync", "output not synced, as those of its peers", &["--no-sync"], flags)
    }

    fn dpipe_as(&self, name: &str, note: &str, more: Flags, flags: Flags) -> Contestant {
        let (input, spill, budget) = (self.input.path.clone(), spill_dir(self.context), self.budget_mib());
        let command = self.context.dpipe.clone().map(|dpipe| {
            Box::new(move |output: &Path| {
                let mut command = Command::new(&dpipe);
                command
                    .arg("sort")
                    .args(more)
                    .args(flags)
                    .arg("-S")
                    .arg(&budget)
                    .arg("-T")
                    .arg(&spill)
                    .env("LC_ALL", "C");
                command.arg("-o").arg(output).arg(&input);
                command
            }) as MakeCommand
        });
        self.contestant(name, "this commit", note, command)
    }

    pub(in crate::bench) fn gnu(&self) -> Contestant {
        let version = crate::steps::first_line(Command::new("sort").arg("--version"));
        let (input, spill, budget) = (self.input.path.clone(), spill_dir(self.context), self.budget_mib());
        let command = version.clone().ok_or("sort(1) is not here".to_string()).map(|_| {
            Box::new(move |output: &Path| {
                let mut command = Command::new("sort");
                command.arg("-S").arg(&budget).arg(format!("--parallel={}", cores())).arg("-T").arg(&spill);
                command.arg("-o").arg(output).arg(&input).env("LC_ALL", "C");
                command
            }) as MakeCommand
        });
        self.contestant("GNU sort", &version.unwrap_or_default(), "LC_ALL=C, whole lines", command)
    }

    pub(in crate::bench) fn duckdb(&self) -> Contestant {
        let memory = format!("{}MiB", self.budget_bytes >> 20);
        let note = "one VARCHAR column, ORDER BY, COPY to a file; memory_limit is the budget";
        self.python("DuckDB", "duckdb", "duckdb_sort.py", note, Some(memory))
    }

    pub(in crate::bench) fn polars(&self) -> Contestant {
        let note = "scan_csv, sort, sink_csv, streaming engine; it takes no memory limit";
        self.python("Polars", "polars", "polars_sort.py", note, None)
    }

    /// ClickHouse within a Python program (chdb), which is what `clickhouse local` runs.
    pub(in crate::bench) fn clickhouse(&self) -> Contestant {
        let memory = (self.budget_bytes >> 1).to_string();
        let note = "LineAsString, ORDER BY, to a file; max_bytes_before_external_sort is half of the budget";
        self.python("ClickHouse", "chdb", "clickhouse_sort.py", note, Some(memory))
    }

    /// For numbers, which it reads and writes as bytes too.
    pub(in crate::bench) fn clickhouse_numbers(&self) -> Contestant {
        let memory = (self.budget_bytes >> 1).to_string();
        let note = "RowBinary, ORDER BY, to a file; max_bytes_before_external_sort is half of the budget";
        self.python("ClickHouse", "chdb", "clickhouse_numbers_sort.py", note, Some(memory))
    }

    /// For numbers that fit the memory.
    pub(in crate::bench) fn numpy(&self) -> Contestant {
        let note = "fromfile, sort, tofile; one thread, in memory, which it takes no limit of";
        self.python("numpy", "numpy", "numpy_sort.py", note, None)
    }

    pub(in crate::bench) fn uutils(&self) -> Contestant {
        let found = peers::uutils_sort();
        let version = found.as_ref().map(|(_, version)| version.clone()).unwrap_or_default();
        let (input, spill, budget) = (self.input.path.clone(), spill_dir(self.context), self.budget_mib());
        let command = found.map(|(program, _)| {
            Box::new(move |output: &Path| {
                let mut command = Command::new(&program);
                command.arg("-S").arg(&budget).arg(format!("--parallel={}", cores())).arg("-T").arg(&spill);
                command.arg("-o").arg(output).arg(&input).env("LC_ALL", "C");
                command
            }) as MakeCommand
        });
        self.contestant("uutils sort", &version, "LC_ALL=C, whole lines", command)
    }

    fn python(
        &self,
        name: &str,
        package: &str,
        script: &'static str,
        note: &str,
        memory: Option<String>,
    ) -> Contestant {
        let (input, spill) = (self.input.path.clone(), spill_dir(self.context));
        let ending = if self.crlf { "crlf" } else { "lf" };
        let package = self.context.python().package(package);
        let version = package.as_ref().map(|p| p.1.clone()).unwrap_or_default();
        let command = package.map(|(python, _)| {
            Box::new(move |output: &Path| {
                let mut command = Command::new(&python);
                command.arg(peers::script(script)).arg(&input).arg(output).args(&memory);
                command.arg(cores().to_string()).arg(&spill).arg(ending);
                command
            }) as MakeCommand
        });
        self.contestant(name, &version, note, command)
    }

    fn contestant(&self, name: &str, version: &str, note: &str, command: Result<MakeCommand, String>) -> Contestant {
        Contestant {
            name: if self.label.is_empty() { name.to_string() } else { format!("{name}, {}", self.label) },
            version: version.to_string(),
            note: note.to_string(),
            input: self.input.path.clone(),
            order: self.order,
            command,
        }
    }

    /// In MiB with its suffix: a bare number would mean KiB to sort(1).
    fn budget_mib(&self) -> String {
        format!("{}M", self.budget_bytes >> 20)
    }

    pub(in crate::bench) fn describe(&self, kind: &str) -> TaskResult<String> {
        let (gb, mib) = (self.input.bytes()? as f64 / 1e9, self.budget_bytes >> 20);
        Ok(format!("{gb:.3} GB of {kind}, budget {mib} MiB, {} threads", cores()))
    }
}
