//! Where the records come from, one source after another, in chunks.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, Pipe, Result, Span, Ssd, Transfer};

use crate::report::{Movements, Role};

/// A source of records.
#[derive(Debug)]
pub enum Input {
    /// A file or a block device from an offset on: it is read through a pipe.
    Place {
        /// The file.
        ssd: Ssd,
        /// Where the records begin, in bytes.
        from: u64,
    },
    /// Anything else that can be read: a terminal, a socket, another program's output.
    Stream {
        /// Its name for messages.
        name: PathBuf,
        /// The descriptor.
        fd: OwnedFd,
    },
}

impl Input {
    /// Opens a path: a place if it is one, otherwise a stream. `-` is the standard input.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `InvalidInput` for a directory.
    pub fn open(path: &Path) -> Result<Input> {
        if path == Path::new("-") {
            return Input::stdin();
        }
        let fail = |e: std::io::Error| Error::io("open", &e, path.display().to_string());
        let file = File::open(path).map_err(fail)?;
        Input::from_file(file, path)
    }

    /// The standard input; a file redirected there is read through a pipe, from its present offset.
    ///
    /// # Errors
    /// Where it is closed.
    pub fn stdin() -> Result<Input> {
        let name = Path::new("standard input");
        let fd = std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| Error::io("open", &e, "standard input"))?;
        Input::from_file(File::from(fd), name)
    }

    fn from_file(file: File, name: &Path) -> Result<Input> {
        let fail = |e: std::io::Error| Error::io("open", &e, name.display().to_string());
        let kind = file.metadata().map_err(fail)?.file_type();
        if kind.is_dir() {
            return Err(Error::os("read", libc::EISDIR, name.display().to_string()));
        }
        // Files in /proc and /sys say that they are empty and are not.
        if kind.is_block_device() || kind.is_file() && file.metadata().map_err(fail)?.len() > 0 {
            let from = std::io::Seek::stream_position(&mut &file).map_err(fail)?;
            return Ok(Input::Place { ssd: Ssd::from_fd(file.into(), name)?, from });
        }
        Ok(Input::Stream { name: name.to_path_buf(), fd: file.into() })
    }

    /// Its name for messages.
    pub fn name(&self) -> &Path {
        match self {
            Input::Place { ssd, .. } => ssd.path(),
            Input::Stream { name, .. } => name,
        }
    }

    /// The bytes it has, where that is known.
    ///
    /// # Errors
    /// What `fstat` says.
    pub fn len(&self) -> Result<Option<u64>> {
        match self {
            Input::Place { ssd, from } => Ok(Some(ssd.len()?.saturating_sub(*from))),
            Input::Stream { .. } => Ok(None),
        }
    }
}

/// More than chunks are ever in flight: a pipe that waited so long has done its work.
const MOST_CLOSING: usize = 16;

enum Open {
    Place { pipe: Box<Pipe>, at: u64, end: u64 },
    Stream { file: File, name: PathBuf },
}

/// Bytes on their way into memory.
pub(crate) struct Chunk {
    /// Where they are in the pool.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The first of its source.
    pub(crate) starts_source: bool,
    /// The last of its source.
    pub(crate) ends_source: bool,
    transfer: Option<Transfer>,
}

impl Chunk {
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.transfer.take().map_or(Ok(()), Transfer::wait)
    }
}

/// Reads the sources one after another into a pool.
pub(crate) struct Feed<'a> {
    machine: &'a Machine,
    memory: &'a Dram,
    waiting: VecDeque<Input>,
    open: Option<Open>,
    movements: &'a Movements,
    /// Pipes of sources that were asked for in full. Their last chunks may still be under way, so what they counted is
    /// taken note of later.
    closing: VecDeque<Pipe>,
    /// The name of each source begun, for messages.
    pub(crate) current: PathBuf,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(machine: &'a Machine, memory: &'a Dram, inputs: Vec<Input>, movements: &'a Movements) -> Self {
        Feed {
            machine,
            memory,
            waiting: inputs.into(),
            open: None,
            movements,
            closing: VecDeque::new(),
            current: PathBuf::new(),
        }
    }

    /// Whether the next chunk is the first of a source.
    pub(crate) fn starts_source(&self) -> bool {
        self.open.is_none()
    }

    /// Whether there is nothing more to read.
    pub(crate) fn exhausted(&self) -> bool {
        self.open.is_none() && self.waiting.is_empty()
    }

    /// Starts to read up to `max` bytes to `at` in the pool. `None` at the end of all sources.
    pub(crate) fn next(&mut self, at: usize, max: usize) -> Result<Option<Chunk>> {
        let starts_source = self.open.is_none();
        loop {
            if self.open.is_none() {
                let Some(input) = self.waiting.pop_front() else { return Ok(None) };
                self.begin(input)?;
            }
            let Some(open) = &mut self.open else { continue };
            match open {
                Open::Place { pipe, at: from, end } => {
                    let len = (*end - *from).min(max as u64);
                    let transfer = if len == 0 {
                        None
                    } else {
                        Some(pipe.start(Span { source: *from, target: at as u64, len })?)
                    };
                    *from += len;
                    let ends_source = *from == *end;
                    if ends_source {
                        self.close();
                    }
                    return Ok(Some(Chunk { at, len: len as usize, starts_source, ends_source, transfer }));
                }
                Open::Stream { file, name } => {
                    let mut lease = self.memory.range(at, max)?.lease_mut()?;
                    let len = read_full(file, &mut lease).map_err(|(e, done)| {
                        Error::io("read", &e, name.display().to_string()).bytes_done(done as u64)
                    })?;
                    self.movements.add_stream(Role::Input, len as u64);
                    let ends_source = len < max;
                    if ends_source {
                        self.open = None;
                    }
                    return Ok(Some(Chunk { at, len, starts_source, ends_source, transfer: None }));
                }
            }
        }
    }

    fn begin(&mut self, input: Input) -> Result<()> {
        self.current = input.name().to_path_buf();
        self.open = Some(match input {
            Input::Place { ssd, from } => {
                let end = ssd.len()?.max(from);
                let constraints = Constraints { typical_len: Some((end - from).max(1)), ..Constraints::default() };
                let pipe = Box::new(self.machine.connect_with(&ssd, self.memory, &constraints)?);
                Open::Place { pipe, at: from, end }
            }
            Input::Stream { name, fd } => Open::Stream { file: File::from(fd), name },
        });
        Ok(())
    }

    fn close(&mut self) {
        if let Some(Open::Place { pipe, .. }) = self.open.take() {
            self.closing.push_back(*pipe);
        }
        if self.closing.len() > MOST_CLOSING
            && let Some(pipe) = self.closing.pop_front()
        {
            self.movements.keep(Role::Input, pipe);
        }
    }
}

impl Drop for Feed<'_> {
    fn drop(&mut self) {
        self.close();
        for pipe in self.closing.drain(..) {
            self.movements.keep(Role::Input, pipe);
        }
    }
}

fn read_full(file: &mut File, buffer: &mut [u8]) -> Result<usize, (std::io::Error, usize)> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err((e, done)),
        }
    }
    Ok(done)
}

/// Refuses what the engine cannot take.
pub(crate) fn refuse(kind: ErrorKind, name: &Path, why: String) -> Error {
    Error::new(kind, "sort", format!("{}: {why}", name.display()))
}
