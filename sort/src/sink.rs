//! An output that was opened: a file, by rename or in place, or a stream.

use std::path::PathBuf;

use datapipes_core::{Error, OutputFile, Pipe, PublishOutcome, Result};
use rustix::fs::FileType;

use crate::input::Input;
use crate::memory::blocks::{OrderedStream, Target};
use crate::report::{MovementRole, Movements, OutputReport};

/// Where the sorted records go.
pub(crate) enum Sink<'a> {
    File { file: OutputFile, pipe: Box<Pipe> },
    Stream(OrderedStream<'a>),
}

impl<'a> Sink<'a> {
    pub(crate) fn target(&'a self) -> Target<'a> {
        match self {
            Sink::File { pipe, .. } => Target::File { pipe },
            Sink::Stream(stream) => Target::Stream(stream),
        }
    }

    /// Called once, before the first byte is written and after the last one of the inputs is read
    /// or staged. Reserves room where the number of bytes is known; the old bytes of a file that is
    /// written in place end here.
    pub(crate) fn begin(&self, bytes: Option<u64>) -> Result<()> {
        match self {
            Sink::File { file, .. } => file.begin(bytes),
            Sink::Stream(_) => Ok(()),
        }
    }

    /// Whether what is written here may overwrite what is still to be read there. Two names of a
    /// file that is written in place are not always known for that: seen through another file
    /// system (FUSE, an overlay) it has other numbers, and a block device may lie in it.
    pub(crate) fn may_overwrite(&self, input: &Input) -> Result<bool> {
        let fail = |e: rustix::io::Errno| Error::os("look at", e.raw_os_error(), input.name().display().to_string());
        let read = input.stat().map_err(fail)?;
        let type_of = |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode);
        let holds_bytes = matches!(type_of(&read), FileType::RegularFile | FileType::BlockDevice);
        Ok(holds_bytes
            && match self {
                Sink::File { file, .. } => file.in_place().is_some(),
                Sink::Stream(stream) => {
                    let written = stream.stat().map_err(fail)?;
                    let is_same = (written.st_dev, written.st_ino) == (read.st_dev, read.st_ino);
                    let len = u64::try_from(written.st_size).unwrap_or(0);
                    type_of(&written) == FileType::RegularFile && (is_same || stream.overwrites(len).map_err(fail)?)
                }
            })
    }

    /// A path on whose device it needs room, and the bytes that it has there already.
    pub(crate) fn room(&self) -> Result<Option<(PathBuf, u64)>> {
        match self {
            Sink::File { file, .. } => file.room().map(Some),
            Sink::Stream(_) => Ok(None),
        }
    }

    /// What went wrong, and what that means for the output.
    pub(crate) fn explain(&self, e: Error) -> Error {
        match self {
            Sink::File { file: OutputFile::InPlace(file), .. } if file.has_begun() => e.within(format!(
                "{} was being written in place, because {}, and is incomplete",
                file.ssd().path().display(),
                file.reason()
            )),
            Sink::File { .. } | Sink::Stream(_) => e,
        }
    }

    /// All is written: the output is cut to its length, synced and given its name, where it is a
    /// file.
    pub(crate) fn publish(self, bytes: u64, movements: &Movements) -> Result<OutputReport> {
        let Sink::File { file, pipe } = self else { return Ok(OutputReport { way: "stream", why: None }) };
        movements.keep(MovementRole::Output, *pipe);
        Ok(match file.publish(bytes)? {
            PublishOutcome::New => OutputReport { way: "new", why: None },
            PublishOutcome::Replaced => OutputReport { way: "replaced", why: None },
            PublishOutcome::InPlace(reason) => OutputReport { way: "in-place", why: Some(reason.to_string()) },
        })
    }
}
