//! The sources of the records, read one after another in chunks.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use datapipes_core::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, Pipe, Result, Span, Ssd, Transfer};
use rustix::fs::{Access, AtFlags, CWD, FileType};

use crate::control::{Control, MIN_UNDER_WAY, count, is_of_file, limit_under_way};
use crate::cut::cut;
use crate::place::InputPlace;
use crate::report::{MovementRole, Movements, StreamEnd};
use crate::stoppable::StoppableFile;
use crate::waits::SortWait;

/// A source of records.
#[derive(Debug)]
pub enum Input {
    /// A file or a block device from an offset on, read through a pipe.
    File {
        /// The file or block device.
        ssd: Ssd,
        /// Offset of the first record, in bytes.
        from: u64,
    },
    /// Bytes of a file, which begin and end with records, read through a pipe. See
    /// [`RecordBorders`](crate::RecordBorders).
    Range {
        /// The file.
        ssd: Ssd,
        /// Offset of the first record, in bytes.
        from: u64,
        /// Offset behind the last record, in bytes.
        to: u64,
    },
    /// Bytes in memory. [`merge`](crate::merge) uses them where they are, and returns an error if
    /// they are not in order. Nobody may write to them meanwhile.
    Memory {
        /// The name for messages.
        name: PathBuf,
        /// The bytes.
        memory: Dram,
    },
    /// Anything else that can be read: a terminal, a socket, another program's output.
    Stream {
        /// Its name for messages.
        name: PathBuf,
        /// The descriptor.
        fd: OwnedFd,
    },
    /// A stream of which some bytes were read already.
    Begun {
        /// Its name for messages.
        name: PathBuf,
        /// The descriptor.
        fd: OwnedFd,
        /// The bytes that were read: the first ones.
        bytes: Vec<u8>,
    },
    /// A stream of a known number of bytes, such as what another process sends over a connection.
    /// That it ends earlier is an error, and what follows is not read.
    Counted {
        /// Its name for messages.
        name: PathBuf,
        /// The descriptor.
        fd: OwnedFd,
        /// How many bytes come.
        len: u64,
    },
    /// A path that is opened when its turn comes; `-` is the standard input. See
    /// [`Input::deferred`].
    Deferred {
        /// The path.
        path: PathBuf,
        /// The least bytes that it must give: its length when it was taken, where what the system
        /// says of it can be relied on, else 0.
        least: u64,
    },
    /// A place that a pipe reads, such as an object in a bucket.
    Place(InputPlace),
}

impl Input {
    /// Opens a path as a file if it is a regular file of known length or a block device, otherwise
    /// as a stream. `-` is the standard input.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `InvalidInput` for a directory.
    pub fn open(path: &Path) -> Result<Input> {
        if path == Path::new("-") {
            return Input::stdin();
        }
        let file = File::open(path).map_err(|e| cannot_open(e, path))?;
        Input::from_file(file, path)
    }

    /// Takes a path that is opened when its turn comes. So many inputs need few descriptors, and
    /// another program may write named pipes one after the other. Whether the path can be read is
    /// checked now. `-` is the standard input.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open), as far as they can be known without opening the path.
    pub fn deferred(path: &Path) -> Result<Input> {
        let standard = path == Path::new("-");
        let (stat, from) = if standard {
            let stdin = rustix::fs::fstat(rustix::stdio::stdin());
            let stat = stdin.map_err(|e| cannot_open(e.into(), Path::new("standard input")))?;
            (stat, rustix::fs::tell(rustix::stdio::stdin()).unwrap_or(0))
        } else {
            let stat = rustix::fs::stat(path).map_err(|e| cannot_open(e.into(), path))?;
            let readable = rustix::fs::accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS);
            readable.map_err(|e| cannot_open(e.into(), path))?;
            (stat, 0)
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let least = match kind {
            FileType::RegularFile if stat.st_blocks > 0 => {
                u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(from)
            }
            _ => 0,
        };
        match kind {
            FileType::Directory => Err(Error::os("read", libc::EISDIR, path.display().to_string())),
            // Only an open block device tells its length.
            FileType::BlockDevice => Input::open(path),
            _ => Ok(Input::Deferred { path: path.to_path_buf(), least }),
        }
    }

