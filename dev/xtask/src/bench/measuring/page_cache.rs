//! Cold files: every run starts with its input out of the page cache and nothing waiting to be
//! written.

use crate::TaskResult;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// How `make_cold` does it here, for the record.
pub(in crate::bench) fn method() -> &'static str {
    if OpenOptions::new().write(true).open(DROP_CACHES).is_ok() {
        "before each run: sync, then 3 written to /proc/sys/vm/drop_caches (whole page cache, dentries, inodes)"
    } else {
        "before each run: sync, then posix_fadvise(DONTNEED) on the inputs (not root: programs and metadata stay cached)"
    }
}

pub(in crate::bench) fn make_cold(inputs: &[&Path]) -> TaskResult<()> {
    rustix::fs::sync();
    if let Ok(mut file) = OpenOptions::new().write(true).open(DROP_CACHES)
        && file.write_all(b"3\n").is_ok()
    {
        return Ok(());
    }
    for input in inputs {
        rustix::fs::fadvise(File::open(input)?, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}
