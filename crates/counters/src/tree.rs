//! Short files of sysfs and procfs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::OFlags;

/// The longest file that is read; those of sysfs have a page.
const MAX_TEXT: u64 = 1 << 20;

/// Returns the trimmed text of a file, or `None` where it cannot be read as a whole.
pub(crate) fn text(path: &Path) -> Option<String> {
    // A FIFO in a made tree must not stop the reader.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?);
    let mut text = String::new();
    let read = file.take(MAX_TEXT + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= MAX_TEXT).then(|| text.trim().to_owned())
}

/// Returns a file's number.
pub(crate) fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

/// Returns the names in a folder, sorted; none where it cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
