//! One change of the machine, which knows how to be taken back.

use std::io;

use serde::{Deserialize, Serialize};

use crate::knob::chosen;
use crate::tree::MachineTree;

/// A change, as it is kept in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SettingWrite {
    /// The text of a file.
    Text { knob: String, file: String, old: String, new: String, is_gradual: bool },
    /// The bits `mask` of a register.
    Bits { knob: String, file: String, at: u64, width: usize, mask: u64, old: u64, new: u64 },
    /// A group of threads with shares of its own.
    Group { folder: String, lines: Vec<String>, threads: Vec<u32> },
}

/// What became of a change that was to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    Restored,
    /// It had not been made, or somebody took it back.
    WasOld,
    /// Somebody set another value meanwhile, which stays.
    Left {
        now: String,
    },
}

impl SettingWrite {
    /// What is changed, for people.
    pub(crate) fn name(&self) -> &str {
        match self {
            SettingWrite::Text { knob, .. } | SettingWrite::Bits { knob, .. } => knob,
            SettingWrite::Group { folder, .. } => folder,
        }
    }

    /// The file that is written.
    pub(crate) fn file(&self) -> &str {
        match self {
            SettingWrite::Text { file, .. } | SettingWrite::Bits { file, .. } => file,
            SettingWrite::Group { folder, .. } => folder,
        }
    }

    /// Makes the change, and reads it back.
    pub(crate) fn make(&self, tree: &MachineTree) -> io::Result<()> {
        match self {
            SettingWrite::Text { file, new, .. } => {
                tree.write_text(file, new)?;
                let now = tree.text(file)?;
                expect(chosen(&now), new)
            }
            SettingWrite::Bits { file, at, width, mask, new, .. } => {
                put_bits(tree, file, *at, *width, *mask, *new)?;
                let now = tree.register(file, *at, *width)? & mask;
                expect(&format!("{now:#x}"), &format!("{new:#x}"))
            }
            SettingWrite::Group { folder, lines, threads } => {
                tree.make_folder(folder)?;
                for line in lines {
                    tree.write_text(&format!("{folder}/schemata"), line)?;
                }
                for thread in threads {
                    tree.write_text(&format!("{folder}/tasks"), &thread.to_string())?;
                }
                Ok(())
            }
        }
    }

    /// Takes the change back, unless somebody else changed the setting since.
    pub(crate) fn take_back(&self, tree: &MachineTree) -> io::Result<TakenBack> {
        match self {
            SettingWrite::Text { file, old, new, is_gradual, .. } => {
                let now = tree.text(file)?;
                let now = chosen(&now);
                if now == old {
                    return Ok(TakenBack::WasOld);
                }
                if now != new && !is_gradual {
                    return Ok(TakenBack::Left { now: now.to_owned() });
                }
                tree.write_text(file, old)?;
                expect(chosen(&tree.text(file)?), old)?;
            }
            SettingWrite::Bits { file, at, width, mask, old, new, .. } => {
                let now = tree.register(file, *at, *width)? & mask;
                if now == *old {
                    return Ok(TakenBack::WasOld);
                }
                if now != *new {
                    return Ok(TakenBack::Left { now: format!("{now:#x}") });
                }
                put_bits(tree, file, *at, *width, *mask, *old)?;
                let now = tree.register(file, *at, *width)? & mask;
                expect(&format!("{now:#x}"), &format!("{old:#x}"))?;
            }
            SettingWrite::Group { folder, .. } => {
                if !tree.exists(folder) {
                    return Ok(TakenBack::WasOld);
                }
                // Its threads go back to the group that has everything.
                tree.remove_folder(folder)?;
            }
        }
        Ok(TakenBack::Restored)
    }
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
