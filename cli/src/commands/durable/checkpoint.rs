//! `dpipe checkpoint`: regions of memory, saved and restored as a whole.

mod bench;
mod objects;
mod shown;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use datapipes::in_flight_limit::InFlightLimit;
use datapipes::{AtomicFile, Constraints, Dram, Error, ErrorKind, FileMode, Machine, Result, Span};
use datapipes_durable::checkpoint::{Checkpoint, CheckpointEntry, Fallback, Manifest, SaveOptions, SavedCheckpoint};
use serde::Serialize;

use crate::any_locator::{AnyLocator, open_to_read};
use crate::arguments::ending::Ending;
use crate::arguments::units;
use crate::metrics_file::told;
use crate::objects::{ObjectAccess, address_in, is_object, is_object_path, refuse_paths, shown as shown_address};
use crate::outcome::{CommandStatus, harmless, print, print_json, shown_path};
use crate::system::files;
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};
use objects::checkpoints;
use shown::{CheckpointPhase, shown, watched};

const CHECKPOINT: Ending = Ending {
    notes: "\
A checkpoint is one file in a folder of them. It gets its name when all of it is durable. Each
MiB has a checksum. In place of a folder, s3://BUCKET/PREFIX (gs://, az://) holds them as objects:
one that is saved appears when all of it is stored and checked, and only if no other save took its
number meanwhile. Files to save, and the folder to restore to, may be objects, too.",
    zero: "done",
    one: Some("a checkpoint is damaged"),
    examples: &["dpipe checkpoint save saves data.bin", "dpipe checkpoint list saves"],
};
const SAVE: Ending = Ending {
    notes: "",

    zero: "the checkpoint is durable",
    one: Some("it is, but older ones could not be removed"),
    examples: &[
        "dpipe checkpoint save saves data.bin lines.txt",
        "dpipe checkpoint save saves data.bin --keep 2 --json",
    ],
};
const RESTORE: Ending = Ending {
    notes: "",

    zero: "the regions are restored and on the disk",
    one: None,
    examples: &[
        "dpipe checkpoint restore saves --output restored",
        "dpipe checkpoint restore saves -o again --fallback --json",
    ],
};
const LIST: Ending = Ending {
    notes: "",

    zero: "all checkpoints have an intact end",
    one: Some("a checkpoint is damaged at its end"),
    examples: &["dpipe checkpoint list saves", "dpipe checkpoint list saves --json"],
};
const VERIFY: Ending = Ending {
    notes: "",

    zero: "the checkpoints are intact",
    one: Some("a checkpoint is damaged"),
    examples: &["dpipe checkpoint verify saves", "dpipe checkpoint verify saves --json"],
};

/// Saves regions of memory as a whole or not at all, and restores them.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECKPOINT.text())]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics: Option<SideFileArgument>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Load files into memory and save them as one checkpoint, one region each
    Save(Save),
    /// Restore a checkpoint into memory, check it, and write its regions as files
    Restore(Restore),
    /// Show the checkpoints of a folder
    List(List),
    /// Read and check whole checkpoints
    Verify(Verify),
    /// Save regions of random bytes, restore and compare them, and show how fast that was
    Bench(bench::Args),
}