    /// Takes the standard input. If it is a file, it is read from its present offset, and that
    /// offset is set to the file's end, as `read` would have done.
    ///
    /// # Errors
    /// The standard input is closed.
    pub fn stdin() -> Result<Input> {
        let name = Path::new("standard input");
        let fd = std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| Error::io("open", e, "standard input"))?;
        let input = Input::from_file(File::from(fd), name)?;
        if let Input::File { ssd, from } = &input {
            let end = ssd.len()?.max(*from);
            let fail = |e: rustix::io::Errno| Error::os("seek in", e.raw_os_error(), "standard input");
            rustix::fs::seek(rustix::stdio::stdin(), rustix::fs::SeekFrom::Start(end)).map_err(fail)?;
        }
        Ok(input)
    }

    fn from_file(file: File, name: &Path) -> Result<Input> {
        let meta = file.metadata().map_err(|e| cannot_open(e, name))?;
        if meta.is_dir() {
            return Err(Error::os("read", libc::EISDIR, name.display().to_string()));
        }
        if meta.file_type().is_block_device() || meta.is_file() && says_its_length(&meta) {
            let from = std::io::Seek::stream_position(&mut &file).map_err(|e| cannot_open(e, name))?;
            return Ok(Input::File { ssd: Ssd::from_fd(file.into(), name)?, from });
        }
        Ok(Input::Stream { name: name.to_path_buf(), fd: file.into() })
    }

    /// Returns the open file, for reading it by `read`. Its offset is where the records begin.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open); `InvalidInput` if some bytes were read already.
    pub fn into_file(self) -> Result<File> {
        match self {
            Input::Begun { name, bytes, .. } if !bytes.is_empty() => {
                let context = format!("{}: {} bytes were read already", name.display(), bytes.len());
                Err(Error::new(ErrorKind::InvalidInput, "open", context))
            }
            Input::Begun { fd, .. } => Ok(File::from(fd)),
            Input::Range { .. } | Input::Memory { .. } | Input::Counted { .. } => {
                let context = format!("{}: it is no stream that ends by itself", self.name().display());
                Err(Error::new(ErrorKind::InvalidInput, "open", context))
            }
            Input::Deferred { path, .. } => Input::open(&path)?.into_file(),
            Input::Place(place) => {
                let context = format!("{}: it is no file", place.name().display());
                Err(Error::new(ErrorKind::InvalidInput, "open", context))
            }
            Input::Stream { fd, .. } => Ok(File::from(fd)),
            Input::File { ssd, from } => {
                let fail = |e| cannot_open(e, ssd.path());
                let file = ssd.file().cached_fd().try_clone_to_owned().map_err(fail)?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(from)).map_err(|e| fail(e.into()))?;
                Ok(File::from(file))
            }
        }
    }

    /// Returns a copy to try again with if opening fails; `None` for an input that is open already.
    fn again(&self) -> Option<Input> {
        match self {
            Input::Deferred { path, least } => Some(Input::Deferred { path: path.clone(), least: *least }),
            Input::Range { ssd, from, to } => Some(Input::Range { ssd: ssd.clone(), from: *from, to: *to }),
            Input::Place(place) => Some(Input::Place(place.clone())),
            Input::File { .. }
            | Input::Memory { .. }
            | Input::Stream { .. }
            | Input::Begun { .. }
            | Input::Counted { .. } => None,
        }
    }

    /// Returns what `stat` says of it; `EBADF` for memory.
    pub(crate) fn stat(&self) -> Result<rustix::fs::Stat, rustix::io::Errno> {
        match self {
            Input::Memory { .. } => Err(rustix::io::Errno::BADF),
            Input::File { ssd, .. } | Input::Range { ssd, .. } => rustix::fs::fstat(ssd.file().cached_fd()),
            Input::Stream { fd, .. } | Input::Begun { fd, .. } | Input::Counted { fd, .. } => rustix::fs::fstat(fd),
            Input::Deferred { path, .. } if path == Path::new("-") => rustix::fs::fstat(rustix::stdio::stdin()),
            Input::Deferred { path, .. } => rustix::fs::stat(path),
            Input::Place(_) => Err(rustix::io::Errno::NOTSUP),
        }
    }

    /// Whether it is a file that is so short that no pipe is made for it: it is read by `read`.
    pub fn is_short_file(&self) -> bool {
        match self {
            Input::File { ssd, from } => ssd.len().is_ok_and(|len| len.saturating_sub(*from) < SMALL),
            Input::Deferred { path, .. } if path != Path::new("-") => {
                std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() < SMALL)
            }
            _ => false,
        }
    }

    /// Returns whether reading may have to wait for another process: a terminal, a pipe, a socket.
    pub fn may_block(&self) -> bool {
        let kind = |mode| FileType::from_raw_mode(mode);
        let kind = match self {
            Input::File { .. } | Input::Range { .. } | Input::Memory { .. } | Input::Place(_) => return false,
            Input::Stream { fd, .. } | Input::Begun { fd, .. } | Input::Counted { fd, .. } => {
                rustix::fs::fstat(fd).map(|stat| kind(stat.st_mode))
            }
            Input::Deferred { path, .. } if path == Path::new("-") => {
                rustix::fs::fstat(rustix::stdio::stdin()).map(|stat| kind(stat.st_mode))
            }
            Input::Deferred { path, .. } => rustix::fs::stat(path).map(|stat| kind(stat.st_mode)),
        };
        !kind.is_ok_and(|kind| matches!(kind, FileType::RegularFile | FileType::BlockDevice))
    }

    /// Returns its name for messages.
    pub fn name(&self) -> &Path {
        match self {
            Input::File { ssd, .. } | Input::Range { ssd, .. } => ssd.path(),
            Input::Memory { name, .. }
            | Input::Stream { name, .. }
            | Input::Begun { name, .. }
            | Input::Counted { name, .. } => name,
            Input::Deferred { path, .. } if path == Path::new("-") => Path::new("standard input"),
            Input::Deferred { path, .. } => path,
            Input::Place(place) => place.name(),
        }
    }

    /// Returns its bytes, as far as the system says: `None` for a pipe, and too few or too many for
    /// some special files.
    ///
    /// # Errors
    /// Errors of `fstat`.
    pub fn len(&self) -> Result<Option<u64>> {
        let regular = |stat: rustix::fs::Stat| {
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            is_file.then(|| u64::try_from(stat.st_size).unwrap_or(0))
        };
        match self {
            Input::File { ssd, from } => Ok(Some(ssd.len()?.saturating_sub(*from))),
            Input::Range { from, to, .. } => Ok(Some(to.saturating_sub(*from))),
            Input::Memory { memory, .. } => Ok(Some(memory.len() as u64)),
            Input::Place(place) => Ok(Some(place.len())),
            Input::Counted { len, .. } => Ok(Some(*len)),
            // How many follow those that were read is not known.
            Input::Begun { .. } => Ok(None),
            Input::Stream { name, fd } => rustix::fs::fstat(fd).map(regular).map_err(|e| cannot_open(e.into(), name)),
            Input::Deferred { path, .. } if path == Path::new("-") => {
                let stdin = rustix::stdio::stdin();
                let len = rustix::fs::fstat(stdin).map(regular).map_err(|e| cannot_open(e.into(), self.name()))?;
                let from = rustix::fs::tell(stdin).unwrap_or(0);
                Ok(len.map(|len| len.saturating_sub(from)))
            }
            Input::Deferred { path, .. } => {
                rustix::fs::stat(path).map(regular).map_err(|e| cannot_open(e.into(), path))
            }
        }
    }

    /// The least number of bytes that it must give: its length, where what the system says of it
    /// can be relied on.
    pub(crate) fn least_len(&self) -> Result<u64> {
        match self {
            Input::Stream { .. } | Input::Begun { .. } => Ok(0),
            Input::Deferred { least, .. } => Ok(*least),
            _ => Ok(self.len()?.unwrap_or(0)),
        }
    }

    /// Reads some of the first bytes of a regular file or a place, to see how long its records are.
    /// These bytes are not used otherwise.
    pub(crate) fn sample(&self, machine: &Machine, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Input::Place(place) => place.sample(machine, buffer),
            Input::File { ssd, from } => rustix::io::pread(ssd.file().cached_fd(), buffer, *from).ok(),
            Input::Range { ssd, from, to } => {
                let len = buffer.len().min(usize::try_from(to.saturating_sub(*from)).unwrap_or(usize::MAX));
                rustix::io::pread(ssd.file().cached_fd(), &mut buffer[..len], *from).ok()
            }
            Input::Memory { memory, .. } => {
                let len = buffer.len().min(memory.len());
                memory.memory().read(0, &mut buffer[..len]).ok().map(|()| len)
            }
            Input::Stream { .. } | Input::Begun { .. } | Input::Counted { .. } => None,
            Input::Deferred { path, .. } if path == Path::new("-") => {
                let stdin = rustix::stdio::stdin();
                let from = rustix::fs::tell(stdin).ok()?;
                rustix::io::pread(stdin, buffer, from).ok()
            }
            Input::Deferred { path, .. } => {
                // To sample a named pipe it would have to be opened, and that waits for its writer.
                let regular = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
                let file = regular.then(|| File::open(path).ok()).flatten()?;
                rustix::io::pread(&file, buffer, 0).ok()
            }
        }
    }
}

