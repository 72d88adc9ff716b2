//! Files that the commands make beside their results: pictures, man pages and work folders.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use datapipes::locator::target_kind;
use datapipes::{AtomicFile, Error, FileMode, PublishOutcome, Result, TargetKind};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::stdio::{stderr, stdout};

use crate::outcome::print_error;
use crate::system::signals;

/// The number of random names to try before giving up.
const MAX_TRIES: usize = 100;

/// Writes a text: a file as a whole or not at all, and a stream in order.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    let bytes = text.as_bytes();
    if let Some(mut stream) = Stream::open(path)? {
        return stream.write(bytes);
    }
    let draft = AtomicFile::replacing(path, FileMode::USUAL)?;
    draft.write(bytes)?;
    publish(draft, bytes.len() as u64)?;
    Ok(())
}

/// The descriptor of this process that a path names: `/dev/stdout`, `/dev/fd/3`.
pub(crate) fn own_descriptor(path: &Path) -> Option<u32> {
    let path = path.to_str()?;
    match path {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        _ => ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|folder| path.strip_prefix(folder))?.parse().ok(),
    }
}

/// Something to which bytes are written in order: a named pipe, a terminal, or a descriptor that
/// this process was given, which may be a file to which others write, too.
#[derive(Debug)]
pub(crate) struct Stream {
    file: File,
    name: String,
}

/// How often a stream that takes nothing is left for a look at signals.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl Stream {
    /// Opens it. `None` where the path is no stream. A named pipe that nobody reads is refused:
    /// waiting for a reader would have no end.
    pub(crate) fn open(path: &Path) -> Result<Option<Stream>> {
        let name = path.display().to_string();
        let fail = |e: std::io::Error| Error::io("open", e, path.display().to_string());
        let given = own_descriptor(path);
        let file = match given {
            // These share the position with whoever else writes there.
            Some(1) => File::from(rustix::io::dup(stdout()).map_err(|e| fail(e.into()))?),
            Some(2) => File::from(rustix::io::dup(stderr()).map_err(|e| fail(e.into()))?),
            // Opening a file by its descriptor begins at its first byte: what is there stays there.
            Some(_) => File::options().append(true).open(path).map_err(fail)?,
            None if target_kind(path)? != TargetKind::Stream => return Ok(None),
            None => {
                let open = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path);
                open.map_err(|e| match e.raw_os_error() {
                    Some(libc::ENXIO) => fail(e).with_advice("nobody reads this named pipe: start its reader first"),
                    _ => fail(e),
                })?
            }
        };
        Ok(Some(Stream { file, name }))
    }

    /// Writes all bytes. A signal ends the wait for a reader that takes none.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let wait = &mut [PollFd::new(&self.file, PollFlags::OUT)];
            match rustix::event::poll(wait, Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {
                    signals::check("write")?;
                    continue;
                }
                Ok(_) => {}
                Err(e) => return Err(Error::os("write", e.raw_os_error(), self.name.clone())),
            }
            // A pipe that can take something takes this much without waiting.
            let part = &bytes[..bytes.len().min(libc::PIPE_BUF)];
            match self.file.write(part) {
                Ok(written) => bytes = &bytes[written..],
                Err(e) if matches!(e.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(Error::io("write", e, self.name.clone())),
            }
        }
        Ok(())
    }
}

/// Publishes a file, and says so where it was not done by giving it its name. True where its bytes
/// were copied to another file than the one that was written.
pub(crate) fn publish(draft: AtomicFile, len: u64) -> Result<bool> {
    let path = draft.path().display().to_string();
    match draft.publish(len)? {
        PublishOutcome::InPlace(reason) => {
            print_error(&format!("dpipe: {path} was written in place, because {reason}\n"));
            Ok(true)
        }
        PublishOutcome::New | PublishOutcome::Replaced => Ok(false),
    }
}

/// A folder to work in, which only its owner may enter. It vanishes with this value and everything
/// in it, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    keep: bool,
}

impl WorkFolder {
    /// A new one under another, which must be there. Its name begins with `prefix` and
    /// ends with a random number: the number of a process may be that of one that is dead, or of
    /// one in another container.
    pub(crate) fn under(parent: &Path, prefix: &str, keep: bool) -> Result<WorkFolder> {
        let fail = |path: &Path, e: std::io::Error| Error::io("create", e, path.display().to_string());
        for _ in 0..MAX_TRIES {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| Error::os("create", e.raw_os_error(), format!("a name in {}", parent.display())))?;
            let path = parent.join(format!("{prefix}-{:016x}", u64::from_le_bytes(random)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(WorkFolder { path, keep }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fail(&path, e)),
            }
        }
        Err(Error::os("create", libc::EEXIST, format!("a folder in {}", parent.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.keep || signals::arrived() {
            // An error here has nobody to go to, and hides none.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
