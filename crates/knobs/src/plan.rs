//! What a transaction would do.

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::knob::{MachineKnob, Place};
use crate::list::{RESCTRL, list, max_taken_kib};
use crate::tree::MachineTree;
use crate::write::{GROUP, SettingWrite};

const OPERATION: &str = "set knobs";
/// A name that is not known is compared with those that share as many letters at its beginning.
const ALIKE: usize = 4;

/// A setting that would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KnobChange {
    /// Its name.
    pub name: String,
    /// Its value now.
    pub from: String,
    /// The value it would get.
    pub to: String,
    /// The file, and the register in it.
    pub lives_at: String,
    /// Which pipes it affects.
    pub affects: &'static str,
    /// Why this process cannot change it, as far as the file's mode tells.
    pub refused: Option<String>,
}

/// The changes of a transaction, checked and not made.
#[derive(Clone, Debug)]
pub struct KnobPlan {
    changes: Vec<KnobChange>,
    pub(crate) writes: Vec<SettingWrite>,
    /// How much more memory the changes take, in KiB.
    taken_kib: u64,
}

impl KnobPlan {
    /// Checks settings (name and value) against what the machine has. A setting that has its value
    /// already is no change. `threads` are those that get the shares of cache and memory
    /// bandwidth; `group` names the group that is made for them.
    ///
    /// # Errors
    /// `InvalidInput`: an unknown or repeated name, or a value that is not allowed. `Unavailable`:
    /// the machine lacks it. `Unsupported`: this library does not change it.
    pub fn new(tree: &MachineTree, settings: &[(String, String)], threads: &[u32], group: &str) -> Result<KnobPlan> {
        let known = list(tree);
        let mut plan = KnobPlan { changes: Vec::new(), writes: Vec::new(), taken_kib: 0 };
        let mut lines = Vec::new();
        for (at, (name, value)) in settings.iter().enumerate() {
            if settings[..at].iter().any(|(before, _)| before == name) {
                return Err(invalid(format!("`{name}` is set twice"), "set it once"));
            }
            let knob = find(&known, name)?;
            plan.add((tree, &known), knob, value, &mut lines)?;
        }
        plan.add_what_changes_along(tree, &known);
        plan.check_memory(tree)?;
        if !lines.is_empty() {
            if threads.is_empty() {
                let advice = "name the command that is to have it: dpipe knobs set share.l3=... -- COMMAND";
                return Err(invalid("a share is for threads, and none were named".into(), advice));
            }
            let folder = format!("{RESCTRL}/{GROUP}{group}");
            plan.writes.push(SettingWrite::Group { folder, lines, threads: threads.to_vec() });
        }
        Ok(plan)
    }

    /// The settings that would change.
    pub fn changes(&self) -> &[KnobChange] {
        &self.changes
    }

    /// Adds what the kernel changes with other settings. These come first, so that they are
    /// restored last.
    fn add_what_changes_along(&mut self, tree: &MachineTree, known: &[MachineKnob]) {
        let change_of = |name: &str| self.writes.iter().find(|write| write.name() == name);
        let mut first = Vec::new();
        for knob in known.iter().filter(|knob| change_of(&knob.name).is_some()) {
            let Place::Text { along: Some((name, file)), .. } = &knob.place else { continue };
            if let Ok(old) = tree.text(file)
                && matches!(change_of(name), None | Some(SettingWrite::Set { .. }))
            {
                first.push(SettingWrite::Along { knob: name.clone(), file: file.clone(), old, new: None });
            }
        }
        self.writes.splice(0..0, first);
    }

    /// Huge pages of several sizes share the memory that is left.
    fn check_memory(&self, tree: &MachineTree) -> Result<()> {
        let max = max_taken_kib(tree);
        if self.taken_kib <= max {
            return Ok(());
        }
        let context = format!("memory.hugepages_*: they would take {} MiB together", self.taken_kib >> 10);
        Err(invalid(context, &format!("{} MiB may be taken now", max >> 10)))
    }

