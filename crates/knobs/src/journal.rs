//! What was changed, kept so that anybody can take it back: `run/datapipes/knobs.json` under the
//! root. `/run` is in memory: what a restart of the machine resets needs no journal.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use datapipes_core::file_lock::FileLock;
use datapipes_core::{AtomicFile, Error, ErrorKind, FileMode, Result};
use serde::{Deserialize, Serialize};

use crate::tree::MachineTree;
use crate::write::SettingWrite;

const FOLDER: &str = "run/datapipes";
const FILE: &str = "run/datapipes/knobs.json";
const OPERATION: &str = "set knobs";
const VERSION: u32 = 1;
/// The longest journal that is read.
const MAX_JOURNAL: u64 = 16 << 20;

/// The changes of a transaction, in the order in which they are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    version: u32,
    /// Which transaction it is.
    pub(crate) id: String,
    pub(crate) writes: Vec<SettingWrite>,
}

impl Journal {
    pub(crate) fn new(id: String, writes: Vec<SettingWrite>) -> Journal {
        Journal { version: VERSION, id, writes }
    }

    /// Keeps the journal before the first change is made. It is there as a whole or not at all.
    pub(crate) fn keep(&self, tree: &MachineTree) -> Result<()> {
        let path = tree.path(FILE);
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(ErrorKind::System, OPERATION, format!("{}: {e}", path.display())))?;
        let file = AtomicFile::create_with(&path, FileMode::like(0o600))?;
        file.write(text.as_bytes())?;
        file.publish(text.len() as u64)?;
        Ok(())
    }

    /// Returns the journal that is there.
    ///
    /// # Errors
    /// `Corrupt` where it is not one of this library; errors of reading.
    pub(crate) fn find(tree: &MachineTree) -> Result<Option<Journal>> {
        let path = tree.path(FILE);
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(MAX_JOURNAL).read_to_string(&mut text)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(OPERATION, error, path.display().to_string())),
            Ok(_) => {}
        }
        let advice = "look at it, restore by hand what it names, and remove it";
        let corrupt = |why: String| {
            let context = format!("{}: no journal of knobs: {why}", path.display());
            Err(Error::new(ErrorKind::Corrupt, OPERATION, context).with_advice(advice))
        };
        match serde_json::from_str::<Journal>(&text) {
            Ok(journal) if journal.version == VERSION => Ok(Some(journal)),
            Ok(journal) => corrupt(format!("its version is {}", journal.version)),
            Err(error) => corrupt(error.to_string()),
        }
    }

    /// Forgets the journal: what it names is restored, or stays.
    pub(crate) fn forget(tree: &MachineTree) -> Result<()> {
        let path = tree.path(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(OPERATION, error, path.display().to_string()))
            }
            _ => Ok(()),
        }
    }
}

/// The right to change settings: one transaction at a time has it. The kernel takes it back from a
/// process that dies.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: FileLock,
}

impl Turn {
    /// Takes the turn, or returns `None` where another process has it.
    pub(crate) fn take(tree: &MachineTree) -> Result<Option<Turn>> {
        let path = folder(tree)?;
        let file = File::open(&path).map_err(|e| Error::io(OPERATION, e, path.display().to_string()))?;
        match FileLock::take(file) {
            Ok(lock) => Ok(Some(Turn { _lock: lock })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(e)) => Err(Error::io(OPERATION, e, path.display().to_string())),
        }
    }
}

/// Returns the folder of the journal, which only its owner may look into.
fn folder(tree: &MachineTree) -> Result<PathBuf> {
    let path = tree.path(FOLDER);
    match DirBuilder::new().recursive(true).mode(0o700).create(&path) {
        Ok(()) => Ok(path),
        Err(error) => {
            let error = Error::io(OPERATION, error, path.display().to_string());
            Err(error.with_advice("a transaction keeps a journal there: run it as root"))
        }
    }
}
