//! A side file that may be written.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::locator::{PathEnd, path_end};
use datapipes::{AtomicFile, FileMode, Result};

use super::places::CommandPlaces;
use super::stream::Stream;
use crate::system::files::publish;

/// A file beside the work of a command, which is none of the command's places.
#[derive(Debug)]
pub(crate) struct SideFile {
    option: &'static str,
    path: PathBuf,
    /// The descriptor of this process that the path names.
    descriptor: Option<Stream>,
    places: Arc<CommandPlaces>,
    sync: bool,
}

/// One that is being written: it gets its name when it is complete.
#[derive(Debug)]
pub(crate) struct SideDraft {
    side: SideFile,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Draft(AtomicFile),
    Stream(Stream),
    Descriptor,
}

impl SideFile {
    pub(super) fn new(option: &'static str, path: &Path, places: Arc<CommandPlaces>, sync: bool) -> Result<SideFile> {
        let descriptor = match path_end(path) {
            Ok(PathEnd::Descriptor { name }) => Stream::of_own_descriptor(path, &name)?,
            // What cannot be looked at says why when it is opened.
            Ok(PathEnd::Name { .. }) | Err(_) => None,
        };
        let side = SideFile { option, path: path.to_path_buf(), descriptor, places, sync };
        side.check()?;
        Ok(side)
    }

    /// The path that was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name; a descriptor has none.
    pub(crate) fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name().filter(|_| self.descriptor.is_none())
    }

    /// Writes a text: a file as a whole or not at all, and a stream in order.
    pub(crate) fn write_text(&self, text: &str) -> Result<()> {
        self.put(self.open()?, text.as_bytes())
    }

    /// Makes sure that it can be written, before the work that it is about.
    pub(crate) fn begin(self) -> Result<SideDraft> {
        let target = self.open()?;
        Ok(SideDraft { side: self, target })
    }

    /// What was apart when the command began may be one file now.
    fn check(&self) -> Result<()> {
        let stat = self.descriptor.as_ref().map(Stream::stat).transpose()?;
        self.places.refuse(self.option, &self.path, stat.as_ref())
    }

    fn open(&self) -> Result<Target> {
        if self.descriptor.is_some() {
            return Ok(Target::Descriptor);
        }
        self.check()?;
        Ok(match Stream::open(&self.path)? {
            Some(stream) => Target::Stream(stream),
            None => {
                let draft = AtomicFile::replacing(&self.path, FileMode::USUAL)?;
                Target::Draft(if self.sync { draft } else { draft.without_sync() })
            }
        })
    }

    fn put(&self, target: Target, bytes: &[u8]) -> Result<()> {
        match target {
            Target::Draft(draft) => {
                draft.write(bytes)?;
                self.check()?;
                publish(draft, bytes.len() as u64).map(|_| ())
            }
            Target::Stream(stream) => stream.write(bytes),
            Target::Descriptor => self.descriptor.as_ref().map_or(Ok(()), |stream| stream.write(bytes)),
        }
    }
}

impl SideDraft {
    /// The path that was given.
    pub(crate) fn path(&self) -> &Path {
        self.side.path()
    }

    /// Writes all of it.
    pub(crate) fn write_text(self, text: &str) -> Result<()> {
        self.side.put(self.target, text.as_bytes())
    }
}
