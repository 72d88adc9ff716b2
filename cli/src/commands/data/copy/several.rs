//! A copy of all objects that a pattern stands for, one after the other.

use std::time::Instant;

use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

use super::outcome::{Outcome, headline};
use super::{Args, one, status};
use crate::any_locator::NamedPlace;
use crate::arguments::units;
use crate::colors;
use crate::metrics_file::{CommandMetrics, told};
use crate::objects::{ObjectAccess, inputs, shown};
use crate::outcome::{CommandStatus, clean, print_as_it_is, print_json};
use crate::system::signals;

/// The output of `--json`.
#[derive(Serialize)]
struct Copies {
    copies: Vec<Outcome>,
    bytes: u64,
    /// From the list of the objects to the end of the last copy.
    seconds: f64,
}

pub(super) fn run(args: &Args) -> Result<CommandStatus> {
    check(args)?;
    told(None, "copy", |metrics| copy_each(args, metrics))
}

fn copy_each(args: &Args, metrics: &CommandMetrics<'_>) -> Result<CommandStatus> {
    let started = Instant::now();
    let found = inputs(&ObjectAccess::to_read()?, "copy", &args.source)?;
    let machine = datapipes::discover();
    let (mut copies, mut last) = (Vec::new(), CommandStatus::Good);
    for (at, address) in found.iter().enumerate() {
        signals::check("copy")?;
        let so_far = format!("{at} of {} objects were copied", found.len());
        let undo_says = |words: String| match at {
            0 => signals::undo_says(words),
            _ => signals::undo_warns(format!("{so_far}, and {words}")),
        };
        let copied = one(&machine, args, address, metrics, None, undo_says);
        let (outcome, _) = copied.map_err(|e| e.within(&so_far))?;
        if status(&outcome) == CommandStatus::Bad {
            last = CommandStatus::Bad;
        }
        if !args.json {
            let color = colors::on_output();
            let line = headline(&outcome, |words, meaning| colors::paint(words, meaning, color));
            print_as_it_is(&format!("{}: {line}\n", clean(&shown(address))))?;
        }
        copies.push(outcome);
    }
    let (bytes, seconds) = (copies.iter().map(|copy| copy.bytes).sum(), started.elapsed().as_secs_f64());
    if args.json {
        print_json(&Copies { copies, bytes, seconds })?;
    } else {
        let (all, rate) = (units::bytes(bytes), units::rate(bytes, seconds));
        print_as_it_is(&format!("{} objects, {all} in {seconds:.3} s ({rate})\n", copies.len()))?;
    }
    Ok(last)
}

/// Refuses what is for one place, and a target that cannot take several.
fn check(args: &Args) -> Result<()> {
    let bad = |why: String| Error::new(ErrorKind::InvalidInput, "copy", format!("{}: {why}", args.source));
    let options = [
        ("--size", args.size.is_some()),
        ("--metrics", args.metrics.is_some()),
        ("--report-html", args.report_page.report_html.is_some()),
    ];
    if let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) {
        let error = bad(format!("it may stand for several objects, and {option} is for one"));
        return Err(error.with_advice("copy them one by one, or leave it out"));
    }
    let takes_several = match NamedPlace::parse(&args.target)? {
        NamedPlace::Object(address) => address.ends_with('/'),
        NamedPlace::Uri(uri) => uri.path().is_some_and(std::path::Path::is_dir),
        NamedPlace::Remote(_) => false,
    };
    if takes_several {
        return Ok(());
    }
    let error = bad(format!("it may stand for several objects, and {} is no folder", shown(&args.target)));
    Err(error.with_advice("name a folder that exists, or an address that ends in `/`"))
}