fn cannot_open(error: std::io::Error, path: &Path) -> Error {
    Error::io("open", error, path.display().to_string())
}

/// Whether the length that a file reports can be trusted. Files in /proc and /sys, and in some FUSE
/// file systems, have another length than they report. They have no blocks, as have other files
/// only if they are one hole; such files are read as streams too.
pub(crate) fn says_its_length(meta: &std::fs::Metadata) -> bool {
    meta.len() > 0 && meta.blocks() > 0
}

/// Files shorter than this are read by `read`: for them a pipe costs more than it saves.
pub(crate) const SMALL: u64 = 128 << 10;

/// An input that was opened for reading it from end to end.
pub(crate) enum Opened {
    /// Bytes `from..to`, read by a pipe.
    Place { pipe: Box<Pipe>, from: u64, to: u64, name: PathBuf },
    /// A stream, read by `read`.
    Stream(StoppableFile),
}

impl Opened {
    /// Opens an input in the way that suits it.
    pub(crate) fn of(input: Input, machine: &Machine, memory: &Dram, control: &Control) -> Result<Opened> {
        Opened::with(input, machine, memory, (SMALL, SortWait::Input), control)
    }

    /// Opens an input, with a pipe if it is a file of at least `small` bytes. The wait for the
    /// writer of a named pipe counts as `what`.
    pub(crate) fn with(
        input: Input,
        machine: &Machine,
        memory: &Dram,
        (small, what): (u64, SortWait),
        control: &Control,
    ) -> Result<Opened> {
        let stream = |file, name, least| Ok(Opened::Stream(StoppableFile::new(file, name, control).at_least(least)));
        let least = match input {
            Input::Deferred { least, .. } => least,
            _ => 0,
        };
        let input = match input {
            Input::Deferred { path, .. } if path != Path::new("-") => {
                let file = StoppableFile::open(&path, what, control)?;
                let meta = file.metadata().map_err(|e| cannot_open(e, &path))?;
                if meta.is_file() && meta.len() < least {
                    return Err(cut(&path, least, meta.len()));
                }
                if meta.is_file() && meta.len() < small {
                    let said = if says_its_length(&meta) { meta.len() } else { 0 };
                    return stream(file, path, said.max(least));
                }
                Input::from_file(file, &path)?
            }
            Input::Deferred { .. } => Input::stdin()?,
            Input::Begun { name, fd, bytes } => {
                return Ok(Opened::Stream(StoppableFile::new(File::from(fd), name, control).behind(bytes)));
            }
            Input::Counted { name, fd, len } => {
                return Ok(Opened::Stream(StoppableFile::new(File::from(fd), name, control).counted(len)));
            }
            open => open,
        };
        let (ssd, from) = match input {
            Input::Place(place) => {
                let constraints = Constraints::default().typical_len(place.len());
                let pipe = Box::new(machine.connect_with(place.locator(), memory, &constraints)?);
                let (from, to) = place.span();
                return Ok(Opened::Place { pipe, from, to, name: place.name().to_path_buf() });
            }
            Input::File { ssd, from } => (ssd, from),
            Input::Range { ssd, from, to } => {
                let len = ssd.len()?;
                if from > to || to > len {
                    let context = format!("bytes {from} to {to} of {}, which has {len}", ssd.path().display());
                    return Err(Error::new(ErrorKind::OutOfRange, "open", context));
                }
                let constraints = Constraints::default().typical_len(to - from);
                let pipe = Box::new(machine.connect_with(&ssd, memory, &constraints)?);
                return Ok(Opened::Place { pipe, from, to, name: ssd.path().to_path_buf() });
            }
            Input::Memory { name, memory: bytes } => {
                let (pipe, to) = (Box::new(machine.connect(&bytes, memory)?), bytes.len() as u64);
                return Ok(Opened::Place { pipe, from: 0, to, name });
            }
            other => {
                let name = other.name().to_path_buf();
                return stream(other.into_file()?, name, least);
            }
        };
        let name = ssd.path().to_path_buf();
        let to = ssd.len()?.max(from);
        if to - from < least {
            return Err(cut(&name, least, to - from));
        }
        if to - from >= small || ssd.file().is_block_device() {
            let constraints = Constraints::default().typical_len(to - from);
            match machine.connect_with(&ssd, memory, &constraints) {
                Ok(pipe) => return Ok(Opened::Place { pipe: Box::new(pipe), from, to, name }),
                // The descriptor that is already open suffices for `read`.
                Err(e) if no_descriptors(&e) && !ssd.file().is_block_device() => {}
                Err(e) => return Err(e),
            }
        }
        stream(Input::File { ssd, from }.into_file()?, name, to - from)
    }
}

