//! Restoring what a journal names.
//!
//! ```text
//! settled    a setting that is neither old nor new was changed by somebody else: it leaves the journal
//! unsettled  the journal says so from here on: a crash in the middle leaves settings of any value
//! old        in reverse; one that is gone, as a disk that was removed, is told
//! again      the kernel may change one setting with another: all are read until all are old
//! forget     the journal goes last; what the kernel refused stays in it
//! ```

use std::io;

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::journal::{self, Journal, Turn};
use crate::step::{Tell, TransactionStep};
use crate::thread_group::lock_resctrl;
use crate::tree::MachineTree;
use crate::write::{SettingWrite, TakenBack};

const OPERATION: &str = "restore knobs";
/// How often all settings are read again because one of them changed with another.
const MAX_ROUNDS: usize = 4;
const ADVICE: &str =
    "`dpipe knobs restore` tries again; `dpipe knobs restore --forget` gives up what cannot be restored";

/// What became of the settings of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoredKnobs {
    /// The settings that have their old value again.
    pub restored: Vec<String>,
    /// Those that somebody changed meanwhile, and that stay, in words.
    pub left: Vec<String>,
    /// Those that are not there any more, as of a disk that was removed, in words.
    pub gone: Vec<String>,
    /// Those that could not be restored and were given up ([`forget_left_over`]), in words.
    pub forgotten: Vec<String>,
}

/// Returns the settings that a journal names: those of a transaction that lasts, or of one whose
/// processes were killed. `None` where there is no journal.
///
/// # Errors
/// `Corrupt` where it is no journal of this library; errors of reading it.
pub fn journaled(tree: &MachineTree) -> Result<Option<Vec<String>>> {
    let journal = Journal::find(tree)?;
    Ok(journal.map(|journal| {
        let mut names: Vec<String> = journal.writes.iter().map(|write| write.name().to_owned()).collect();
        // One for each core.
        names.dedup();
        names
    }))
}

/// Restores what a transaction left whose process and guard were killed. `None` if nothing is left
/// over.
///
/// # Errors
/// `Busy` while a transaction lasts. The first refusal of the kernel, after all others were tried.
pub fn restore_left_over(tree: &MachineTree, tell: Tell<'_>) -> Result<Option<RestoredKnobs>> {
    if Journal::find(tree)?.is_none() {
        return Ok(None);
    }
    let _turn = Turn::take_or_refuse(tree, OPERATION)?;
    match Journal::find(tree)? {
        Some(mut journal) => restore_all(tree, &mut journal, tell).map(Some),
        None => Ok(None),
    }
}

/// As [`restore_left_over`]; what cannot be restored is given up, and so is a journal that cannot
/// be read.
///
/// # Errors
/// `Busy` while a transaction lasts. Where the journal cannot be removed.
pub fn forget_left_over(tree: &MachineTree, tell: Tell<'_>) -> Result<Option<RestoredKnobs>> {
    if matches!(Journal::find(tree), Ok(None)) {
        return Ok(None);
    }
    let _turn = Turn::take_or_refuse(tree, OPERATION)?;
    let mut journal = match Journal::find(tree) {
        Ok(None) => return Ok(None),
        Ok(Some(journal)) => journal,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            journal::remove(tree)?;
            let forgotten = vec![error.context().to_owned()];
            return Ok(Some(RestoredKnobs { forgotten, ..RestoredKnobs::default() }));
        }
        Err(error) => return Err(error),
    };
    let (mut all, refused) = take_back(tree, &mut journal, tell);
    all.forgotten = refused.iter().map(Refused::shown).collect();
    tell(TransactionStep::Forget);
    journal.forget(tree)?;
    Ok(Some(all))
}

/// Restores what the journal names, if one is there, and forgets it. With an id, only the journal
/// of that transaction. The caller has the turn.
pub(crate) fn restore_journal(tree: &MachineTree, id: Option<&str>, tell: Tell<'_>) -> Result<RestoredKnobs> {
    match Journal::find(tree)?.filter(|journal| id.is_none_or(|id| id == journal.id)) {
        Some(mut journal) => restore_all(tree, &mut journal, tell),
        None => Ok(RestoredKnobs::default()),
    }
}

/// Restores all changes of a journal, and forgets it. The file may be gone: what the caller
/// remembers is restored. The caller has the turn.
pub(crate) fn restore_all(tree: &MachineTree, journal: &mut Journal, tell: Tell<'_>) -> Result<RestoredKnobs> {
    let (all, mut refused) = take_back(tree, journal, tell);
    if refused.is_empty() {
        tell(TransactionStep::Forget);
        journal.forget(tree)?;
        return Ok(all);
    }
    // What is restored is nobody's business any more.
    journal.writes.retain(|write| refused.iter().any(|refused| refused.write == *write));
    // If it cannot be kept, the longer one stays, which restores the same.
    let _ = journal.keep(tree);
    let Refused { write, error } = refused.swap_remove(0);
    let error = Error::io(OPERATION, error, format!("{}: /{}", write.name(), write.file()));
    Err(error.with_advice(ADVICE))
}

/// A change that could not be taken back.
struct Refused {
    write: SettingWrite,
    error: io::Error,
}

impl Refused {
    fn shown(&self) -> String {
        format!("{}: /{}: {}", self.write.name(), self.write.file(), self.error)
    }
}

/// Takes all changes back. What others changed, and what is gone, leaves the journal.
fn take_back(tree: &MachineTree, journal: &mut Journal, tell: Tell<'_>) -> (RestoredKnobs, Vec<Refused>) {
    let mut all = RestoredKnobs::default();
    if journal.is_settled {
        journal.writes.retain(|write| {
            let other = write.changed_by_others(tree);
            let left = other.map(|now| format!("{}: somebody set it to {now} meanwhile, which stays", write.name()));
            let is_ours = left.is_none();
            all.left.extend(left);
            is_ours
        });
        tell(TransactionStep::Reopen);
        journal.is_settled = false;
        // A journal that somebody removed, or that cannot be kept, is no excuse for restoring
        // nothing.
        let _ = journal.keep(tree);
    }
    let mut open: Vec<&SettingWrite> = journal.writes.iter().rev().collect();
    let (mut restored, mut refused) = (Vec::new(), Vec::new());
    for round in 0..MAX_ROUNDS {
        let mut moved = Vec::new();
        refused.clear();
        open.retain(|&write| {
            if round == 0 {
                tell(TransactionStep::Restore(write.name().to_owned()));
            }
            // Groups go under the lock of resctrl. One that another program keeps is no excuse for
            // restoring nothing.
            let is_group = matches!(write, SettingWrite::Group { .. }) && tree.exists(write.file());
            let _turn = if is_group { lock_resctrl(tree).ok() } else { None };
            match write.take_back(tree) {
                Ok(TakenBack::Restored) => moved.push(write),
                Ok(TakenBack::WasOld) => {}
                Ok(TakenBack::Gone) => {
                    all.gone.push(format!("{}: /{} is gone", write.name(), write.file()));
                    return false;
                }
                Err(error) => refused.push(Refused { write: write.clone(), error }),
            }
            true
        });
        restored.extend(moved.iter().filter(|write| !restored.contains(*write)).copied().collect::<Vec<_>>());
        if moved.is_empty() {
            break;
        }
        if round + 1 == MAX_ROUNDS {
            let why = || io::Error::other("it changes again with another setting");
            refused.extend(moved.into_iter().map(|write| Refused { write: write.clone(), error: why() }));
        }
    }
    all.restored = restored.into_iter().map(|write| write.name().to_owned()).collect();
    (all, refused)
}
