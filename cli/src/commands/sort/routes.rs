//! Which way the bytes of a sort will go: `--explain`.

use std::path::{Path, PathBuf};

use datapipes::{Constraints, Dram, Locator, Machine, MapOptions, Pages, Result, Route, Ssd};
use datapipes_sort::{Input, Output};

use crate::draft::folder_of;

/// Bytes that a sort moves at a time, about.
const PIECE: usize = 4 << 20;

/// The routes of each kind of movement, as text.
pub(super) fn explain(machine: &Machine, inputs: &[Input], output: &Output, spill: &[PathBuf]) -> Result<String> {
    let memory = Dram::allocate_with(PIECE, MapOptions { pages: Pages::Huge, prefault: false, node: None })?;
    let way = |from: &dyn Locator, to: &dyn Locator| {
        machine.explain(from, to, &Constraints { typical_len: Some(PIECE as u64), ..Constraints::default() })
    };
    let mut text = String::new();
    for input in inputs {
        match input {
            Input::Place { ssd, .. } => add(&mut text, "input", &way(ssd, &memory)?),
            Input::Stream { name, .. } => text += &format!("input: {}: a stream, by read\n", name.display()),
        }
    }
    for dir in spill {
        let title = format!("runs that do not fit the memory, in {}", dir.display());
        match Ssd::unlinked_in(dir) {
            Ok(place) => {
                add(&mut text, &title, &way(&memory, &place)?);
                add(&mut text, "runs to be merged", &way(&place, &memory)?);
            }
            Err(error) => text += &format!("{title}: {error}\n"),
        }
    }
    match output {
        Output::File(path) => match Ssd::unlinked_in(folder(path)) {
            Ok(place) => add(&mut text, &format!("output, beside {}", path.display()), &way(&memory, &place)?),
            Err(error) => text += &format!("output: {error}\n"),
        },
        Output::Stream { name, .. } => text += &format!("output: {}: a stream, by write\n", name.display()),
    }
    Ok(text)
}

fn folder(path: &Path) -> PathBuf {
    folder_of(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()))
}

fn add(text: &mut String, title: &str, route: &Route) {
    *text += &format!("{title}: {route}");
}
