//! An open output: a file that is renamed or written in place, a place that is published, or a
//! stream.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, FileMode, OutputFile, Pipe, PublishOutcome, Result};
use rustix::fs::FileType;

use crate::input::Input;
use crate::memory::blocks::{OrderedStream, Target};
use crate::place::OutputPlace;
use crate::report::{MovementRole, Movements, OutputReport};
use crate::runs::spill::SpillFiles;

/// The target of the sorted records.
pub(crate) enum Sink<'a> {
    File {
        file: OutputFile,
        pipe: Box<Pipe>,
    },
    /// So many bytes of memory.
    Memory {
        len: u64,
        pipe: Box<Pipe>,
    },
    Place {
        place: Arc<dyn OutputPlace>,
        pipe: Box<Pipe>,
    },
    Stream(OrderedStream<'a>),
}

impl<'a> Sink<'a> {
    pub(crate) fn target(&'a self) -> Target<'a> {
        match self {
            Sink::File { pipe, .. } | Sink::Memory { pipe, .. } => Target::File { pipe, padded: true },
            // A part that was sent cannot be cut.
            Sink::Place { pipe, .. } => Target::File { pipe, padded: false },
            Sink::Stream(stream) => Target::Stream(stream),
        }
    }

    /// Prepares the output. It is called once, before the first byte is written and after the last
    /// byte of the inputs is read or staged. It reserves room if the number of bytes is known, and
    /// discards the old bytes of a file that is written in place.
    pub(crate) fn begin(&self, bytes: Option<u64>) -> Result<()> {
        match self {
            Sink::File { file, .. } => file.begin(bytes),
            Sink::Memory { len, .. } => fits_memory(bytes.unwrap_or(0), *len),
            Sink::Stream(_) | Sink::Place { .. } => Ok(()),
        }
    }

    /// Whether bytes written to this output may overwrite bytes of `input` that are still to be
    /// read. It does not recognize all names of a file that is written in place: through another
    /// file system (FUSE, an overlay) the file has other numbers, and a block device may lie in it.
    pub(crate) fn may_overwrite(&self, input: &Input) -> Result<bool> {
        // Leases keep memory that is read from being written to.
        // What is published replaces a place at the end, and an input is read at one version.
        let apart = matches!(input, Input::Memory { .. } | Input::Place(_));
        if apart || matches!(self, Sink::Memory { .. } | Sink::Place { .. }) {
            return Ok(false);
        }
        let fail = |e: rustix::io::Errno| Error::os("look at", e.raw_os_error(), input.name().display().to_string());
        let read = input.stat().map_err(fail)?;
        let type_of = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode);
        let holds_bytes = matches!(type_of(&read), FileType::RegularFile | FileType::BlockDevice);
        Ok(holds_bytes
            && match self {
                Sink::File { file, .. } => file.in_place().is_some(),
                Sink::Memory { .. } | Sink::Place { .. } => false,
                Sink::Stream(stream) => {
                    let written = stream.stat().map_err(fail)?;
                    let is_same = (written.st_dev, written.st_ino) == (read.st_dev, read.st_ino);
                    let len = u64::try_from(written.st_size).unwrap_or(0);
                    type_of(&written) == FileType::RegularFile && (is_same || stream.overwrites(len).map_err(fail)?)
                }
            })
    }

    /// A path on the device that the output needs room on, and the bytes that the output has there
    /// already.
    pub(crate) fn room(&self) -> Result<Option<(PathBuf, u64)>> {
        match self {
            Sink::File { file, .. } => file.room().map(Some),
            Sink::Memory { .. } | Sink::Stream(_) | Sink::Place { .. } => Ok(None),
        }
    }

    /// Adds to an error what it means for the output.
    pub(crate) fn explain(&self, e: Error) -> Error {
        match self {
            Sink::File { file, .. } => explain(file, e),
            Sink::Memory { .. } | Sink::Stream(_) | Sink::Place { .. } => e,
        }
    }

    /// Publishes the output when all bytes are written. A file is cut to its length, synced and
    /// given its name.
    pub(crate) fn publish(
        self,
        bytes: u64,
        movements: &Movements,
        keeper: Option<&SpillFiles>,
    ) -> Result<OutputReport> {
        match self {
            Sink::File { file, pipe } => {
                movements.keep(MovementRole::Output, *pipe);
                publish_file(file, bytes, keeper)
            }
            Sink::Memory { pipe, .. } => {
                movements.keep(MovementRole::Output, *pipe);
                Ok(OutputReport::by("memory"))
            }
            Sink::Place { place, pipe } => {
                movements.keep(MovementRole::Output, *pipe);
                place.publish(bytes)?;
                Ok(OutputReport::by("published"))
            }
            Sink::Stream(_) => Ok(OutputReport::by("stream")),
        }
    }
}

/// Opens the file of an output.
pub(crate) fn open_file(path: &Path, sync: bool) -> Result<OutputFile> {
    let file = OutputFile::open(path, FileMode::USUAL)?;
    Ok(if sync { file } else { file.without_sync() })
}

/// Returns an error if so many bytes do not fit an output in memory.
fn fits_memory(bytes: u64, len: u64) -> Result<()> {
    if bytes <= len {
        return Ok(());
    }
    let context = format!("{bytes} bytes of records into {len} bytes of memory");
    Err(Error::new(ErrorKind::NoSpace, "sort", context).with_advice("give the output more memory"))
}

/// Adds to an error what it means for an output file.
pub(crate) fn explain(file: &OutputFile, e: Error) -> Error {
    match file {
        OutputFile::InPlace(file) if file.has_begun() => e.within(format!(
            "{} was being written in place, because {}, and is incomplete",
            file.ssd().path().display(),
            file.reason()
        )),
        OutputFile::InPlace(_) | OutputFile::Draft(_) => e,
    }
}

/// Gives a file of so many bytes its name, and says how. A large file that it replaces is left to
/// the keeper.
pub(crate) fn publish_file(file: OutputFile, bytes: u64, keeper: Option<&SpillFiles>) -> Result<OutputReport> {
    let synced = file.is_synced();
    let old = keeper.zip(file.replaced().and_then(SpillFiles::worth_leaving));
    let (way, why) = match file.publish(bytes)? {
        PublishOutcome::New => ("new", None),
        PublishOutcome::Replaced => ("replaced", None),
        PublishOutcome::InPlace(reason) => ("in-place", Some(reason.to_string())),
    };
    let left_bytes = match old.filter(|_| way == "replaced") {
        Some((keeper, (file, bytes))) => {
            keeper.leave(file);
            bytes
        }
        None => 0,
    };
    Ok(OutputReport { way, why, synced, left_bytes })
}
