//! Files that are read and written in order and may keep a thread waiting for ever: pipes, sockets,
//! terminals, other programs. A wait ends when the sort is asked to stop.
//!
//! ```text
//! pipe, terminal   opened anew through /proc, so that O_NONBLOCK is ours alone    read, EAGAIN, poll
//! socket           MSG_DONTWAIT                                                   recv, EAGAIN, poll
//! other            polled first; a pipe then takes PIPE_BUF bytes without a wait  poll, read
//! regular file     nobody else is waited for                                      read
//! ```
//! A request to stop is an atomic, because a signal handler may make it. So `poll` returns at
//! intervals to look at it. A thread that waits for nothing does not poll.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::control::Control;
use crate::cut::cut;
use crate::waits::SortWait;

/// How often a thread that waits looks whether the sort was asked to stop, in nanoseconds.
const INTERVAL_NANOS: i64 = 20_000_000;
/// Who sends a known number of bytes may not pause for longer: a process that stands still is not
/// told by the kernel.
const PATIENCE: Duration = Duration::from_secs(120);
/// The bytes that a pipe takes without waiting when `poll` says that it is writable.
const PIPE_BUF: usize = 4096;

/// How calls on a descriptor are kept from waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// They do not wait for others.
    Never,
    /// The open file has O_NONBLOCK.
    NonBlocking,
    /// Flags of each call say so.
    Socket,
    /// `poll` says when they do not wait. A call writes so many bytes at most.
    Polled { most: usize },
}

/// A file that is read or written in order. Its waits end when the sort is asked to stop.
#[derive(Debug)]
pub(crate) struct StoppableFile {
    file: File,
    name: PathBuf,
    waiting: Waiting,
    control: Control,
    /// Bytes that were read before, and how many of them were handed out.
    before: (Vec<u8>, usize),
    /// Bytes that are still to come, where their number is known.
    left: Option<u64>,
    /// Bytes that were read, and the least that must be.
    read: u64,
    least: u64,
}

impl StoppableFile {
    /// Takes a file whose flags other processes may share.
    pub(crate) fn new(file: File, name: PathBuf, control: &Control) -> StoppableFile {
        let (file, waiting) = without_waits(file);
        StoppableFile::with(file, name, waiting, control)
    }

    fn with(file: File, name: PathBuf, waiting: Waiting, control: &Control) -> StoppableFile {
        let (before, control) = ((Vec::new(), 0), control.clone());
        StoppableFile { file, name, waiting, control, before, left: None, read: 0, least: 0 }
    }

    /// That it ends before so many bytes is an error: it was cut.
    pub(crate) fn at_least(mut self, least: u64) -> StoppableFile {
        self.least = least;
        self
    }

    /// Reads these bytes first, which were read from the file before.
    pub(crate) fn behind(mut self, bytes: Vec<u8>) -> StoppableFile {
        self.before = (bytes, 0);
        self
    }

    /// Reads so many bytes and no more. That they end earlier is an error.
    pub(crate) fn counted(mut self, len: u64) -> StoppableFile {
        self.left = Some(len);
        self
    }

    /// Takes one end of a pipe that no other process has.
    pub(crate) fn own(pipe: File, name: PathBuf, control: &Control) -> StoppableFile {
        let set = rustix::io::ioctl_fionbio(&pipe, true);
        let waiting = set.map_or(Waiting::Polled { most: PIPE_BUF }, |()| Waiting::NonBlocking);
        StoppableFile::with(pipe, name, waiting, control)
    }

