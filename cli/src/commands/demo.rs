//! `dpipe demo`: the whole of it, on this machine, with everything checked.
//!
//! ```text
//! gen records -> check (count, checksum) -> sort in little memory -> check (order, same count, same checksum)
//!                                       \-> the system's sort in the same memory -> the same bytes?
//! ```
//! Each step is a process of its own, so that what the kernel says of its time and memory is about
//! that step alone. This process stays small: a child's peak memory counts from its parent's.

mod outcome;
mod page;
mod steps;
mod table;

use std::path::{Path, PathBuf};

use datapipes::topology::BlockDevice;
use datapipes::{Error, ErrorKind, Result, Route, Ssd, StageOrder, StagePlace};
use datapipes_picture::page::HtmlPage;
use datapipes_sort::{Input, Output};

use super::data::copy::verify;
use super::sort;
use crate::any_locator::AnyLocator;
use crate::arguments::ending::Ending;
use crate::arguments::units;
use crate::arguments::units::parse_size;
use crate::outcome::{CommandStatus, print, print_json, shown_path, with_names};
use crate::progress::{self, State};
use crate::report::options::{PageFile, ReportArgs};
use crate::system::files::WorkFolder;
use crate::system::side_files::{CommandPlaces, SideFiles};
use crate::system::signals::{self, WaitsFor};
use outcome::Outcome;
use steps::Steps;

const ENDING: Ending = Ending {
    notes: "",

    zero: "every check holds",
    one: Some("a check does not hold"),
    examples: &["dpipe demo --size 20MB --memory 16M", "dpipe demo --size 20MB --dir . --no-compare --json"],
};

/// Writes records, sorts them in a fraction of their size, checks the result, and compares it with
/// the system's sort. Nothing is kept unless --keep is given.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Bytes to sort
    #[arg(long, default_value = "1GB", value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Memory budget of the sort
    #[arg(long, default_value = "128M", value_name = "SIZE", value_parser = parse_size)]
    memory: u64,
    /// Folder for the files [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the files, and say where they are
    #[arg(long)]
    keep: bool,
    /// Do not run the system's sort for comparison
    #[arg(long)]
    no_compare: bool,
    #[command(flatten)]
    report_page: ReportArgs,
    /// Print JSON: bytes, records, memory_bytes, dir, generated, input, dpipe, routes, output,
    /// system, system_absent, same, holds
    #[arg(long)]
    json: bool,
}

const RECORD_BYTES: u64 = 100;

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    // It works in a folder of its own, which nobody can name before.
    let page = args.report_page.take(&mut SideFiles::beside(CommandPlaces::of("demo")))?;
    signals::catch(WaitsFor::Places);
    signals::undo_says("the demo's files were removed");
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    // The sort raises less than its minimum to it; then the system's sort should have as much.
    let memory = args.memory.max(datapipes_sort::MIN_MEMORY);
    if args.size < RECORD_BYTES {
        let why = format!("--size {}: a record has {RECORD_BYTES} bytes", args.size);
        return Err(Error::new(ErrorKind::InvalidInput, "demo", why).with_advice("give at least that"));
    }
    check_space(&parent, args)?;
    let page_file = PageFile::open(page)?;
    let folder = WorkFolder::under(&parent, "dpipe-demo", args.keep)?;
    let (outcome, sort_page) = act(folder.path(), args, memory)?;
    if args.json {
        print_json(&outcome)?;
    } else {
        print(&table::verdict(&outcome))?;
        if args.keep {
            print(&format!("the files are in {}\n", shown_path(folder.path())))?;
        }
    }
    if let Some(file) = page_file {
        file.write(&page::page(&outcome, sort_page))?;
    }
    Ok(if outcome.holds { CommandStatus::Good } else { CommandStatus::Bad })
}