    /// Checks that a value that nobody may write comes back with a setting before it.
    fn check_comes_back(&self, known: &[MachineKnob], knob: &MachineKnob, old: &str) -> Result<()> {
        let name = &knob.name;
        let brings =
            |other: &&MachineKnob| matches!(&other.place, Place::Text { along: Some((along, _)), .. } if along == name);
        let advice = match known.iter().find(brings) {
            Some(other) if self.writes.iter().any(|write| write.name() == other.name) => return Ok(()),
            Some(other) => format!("set {} as well, and name it first: it comes back with that", other.name),
            None => format!("{name} may be: {}", knob.allowed.shown()),
        };
        let context = format!("{name} is `{old}`, which could not be restored");
        Err(Error::new(ErrorKind::Unsupported, OPERATION, context).with_advice(advice))
    }

    fn add(
        &mut self,
        (tree, known): (&MachineTree, &[MachineKnob]),
        knob: &MachineKnob,
        value: &str,
        lines: &mut Vec<String>,
    ) -> Result<()> {
        let name = &knob.name;
        let new = knob.allowed.check(value).map_err(|allowed| {
            invalid(format!("{name}={value}: {}", knob.what), &format!("{name} may be: {allowed}"))
        })?;
        let old = knob.value.clone().unwrap_or_default();
        let mut file = String::new();
        let before = self.writes.len();
        match &knob.place {
            Place::Text { file: text, kib_each, .. } => {
                if old != new && knob.allowed.check(&old).is_err() {
                    self.check_comes_back(known, knob, &old)?;
                    self.writes.push(SettingWrite::Set { knob: name.clone(), file: text.clone(), new: new.clone() });
                } else if old != new {
                    let more = number(&new).saturating_sub(number(&old)).saturating_mul(*kib_each);
                    self.taken_kib = self.taken_kib.saturating_add(more);
                    let (knob, new) = (name.clone(), new.clone());
                    self.writes.push(SettingWrite::Text { knob, file: text.clone(), old: old.clone(), new });
                }
                file.clone_from(text);
            }
            Place::Bits { files, at, width, mask, form } => {
                let bits = form.bits(&new, *mask).unwrap_or_default();
                for register in files {
                    let context = || format!("/{register} at {at:#x}");
                    let raw = tree.register(register, *at, *width);
                    let raw = raw.map_err(|e| Error::io(OPERATION, e, context()))? & mask;
                    if raw != bits {
                        let (knob, file) = (name.clone(), register.clone());
                        let (at, width, mask) = (*at, *width, *mask);
                        self.writes.push(SettingWrite::Bits { knob, file, at, width, mask, old: raw, new: bits });
                    }
                    file.clone_from(register);
                }
            }
            Place::Shares { resource } => {
                lines.push(format!("{resource}:{new}"));
                file = RESCTRL.into();
            }
            Place::Nowhere => return Err(invalid(format!("{name} has no place"), "see `dpipe knobs`")),
        }
        if self.writes.len() > before || matches!(knob.place, Place::Shares { .. }) {
            let refused = (!tree.is_writable(&file)).then(|| format!("/{file} may not be written; {}", knob.needs));
            let (lives_at, affects) = (knob.lives_at.clone(), knob.affects);
            self.changes.push(KnobChange { name: name.clone(), from: old, to: new, lives_at, affects, refused });
        }
        Ok(())
    }
}

fn number(value: &str) -> u64 {
    value.parse().unwrap_or(0)
}

fn invalid(context: String, advice: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, OPERATION, context).with_advice(advice)
}

/// Returns the knob of that name if it can be set.
fn find<'a>(known: &'a [MachineKnob], name: &str) -> Result<&'a MachineKnob> {
    let Some(knob) = known.iter().find(|knob| knob.name == name) else {
        let start: String = name.chars().take(ALIKE).collect();
        let alike: Vec<&str> = known.iter().map(|knob| &*knob.name).filter(|other| other.starts_with(&start)).collect();
        let advice = match alike.is_empty() {
            true => "`dpipe knobs` lists them".to_owned(),
            false => format!("there are: {}", alike.join(", ")),
        };
        return Err(invalid(format!("no knob is called `{name}`"), &advice));
    };
    if let Some(why) = &knob.absent {
        let context = format!("{name} is absent: {why}");
        return Err(
            Error::new(ErrorKind::Unavailable, OPERATION, context).with_advice(format!("it needs {}", knob.needs))
        );
    }
    if let Some(why) = &knob.fixed {
        let context = format!("{name} is not set by this library: {why}");
        return Err(Error::new(ErrorKind::Unsupported, OPERATION, context));
    }
    Ok(knob)
}