#[derive(Debug, clap::Args)]
#[command(after_help = SAVE.text())]
struct Save {
    /// Folder of the checkpoints, which is created if it does not exist, or s3://BUCKET/PREFIX
    dir: PathBuf,
    /// Files or objects to save; each becomes a region with the file's name
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Keep the newest N checkpoints, this one included, and remove older ones
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Print JSON: number, bytes, write_seconds, publish_seconds, checksum_seconds, removed,
    /// removal_error (null if there is none)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = RESTORE.text())]
struct Restore {
    /// Folder of the checkpoints, or s3://BUCKET/PREFIX
    dir: PathBuf,
    /// Folder to write the files to, or s3://BUCKET/PREFIX
    #[arg(long, short, alias = "to", value_name = "DIR")]
    output: PathBuf,
    /// Number of the checkpoint to restore [default: the newest]
    #[arg(long, value_name = "N", conflicts_with = "fallback")]
    number: Option<u64>,
    /// Restore the newest checkpoint that is intact if the newest one is damaged
    #[arg(long)]
    fallback: bool,
    /// Print JSON: number, bytes, regions, skipped, seconds
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = LIST.text())]
struct List {
    /// Folder of the checkpoints, or s3://BUCKET/PREFIX
    dir: PathBuf,
    /// Print JSON: an array of number, path, state
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = VERIFY.text())]
struct Verify {
    /// Folder of the checkpoints, or s3://BUCKET/PREFIX
    dir: PathBuf,
    /// Number of the checkpoint to verify [default: all]
    #[arg(long, value_name = "N")]
    number: Option<u64>,
    /// Print JSON: an array of number, bytes, damage (null if it is intact)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let name = match &args.action {
        Action::Save(_) => "checkpoint save",
        Action::Restore(_) => "checkpoint restore",
        Action::List(_) => "checkpoint list",
        Action::Verify(_) => "checkpoint verify",
        Action::Bench(_) => "checkpoint bench",
    };
    let bench_dir = if let Action::Bench(args) = &args.action { args.dir.as_ref() } else { None };
    refuse_paths("checkpoint", [bench_dir])?;
    let mut side_files = SideFiles::beside(places(args));
    let metrics = side_files.take("--metrics", args.metrics.as_ref())?;
    let page = if let Action::Bench(args) = &args.action { args.report_page.take(&mut side_files)? } else { None };
    told(metrics.as_ref(), name, |metrics| match &args.action {
        Action::Save(args) => save(args).map(|saved| {
            metrics.keep(saved.samples());
            if saved.removal_error.is_none() { CommandStatus::Good } else { CommandStatus::Bad }
        }),
        Action::Restore(args) => restore(args),
        Action::List(args) => list(args),
        Action::Verify(args) => verify(args),
        Action::Bench(args) => bench::run(args, metrics, page),
    })
}

/// All files that are read and written.
fn places(args: &Args) -> CommandPlaces {
    let places = CommandPlaces::of("checkpoint");
    match &args.action {
        Action::Save(save) => places.files_of(&save.dir).files(&save.files),
        Action::List(List { dir, .. }) | Action::Verify(Verify { dir, .. }) => places.files_of(dir),
        // It saves to a folder of its own, which nobody can name before.
        Action::Bench(_) => places,
        Action::Restore(restore) => {
            let places = places.files_of(&restore.dir);
            // Only the checkpoint tells what will be written, and only side files need to know.
            if args.metrics.is_none() { places } else { places.files(restored_files(restore)) }
        }
    }
}

/// The files that a restore may write: regions of all checkpoints, for a damaged one may be passed
/// over. What cannot be read now is told by the restore itself.
fn restored_files(args: &Restore) -> Vec<PathBuf> {
    if is_object_path(&args.output) {
        return Vec::new();
    }
    let machine = datapipes::discover();
    let listed = checkpoints(&machine, &args.dir).and_then(|store| store.list()).unwrap_or_default();
    let regions = listed.iter().filter_map(|one| one.state.as_ref().ok()).flat_map(|manifest| &manifest.regions);
    regions.filter_map(|region| plain(&region.name).ok()).map(|name| args.output.join(name)).collect()
}

fn save(args: &Save) -> Result<SavedCheckpoint> {
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    // It holds the bytes of all of them, and is as private as the most private.
    let mut mode = FileMode::USUAL;
    let mut regions = Vec::new();
    for path in &args.files {
        let loaded = load(&machine, path)?;
        mode = mode.and(loaded.mode);
        regions.push((loaded.name, loaded.memory));
    }
    let named: Vec<(&str, &Dram)> = regions.iter().map(|(name, memory)| (name.as_str(), memory)).collect();
    let store = checkpoints(&machine, &args.dir)?;
    let saved = watched(CheckpointPhase::SAVING, |watch| {
        store.save(&named, &SaveOptions::default().keep(args.keep).mode(mode), watch)
    })?;
    if args.json {
        print_json(&saved)?;
    } else {
        print(&shown(&saved))?;
    }
    Ok(saved)
}

/// A file in memory.
struct Loaded {
    name: String,
    memory: Dram,
    mode: FileMode,
}

