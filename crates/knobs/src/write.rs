//! One change of the machine, which knows how to be taken back.

use std::io;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::knob::{chosen, hexadecimal};
use crate::list::{RESCTRL, has_core};
use crate::tree::{FileError, MachineTree};

/// Where settings are. A journal that names another place is not one of this library.
const PLACES: [&str; 3] = ["sys", "proc/sys", "dev/cpu"];
/// How the folder of a group begins.
pub(crate) const GROUP: &str = "datapipes-";

/// A change, as it is kept in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SettingWrite {
    /// The text of a file.
    Text { knob: String, file: String, old: String, new: String },
    /// The text of a file whose old value nobody may write, such as 0: it comes back with another
    /// setting, with which it is also noted as [`Along`](Self::Along).
    Set { knob: String, file: String, new: String },
    /// The text of a file that the kernel may change with another setting: it is not written, and
    /// restored. Once all settings are changed, `new` is what it is then.
    Along { knob: String, file: String, old: String, new: Option<String> },
    /// The bits `mask` of a register.
    Bits { knob: String, file: String, at: u64, width: usize, mask: u64, old: u64, new: u64 },
    /// A group of threads with shares of its own.
    Group { folder: String, lines: Vec<String>, threads: Vec<u32> },
}

/// What became of a change that was to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    Restored,
    /// It has its old value.
    WasOld,
    /// It is not there any more: a disk or a core was removed.
    Gone,
}

impl SettingWrite {
    /// What is changed, for people.
    pub(crate) fn name(&self) -> &str {
        match self {
            SettingWrite::Text { knob, .. }
            | SettingWrite::Set { knob, .. }
            | SettingWrite::Along { knob, .. }
            | SettingWrite::Bits { knob, .. } => knob,
            SettingWrite::Group { folder, .. } => folder,
        }
    }

    /// The file that is written.
    pub(crate) fn file(&self) -> &str {
        match self {
            SettingWrite::Text { file, .. }
            | SettingWrite::Set { file, .. }
            | SettingWrite::Along { file, .. }
            | SettingWrite::Bits { file, .. } => file,
            SettingWrite::Group { folder, .. } => folder,
        }
    }

