//! Runs that another program compresses (`--compress-program`, as in GNU sort).
//!
//! ```text
//! records -> PROG    -> a file without a name       (its checksum and length are kept)
//! the file -> PROG -d -> a source of the merge      (both are checked at its end)
//! ```
//! The program is started without a shell and with no argument but `-d`. Its output can only be
//! read from the beginning, so one thread merges such runs.
//!
//! Each run has a file of its own, because the program writes and reads to the end of its file.
//! When descriptors become few, runs are moved to a shared file of the folder, and back into files
//! of their own when they are merged.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, copy};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crc32fast::Hasher;
use datapipes_core::locks::Mutex;
use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result, Ssd, StagePlace};
use rustix::fs::FallocateFlags;

use crate::control::Control;
use crate::memory::blocks::OrderedStream;
use crate::memory::descriptors;
use crate::report::{MovementRole, Movements};
use crate::stoppable::{StoppableFile, wait_for_program};
use crate::waits::SortWait;

/// The most compressed runs that are merged at once, because each needs a process.
pub(crate) const MAX_PROGRAMS: usize = 16;
/// Runs keep files of their own while at least this many descriptors are left: those that a merge
/// of `MAX_PROGRAMS` programs opens, and some more.
const ENOUGH: usize = 4 * MAX_PROGRAMS;

/// The program, and the folders for its output.
pub(crate) struct RunCompressor {
    program: PathBuf,
    folders: Vec<Folder>,
    turn: AtomicUsize,
}

/// A folder for runs.
struct Folder {
    path: PathBuf,
    /// The shared file, created when it is first needed.
    shared_file: Mutex<Option<File>>,
}

/// The storage of a compressed run.
#[derive(Debug)]
enum CompressedStorage {
    File(File),
    /// A range of the shared file of a folder.
    SharedFile {
        folder: usize,
        at: u64,
        len: u64,
    },
}

/// A run that was compressed.
#[derive(Debug)]
pub(crate) struct CompressedRun {
    kept: CompressedStorage,
    /// Bytes of its records.
    pub(crate) len: u64,
    sum: u32,
    /// Bytes of its longest record.
    pub(crate) longest: usize,
}

/// A run that is being compressed.
pub(crate) struct RunCompression<'a> {
    child: StartedProgram,
    file: File,
    packer: &'a RunCompressor,
    folder: usize,
}

/// Creates a file without a name.
fn scratch(folder: &Path) -> Result<File> {
    let scratch = Ssd::scratch_in(folder)?;
    let fd = scratch.file().cached_fd().try_clone_to_owned();
    fd.map(File::from).map_err(|e| Error::io("duplicate", e, "a run"))
}

impl Folder {
    /// Moves the bytes of a file to the shared file.
    fn put(&self, file: &mut File) -> Result<(u64, u64)> {
        let fail = |e: std::io::Error| Error::io("move", e, format!("a compressed run in {}", self.path.display()));
        let mut shelf = self.shared_file.lock();
        let shelf = match &mut *shelf {
            Some(shelf) => shelf,
            none => none.insert(scratch(&self.path)?),
        };
        let at = shelf.seek(SeekFrom::End(0)).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        file.rewind().map_err(fail)?;
        same(copy(file, shelf).map_err(fail)?, len)?;
        Ok((at, len))
    }

    /// Moves bytes of the shared file to a file of their own.
    fn take(&self, at: u64, len: u64) -> Result<File> {
        let fail = |e: std::io::Error| Error::io("move", e, format!("a compressed run in {}", self.path.display()));
        let mut shelf = self.shared_file.lock();
        let Some(shelf) = &mut *shelf else { return Err(fail(std::io::ErrorKind::NotFound.into())) };
        let mut file = scratch(&self.path)?;
        shelf.seek(SeekFrom::Start(at)).map_err(fail)?;
        same(copy(&mut shelf.take(len), &mut file).map_err(fail)?, len)?;
        // If holes cannot be punched, the space is free again when the sort ends.
        let _ = rustix::fs::fallocate(&*shelf, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len.max(1));
        Ok(file)
    }
}

fn same(moved: u64, len: u64) -> Result<()> {
    if moved == len {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "move", format!("a compressed run of {len} bytes: {moved} were moved")))
}

impl RunCompressor {
    /// Whether it has begun a run.
    pub(crate) fn was_used(&self) -> bool {
        self.turn.load(Relaxed) > 0
    }

    /// Compresses runs with `program` into the folders among the spill places, which take turns.
    ///
    /// # Errors
    /// `InvalidInput` if there is no folder among the places.
    pub(crate) fn new(program: PathBuf, places: &[StagePlace]) -> Result<RunCompressor> {
        let folder = |path: &Path| Folder { path: path.to_path_buf(), shared_file: Mutex::new(None) };
        let folders: Vec<Folder> = places.iter().filter_map(StagePlace::as_folder).map(folder).collect();
        if folders.is_empty() {
            let context = format!("{}: the runs that it compresses need a folder", program.display());
            return Err(Error::new(ErrorKind::InvalidInput, "compress", context).with_advice("name a folder (`spill`)"));
        }
        Ok(RunCompressor { program, folders, turn: AtomicUsize::new(0) })
    }