/// Whether the process or the system has no descriptor left.
pub(crate) fn no_descriptors(e: &Error) -> bool {
    matches!(e.errno(), Some(libc::EMFILE | libc::ENFILE))
}

/// The most pipes that are kept open after their last chunk was asked for. There are fewer chunks
/// in flight.
const MAX_CLOSING: usize = 16;
/// No more than this is under way of files.
const MAX_UNDER_WAY: u64 = 64 << 20;
/// What reads past the page cache are multiples of.
const ALIGN: u64 = 4096;

/// A range of bytes that is being read into memory.
pub(crate) struct Chunk {
    /// Their offset in the pool.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Whether this is the first chunk of its source.
    pub(crate) starts_source: bool,
    /// Whether this is the last chunk of its source.
    pub(crate) ends_source: bool,
    transfer: Option<Transfer>,
    /// When it was begun, if it counts as being under way.
    begun: Option<InFlightMark>,
    /// Its bytes that the progress does not have yet: those of a stream count as they come.
    pub(crate) uncounted: usize,
}

/// Where the next chunk has to begin in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Right behind the chunk before it.
    Behind,
    /// A new source, whose first chunk is best at this offset in a block: where it is in its file.
    /// Then it is read past the page cache straight into place.
    At(usize),
    /// A new source, which may begin anywhere.
    Anywhere,
}

