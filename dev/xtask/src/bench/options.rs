//! The options of `cargo xtask bench`.

use crate::{TaskResult, steps};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
usage: cargo xtask bench [NAMES] [OPTIONS]

  --runs N       turns, each measuring every contestant once (default 3; medians are taken over them)
  --dir DIR      where the data goes; its disk is what is measured (default target/bench-data)
  --small        1/50 of the size, in seconds, as a test; results go to target/bench-small
  --quick        the same as --small
  --file-mib N   how large the file of `fine` is; its memory is an eighth of that (default 1024)
  --only A,B     only contestants whose name contains one of these words
  --keep         leave the input files, and use those that are already there
  --dpipe PATH   measure this binary instead of building one
  --anyway       measure with a changed tree, on a busy machine or in fewer than 3 turns; the record says so
  --note TEXT    kept in the record (why this run was made)

benchmarks:
";

pub(super) struct Options {
    pub(super) names: Vec<String>,
    pub(super) runs: usize,
    pub(super) dir: PathBuf,
    pub(super) small: bool,
    pub(super) only: Vec<String>,
    pub(super) keep: bool,
    pub(super) dpipe: Option<PathBuf>,
    pub(super) anyway: bool,
    pub(super) note: Option<String>,
    pub(super) file_mib: Option<u64>,
}

impl Options {
    pub(super) fn parse(args: &[String]) -> TaskResult<Self> {
        let mut options = Self {
            names: Vec::new(),
            runs: 3,
            dir: steps::root().join("target/bench-data"),
            small: false,
            only: Vec::new(),
            keep: false,
            dpipe: None,
            anyway: false,
            note: None,
            file_mib: None,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--runs" => options.runs = value()?.parse().map_err(|_| "--runs needs a number")?,
                "--dir" => options.dir = value()?.into(),
                "--file-mib" => options.file_mib = Some(value()?.parse().map_err(|_| "--file-mib needs a number")?),
                "--small" | "--quick" => options.small = true,
                "--only" => options.only = value()?.split(',').map(str::to_lowercase).collect(),
                "--keep" => options.keep = true,
                "--dpipe" => options.dpipe = Some(value()?.into()),
                "--anyway" => options.anyway = true,
                "--note" => options.note = Some(value()?.clone()),
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}\n\n{HELP}").into());
                }
                name => options.names.push(name.to_string()),
            }
        }
        if options.runs == 0 {
            return Err("--runs must be at least 1".into());
        }
        Ok(options)
    }
}
