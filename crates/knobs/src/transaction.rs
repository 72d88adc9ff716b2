//! Setting some knobs together, and restoring them.
//!
//! ```text
//! turn     -> a journal of a process that died is there: restore what it names
//! plan     -> check every value, note every old one
//! guard    -> a process that restores when this one dies; it says when it is there
//! journal  -> published whole, before the first change
//! change   -> one after the other; each is read back; a refusal takes back those before it
//! verify   -> all are read again: the kernel may have changed one with another
//! settle   -> the journal is published again: every setting has its new value
//! ...
//! restore  -> in reverse; a setting that somebody changed meanwhile stays, and is told
//! forget   -> the journal goes last
//! ```
//! Whatever the moment of a crash, either nothing was changed, or a journal names all that may have
//! been. The guard reads it; if it was killed as well, the next transaction or
//! [`restore_left_over`](crate::restore_left_over) does. Before it is settled, every setting gets
//! its old value back, whatever it is then.

use std::process::Command;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, Result};

use crate::guard::Guard;
use crate::journal::{Journal, Turn};
use crate::plan::{KnobChange, KnobPlan};
use crate::restore::{RestoredKnobs, restore_all, restore_journal};
use crate::step::{Tell, TransactionStep};
use crate::thread_group::lock_resctrl;
use crate::tree::{FileError, MachineTree};
use crate::write::{SettingWrite, reason_of_kernel};

const OPERATION: &str = "set knobs";
/// Settings that were changed together. They are restored when it is dropped; a child made by
/// `fork` restores nothing.
///
/// ```
/// use datapipes_knobs::{KnobTransaction, MachineTree};
/// # let root = std::env::temp_dir().join(format!("knobs-of-threads-{}", std::process::id()));
/// # std::fs::create_dir_all(root.join("sys/fs/resctrl"))?;
/// # std::fs::write(root.join("sys/fs/resctrl/schemata"), "L3:0=7ff")?;
/// # let live = || MachineTree::under(&root);
/// // The threads of a runtime; here, all of this process. Those that they start once they have the
/// // share have it, too.
/// let threads = std::fs::read_dir("/proc/self/task")?.flatten();
/// let threads: Vec<u32> = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
/// let share = [("share.l3".to_owned(), "0=f".to_owned())];
/// # /*
/// let live = MachineTree::live;
/// # */
/// let set = KnobTransaction::begin(&live(), &share, &threads, None, &mut |_| {})?;
/// // What pipes of these threads bring into the cache takes four of its ways at most.
/// let done = set.restore(&mut |_| {})?;
/// assert!(done.left.is_empty());
/// # std::fs::remove_dir_all(root)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KnobTransaction {
    tree: MachineTree,
    journal: Journal,
    changes: Vec<KnobChange>,
    guard: Option<Guard>,
    turn: Option<Turn>,
    owner: OwningProcess,
}

impl KnobTransaction {
    /// Changes settings, after it restored what a process that died had left. `threads` are those
    /// that get the shares of cache and memory bandwidth; one that ended meanwhile is passed over,
    /// and one that is started meanwhile by a thread not yet in the group is missed. `guard` makes
    /// the command of a process that calls [`restore_when_closed`](crate::restore_when_closed) with
    /// the transaction's id, its standard input and its standard output; without it, the journal
    /// alone remains after a crash.
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
        let id = new_id()?;
        if Journal::find(tree)?.is_none() {
            // An error of the command line is told before anything is touched.
            KnobPlan::new(tree, settings, threads, &id)?;
        }
        let turn = Turn::take_or_refuse(tree, OPERATION)?;
        // What a process left that died is restored, also where the new values are refused then.
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
            begun.guard = Some(Guard::start(guard(&begun.journal.id))?);
        }
        tell(TransactionStep::Keep);
        begun.journal.keep(tree)?;
        match begun.change(tell) {
            Ok(()) => Ok(begun),
            Err(refused) => Err(match begun.end(true, tell) {
                Ok(_) => refused.with_advice("nothing is changed: what was set before it is restored"),
                Err(error) => refused.with_advice(format!("what was set before it could not all be restored: {error}")),
            }),
        }
    }

    /// Makes the changes, and settles the journal.
    fn change(&mut self, tell: Tell<'_>) -> Result<()> {
        for write in self.journal.writes.iter().filter(|write| write.is_made()) {
            tell(TransactionStep::Change(write.name().to_owned()));
            let is_group = matches!(write, SettingWrite::Group { .. });
            let _turn = if is_group { Some(lock_resctrl(&self.tree)?) } else { None };
            write.make(&self.tree).map_err(|FileError { file, error }| {
                let why = if is_group { reason_of_kernel(&self.tree) } else { String::new() };
                Error::io(OPERATION, error, format!("{}: /{file}{why}", write.name()))
            })?;
        }
        tell(TransactionStep::Verify);
        for write in &self.journal.writes {
            write.verify(&self.tree).map_err(|e| {
                let context = format!("{}: /{} changed with another setting", write.name(), write.file());
                Error::io(OPERATION, e, context)
            })?;
        }
        tell(TransactionStep::Settle);
        let mut settled = self.journal.clone();
        for write in &mut settled.writes {
            let context = format!("{}: /{}", write.name(), write.file());
            write.settle(&self.tree).map_err(|e| Error::io(OPERATION, e, context))?;
        }
        settled.is_settled = true;
        settled.keep(&self.tree)?;
        self.journal = settled;
        tell(TransactionStep::Changed);
        Ok(())
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
            restore_all(&self.tree, &mut self.journal, tell)
        } else {
            tell(TransactionStep::Forget);
            self.journal.forget(&self.tree).map(|()| RestoredKnobs::default())
        };
        tell(TransactionStep::Over);
        drop(turn);
        if let Some(guard) = self.guard.take() {
            guard.dismiss(outcome.is_err());
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

fn new_id() -> Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::os(OPERATION, e.raw_os_error(), "a random number"))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
