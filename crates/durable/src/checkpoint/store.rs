//! A folder of checkpoints.

use std::path::{Path, PathBuf};

use datapipes_core::{Dram, Error, ErrorKind, FileMode, Machine, Result};
use serde::Serialize;

use super::manifest::Manifest;
use super::pieces::ProgressCallback;
use super::restore::Checkpoint;
use crate::dir_lock::{DirLock, make_folder, sync_folder};

const PREFIX: &str = "checkpoint-";

/// A folder of checkpoints. Only its path is kept: the folder need not exist before the first save.
#[derive(Clone)]
pub struct Checkpoints {
    machine: Machine,
    dir: PathBuf,
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
        Checkpoints { machine: machine.clone(), dir: dir.into() }
    }

    /// Opens a checkpoint.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if its end is missing or damaged.
    pub fn open(&self, number: u64) -> Result<Checkpoint> {
        let path = self.path(number);
        let checkpoint = Checkpoint::open(&self.machine, &path)?;
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
    /// `Busy` while a save runs; errors of removing.
    pub fn keep_last(&self, keep: usize) -> Result<Vec<u64>> {
        self.keep_last_locked(keep, &self.sole()?)
    }

    pub(crate) fn keep_last_locked(&self, keep: usize, sole: &DirLock) -> Result<Vec<u64>> {
        // A damaged checkpoint does not count: it must not displace an intact one.
        let mut kept = 0;
        let mut removed = Vec::new();
        for listed in self.list()?.into_iter().rev() {
            if kept >= keep {
                sole.remove(&listed.path)?;
                removed.push(listed.number);
            } else if listed.state.is_ok() {
                kept += 1;
            }
        }
        if !removed.is_empty() {
            sync_folder(&self.dir)?;
        }
        Ok(removed)
    }

    pub(crate) fn sole(&self) -> Result<DirLock> {
        make_folder(&self.dir)?;
        DirLock::of(&self.dir)
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{number:020}"))
    }

    pub(crate) fn next_number(&self) -> Result<u64> {
        let Some(last) = self.numbers()?.pop() else { return Ok(1) };
        last.checked_add(1).ok_or_else(|| {
            let why = format!("{}: no number comes after {last}", self.dir.display());
            Error::new(ErrorKind::OutOfRange, "save", why).with_advice("remove or rename that file")
        })
    }

    /// The permissions of the newest checkpoint's file, if there is one.
    pub(crate) fn mode_of_newest(&self) -> Result<Option<FileMode>> {
        let Some(newest) = self.numbers()?.pop() else { return Ok(None) };
        self.mode(newest).map(Some)
    }

    /// Returns the permissions of a checkpoint's file; data restored from it should be no less
    /// private.
    ///
    /// # Errors
    /// `NotFound`; errors of `stat`.
    pub fn mode(&self, number: u64) -> Result<FileMode> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(number);
        let meta = std::fs::metadata(&path).map_err(|e| Error::io("look at", e, path.display().to_string()))?;
        Ok(FileMode::like(meta.permissions().mode()))
    }

    /// The numbers of the files in the folder, ascending.
    fn numbers(&self) -> Result<Vec<u64>> {
        let fail = |e: std::io::Error| Error::io("list", e, self.dir.display().to_string());
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(fail)? {
            numbers.extend(number_of(&entry.map_err(fail)?.path()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn none(&self) -> Error {
        Error::new(ErrorKind::NotFound, "restore", format!("{} holds no checkpoint", self.dir.display()))
    }
}

fn number_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    if digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}
