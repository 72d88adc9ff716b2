//! Setting some knobs together, and restoring them.
//!
//! ```text
//! turn     -> a journal of a process that died is there: restore what it names
//! plan     -> check every value, note every old one
//! guard    -> a process that restores when this one dies
//! journal  -> published whole, before the first change
//! change   -> one after the other; each is read back; a refusal takes back those before it
//! ...
//! restore  -> in reverse; a setting that somebody changed meanwhile stays, and is told
//! forget   -> the journal goes last
//! ```
//! Whatever the moment of a crash, either nothing was changed, or a journal names all that may have
//! been. The guard reads it; if it was killed as well, the next transaction or
//! [`restore_left_over`] does.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, threads};
use serde::Serialize;

use crate::journal::{Journal, Turn};
use crate::plan::{KnobChange, KnobPlan};
use crate::tree::MachineTree;
use crate::write::{SettingWrite, TakenBack};

const OPERATION: &str = "set knobs";
/// What the guard is told when there is nothing to restore.
pub(crate) const DONE: u8 = b'.';

/// What a transaction is about to do. A caller may log it; tests end the process there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionStep {
    /// The guard is started.
    Guard,
    /// The journal is kept.
    Keep,
    /// A setting is changed.
    Change(String),
    /// Every setting is changed.
    Changed,
    /// A setting is restored.
    Restore(String),
    /// The journal is removed.
    Forget,
    /// Nothing is left to do.
    Over,
}

/// The settings that a transaction restored, and those that it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RestoredKnobs {
    /// The settings that have their old value again.
    pub restored: Vec<String>,
    /// Those that somebody changed meanwhile, and that stay, in words.
    pub left: Vec<String>,
}

/// Settings that were changed together. They are restored when it is dropped; a child made by
/// `fork` restores nothing.
#[derive(Debug)]
pub struct KnobTransaction {
    tree: MachineTree,
    journal: Journal,
    changes: Vec<KnobChange>,
    guard: Option<Child>,
    turn: Option<Turn>,
    owner: OwningProcess,
}

/// What may be told of the steps.
type Tell<'a> = &'a mut dyn FnMut(TransactionStep);

impl KnobTransaction {
    /// Changes settings, after it restored what a process that died had left. `threads` are those
    /// that get the shares of cache and memory bandwidth. `guard` makes the command of a process
    /// that calls [`restore_when_closed`](crate::restore_when_closed) with its standard input and
    /// the transaction's id; without it, the journal alone remains after a crash.
    ///
    /// # Errors
    /// As [`KnobPlan::new`], and nothing is changed. `Busy` while another transaction lasts. Where
    /// the kernel refuses a change: its error, after those before it were taken back.
    pub fn begin(
        tree: &MachineTree,
        settings: &[(String, String)],
        threads: &[u32],
        guard: Option<&dyn Fn(&str) -> Command>,
        tell: Tell<'_>,
    ) -> Result<KnobTransaction> {
        // An error of the command line is told before anything is touched.
        let id = new_id()?;
        KnobPlan::new(tree, settings, threads, &id)?;
        let turn = Turn::take(tree)?.ok_or_else(busy)?;
        restore_journal(tree, None, tell)?;
        let plan = KnobPlan::new(tree, settings, threads, &id)?;
        let changes = plan.changes().to_vec();
        let journal = Journal::new(id, plan.writes);
        let mut begun = KnobTransaction {
            tree: tree.clone(),
            journal,
            changes,
            guard: None,
            turn: Some(turn),
            owner: OwningProcess::here(),
        };
        if begun.journal.writes.is_empty() {
            return Ok(begun);
        }
        if let Some(guard) = guard {
            tell(TransactionStep::Guard);
            begun.guard = Some(start(guard(&begun.journal.id))?);
        }
        tell(TransactionStep::Keep);
        begun.journal.keep(tree)?;
        for write in &begun.journal.writes {
            tell(TransactionStep::Change(write.name().to_owned()));
            if let Err(error) = write.make(tree) {
                let refused = Error::io(OPERATION, error, format!("{}: /{}", write.name(), write.file()));
                let taken_back = begun.end(true, tell);
                return Err(match taken_back {
                    Ok(_) => refused.with_advice("nothing is changed: what was set before it is restored"),
                    Err(error) => {
                        refused.with_advice(format!("what was set before it could not all be restored: {error}"))
                    }
                });
            }
        }
        tell(TransactionStep::Changed);
        Ok(begun)
    }

