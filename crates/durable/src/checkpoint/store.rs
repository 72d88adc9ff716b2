//! A folder of checkpoints, or other places of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{Dram, Error, ErrorKind, FileMode, Machine, Result};
use serde::Serialize;

use super::manifest::Manifest;
use super::pieces::ProgressCallback;
use super::places::CheckpointPlaces;
use super::restore::Checkpoint;
use crate::dir_lock::{DirLock, MadeFolders, make_and_lock, sync_folder};

const PREFIX: &str = "checkpoint-";

/// A folder of checkpoints, or other places of them. Of a folder only its path is kept: it need not
/// exist before the first save.
#[derive(Clone)]
pub struct Checkpoints {
    machine: Machine,
    home: Home,
}

/// The place of the checkpoints.
#[derive(Clone)]
pub(crate) enum Home {
    Folder(PathBuf),
    Places(Arc<dyn CheckpointPlaces>),
}

/// A checkpoint in a list.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CheckpointEntry {
    /// The number of the checkpoint.
    pub number: u64,
    /// The path of its file.
    pub path: PathBuf,
    /// Its contents, or the reason why it is damaged. Only the end of the file was checked; regions
    /// are checked when they are read.
    pub state: Result<Manifest, String>,
}

/// The checkpoints that were removed because newer ones are kept.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    pub(crate) numbers: Vec<u64>,
    /// Why not all of them.
    pub(crate) error: Option<Error>,
}

impl Removal {
    fn into_result(self) -> Result<Vec<u64>> {
        match self.error {
            None => Ok(self.numbers),
            Some(error) => Err(error),
        }
    }
}

/// What to do if the newest checkpoint is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Return the error.
    #[default]
    Refuse,
    /// Restore the newest intact checkpoint, and report the damaged ones.
    Older,
}

/// The result of a restore.
#[derive(Debug)]
#[non_exhaustive]
pub struct RestoredCheckpoint {
    /// The number of the checkpoint.
    pub number: u64,
    /// Its regions, by name.
    pub regions: Vec<(String, Dram)>,
    /// Newer checkpoints that are damaged: their numbers, and the errors.
    pub skipped: Vec<(u64, String)>,
}

impl Checkpoints {
    /// Returns the checkpoints in the folder of this path.
    pub fn at(machine: &Machine, dir: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { machine: machine.clone(), home: Home::Folder(dir.into()) }
    }

    /// Returns the checkpoints in these places.
    pub fn over(machine: &Machine, places: Arc<dyn CheckpointPlaces>) -> Checkpoints {
        Checkpoints { machine: machine.clone(), home: Home::Places(places) }
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if its end is missing or damaged.
    pub fn open(&self, number: u64) -> Result<Checkpoint> {
        let path = self.path(number);
        let checkpoint = match &self.home {
            Home::Folder(_) => Checkpoint::open(&self.machine, &path)?,
            Home::Places(places) => Checkpoint::of(&self.machine, &path, places.open(number)?)?,
        };
        if checkpoint.manifest().number != number {
            let why =
                format!("checkpoint {}: its manifest has the number {}", path.display(), checkpoint.manifest().number);
            return Err(Error::new(ErrorKind::Corrupt, "open", why).with_advice("the file was renamed"));
        }
        Ok(checkpoint)
    }

    /// Opens the newest checkpoint.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Corrupt` if the newest is damaged: it is not skipped silently.
    pub fn latest(&self) -> Result<Checkpoint> {
        loop {
            let Some(number) = self.numbers()?.pop() else { return Err(self.none()) };
            match self.open(number) {
                Err(e) if self.is_gone(number, &e)? => {}
                other => return other,
            }
        }
    }

    /// Whether a checkpoint could not be opened because a save of a newer one removed it meanwhile.
    fn is_gone(&self, number: u64, e: &Error) -> Result<bool> {
        Ok(e.kind() == ErrorKind::NotFound && !self.numbers()?.contains(&number))
    }

    /// Restores the newest checkpoint into new memory. If it is damaged and `fallback` allows it,
    /// restores the newest intact one.
    ///
    /// # Errors
    /// Those of [`Checkpoint::restore`] and [`latest`](Self::latest); `Corrupt` if none is intact.
    pub fn restore_latest(&self, fallback: Fallback, watch: ProgressCallback<'_>) -> Result<RestoredCheckpoint> {
        let mut skipped: Vec<(u64, String)> = Vec::new();
        let mut numbers = self.numbers()?;
        while let Some(number) = numbers.pop() {
            match self.open(number).and_then(|checkpoint| checkpoint.restore(watch)) {
                Ok(regions) => return Ok(RestoredCheckpoint { number, regions, skipped }),
                Err(e) if self.is_gone(number, &e)? => {
                    // There is a newer one by now.
                    numbers = self.numbers()?;
                    skipped.clear();
                }
                Err(e) if fallback == Fallback::Older && matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Device) => {
                    skipped.push((number, e.to_string()));
                }
                Err(e) => return Err(e),
            }
        }
        if skipped.is_empty() {
            return Err(self.none());
        }
        let whys: Vec<String> = skipped.into_iter().map(|(_, why)| why).collect();
        Err(Error::new(ErrorKind::Corrupt, "restore", format!("no checkpoint is intact: {}", whys.join("; "))))
    }