    /// Whether another program, or a person, may keep its reader or writer waiting.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.waiting != Waiting::Never
    }

    /// Opens a path for reading. Opening a named pipe waits for its first writer, which counts as
    /// `what`.
    pub(crate) fn open(path: &Path, what: SortWait, control: &Control) -> Result<File> {
        let fail = |e| Error::io("open", e, path.display().to_string());
        let is_fifo = |mode| FileType::from_raw_mode(mode) == FileType::Fifo;
        if !rustix::fs::stat(path).is_ok_and(|stat| is_fifo(stat.st_mode)) {
            return File::open(path).map_err(fail);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| fail(e.into()))?);
        // Until a writer has come, `read` would say that the pipe has ended, and `poll` says
        // nothing.
        let _waits = control.waits_for(what);
        wait_until(&file, PollFlags::IN, control, path)?;
        Ok(file)
    }

    /// Returns the file, which may be another than it was made of.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns its name for messages.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    fn fail(&self, operation: &'static str, e: Errno) -> Error {
        Error::io(operation, e.into(), self.name.display().to_string())
    }

    /// Reads the bytes that are there, and waits only if there are none. Returns 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let most = buffer.len().min(AT_ONCE);
        let (bytes, given) = &mut self.before;
        if !bytes.is_empty() {
            let len = most.min(bytes.len() - *given);
            buffer[..len].copy_from_slice(&bytes[*given..*given + len]);
            *given += len;
            if *given == bytes.len() {
                self.before = (Vec::new(), 0);
            }
            return Ok(len);
        }
        let most = self.left.map_or(most, |left| most.min(usize::try_from(left).unwrap_or(usize::MAX)));
        if most == 0 {
            return Ok(0);
        }
        let len = self.carry_out("read", PollFlags::IN, |file, waiting| match waiting {
            Waiting::Socket => rustix::net::recv(file, &mut buffer[..most], RecvFlags::DONTWAIT).map(|(len, _)| len),
            _ => rustix::io::read(file, &mut buffer[..most]),
        })?;
        if let Some(left) = &mut self.left {
            if len == 0 {
                let context = format!("{}: it ended {left} bytes early", self.name.display());
                return Err(Error::new(ErrorKind::EndOfFile, "read", context));
            }
            *left -= len as u64;
        }
        self.read += len as u64;
        if len == 0 && self.read < self.least {
            return Err(cut(&self.name, self.least, self.read));
        }
        Ok(len)
    }

    /// Writes all of these bytes.
    pub(crate) fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let written = self.carry_out("write", PollFlags::OUT, |file, waiting| match waiting {
                Waiting::Socket => rustix::net::send(file, bytes, SendFlags::DONTWAIT),
                Waiting::Polled { most } => rustix::io::write(file, &bytes[..bytes.len().min(most)]),
                Waiting::Never | Waiting::NonBlocking => rustix::io::write(file, bytes),
            })?;
            if written == 0 {
                return Err(Error::io("write", std::io::ErrorKind::WriteZero.into(), self.name.display().to_string()));
            }
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Makes a call, again after each wait.
    fn carry_out(
        &mut self,
        operation: &'static str,
        ready: PollFlags,
        mut call: impl FnMut(&File, Waiting) -> Result<usize, Errno>,
    ) -> Result<usize> {
        if matches!(self.waiting, Waiting::Polled { .. }) {
            wait_until(&self.file, ready, &self.control, &self.name)?;
        }
        loop {
            match call(&self.file, self.waiting) {
                Err(Errno::INTR) => self.control.check()?,
                Err(Errno::AGAIN) if self.waiting != Waiting::Never => {
                    let patience = self.left.map(|_| PATIENCE);
                    wait_for(&self.file, ready, &self.control, &self.name, patience)?;
                }
                outcome => return outcome.map_err(|e| self.fail(operation, e)),
            }
        }
    }
}

/// The most bytes that one `read` asks for. For files of /proc/sys the kernel allocates as many,
/// and it refuses 4 MiB.
const AT_ONCE: usize = 1 << 20;

/// Finds out how calls on a file are kept from waiting. Returns another open file for it where that
/// is needed.
fn without_waits(file: File) -> (File, Waiting) {
    let Ok(stat) = rustix::fs::fstat(&file) else { return (file, Waiting::Never) };
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::RegularFile | FileType::BlockDevice | FileType::Directory => return (file, Waiting::Never),
        FileType::Socket => return (file, Waiting::Socket),
        _ => {}
    }
    let Ok(flags) = rustix::fs::fcntl_getfl(&file) else { return (file, Waiting::Never) };
    if flags.contains(OFlags::NONBLOCK) {
        return (file, Waiting::NonBlocking);
    }
    // To open another device anew might have an effect on it.
    if kind != FileType::Fifo && !rustix::termios::isatty(&file) {
        return (file, Waiting::Polled { most: usize::MAX });
    }
    match anew(&file, flags, &stat) {
        Some(own) => (own, Waiting::NonBlocking),
        None => (file, Waiting::Polled { most: PIPE_BUF }),
    }
}

/// Opens the same file once more, without waits. Flags of an open file are shared with whoever has
/// a duplicate, such as the shell's terminal.
fn anew(file: &File, flags: OFlags, stat: &rustix::fs::Stat) -> Option<File> {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let kept = flags & (OFlags::ACCMODE | OFlags::APPEND);
    let flags = kept | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let same = rustix::fs::fstat(&opened).is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino));
    same.then(|| File::from(opened))
}

/// Waits until a descriptor is ready, or until the sort is asked to stop.
fn wait_until(fd: impl AsFd, ready: PollFlags, control: &Control, name: &Path) -> Result<()> {
    wait_for(fd, ready, control, name, None)
}

/// As [`wait_until`]. If nothing happens for so long, it is an error.
fn wait_for(fd: impl AsFd, ready: PollFlags, control: &Control, name: &Path, patience: Option<Duration>) -> Result<()> {
    let begun = Instant::now();
    let interval = Timespec { tv_sec: 0, tv_nsec: INTERVAL_NANOS };
    loop {
        control.check()?;
        match poll(&mut [PollFd::new(&fd, ready)], Some(&interval)) {
            Ok(0) if patience.is_some_and(|patience| begun.elapsed() > patience) => {
                return Err(Error::os("wait for", libc::ETIMEDOUT, name.display().to_string()));
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(Error::io("wait for", e.into(), name.display().to_string())),
        }
    }
}

/// Waits for the end of a program, or until the sort is asked to stop.
pub(crate) fn wait_for_program(program: &mut Child, control: &Control, name: &Path) -> Result<ExitStatus> {
    let fail = |e| Error::io("wait for", e, name.display().to_string());
    let process = i32::try_from(program.id()).ok().and_then(rustix::process::Pid::from_raw);
    let process = process.map(|id| rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty()));
    loop {
        if let Some(status) = program.try_wait().map_err(fail)? {
            return Ok(status);
        }
        match &process {
            Some(Ok(process)) => wait_until(process, PollFlags::IN, control, name)?,
            // Before Linux 5.3, or without descriptors.
            _ => {
                control.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
