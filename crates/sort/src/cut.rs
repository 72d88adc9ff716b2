//! Files that become shorter before all of them was read.

use std::path::Path;

use datapipes_core::{Error, ErrorKind};

/// What helps where a file is cut.
pub(crate) const CUT_ADVICE: &str = "sort again while no other program shortens it";

/// The error of a file that was cut.
pub(crate) fn cut(name: &Path, had: u64, has: u64) -> Error {
    let context = format!("{}: it had {had} bytes at first, and gives only {has}", name.display());
    Error::new(ErrorKind::EndOfFile, "read", context).with_advice(CUT_ADVICE)
}
