//! `cargo xtask soak [--minutes N] [--seed S] [--dir DIR]`: random pipes, faults and cancellations in all flavors for a while.
//!
//! The program is `datapipes/examples/soak`; it is built with the checks of the dev profile (overflow, assertions). It is no
//! part of CI. Its files, at most some hundred MB, have no names and are in `target/` unless said otherwise: a real disk.

use crate::Outcome;
use crate::steps::{cargo, finish, root};

pub(crate) fn run(args: &[String]) -> Outcome<()> {
    let dir = root().join("target/soak");
    std::fs::create_dir_all(&dir)?;
    let mut command = cargo(&["run", "--package", "datapipes", "--example", "soak", "--", "--dir"]);
    finish(command.arg(dir).args(args))
}