fn load(machine: &Machine, path: &Path) -> Result<Loaded> {
    let shown = shown_address(&path.to_string_lossy());
    let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "save", format!("{shown}: {why}"));
    if let Some(address) = path.to_str().filter(|address| is_object(address)) {
        let object = ObjectAccess::to_read()?.open(address)?;
        let name =
            object.file_name().ok_or_else(|| bad("its key has no last part that could name a region"))?.to_owned();
        let place = AnyLocator::Object(object);
        return Ok(Loaded { name, memory: in_memory(machine, &place, bad)?, mode: FileMode::USUAL });
    }
    let name = path.file_name().ok_or_else(|| bad("it is a directory, which no region can be"))?;
    let name = name.to_str().ok_or_else(|| bad("its name is not UTF-8"))?;
    let place = AnyLocator::Ssd(open_to_read(path)?);
    let mode = place.ssd().map_or(Ok(FileMode::USUAL), FileMode::of)?;
    Ok(Loaded { name: name.to_owned(), memory: in_memory(machine, &place, bad)?, mode })
}

/// The bytes of a place, in new memory.
fn in_memory(machine: &Machine, place: &AnyLocator, bad: impl Fn(&str) -> Error) -> Result<Dram> {
    let len = place.len()?;
    let bytes = usize::try_from(len).map_err(|_| bad("it is larger than memory"))?;
    // Memory has a byte at least; a part of it may have none.
    let memory = Dram::allocate(bytes.max(1))?.range(0, bytes)?;
    if len > 0 {
        machine.connect(place, &memory)?.transfer(Span { source: 0, target: 0, len })?;
    }
    Ok(memory)
}

#[derive(Serialize)]
struct RestoredFiles {
    number: u64,
    bytes: u64,
    regions: Vec<String>,
    /// Newer checkpoints that are damaged, by number.
    skipped: HashMap<u64, String>,
    seconds: f64,
}

fn restore(args: &Restore) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let store = checkpoints(&machine, &args.dir)?;
    let since = Instant::now();
    let fallback = if args.fallback { Fallback::Older } else { Fallback::Refuse };
    let (number, regions, skipped) = watched(CheckpointPhase::RESTORING, |watch| match args.number {
        Some(number) => store.open(number)?.restore(watch).map(|regions| (number, regions, Vec::new())),
        None => store.restore_latest(fallback, watch).map(|r| (r.number, r.regions, r.skipped)),
    })?;
    // A restored file is as private as its checkpoint.
    let mode = store.mode(number)?;
    let bucket = args.output.to_str().filter(|output| is_object(output)).map(|output| output.trim_end_matches('/'));
    // Before any is written: after an error, none of them is there.
    regions.iter().try_for_each(|(name, _)| plain(name).map(drop))?;
    match bucket {
        Some(prefix) => {
            let access = ObjectAccess::to_write()?;
            let address = |name: &str| address_in(&format!("{prefix}/"), name);
            regions.iter().try_for_each(|(name, _)| access.check_address(&address(name)))?;
            for (name, memory) in &regions {
                signals::check("restore")?;
                let len = memory.len() as u64;
                let object = access.create(&address(name), Some(len), 1)?;
                if len > 0 {
                    machine.connect(memory, &object)?.transfer(Span { source: 0, target: 0, len })?;
                }
                object.publish(len)?;
            }
        }
        None => {
            let fail = |e| Error::io("create", e, args.output.display().to_string());
            std::fs::create_dir_all(&args.output).map_err(fail)?;
            for (at, (name, memory)) in regions.iter().enumerate() {
                signals::undo_says(format!(
                    "{at} of {} regions are whole files, and the others are not there",
                    regions.len()
                ));
                write(&machine, &args.output.join(name), memory, mode)?;
            }
        }
    }
    let outcome = RestoredFiles {
        number,
        bytes: regions.iter().map(|(_, memory)| memory.len() as u64).sum(),
        regions: regions.into_iter().map(|(name, _)| name).collect(),
        skipped: skipped.into_iter().collect(),
        seconds: since.elapsed().as_secs_f64(),
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        let skipped: String = outcome.skipped.values().map(|why| format!("passed over: {why}\n")).collect();
        let regions = harmless(&outcome.regions.join(", "), usize::MAX);
        let bytes = units::bytes(outcome.bytes);
        print(&format!("{skipped}checkpoint {number}: {bytes} in {:.3} s: {regions}\n", outcome.seconds))?;
    }
    Ok(CommandStatus::Good)
}