    /// Starts the program. It compresses what is written to the stream.
    pub(crate) fn start<'a>(
        &'a self,
        movements: &'a Movements,
        control: &Control,
    ) -> Result<(RunCompression<'a>, OrderedStream<'a>)> {
        let folder = self.turn.fetch_add(1, Relaxed) % self.folders.len();
        let file = scratch(&self.folders[folder].path)?;
        let output = file.as_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate", e, "a run"))?;
        let mut command = Command::new(&self.program);
        let child = threads::start_program(command.stdin(Stdio::piped()).stdout(Stdio::from(output)));
        let mut child = StartedProgram::new(child.map_err(|e| cannot_start(&self.program, e))?, &self.program, control);
        let Some(stdin) = child.child.stdin.take() else {
            return Err(Error::new(ErrorKind::System, "compress", "the program has no standard input"));
        };
        let pipe = StoppableFile::own(File::from(OwnedFd::from(stdin)), self.program.clone(), control);
        let stream = OrderedStream::summed(pipe, MovementRole::Spill, movements);
        Ok((RunCompression { child, file, packer: self, folder }, stream))
    }

    /// Starts the program to decompress a run.
    pub(crate) fn open(&self, run: CompressedRun, control: &Control) -> Result<RunDecompressor> {
        let CompressedRun { kept, len, sum, .. } = run;
        let mut file = match kept {
            CompressedStorage::File(file) => file,
            CompressedStorage::SharedFile { folder, at, len } => self.folders[folder].take(at, len)?,
        };
        file.rewind().map_err(|e| Error::io("read", e, "a compressed run"))?;
        let mut command = Command::new(&self.program);
        let child = threads::start_program(command.arg("-d").stdin(Stdio::from(file)).stdout(Stdio::piped()));
        let mut child = StartedProgram::new(child.map_err(|e| cannot_start(&self.program, e))?, &self.program, control);
        let Some(stdout) = child.child.stdout.take() else {
            return Err(Error::new(ErrorKind::System, "compress", "the program has no standard output"));
        };
        let output = StoppableFile::own(File::from(OwnedFd::from(stdout)), self.program.clone(), control);
        Ok(RunDecompressor { child, output, expected: (len, sum), hasher: Hasher::new(), read: 0 })
    }
}

fn cannot_start(program: &Path, e: std::io::Error) -> Error {
    Error::io("execute the compress program", e, program.display().to_string())
}

fn ended_badly(program: &Path, decompressing: bool) -> Error {
    let option = if decompressing { " -d" } else { "" };
    Error::new(ErrorKind::System, "compress", format!("'{}{option}' terminated abnormally", program.display()))
}

impl RunCompression<'_> {
    /// Waits for the program. `written` is the outcome of writing to it, with the bytes and their
    /// checksum.
    pub(crate) fn finish(mut self, written: Result<(u64, u32)>, longest: usize) -> Result<CompressedRun> {
        let program = &self.packer.program;
        let (len, sum) = match written {
            // EPIPE means here that the program stopped reading, not that the reader of the sort's
            // output did.
            Err(e) if e.errno() == Some(libc::EPIPE) => return Err(ended_badly(program, false)),
            other => other?,
        };
        let control = self.child.control.clone();
        let waits = control.waits_for(SortWait::Spill);
        let ended = self.child.wait()?;
        drop(waits);
        if !ended.success() {
            return Err(ended_badly(program, false));
        }
        let kept = if descriptors::left() < ENOUGH {
            let (at, len) = self.packer.folders[self.folder].put(&mut self.file)?;
            CompressedStorage::SharedFile { folder: self.folder, at, len }
        } else {
            CompressedStorage::File(self.file)
        };
        Ok(CompressedRun { kept, len, sum, longest })
    }
}

/// A run that is being decompressed.
#[derive(Debug)]
pub(crate) struct RunDecompressor {
    child: StartedProgram,
    output: StoppableFile,
    expected: (u64, u32),
    hasher: Hasher,
    read: u64,
}

impl RunDecompressor {
    /// Reads the bytes that are there. At the end it checks that the program succeeded and that its
    /// bytes are those that were compressed.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let len = self.output.read(buffer)?;
        self.hasher.update(&buffer[..len]);
        self.read += len as u64;
        if len == 0 && !buffer.is_empty() {
            if !self.child.wait()?.success() {
                return Err(ended_badly(self.output.name(), true));
            }
            if (self.read, self.hasher.clone().finalize()) != self.expected {
                let (len, sum) = self.expected;
                let context = format!(
                    "'{} -d' gave {} bytes that are not the {len} with the sum {sum:08x} that were compressed",
                    self.output.name().display(),
                    self.read
                );
                return Err(Error::new(ErrorKind::Corrupt, "compress", context));
            }
        }
        Ok(len)
    }
}

/// A program that was started. If it is dropped before it has ended, it is killed.
#[derive(Debug)]
struct StartedProgram {
    child: Child,
    name: PathBuf,
    control: Control,
}

impl StartedProgram {
    fn new(child: Child, name: &Path, control: &Control) -> StartedProgram {
        StartedProgram { child, name: name.to_path_buf(), control: control.clone() }
    }

    /// Waits for its end, or until the sort is asked to stop.
    fn wait(&mut self) -> Result<ExitStatus> {
        wait_for_program(&mut self.child, &self.control, &self.name)
    }
}

impl Drop for StartedProgram {
    fn drop(&mut self) {
        // Where it was waited for, neither call does anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
