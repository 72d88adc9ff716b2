//! Runs that another program compresses: `--compress-program`, as GNU sort has it.
//!
//! ```text
//! records -> PROG    -> a file without a name       (its sum and length are kept)
//! the file -> PROG -d -> a source of the merge      (sum and length are checked at its end)
//! ```
//! The program is started without a shell and with no argument but `-d`. It can be read from its beginning only, so one
//! thread merges such runs.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crc32fast::Hasher;
use datapipes_core::{Error, ErrorKind, Result, Ssd, StagePlace};

use crate::blocks::StreamOut;
use crate::report::{Movements, Role};

/// More such runs are not merged at once, because each needs a process.
pub(crate) const MAX_PROGRAMS: usize = 16;

/// The program, and where its output goes.
pub(crate) struct Packer {
    program: PathBuf,
    folders: Vec<PathBuf>,
    turn: AtomicUsize,
}

/// A run that was compressed.
#[derive(Debug)]
pub(crate) struct Packed {
    file: File,
    /// Bytes of its records.
    pub(crate) len: u64,
    sum: u32,
    /// Bytes of its longest record.
    pub(crate) longest: usize,
}

/// A run that is being compressed.
pub(crate) struct Packing<'a> {
    child: Child,
    file: File,
    program: &'a Path,
}

impl Packer {
    /// Runs of `program` go to the folders among the spill places, which take turns.
    ///
    /// # Errors
    /// `InvalidInput` where there is no folder among them.
    pub(crate) fn new(program: PathBuf, places: &[StagePlace]) -> Result<Packer> {
        let folders: Vec<PathBuf> = places.iter().filter_map(StagePlace::as_folder).map(Path::to_path_buf).collect();
        if folders.is_empty() {
            let context = format!("{}: what it compresses needs a folder", program.display());
            return Err(Error::new(ErrorKind::InvalidInput, "compress", context).advice("name a folder by -T"));
        }
        Ok(Packer { program, folders, turn: AtomicUsize::new(0) })
    }

    /// Starts the program; what is written to the stream is compressed.
    pub(crate) fn start<'a>(&'a self, movements: &'a Movements) -> Result<(Packing<'a>, StreamOut<'a>)> {
        let folder = &self.folders[self.turn.fetch_add(1, Relaxed) % self.folders.len()];
        let scratch = Ssd::scratch_in(folder)?;
        let copy = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate", &e, "a run"));
        let (file, output) = (copy(&scratch.file().cached_fd())?, copy(&scratch.file().cached_fd())?);
        let mut command = Command::new(&self.program);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::from(output)).spawn();
        let mut child = child.map_err(|e| cannot_start(&self.program, &e))?;
        let Some(stdin) = child.stdin.take() else {
            return Err(Error::new(ErrorKind::System, "compress", "the program has no standard input"));
        };
        let stream = StreamOut::summed(self.program.clone(), File::from(OwnedFd::from(stdin)), Role::Spill, movements);
        Ok((Packing { child, file: File::from(file), program: &self.program }, stream))
    }

    /// Starts the program to decompress a run.
    pub(crate) fn open(&self, run: Packed) -> Result<Unpacking> {
        let Packed { file, len, sum, .. } = run;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))
            .map_err(|e| Error::os("read", e.raw_os_error(), "a compressed run"))?;
        let mut command = Command::new(&self.program);
        let child = command.arg("-d").stdin(Stdio::from(file)).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| cannot_start(&self.program, &e))?;
        let Some(stdout) = child.stdout.take() else {
            return Err(Error::new(ErrorKind::System, "compress", "the program has no standard output"));
        };
        let output = File::from(OwnedFd::from(stdout));
        let program = self.program.clone();
        Ok(Unpacking { child, output, program, expected: (len, sum), hasher: Hasher::new(), read: 0 })
    }
}

fn cannot_start(program: &Path, e: &std::io::Error) -> Error {
    Error::io("execute the compress program", e, program.display().to_string())
}

fn ended_badly(program: &Path, decompressing: bool) -> Error {
    let option = if decompressing { " -d" } else { "" };
    Error::new(ErrorKind::System, "compress", format!("'{}{option}' terminated abnormally", program.display()))
}

impl Packing<'_> {
    /// Waits for the program. `written` is how writing to it went, with the bytes and their sum.
    pub(crate) fn finish(mut self, written: Result<(u64, u32)>, longest: usize) -> Result<Packed> {
        let status = self.child.wait().map_err(|e| Error::io("wait for", &e, self.program.display().to_string()))?;
        let (len, sum) = match written {
            // That nobody reads any more is the program's fault, and not that of whoever reads our output.
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) => return Err(ended_badly(self.program, false)),
            other => other?,
        };
        if !status.success() {
            return Err(ended_badly(self.program, false));
        }
        Ok(Packed { file: self.file, len, sum, longest })
    }
}

/// A run that is being decompressed.
#[derive(Debug)]
pub(crate) struct Unpacking {
    child: Child,
    output: File,
    program: PathBuf,
    expected: (u64, u32),
    hasher: Hasher,
    read: u64,
}

impl Unpacking {
    /// Reads what there is; at the end the program must have ended well, and all must have come that was written.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let name = || self.program.display().to_string();
        let len = crate::input::read_some(&mut self.output, buffer).map_err(|e| Error::io("read", &e, name()))?;
        self.hasher.update(&buffer[..len]);
        self.read += len as u64;
        if len == 0 && !buffer.is_empty() {
            let status = self.child.wait().map_err(|e| Error::io("wait for", &e, name()))?;
            if !status.success() {
                return Err(ended_badly(&self.program, true));
            }
            if (self.read, self.hasher.clone().finalize()) != self.expected {
                let (len, sum) = self.expected;
                let context = format!(
                    "'{} -d' gave {} bytes that are not the {len} with the sum {sum:08x} that were compressed",
                    self.program.display(),
                    self.read
                );
                return Err(Error::new(ErrorKind::Corrupt, "compress", context));
            }
        }
        Ok(len)
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        // It may still want to write what nobody reads any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
