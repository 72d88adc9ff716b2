//! A copy of all objects that a pattern stands for, one after the other.

use std::time::Instant;

use datapipes::{Error, ErrorKind, Machine, Result};
use serde::Serialize;

use super::outcome::{Outcome, headline};
use crate::any_locator::NamedPlace;
use crate::arguments::units;
use crate::colors;
use crate::objects::{ObjectAccess, file_name, inputs, shown};
use crate::outcome::{CommandStatus, clean, print_as_it_is, print_json};
use crate::system::signals;

/// The output of `--json`, also where a copy failed.
#[derive(Serialize)]
struct Copies {
    copies: Vec<Outcome>,
    /// Bytes that were moved, those of copies that differ too.
    bytes: u64,
    /// From the list of the objects to the end of the last copy.
    seconds: f64,
}

/// Copies that were made.
#[derive(Default)]
struct Made {
    /// For the output of `--json`.
    copies: Vec<Outcome>,
    bytes: u64,
    good: usize,
    /// Those that differ from their sources.
    different: usize,
}

/// Copies that are to be made.
pub(super) struct SeveralCopies<'a> {
    /// A pattern of objects.
    pub(super) source: &'a str,
    pub(super) target: &'a str,
    pub(super) json: bool,
    /// Options that are for one copy, and whether they are given.
    pub(super) for_one: [(&'static str, bool); 3],
}

impl SeveralCopies<'_> {
    /// Makes them. `copy` makes one: of an address, to a place, which has this name.
    pub(super) fn run(
        &self,
        copy: impl Fn(&Machine, &str, &NamedPlace, &str) -> Result<Outcome>,
    ) -> Result<CommandStatus> {
        let folder = self.folder()?;
        let started = Instant::now();
        let found = inputs(&ObjectAccess::to_read()?, "copy", self.source)?;
        let machine = datapipes::discover();
        let mut made = Made::default();
        let so_far = |made: &Made| format!("{} of {} objects were copied", made.good, found.len());
        let ended = found.iter().try_for_each(|address| {
            if made.good + made.different > 0 {
                signals::undo_says_first(so_far(&made));
            }
            let copied = self.next(address, &folder, &mut made, |place, named| copy(&machine, address, place, named));
            copied.map_err(|e| e.within(so_far(&made)))
        });
        let all_told = so_far(&made);
        let seconds = started.elapsed().as_secs_f64();
        let Made { copies, bytes, good, different } = made;
        let told = match (self.json, &ended) {
            // What was copied before a failure is told, too.
            (true, _) => print_json(&Copies { copies, bytes, seconds }),
            (false, Err(_)) => Ok(()),
            (false, Ok(())) => {
                let differ = format!("; {different} differ from their sources");
                let but = if different > 0 { differ.as_str() } else { "" };
                let (all, rate) = (units::bytes(bytes), units::rate(bytes, seconds));
                print_as_it_is(&format!("{good} objects{but}; {all} in {seconds:.3} s ({rate})\n"))
            }
        };
        ended?;
        told.map_err(|e| e.within(all_told))?;
        Ok(if different > 0 { CommandStatus::Bad } else { CommandStatus::Good })
    }

    /// Copies the object at an address into the folder.
    fn next(
        &self,
        address: &str,
        folder: &NamedPlace,
        made: &mut Made,
        copy: impl FnOnce(&NamedPlace, &str) -> Result<Outcome>,
    ) -> Result<()> {
        signals::check("copy")?;
        let place = |name: &str| Some((folder.place_in(name)?, self.named(name)));
        let (place, named) = file_name(address).and_then(|name| place(&name)).ok_or_else(|| {
            let why = format!("{} is no folder, or not any more", shown(self.target));
            Error::new(ErrorKind::NotFound, "copy", why)
        })?;
        let outcome = copy(&place, &named)?;
        made.bytes += outcome.bytes;
        // What differs from its source, by --verify, is not copied.
        match outcome.status() {
            CommandStatus::Good => made.good += 1,
            CommandStatus::Bad => made.different += 1,
        }
        if self.json {
            made.copies.push(outcome);
            return Ok(());
        }
        let color = colors::on_output();
        let line = headline(&outcome, |words, meaning| colors::paint(words, meaning, color));
        print_as_it_is(&format!("{}: {line}\n", clean(&shown(address))))
    }

    /// The target for an object of this name, in words.
    fn named(&self, name: &str) -> String {
        let target = self.target;
        if target.ends_with('/') { format!("{target}{name}") } else { format!("{target}/{name}") }
    }

    /// The target. What is for one place is refused, and a target that cannot take several.
    fn folder(&self) -> Result<NamedPlace> {
        let bad = |why: String| Error::new(ErrorKind::InvalidInput, "copy", format!("{}: {why}", self.source));
        if let Some((option, _)) = self.for_one.into_iter().find(|(_, is_given)| *is_given) {
            let error = bad(format!("it may stand for several objects, and {option} is for one"));
            return Err(error.with_advice("copy them one by one, or leave it out"));
        }
        let target = NamedPlace::parse(self.target)?;
        if target.place_in("x").is_some() {
            return Ok(target);
        }
        let error = bad(format!("it may stand for several objects, and {} is no folder", shown(self.target)));
        Err(error.with_advice("name a folder that exists, or an address that ends in `/`"))
    }
}
