//! The arguments of the commands, and how they are read and explained.

pub(crate) mod ending;
pub(crate) mod kind;
pub(crate) mod quoting;
pub(crate) mod setting;
pub(crate) mod sort_args;
pub(crate) mod units;

use std::path::PathBuf;

/// Reads the name of a folder that is there.
///
/// # Errors
/// Where it is no folder: a tree whose name is mistyped must not pass for a machine that lacks
/// everything.
pub(crate) fn folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) => Err("it is no folder".into()),
        Err(e) => Err(e.to_string()),
    }
}
