//! What follows the last byte: the sync, the comparison, and the name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::{AtomicFile, Error, Machine, Result, Ssd};

use super::verify;
use crate::any_locator::AnyLocator;
use crate::objects::{AnyObject, ObjectAccount, shown};
use crate::outcome::{harmless, print_error};
use crate::progress::{self, State};
use crate::system::files;
use crate::system::signals;

/// How a copy went, from its first byte to the comparison.
#[derive(Default)]
pub(super) struct Ended {
    /// Until all bytes were moved, and what that took of the processor.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// From then until they were durable, or visible.
    pub(super) sync_seconds: f64,
    pub(super) verified: Option<bool>,
    pub(super) verify_seconds: f64,
    pub(super) is_object: bool,
    pub(super) objects: Vec<ObjectAccount>,
}

/// The target of the bytes, and the draft that becomes the file at the end.
pub(super) struct Target {
    pub(super) place: AnyLocator,
    pub(super) draft: Option<AtomicFile>,
}

/// What was copied, and how it is compared.
pub(super) struct CopiedBytes<'a> {
    pub(super) machine: &'a Machine,
    pub(super) source: &'a AnyLocator,
    /// Source and target, as they were named.
    pub(super) names: [&'a str; 2],
    pub(super) len: u64,
    pub(super) is_to_be_compared: bool,
    /// Opens an object that was written, for reading.
    pub(super) reopen: &'a dyn Fn() -> Result<AnyLocator>,
    /// Counts bytes that were compared.
    pub(super) compared: &'a AtomicU64,
}

/// Makes the target durable, compares it where that was asked for, and gives it its name.
pub(super) fn complete(copied: &CopiedBytes<'_>, target: Target) -> Result<Ended> {
    let started = Instant::now();
    progress::syncing(|| target.place.sync())?;
    if let AnyLocator::Object(object) = &target.place {
        // What was stopped meanwhile is not made visible.
        signals::check("copy")?;
        progress::syncing(|| object.publish(copied.len))?;
    }
    let sync_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    // An object that was written is read as another one.
    let again = match (&target.place, copied.is_to_be_compared) {
        (AnyLocator::Object(object), true) => Some((copied.reopen)().map_err(|e| uncompared(object, e))?),
        _ => None,
    };
    let written = again.as_ref().unwrap_or(&target.place);
    let compared = copied.is_to_be_compared.then(|| equal(copied, written)).transpose();
    let mut verified = match &target.place {
        AnyLocator::Object(object) => compared.map_err(|e| uncompared(object, e))?,
        _ => compared?,
    };
    let is_object = matches!(target.place, AnyLocator::Object(_));
    // A file that is not equal does not get its name.
    if let Some(draft) = target.draft
        && verified != Some(false)
    {
        let path = draft.path().to_path_buf();
        // Where the bytes were copied into the file that was there, what counts is what it has.
        if progress::syncing(|| files::publish(draft, copied.len))? && copied.is_to_be_compared {
            let written = AnyLocator::Ssd(Ssd::open(path)?);
            verified = Some(equal(copied, &written)?);
        }
    }
    // What the comparison read is counted, too.
    let mut objects: Vec<ObjectAccount> = Vec::new();
    for place in [Some(&target.place), again.as_ref(), Some(copied.source)].into_iter().flatten() {
        if let AnyLocator::Object(object) = place {
            objects.push(object.report());
        }
    }
    let verify_seconds = if copied.is_to_be_compared { started.elapsed().as_secs_f64() } else { 0.0 };
    Ok(Ended { sync_seconds, verified, verify_seconds, is_object, objects, ..Ended::default() })
}

/// The error of a comparison says what became of the object: it is there by then.
fn uncompared(object: &AnyObject, error: Error) -> Error {
    error.within(format!("{} was published, and was not compared", object.address()))
}

/// Whether both ends have the same bytes; a line says where they do not. `compared` counts bytes.
fn equal(copied: &CopiedBytes<'_>, target: &AnyLocator) -> Result<bool> {
    let CopiedBytes { machine, source, len, compared, .. } = *copied;
    let before = compared.load(Relaxed);
    let done = || compared.load(Relaxed).saturating_sub(before);
    let state = || State { phase: "comparing", done: done(), total: len, later: 0 };
    let compare = || verify::first_difference(machine, source, target, len, compared);
    let difference = progress::during(progress::wanted(), state, compare)?;
    if let Some(at) = difference {
        let names = copied.names.map(|name| harmless(&shown(name), usize::MAX));
        print_error(&format!("dpipe copy: {} and {} differ at byte {at}\n", names[0], names[1]));
    }
    Ok(difference.is_none())
}