/// Reads the sources one after another into a pool. Each is opened when its turn comes.
pub(crate) struct InputReader<'a> {
    machine: &'a Machine,
    memory: &'a Dram,
    waiting: VecDeque<Input>,
    open: Option<Opened>,
    /// Whether no chunk of the open source was read yet.
    fresh: bool,
    movements: &'a Movements,
    control: &'a Control,
    /// Pipes of sources whose last chunk was asked for. It may still be in flight, so their
    /// counters are read later.
    closing: VecDeque<Pipe>,
    /// The bytes of chunks of files that were asked for and not waited for, and the limit for them.
    under_way: u64,
    limit: InFlightLimit,
    /// The name of the source that was opened last, for messages.
    pub(crate) current: PathBuf,
}

impl<'a> InputReader<'a> {
    pub(crate) fn new(
        machine: &'a Machine,
        memory: &'a Dram,
        inputs: Vec<Input>,
        movements: &'a Movements,
        control: &'a Control,
    ) -> Self {
        InputReader {
            machine,
            memory,
            waiting: inputs.into(),
            open: None,
            fresh: false,
            movements,
            control,
            closing: VecDeque::new(),
            under_way: 0,
            limit: limit_under_way(MAX_UNDER_WAY),
            current: PathBuf::new(),
        }
    }

    /// Whether the next chunk is the first of a source.
    pub(crate) fn starts_source(&self) -> bool {
        self.open.is_none() || self.fresh
    }

    /// Whether there is nothing more to read.
    pub(crate) fn exhausted(&self) -> bool {
        self.open.is_none() && self.waiting.is_empty()
    }

    /// Opens the next source if its turn has come, and says where its next chunk may begin. Returns
    /// `None` if no source is left, or if the next one cannot be opened yet;
    /// [`exhausted`](Self::exhausted) tells the two apart.
    pub(crate) fn prepare(&mut self, in_flight: bool) -> Result<Option<Begin>> {
        if self.open.is_none() {
            let Some(input) = self.waiting.pop_front() else { return Ok(None) };
            self.current = input.name().to_path_buf();
            let again = input.again();
            match Opened::of(input, self.machine, self.memory, self.control) {
                Ok(opened) => self.open = Some(opened),
                Err(e) if no_descriptors(&e) && (in_flight || !self.closing.is_empty()) && again.is_some() => {
                    again.into_iter().for_each(|input| self.waiting.push_front(input));
                    if in_flight {
                        return Ok(None);
                    }
                    self.release();
                    return self.prepare(false);
                }
                Err(e) => return Err(e),
            }
            self.fresh = true;
        }
        Ok(Some(match (&self.open, self.fresh) {
            (_, false) => Begin::Behind,
            (Some(Opened::Stream(_)), true) => Begin::Anywhere,
            (Some(Opened::Place { from, .. }), true) => Begin::At((*from % ALIGN) as usize),
            _ => Begin::At(0),
        }))
    }

