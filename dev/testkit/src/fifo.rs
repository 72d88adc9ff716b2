//! Named pipes.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::until;

/// Opens a named pipe for writing, as soon as somebody reads it.
///
/// A plain `open` waits for ever where the reader ended before it came to the pipe.
///
/// # Errors
/// What `open` says, but for a pipe without a reader.
///
/// # Panics
/// Where nobody reads it within [`PATIENCE`](crate::PATIENCE).
pub fn fifo_writer(path: &Path) -> Result<File> {
    let mut opened = None;
    until(&format!("a reader of {}", path.display()), || {
        let tried = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let waits = tried.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENXIO));
        opened = (!waits).then_some(tried);
        !waits
    });
    // `until` returns where something was opened, or could not be.
    let file = opened.unwrap_or_else(|| OpenOptions::new().write(true).open(path))?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn it_waits_for_a_reader_and_then_for_room() {
        let folder = crate::TempFolder::new().unwrap();
        let path = folder.path("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        let of_reader = path.clone();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut bytes = Vec::new();
            File::open(of_reader).unwrap().read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        // More than a pipe has room for.
        fifo_writer(&path).unwrap().write_all(&vec![7; 1 << 20]).unwrap();
        assert_eq!(crate::joined(reader), 1 << 20);
        assert_eq!(fifo_writer(&folder.path("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
}
