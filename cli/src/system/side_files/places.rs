//! All that a command reads and writes, and the comparison of side files with it.

use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};
use rustix::fs::{Stat, fstat};
use rustix::stdio::{stderr, stdin, stdout};

use super::identity::{PlaceIdentity, is_in};
use crate::objects::is_object_path;
use crate::system::standard_streams::{INPUT, OUTPUT};

/// What a command reads or writes.
#[derive(Clone, Debug)]
enum Place {
    File(PathBuf),
    /// All files directly in a folder, also those that are still to be made.
    FilesOf(PathBuf),
    /// Another side file, with its option.
    Side(&'static str, PathBuf),
}

/// All that a command reads and writes. The standard streams belong to it always: where they are
/// files, no side file may replace those.
#[derive(Clone, Debug)]
pub(crate) struct CommandPlaces {
    command: &'static str,
    places: Vec<Place>,
}

impl CommandPlaces {
    /// Those of a command that reads and writes no files.
    pub(crate) fn of(command: &'static str) -> CommandPlaces {
        CommandPlaces { command, places: Vec::new() }
    }

    /// Adds files, there or not, by their names. Objects are no files.
    #[must_use]
    pub(crate) fn files<P: AsRef<Path>>(mut self, paths: impl IntoIterator<Item = P>) -> CommandPlaces {
        let files = paths.into_iter().filter(|path| !is_object_path(path.as_ref()));
        self.places.extend(files.map(|path| Place::File(path.as_ref().to_path_buf())));
        self
    }

    /// Adds all files directly in a folder, also those that are still to be made.
    #[must_use]
    pub(crate) fn files_of(mut self, folder: &Path) -> CommandPlaces {
        if !is_object_path(folder) {
            self.places.push(Place::FilesOf(folder.to_path_buf()));
        }
        self
    }

    /// Adds a side file that was taken.
    pub(super) fn add_side_file(&mut self, option: &'static str, path: &Path) {
        self.places.push(Place::Side(option, path.to_path_buf()));
    }

    pub(super) fn command(&self) -> &'static str {
        self.command
    }

    /// Refuses a side file that is one of the places. `descriptor` is the file behind a descriptor
    /// of this process, where the side file is one.
    pub(super) fn refuse(&self, option: &str, path: &Path, descriptor: Option<&Stat>) -> Result<()> {
        let identity = match descriptor {
            Some(stat) => PlaceIdentity::of_stored(stat),
            None => PlaceIdentity::of_path(path),
        };
        let refused = |why: String| {
            let error = Error::new(ErrorKind::InvalidInput, "write", format!("{option} {}: {why}", path.display()));
            Err(error.with_advice("name another file"))
        };
        if let Some(stream) = identity.as_ref().and_then(|it| standard_stream(it, descriptor.is_some())) {
            return refused(format!("this is the same file as the {stream}"));
        }
        for place in &self.places {
            match place {
                Place::FilesOf(folder) if descriptor.is_none() && is_in(folder, path) => {
                    return refused(format!("this is a file of {}, which the command works on", folder.display()));
                }
                Place::FilesOf(_) => {}
                Place::File(other) if is_same(identity.as_ref(), other) => {
                    return refused(format!("this is the same file as {}", other.display()));
                }
                // Two may be written to one descriptor, one after the other.
                Place::Side(other, at) if descriptor.is_none() && is_same(identity.as_ref(), at) => {
                    return refused(format!("this is the same file as {other}"));
                }
                Place::File(_) | Place::Side(..) => {}
            }
        }
        Ok(())
    }
}

fn is_same(identity: Option<&PlaceIdentity>, other: &Path) -> bool {
    identity.is_some_and(|identity| PlaceIdentity::of_path(other).as_ref() == Some(identity))
}

/// The standard stream that is this file. What is written to a descriptor comes in order behind
/// what the command itself writes to its standard output and standard error.
fn standard_stream(identity: &PlaceIdentity, is_descriptor: bool) -> Option<&'static str> {
    let is = |fd| fstat(fd).is_ok_and(|stat| PlaceIdentity::of_stored(&stat).as_ref() == Some(identity));
    match () {
        () if is(stdin()) => Some(INPUT),
        () if is_descriptor => None,
        () if is(stdout()) => Some(OUTPUT),
        () if is(stderr()) => Some("standard error"),
        () => None,
    }
}