/// A region's name as that of a file: it must not lead elsewhere.
fn plain(name: &str) -> Result<&str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(one)), None) if one == name => Ok(name),
        _ => Err(Error::new(ErrorKind::InvalidInput, "restore", format!("region `{name}`: no name for a file"))),
    }
}

/// What requests past the page cache are multiples of.
const BLOCK: u64 = 4096;

fn write(machine: &Machine, path: &Path, memory: &Dram, mode: FileMode) -> Result<()> {
    let draft = AtomicFile::replacing(path, mode)?;
    let len = memory.len() as u64;
    draft.ssd().preallocate(len)?;
    if len > 0 {
        let pipe = machine.connect_with(memory, draft.ssd(), &Constraints::default().typical_len(len))?;
        // What was begun is waited for: on a slow disk little is begun at once.
        let mut limit = InFlightLimit::new(256 << 10, 1 << 20, 64 << 20);
        let mut at = 0;
        while at < len {
            signals::check("restore")?;
            let (piece, begun) = ((limit.bytes() / BLOCK * BLOCK).min(len - at), limit.begin());
            pipe.transfer(Span { source: at, target: at, len: piece })?;
            limit.arrived(begun);
            at += piece;
        }
    }
    signals::check("restore")?;
    files::publish(draft, len).map(|_| ())
}

/// Describes the checkpoints of a folder as text.
fn line(number: u64, state: Result<&Manifest, &str>) -> String {
    match state {
        Ok(m) => {
            let regions: Vec<String> = m
                .regions
                .iter()
                .map(|r| format!("{} ({})", harmless(&r.name, usize::MAX), units::bytes(r.len)))
                .collect();
            format!(
                "{number}: {}, saved {} s after 1970: {}\n",
                units::bytes(m.bytes()),
                m.created_unix_s,
                regions.join(", ")
            )
        }
        Err(why) => format!("{number}: DAMAGED: {why}\n"),
    }
}

fn list(args: &List) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let listed = checkpoints(&machine, &args.dir)?.list()?;
    if args.json {
        print_json(&listed)?;
    } else if listed.is_empty() {
        print(&format!("{} holds no checkpoint\n", shown_path(&args.dir)))?;
    } else {
        let show = |l: &CheckpointEntry| line(l.number, l.state.as_ref().map_err(String::as_str));
        print(&listed.iter().map(show).collect::<String>())?;
    }
    Ok(if listed.iter().all(|l| l.state.is_ok()) { CommandStatus::Good } else { CommandStatus::Bad })
}

#[derive(Serialize)]
struct Verified {
    number: u64,
    bytes: u64,
    damage: Option<String>,
}

fn verify(args: &Verify) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let store = checkpoints(&machine, &args.dir)?;
    let numbers = match args.number {
        Some(number) => vec![number],
        None => store.list()?.iter().map(|l| l.number).collect(),
    };
    if numbers.is_empty() {
        let why = format!("{} holds no checkpoint", shown_path(&args.dir));
        return Err(Error::new(ErrorKind::NotFound, "verify", why));
    }
    let mut all = Vec::new();
    for number in numbers {
        let check = |c: Checkpoint| {
            let bytes = c.manifest().bytes();
            watched(CheckpointPhase::CHECKING, |watch| c.verify(watch)).map(|()| bytes)
        };
        let (bytes, damage) = match store.open(number).and_then(check) {
            Ok(bytes) => (bytes, None),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Device) => (0, Some(e.to_string())),
            Err(e) => return Err(e),
        };
        if !args.json {
            let found = damage.as_ref().map_or_else(|| "intact".into(), |why| format!("DAMAGED: {why}"));
            print(&format!("{number}: {found}\n"))?;
        }
        all.push(Verified { number, bytes, damage });
    }
    if args.json {
        print_json(&all)?;
    }
    Ok(if all.iter().all(|v| v.damage.is_none()) { CommandStatus::Good } else { CommandStatus::Bad })
}