/// Also returns the page of the sort, if one is wanted.
fn act(dir: &Path, args: &Args, memory: u64) -> Result<(Outcome, Option<HtmlPage>)> {
    let say = |text: String| if args.json { Ok(()) } else { print(&with_names(text, [dir])) };
    let steps = Steps::new(dir, memory)?;
    let (input, sorted, peer) = (dir.join("input"), dir.join("sorted"), dir.join("sorted-by-system"));

    say(format!("1. write {} of sort-benchmark records (ASCII, 100 bytes, 10-byte key)\n", units::bytes(args.size)))?;
    let generated = steps.generate(args.size, &input)?;
    let before = steps.check(&input)?;
    say(table::generated(&before, &generated))?;

    say(format!("2. sort them in {} of memory\n", units::memory(memory)))?;
    steps.forget(&input)?;
    let (dpipe, sort_page) = steps.dpipe(&input, &sorted, args.report_page.report_html.is_some())?;
    say(table::sorted(&dpipe))?;
    let routes = routes(&input, &sorted, dir)?;
    say(table::routes(&routes))?;

    say("3. check the result\n".into())?;
    let after = steps.check(&sorted)?;
    let kept = after.records == before.records && after.checksum == before.checksum;
    say(table::checked(&after, kept))?;

    let mut system = None;
    let mut same = None;
    let system_absent = match (args.no_compare, steps::system_sort()) {
        (true, _) => Some("--no-compare".to_owned()),
        (_, Err(why)) => Some(why),
        (_, Ok(version)) => {
            say(format!("4. the same job by the system's sort ({version})\n"))?;
            steps.forget(&input)?;
            system = Some(steps.system(&input, &peer, version)?);
            same = Some(equal(&sorted, &peer, before.bytes)?);
            None
        }
    };
    let holds = after.sorted && kept && same != Some(false);
    let outcome = Outcome {
        bytes: before.bytes,
        records: before.records,
        memory_bytes: memory,
        dir: dir.to_path_buf(),
        generated,
        input: before,
        dpipe,
        routes,
        output: after,
        system,
        system_absent,
        same,
        holds,
    };
    Ok((outcome, sort_page))
}

/// The routes of the sort. They are asked for after it, lest this process grow before its children
/// are measured.
fn routes(input: &Path, output: &Path, spill: &Path) -> Result<Vec<Route>> {
    let machine = datapipes::discover();
    let output = Output::file(output);
    let ways =
        sort::routes::ways(&machine, &[Input::open(input)?], &output, &[StagePlace::folder(spill)], StageOrder::Given)?;
    Ok(ways.into_iter().filter_map(|way| way.route.ok()).collect())
}

/// Whether two files have the same bytes.
fn equal(one: &Path, other: &Path, len: u64) -> Result<bool> {
    let (one, other) = (Ssd::open(one)?, Ssd::open(other)?);
    if one.len()? != len || other.len()? != len {
        return Ok(false);
    }
    let machine = datapipes::discover();
    let done = std::sync::atomic::AtomicU64::new(0);
    let state =
        || State { phase: "comparing", done: done.load(std::sync::atomic::Ordering::Relaxed), total: len, later: 0 };
    let (one, other) = (AnyLocator::Ssd(one), AnyLocator::Ssd(other));
    let difference =
        progress::during(progress::wanted(), state, || verify::first_difference(&machine, &one, &other, len, &done))?;
    Ok(difference.is_none())
}

/// Input, runs and output; and the output of the system's sort, while ours is still there.
fn check_space(dir: &Path, args: &Args) -> Result<()> {
    let need = args.size.saturating_mul(if args.no_compare { 3 } else { 4 });
    let storage = BlockDevice::behind(dir)?;
    match storage.available_bytes {
        Some(free) if free < need => {
            let why = format!(
                "{} has {} free, and {} are needed for the input, sorted runs and the results",
                dir.display(),
                units::bytes(free),
                units::bytes(need)
            );
            Err(Error::new(ErrorKind::NoSpace, "demo", why).with_advice("give a smaller --size, or another --dir"))
        }
        _ => Ok(()),
    }
}