    /// Starts to read up to `max` bytes of the open source into the pool at `at`. `to_block`: a
    /// chunk may end at a block of the file, so that the next one begins there and only the first
    /// one has an edge to be copied. It may then end within a record.
    pub(crate) fn next(&mut self, at: usize, max: usize, to_block: bool) -> Result<Option<Chunk>> {
        let starts_source = std::mem::take(&mut self.fresh);
        match &mut self.open {
            Some(Opened::Place { pipe, from, to, .. }) => {
                let is_limited = is_of_file(pipe);
                let room = self.limit.bytes().saturating_sub(self.under_way).max(MIN_UNDER_WAY) / ALIGN * ALIGN;
                let most = if is_limited { room } else { u64::MAX };
                let len = (*to - *from).min(max as u64).min(most);
                let edge = if to_block && *from + len < *to { (*from + len) % ALIGN } else { 0 };
                let len = if edge < len { len - edge } else { len };
                let begun = (is_limited && len > 0).then(|| self.limit.begin());
                let transfer = match len {
                    0 => None,
                    _ => {
                        let span = Span { source: *from, target: at as u64, len };
                        Some(self.control.start_read(SortWait::Input, pipe, span)?)
                    }
                };
                self.under_way += if begun.is_some() { len } else { 0 };
                *from += len;
                let ends_source = *from == *to;
                if ends_source {
                    self.close();
                }
                let len = len as usize;
                Ok(Some(Chunk { at, len, starts_source, ends_source, transfer, begun, uncounted: len }))
            }
            Some(Opened::Stream(stream)) => {
                let mut lease = self.memory.range(at, max)?.lease_mut()?;
                let waits = self.control.waits_for(SortWait::Input);
                let len = read_full(stream, &mut lease, &self.control.progress.read)?;
                drop(waits);
                self.movements.add_stream(MovementRole::Input, StreamEnd::of(stream.waits_for_others()), len as u64);
                let ends_source = len < max;
                if ends_source {
                    self.close();
                }
                Ok(Some(Chunk { at, len, starts_source, ends_source, transfer: None, begun: None, uncounted: 0 }))
            }
            None => Ok(None),
        }
    }

    /// Whether another chunk may be asked for now.
    pub(crate) fn may_ask(&self) -> bool {
        self.under_way < self.limit.bytes()
    }

    /// Waits for a chunk.
    pub(crate) fn wait(&mut self, chunk: &mut Chunk) -> Result<()> {
        let outcome = chunk.transfer.take().map_or(Ok(()), Transfer::wait);
        if let Some(begun) = chunk.begun.take() {
            self.under_way = self.under_way.saturating_sub(chunk.len as u64);
            self.limit.arrived(begun);
        }
        outcome
    }

    fn close(&mut self) {
        if let Some(Opened::Place { pipe, .. }) = self.open.take() {
            self.closing.push_back(*pipe);
        }
        if self.closing.len() > MAX_CLOSING
            && let Some(pipe) = self.closing.pop_front()
        {
            self.movements.keep(MovementRole::Input, pipe);
        }
    }

    /// Closes the pipes that are no longer needed. They must have nothing in flight.
    fn release(&mut self) {
        for pipe in self.closing.drain(..) {
            self.movements.keep(MovementRole::Input, pipe);
        }
    }
}

impl Drop for InputReader<'_> {
    fn drop(&mut self) {
        self.close();
        self.release();
    }
}

/// Reads until the buffer is full or the stream ends, and counts the bytes as they come.
fn read_full(stream: &mut StoppableFile, buffer: &mut [u8], counter: &AtomicU64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match stream.read(&mut buffer[done..]).map_err(|e| e.with_bytes_done(done as u64))? {
            0 => break,
            n => {
                done += n;
                count(counter, n as u64);
            }
        }
    }
    Ok(done)
}

/// The error for an input of binary records that ends within a record.
pub(crate) fn leftover(name: &Path, record_len: usize, left: usize) -> Error {
    let why = format!("its length is not a multiple of the record length {record_len}: {left} bytes are left over");
    refuse(ErrorKind::InvalidInput, name, why)
}

/// An error for an input that the engine cannot sort.
pub(crate) fn refuse(kind: ErrorKind, name: &Path, why: String) -> Error {
    Error::new(kind, "sort", format!("{}: {why}", name.display()))
}