    /// The settings that were changed.
    pub fn changes(&self) -> &[KnobChange] {
        &self.changes
    }

    /// Which transaction it is.
    pub fn id(&self) -> &str {
        &self.journal.id
    }

    /// Restores the settings.
    ///
    /// # Errors
    /// The first refusal of the kernel, after all others were tried; the journal stays then.
    /// `Forked` in a child.
    pub fn restore(mut self, tell: Tell<'_>) -> Result<RestoredKnobs> {
        self.owner.check(OPERATION)?;
        self.end(true, tell)
    }

    /// Lets the settings stay as they are. Groups of threads stay, too.
    ///
    /// # Errors
    /// Where the journal cannot be removed: the settings will be restored. `Forked` in a child.
    pub fn keep(mut self, tell: Tell<'_>) -> Result<()> {
        self.owner.check(OPERATION)?;
        self.end(false, tell).map(drop)
    }

    /// Ends it once; whoever comes later finds nothing to do.
    fn end(&mut self, restores: bool, tell: Tell<'_>) -> Result<RestoredKnobs> {
        let Some(turn) = self.turn.take() else { return Ok(RestoredKnobs::default()) };
        let outcome = if self.journal.writes.is_empty() {
            Ok(RestoredKnobs::default())
        } else if restores {
            restore_journal(&self.tree, Some(&self.journal.id), tell)
        } else {
            tell(TransactionStep::Forget);
            Journal::forget(&self.tree).map(|()| RestoredKnobs::default())
        };
        tell(TransactionStep::Over);
        // The guard looks once more where that failed.
        if let Some(mut guard) = self.guard.take() {
            if outcome.is_ok()
                && let Some(mut word) = guard.stdin.take()
            {
                // If it is not there any more, there is nobody to tell.
                let _ = word.write_all(&[DONE]);
            }
            drop(turn);
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
        outcome
    }
}

impl Drop for KnobTransaction {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Whoever wants to know calls `restore`.
            let _ = self.end(true, &mut |_| {});
        } else {
            // The guard is the parent's child, and hears of its end alone.
            std::mem::forget(self.guard.take());
            std::mem::forget(self.turn.take());
        }
    }
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
    let _turn = Turn::take(tree)?.ok_or_else(busy)?;
    match Journal::find(tree)? {
        Some(_) => restore_journal(tree, None, tell).map(Some),
        None => Ok(None),
    }
}

/// Restores what the journal names, if one is there, and forgets it. With an id, only the journal
/// of that transaction. The caller has the turn.
pub(crate) fn restore_journal(tree: &MachineTree, id: Option<&str>, tell: Tell<'_>) -> Result<RestoredKnobs> {
    let mut all = RestoredKnobs::default();
    let Some(journal) = Journal::find(tree)?.filter(|journal| id.is_none_or(|id| id == journal.id)) else {
        return Ok(all);
    };
    let mut outcome = Ok(());
    for write in journal.writes.iter().rev() {
        tell(TransactionStep::Restore(write.name().to_owned()));
        match write.take_back(tree) {
            Ok(TakenBack::Restored) => all.restored.push(write.name().to_owned()),
            Ok(TakenBack::WasOld) => {}
            Ok(TakenBack::Left { now }) => all.left.push(left(write, &now)),
            Err(error) => {
                let error = Error::io("restore knobs", error, format!("{}: /{}", write.name(), write.file()));
                outcome = outcome.and(Err(error.with_advice("`dpipe knobs restore` tries again")));
            }
        }
    }
    outcome?;
    tell(TransactionStep::Forget);
    Journal::forget(tree)?;
    Ok(all)
}

fn left(write: &SettingWrite, now: &str) -> String {
    format!("{}: somebody set it to {now} meanwhile, which stays", write.name())
}

fn busy() -> Error {
    let error = Error::new(ErrorKind::Busy, OPERATION, "another transaction lasts");
    error.with_advice("wait for its end; settings are restored in the order in which they were set")
}

fn new_id() -> Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::os(OPERATION, e.raw_os_error(), "a random number"))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

fn start(mut command: Command) -> Result<Child> {
    let shown = command.get_program().to_string_lossy().into_owned();
    threads::start_program(command.stdin(Stdio::piped()))
        .map_err(|e| Error::io("start the guard", e, shown).with_advice("nothing is changed"))
}