    /// Checks a change that a journal names: it is of a setting.
    pub(crate) fn check(&self) -> Result<(), String> {
        let path = Path::new(self.file());
        if path.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(format!("`{}` is no path below the root", self.file()));
        }
        let is_of = match self {
            SettingWrite::Group { .. } => {
                let name = path.file_name().and_then(|name| name.to_str());
                path.parent() == Some(Path::new(RESCTRL)) && name.is_some_and(|name| name.starts_with(GROUP))
            }
            SettingWrite::Bits { width, .. } if !(1..=8).contains(width) => false,
            _ => PLACES.iter().any(|place| path.starts_with(place)),
        };
        is_of.then_some(()).ok_or_else(|| format!("`{}` is no setting", self.file()))
    }

    /// Whether the setting is written.
    pub(crate) fn is_made(&self) -> bool {
        !matches!(self, SettingWrite::Along { .. })
    }

    /// Makes the change, and reads it back.
    pub(crate) fn make(&self, tree: &MachineTree) -> Result<(), FileError> {
        let made = match self {
            SettingWrite::Text { file, new, .. } | SettingWrite::Set { file, new, .. } => tree.write_text(file, new),
            SettingWrite::Along { .. } => Ok(()),
            SettingWrite::Bits { file, at, width, mask, new, .. } => put_bits(tree, file, *at, *width, *mask, *new),
            SettingWrite::Group { folder, lines, threads } => {
                let (schemata, tasks) = (format!("{folder}/schemata"), format!("{folder}/tasks"));
                tree.make_folder(folder).map_err(FileError::of(folder))?;
                // The kernel checks all lines of a write before it takes the first.
                tree.write_text(&schemata, &lines.join("\n")).map_err(FileError::of(schemata))?;
                take_in_all(threads, |thread| tree.write_text(&tasks, &thread.to_string()))
                    .map_err(FileError::of(tasks))?;
                Ok(())
            }
        };
        made.and_then(|()| self.verify(tree)).map_err(FileError::of(self.file()))
    }

    /// Reads whether the setting is what was written.
    pub(crate) fn verify(&self, tree: &MachineTree) -> io::Result<()> {
        match self {
            SettingWrite::Text { new, .. } | SettingWrite::Set { new, .. } => expect(&self.now(tree)?, new),
            SettingWrite::Along { .. } => Ok(()),
            SettingWrite::Bits { new, .. } => expect(&self.now(tree)?, &format!("{new:#x}")),
            SettingWrite::Group { lines, .. } => {
                let now = self.now(tree)?;
                lines.iter().try_for_each(|line| expect_shares(&now, line))
            }
        }
    }

    /// Notes what the kernel made of a setting that is not written.
    pub(crate) fn settle(&mut self, tree: &MachineTree) -> io::Result<()> {
        if !self.is_made() {
            let now = self.now(tree)?;
            if let SettingWrite::Along { new, .. } = self {
                *new = Some(now);
            }
        }
        Ok(())
    }

    /// Returns the value of the setting.
    fn now(&self, tree: &MachineTree) -> io::Result<String> {
        match self {
            SettingWrite::Text { file, .. } | SettingWrite::Set { file, .. } | SettingWrite::Along { file, .. } => {
                Ok(chosen(&tree.text(file)?).to_owned())
            }
            SettingWrite::Bits { file, at, width, mask, .. } => {
                Ok(format!("{:#x}", tree.register(file, *at, *width)? & mask))
            }
            SettingWrite::Group { folder, .. } => tree.text(&format!("{folder}/schemata")),
        }
    }

    /// Returns the value of a setting that somebody else changed since. A group is ours as long as
    /// it is there. What cannot be read shows when it is taken back.
    pub(crate) fn changed_by_others(&self, tree: &MachineTree) -> Option<String> {
        let ours = match self {
            SettingWrite::Text { old, new, .. } => [old.clone(), new.clone()],
            SettingWrite::Along { old, new, .. } => [old.clone(), new.clone().unwrap_or_else(|| old.clone())],
            SettingWrite::Bits { old, new, .. } => [format!("{old:#x}"), format!("{new:#x}")],
            // What it was before is noted with the setting that brings it back.
            SettingWrite::Set { .. } | SettingWrite::Group { .. } => return None,
        };
        self.now(tree).ok().filter(|now| !ours.contains(now))
    }

    /// Takes the change back, whatever the setting is now.
    pub(crate) fn take_back(&self, tree: &MachineTree) -> io::Result<TakenBack> {
        match self.restore(tree) {
            Err(error) if self.is_gone(tree, &error) => Ok(TakenBack::Gone),
            other => other,
        }
    }

    fn restore(&self, tree: &MachineTree) -> io::Result<TakenBack> {
        let old = match self {
            SettingWrite::Text { old, .. } | SettingWrite::Along { old, .. } => old.clone(),
            SettingWrite::Set { .. } => return Ok(TakenBack::WasOld),
            SettingWrite::Bits { old, .. } => format!("{old:#x}"),
            SettingWrite::Group { folder, .. } => {
                if !tree.exists(folder) {
                    return Ok(TakenBack::WasOld);
                }
                // Its threads go back to the group that has everything.
                tree.remove_folder(folder)?;
                return Ok(TakenBack::Restored);
            }
        };
        if self.now(tree)? == old {
            return Ok(TakenBack::WasOld);
        }
        match self {
            SettingWrite::Bits { file, at, width, mask, old, .. } => put_bits(tree, file, *at, *width, *mask, *old)?,
            _ => tree.write_text(self.file(), &old)?,
        }
        expect(&self.now(tree)?, &old)?;
        Ok(TakenBack::Restored)
    }

    /// Whether an error says that the setting is not there any more.
    fn is_gone(&self, tree: &MachineTree, error: &io::Error) -> bool {
        let errno = rustix::io::Errno::from_io_error(error);
        let is_absent =
            matches!(errno, Some(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO | rustix::io::Errno::NODEV));
        // A core that runs has its registers still: the module msr was unloaded.
        let core = self.file().strip_prefix("dev/cpu/").and_then(|rest| rest.split('/').next()?.parse().ok());
        is_absent && !core.is_some_and(|core| has_core(tree, core))
    }
}

