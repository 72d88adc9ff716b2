//! What was changed, kept so that anybody can take it back: `run/datapipes/knobs.json` under the
//! root. `/run` is in memory: what a restart of the machine resets needs no journal.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use datapipes_core::file_lock::FileLock;
use datapipes_core::{AtomicFile, Error, ErrorKind, FileMode, Result};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::tree::MachineTree;
use crate::write::SettingWrite;

const FOLDER: &str = "run/datapipes";
const NAME: &str = "knobs.json";
const OPERATION: &str = "set knobs";
const VERSION: u32 = 2;
/// How long a guard may take to restore before it counts as a transaction that lasts.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// The time between two looks at whether the turn is free.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The longest journal that is read.
const MAX_JOURNAL: u64 = 16 << 20;
/// The right to write that only the owner may have.
const WRITE_OF_OTHERS: u32 = 0o022;

/// The changes of a transaction, in the order in which they are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    version: u32,
    /// Which transaction it is.
    pub(crate) id: String,
    /// Whether every change was made, and none was taken back. Otherwise a setting may have any
    /// value, and gets its old one; with it, what somebody else set can be told from what was
    /// set here.
    pub(crate) is_settled: bool,
    pub(crate) writes: Vec<SettingWrite>,
}

/// Where the journal is, for messages.
pub(crate) fn path(tree: &MachineTree) -> PathBuf {
    tree.path(FOLDER).join(NAME)
}

impl Journal {
    pub(crate) fn new(id: String, writes: Vec<SettingWrite>) -> Journal {
        Journal { version: VERSION, id, is_settled: false, writes }
    }

    /// Keeps the journal, before what it tells becomes true. It is there as a whole or not at all.
    pub(crate) fn keep(&self, tree: &MachineTree) -> Result<()> {
        let path = path(tree);
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
        let path = path(tree);
        let failed = |error: io::Error| Err(Error::io(OPERATION, error, path.display().to_string()));
        let Some(folder) = open_folder(tree)? else { return Ok(None) };
        // A named pipe in its place is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&folder, NAME, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP) => return corrupt(&path, "it is a link", BY_HAND),
            Err(error) => return failed(error.into()),
            Ok(file) => File::from(file),
        };
        let kind = match file.metadata() {
            Ok(facts) => facts.file_type(),
            Err(error) => return failed(error),
        };
        if kind.is_dir() {
            return corrupt(&path, "it is a folder", "look at it, and remove the folder (rmdir)");
        }
        if !kind.is_file() {
            return corrupt(&path, "it is no regular file", BY_HAND);
        }
        let mut text = String::new();
        if let Err(error) = file.take(MAX_JOURNAL + 1).read_to_string(&mut text) {
            return match error.kind() {
                io::ErrorKind::InvalidData => corrupt(&path, "it is no text", BY_HAND),
                _ => failed(error),
            };
        }
        if text.len() as u64 > MAX_JOURNAL {
            return corrupt(&path, &format!("it is longer than {} MiB", MAX_JOURNAL >> 20), BY_HAND);
        }
        let journal = match serde_json::from_str::<Journal>(&text) {
            Ok(journal) if journal.version == VERSION => journal,
            Ok(journal) => return corrupt(&path, &format!("its version is {}", journal.version), BY_HAND),
            Err(error) => return corrupt(&path, &error.to_string(), BY_HAND),
        };
        match journal.writes.iter().try_for_each(SettingWrite::check) {
            Ok(()) => Ok(Some(journal)),
            Err(why) => corrupt(&path, &why, BY_HAND),
        }
    }

    /// Forgets the journal of this transaction: what it names is restored, or stays.
    pub(crate) fn forget(&self, tree: &MachineTree) -> Result<()> {
        match Journal::find(tree)? {
            Some(journal) if journal.id == self.id => remove(tree),
            // Somebody removed it.
            _ => Ok(()),
        }
    }
}

/// Removes whatever file is in the journal's place. The caller has the turn.
pub(crate) fn remove(tree: &MachineTree) -> Result<()> {
    let path = path(tree);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(OPERATION, error, path.display().to_string()))
        }
        _ => Ok(()),
    }
}

const BY_HAND: &str = "look at it and restore by hand what it names; `dpipe knobs restore --forget` removes it";

fn corrupt<T>(path: &Path, why: &str, advice: &str) -> Result<T> {
    let context = format!("{}: no journal of knobs: {why}", path.display());
    Err(Error::new(ErrorKind::Corrupt, OPERATION, context).with_advice(advice))
}

/// The right to change settings: one transaction at a time has it. The kernel takes it back from a
/// process that dies.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: FileLock,
}

impl Turn {
    /// Takes the turn. A guard that is restoring has it for a short time, which is waited for.
    ///
    /// # Errors
    /// `Busy` where another process has it.
    pub(crate) fn take_or_refuse(tree: &MachineTree, operation: &'static str) -> Result<Turn> {
        let until = Instant::now() + MAX_WAIT;
        loop {
            if let Some(turn) = Turn::take(tree)? {
                return Ok(turn);
            }
            if Instant::now() >= until {
                let error = Error::new(ErrorKind::Busy, operation, "another transaction lasts");
                let advice = "wait for its end; settings are restored in the order in which they were set";
                return Err(error.with_advice(advice));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Takes the turn, or returns `None` where another process has it.
    pub(crate) fn take(tree: &MachineTree) -> Result<Option<Turn>> {
        let folder = make_folder(tree)?;
        match FileLock::take(folder) {
            Ok(lock) => Ok(Some(Turn { _lock: lock })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(e)) => {
                Err(Error::io(OPERATION, e, tree.path(FOLDER).display().to_string()))
            }
        }
    }
}

/// Returns the folder of the journal. If it is not there, it is made; only its owner may look into
/// it then.
fn make_folder(tree: &MachineTree) -> Result<File> {
    let path = tree.path(FOLDER);
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&path) {
        let error = Error::io(OPERATION, error, path.display().to_string());
        return Err(error.with_advice("a transaction keeps a journal there: run it as root"));
    }
    open_folder(tree)?
        .ok_or_else(|| Error::new(ErrorKind::Busy, OPERATION, format!("{} was removed meanwhile", path.display())))
}

/// Opens the folder of the journal, if there is one. Whoever else may write there could have any
/// setting restored to any value.
fn open_folder(tree: &MachineTree) -> Result<Option<File>> {
    let path = tree.path(FOLDER);
    let failed = |error: io::Error| Error::io(OPERATION, error, path.display().to_string());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(&path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
        Ok(folder) => File::from(folder),
    };
    let facts = folder.metadata().map_err(failed)?;
    let owner = facts.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        let context = format!("{} belongs to user {owner}", path.display());
        let error = Error::new(ErrorKind::PermissionDenied, OPERATION, context);
        return Err(error.with_advice("it must belong to root or to who sets knobs: remove it"));
    }
    if facts.mode() & WRITE_OF_OTHERS != 0 {
        let context = format!("others may write into {}", path.display());
        let error = Error::new(ErrorKind::PermissionDenied, OPERATION, context);
        return Err(error.with_advice(format!("chmod go-w {}", path.display())));
    }
    Ok(Some(folder))
}