    /// Lists all checkpoints, the oldest first, damaged ones included.
    ///
    /// # Errors
    /// Errors of reading the folder.
    pub fn list(&self) -> Result<Vec<CheckpointEntry>> {
        let mut all = Vec::new();
        for number in self.numbers()? {
            let state = match self.open(number) {
                Err(e) if self.is_gone(number, &e)? => continue,
                other => other.map(|c| c.manifest().clone()).map_err(|e| e.to_string()),
            };
            all.push(CheckpointEntry { number, path: self.path(number), state });
        }
        Ok(all)
    }

    /// Removes all checkpoints that are older than the newest `keep` intact ones. Returns their
    /// numbers.
    ///
    /// # Errors
    /// `Busy` while a save to the folder runs; errors of removing.
    pub fn keep_last(&self, keep: usize) -> Result<Vec<u64>> {
        match &self.home {
            Home::Folder(dir) => self.keep_last_locked(keep, dir, &self.sole(dir)?.1),
            Home::Places(places) => self.keep_last_in(keep, &**places),
        }
        .into_result()
    }

    pub(crate) fn keep_last_locked(&self, keep: usize, dir: &Path, sole: &DirLock) -> Removal {
        let mut removal = self.keep_last_by(keep, |listed| sole.remove(&listed.path));
        if !removal.numbers.is_empty()
            && let Err(error) = sync_folder(dir)
        {
            removal.error.get_or_insert(error);
        }
        removal
    }

    pub(crate) fn keep_last_in(&self, keep: usize, places: &dyn CheckpointPlaces) -> Removal {
        self.keep_last_by(keep, |listed| places.remove(listed.number))
    }

    fn keep_last_by(&self, keep: usize, remove: impl Fn(&CheckpointEntry) -> Result<()>) -> Removal {
        let mut removal = Removal::default();
        let listed = match self.list() {
            Ok(listed) => listed,
            Err(error) => return Removal { error: Some(error), ..removal },
        };
        // A damaged checkpoint does not count: it must not displace an intact one.
        let mut kept = 0;
        for listed in listed.into_iter().rev() {
            if kept >= keep {
                if let Err(error) = remove(&listed) {
                    removal.error = Some(error);
                    break;
                }
                removal.numbers.push(listed.number);
            } else if listed.state.is_ok() {
                kept += 1;
            }
        }
        removal
    }

    /// Locks the folder, which is made if there is none. What was made is removed before others may
    /// lock it, unless something was written there.
    pub(crate) fn sole(&self, dir: &Path) -> Result<(MadeFolders, DirLock)> {
        make_and_lock(dir)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The path of a checkpoint's file, or what its place is called.
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        match &self.home {
            Home::Folder(dir) => dir.join(checkpoint_name(number)),
            Home::Places(places) => places.name_of(number),
        }
    }

    /// What messages call all of them.
    fn name(&self) -> &Path {
        match &self.home {
            Home::Folder(dir) => dir,
            Home::Places(places) => places.name(),
        }
    }

    pub(crate) fn next_number(&self) -> Result<u64> {
        let Some(last) = self.numbers()?.pop() else { return Ok(1) };
        last.checked_add(1).ok_or_else(|| {
            let why = format!("{}: no number comes after {last}", self.name().display());
            Error::new(ErrorKind::OutOfRange, "save", why).with_advice("remove or rename that checkpoint")
        })
    }

    /// The permissions of the newest checkpoint's file, if there is one.
    pub(crate) fn mode_of_newest(&self) -> Result<Option<FileMode>> {
        let Some(newest) = self.numbers()?.pop() else { return Ok(None) };
        self.mode(newest).map(Some)
    }

    /// Returns the permissions of a checkpoint's file; data restored from it should be no less
    /// private. Places that are no files have the usual ones.
    ///
    /// # Errors
    /// `NotFound`; errors of `stat`.
    pub fn mode(&self, number: u64) -> Result<FileMode> {
        use std::os::unix::fs::PermissionsExt;
        if matches!(self.home, Home::Places(_)) {
            return Ok(FileMode::USUAL);
        }
        let path = self.path(number);
        let meta = std::fs::metadata(&path).map_err(|e| Error::io("look at", e, path.display().to_string()))?;
        Ok(FileMode::like(meta.permissions().mode()))
    }

    /// The numbers of those that are there, ascending.
    fn numbers(&self) -> Result<Vec<u64>> {
        let dir = match &self.home {
            Home::Folder(dir) => dir,
            Home::Places(places) => return places.numbers(),
        };
        let fail = |e: std::io::Error| Error::io("list", e, dir.display().to_string());
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(fail)? {
            numbers.extend(number_of(&entry.map_err(fail)?.path()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn none(&self) -> Error {
        Error::new(ErrorKind::NotFound, "restore", format!("{} holds no checkpoint", self.name().display()))
    }
}

fn number_of(path: &Path) -> Option<u64> {
    checkpoint_number(path.file_name()?.to_str()?)
}

/// The name of the checkpoint with this number, as a file or as another place.
pub fn checkpoint_name(number: u64) -> String {
    format!("{PREFIX}{number:020}")
}

/// The number of a checkpoint of this name, if it is one.
pub fn checkpoint_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    if digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}