/// Takes threads into a group. One that ended since it was listed is gone and needs no share; an
/// error where all are.
fn take_in_all(threads: &[u32], mut take_in: impl FnMut(u32) -> io::Result<()>) -> io::Result<()> {
    let (mut taken, mut gone) = (false, None);
    for thread in threads {
        match take_in(*thread) {
            Ok(()) => taken = true,
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => gone = Some(e),
            Err(e) => return Err(e),
        }
    }
    gone.filter(|_| !taken).map_or(Ok(()), Err)
}

/// Why the kernel refused the last change of resctrl, as it says itself; empty where it says
/// nothing. The caller has the lock of resctrl, so the change was its own.
pub(crate) fn reason_of_kernel(tree: &MachineTree) -> String {
    let status = tree.text(&format!("{RESCTRL}/info/last_cmd_status")).unwrap_or_default();
    let lines: Vec<&str> = status.lines().map(str::trim).filter(|line| !matches!(*line, "" | "ok")).collect();
    if lines.is_empty() { String::new() } else { format!(" (the kernel says: {})", lines.join("; ")) }
}

/// Changes only the bits of the mask: others of the register may change meanwhile.
fn put_bits(tree: &MachineTree, file: &str, at: u64, width: usize, mask: u64, bits: u64) -> io::Result<()> {
    let now = tree.register(file, at, width)?;
    tree.write_register(file, at, width, now & !mask | bits & mask)
}

fn expect(now: &str, wanted: &str) -> io::Result<()> {
    if now == wanted {
        return Ok(());
    }
    Err(io::Error::other(format!("{wanted} was written, and {now} is read: the kernel did not take it as it was")))
}

/// Compares a line of a group's schemata with what is shown of its resource: the kernel shows all
/// domains, and masks with zeros before them.
fn expect_shares(shown: &str, line: &str) -> io::Result<()> {
    let (resource, wanted) = line.split_once(':').unwrap_or((line, ""));
    let now = shown.lines().find_map(|other| other.trim().strip_prefix(resource)?.strip_prefix(':'));
    let share_of = |text: &str, domain: &str| {
        let share = text.split(';').find_map(|part| part.trim().strip_prefix(domain)?.strip_prefix('='));
        // Two numbers are equal in base 16 if they are in base 10.
        share.and_then(|share| hexadecimal(share.trim()))
    };
    let is_taken = wanted.split(';').all(|part| {
        let domain = part.split('=').next().unwrap_or_default();
        share_of(wanted, domain).is_some_and(|share| now.and_then(|now| share_of(now, domain)) == Some(share))
    });
    if is_taken { Ok(()) } else { expect(now.unwrap_or("nothing"), wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ended_are_gone_unless_all_are() {
        let errno = |errno: rustix::io::Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        let mut taken = Vec::new();
        let done = take_in_all(&[1, 2, 3], |thread| match thread {
            2 => Err(errno(rustix::io::Errno::SRCH)),
            thread => {
                taken.push(thread);
                Ok(())
            }
        });
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(taken, [1, 3]);
        let all = take_in_all(&[1, 2], |_| Err(errno(rustix::io::Errno::SRCH)));
        assert_eq!(all.unwrap_err().raw_os_error(), Some(rustix::io::Errno::SRCH.raw_os_error()));
        let refused = take_in_all(&[1, 2], |_| Err(errno(rustix::io::Errno::PERM)));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(take_in_all(&[], |_| Ok(())).is_ok());
    }
}
