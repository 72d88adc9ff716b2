//! Something to which bytes are written in order: a named pipe, a terminal, or a descriptor that
//! this process was given, which may be a file to which others write, too.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use datapipes::locator::{PathEnd, path_end, target_kind};
use datapipes::{Error, Result, TargetKind};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{OFlags, Stat, fcntl_getfl, fstat, stat};
use rustix::io::{Errno, dup};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::stdio::{stderr, stdout};

use crate::system::signals;

#[derive(Debug)]
pub(super) struct Stream {
    file: File,
    name: String,
}

/// How often a stream that takes nothing is left for a look at signals.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl Stream {
    /// The descriptor of this process that a path leads to, under whatever name. It shares its
    /// position with whoever else writes there. `None` where it is another process's.
    pub(super) fn of_own_descriptor(path: &Path, name: &OsStr) -> Result<Option<Stream>> {
        let fail = |e: Errno| Error::os("open", e.raw_os_error(), path.display().to_string());
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { return Ok(None) };
        let duplicate: Result<OwnedFd, Errno> = match number {
            1 => dup(stdout()),
            2 => dup(stderr()),
            _ => pidfd_open(getpid(), PidfdFlags::empty())
                .and_then(|this| pidfd_getfd(&this, number, PidfdGetfdFlags::empty())),
        };
        // Where the kernel gives no duplicate, the path is opened: see `open`.
        let Ok(duplicate) = duplicate else { return Ok(None) };
        let flags = fcntl_getfl(&duplicate).map_err(fail)?;
        let there = match stat(path) {
            Ok(there) => there,
            // A standard stream that was closed: see `standard_streams`.
            Err(_) if flags.contains(OFlags::PATH) => return Err(fail(Errno::BADF)),
            Err(e) => return Err(fail(e)),
        };
        let ours = fstat(&duplicate).map_err(fail)?;
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
            return Ok(None);
        }
        if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(fail(Errno::BADF).with_advice("this descriptor is not open for writing"));
        }
        Ok(Some(Stream { file: duplicate.into(), name: path.display().to_string() }))
    }

    /// Opens what a path leads to. `None` where that is no stream. A named pipe that nobody reads
    /// is refused: waiting for a reader would have no end.
    pub(super) fn open(path: &Path) -> Result<Option<Stream>> {
        let name = path.display().to_string();
        let fail = |e: std::io::Error| Error::io("open", e, path.display().to_string());
        let by_descriptor = matches!(path_end(path), Ok(PathEnd::Descriptor { .. }));
        let is_stream = target_kind(path)? == TargetKind::Stream;
        if !is_stream && !by_descriptor {
            return Ok(None);
        }
        let mut open = File::options();
        // Opening a file by a descriptor begins at its first byte: what is there stays there.
        open.write(true).append(by_descriptor && !is_stream).custom_flags(libc::O_NONBLOCK);
        let file = open.open(path).map_err(|e| match e.raw_os_error() {
            Some(libc::ENXIO) => fail(e).with_advice("nobody reads this named pipe: start its reader first"),
            _ => fail(e),
        })?;
        Ok(Some(Stream { file, name }))
    }

    pub(super) fn stat(&self) -> Result<Stat> {
        fstat(&self.file).map_err(|e| Error::os("look at", e.raw_os_error(), self.name.clone()))
    }

    /// Writes all bytes. A signal ends the wait for a reader that takes none.
    pub(super) fn write(&self, mut bytes: &[u8]) -> Result<()> {
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
            match (&self.file).write(part) {
                Ok(written) => bytes = &bytes[written..],
                Err(e) if matches!(e.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) => {}
                Err(e) => return Err(Error::io("write", e, self.name.clone())),
            }
        }
        Ok(())
    }
}
