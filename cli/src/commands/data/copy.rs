//! `dpipe copy`: the bytes of one place to another.

mod outcome;
mod page;
pub(crate) mod verify;

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::{AtomicFile, Error, ErrorKind, FileMode, Machine, Pipe, Result, Span, Ssd, Transfer, Uri};

use super::constraints::Demands;
use crate::any_locator::{AnyLocator, Memory, is_block_device, with_access};
use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::metrics_file::{CommandMetrics, told};
use crate::outcome::{CommandStatus, print, print_error, print_json};
use crate::progress::{self, State};
use crate::report::options::ReportArgs;
use crate::report::recorder::record;
use crate::system::files;
use crate::system::side_files::keep_apart;
use crate::system::signals::{self, WaitsFor};
use crate::{arguments::units, colors, offering, system::child};
use outcome::{Outcome, text};

/// The most bytes of one transfer; two are under way at once.
const PIECE: u64 = 32 << 20;
const IN_FLIGHT: u64 = 2;

const ENDING: Ending = Ending {
    notes: "\
A file appears under its name when it is complete and synced. Holes of the source are written as
zeros. `-` is the name of a file here, not a stream. If one end is memory that is smaller than the
other end, the bytes go through it again and again, which tests the bandwidth.",
    zero: "all bytes were moved",
    one: Some("--verify found a difference"),
    examples: &[
        "dpipe copy data.bin copy.bin --verify",
        "dpipe copy data.bin dram:4M --json",
        "dpipe copy dram:64M zeros.bin --size 8M",
        "dpipe copy data.bin pmem:/mnt/pmem/data.bin  # needs persistent memory",
    ],
};

/// Moves the bytes of one place to another, and says how they went.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Place to copy from
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    source: String,
    /// Place to copy to: a new file, a file to replace, a folder, a block device, memory
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    target: String,
    /// Bytes to move [default: all of the source]
    #[arg(long, alias = "len", value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Read both ends again, files past the page cache, and compare them
    #[arg(long)]
    verify: bool,
    /// Overwrite a block device, or persistent memory that exists: their contents are lost
    #[arg(long)]
    force: bool,
    /// Print JSON: bytes, seconds, sync_seconds, bytes_per_second, cpu_seconds, verified, route,
    /// report
    #[arg(long)]
    json: bool,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    report_page: ReportArgs,
    #[command(flatten)]
    demands: Demands,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let (source, target) = (args.source.parse::<Uri>()?, args.target.parse::<Uri>()?);
    let mut places: Vec<PathBuf> = [&source, &target].into_iter().filter_map(Uri::path).map(PathBuf::from).collect();
    // In a folder, the file has the name of the source.
    if let (Some(folder), Some(name)) = (target.path(), source.path().and_then(Path::file_name)) {
        places.push(folder.join(name));
    }
    let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
    let options = [("--metrics", args.metrics.as_deref()), args.report_page.side_file()];
    keep_apart(&options, &places)?;
    told(args.metrics.as_deref(), "copy", |metrics| run_told(args, metrics))
}

fn run_told(args: &Args, metrics: &CommandMetrics<'_>) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let (source, target) = (args.source.parse::<Uri>()?, args.target.parse::<Uri>()?);
    let known = match &target {
        Uri::Dram { len, .. } => *len,
        _ => 0,
    };
    if matches!(source, Uri::Dram { len: 0, .. }) && args.size.is_none() && known == 0 {
        let error = Error::new(ErrorKind::InvalidInput, "copy", format!("{}: of what size?", args.source));
        return Err(error.with_advice("give dram:SIZE, or --size"));
    }
    let source =
        AnyLocator::source(&machine, &source, Memory { len_bytes: args.size.unwrap_or(known), prefault: true })?;
    let len = args.size.unwrap_or(source.len()?);
    if source.memory().is_none() && source.len()? < len {
        let why = format!("{} bytes of {}, which has {}", len, args.source, source.len()?);
        return Err(Error::new(ErrorKind::OutOfRange, "copy", why).with_advice("give a smaller --size"));
    }
    let page_file = args.report_page.open()?;
    let target = Target::open(&machine, &target, &source, len, args.force)?;
    signals::catch(WaitsFor::Places);
    signals::undo_says(target.undone(&args.target));
    let outcome = copy(&machine, (args, metrics), &source, target, len)?;
    if args.json {
        print_json(&outcome)?;
    } else {
        let color = colors::on_output();
        print(&text(&outcome, |words, meaning| colors::paint(words, meaning, color)))?;
    }
    if let (Some(file), Some(recording)) = (page_file, &outcome.recording) {
        file.write(&page::page(&outcome, recording))?;
    }
    Ok(if outcome.verified == Some(false) { CommandStatus::Bad } else { CommandStatus::Good })
}

/// The target of the bytes, and the draft that becomes the file at the end.
struct Target {
    place: AnyLocator,
    draft: Option<AtomicFile>,
}

impl Target {
    /// What a signal leaves behind, in words.
    fn undone(&self, name: &str) -> String {
        match (&self.draft, &self.place) {
            (Some(_), _) => format!("{name} is as it was before"),
            (None, AnyLocator::Ssd(_) | AnyLocator::Pmem(_)) => format!("{name} was written in part"),
            (None, _) => "nothing is left behind".to_owned(),
        }
    }

    fn open(machine: &Machine, uri: &Uri, source: &AnyLocator, len: u64, force: bool) -> Result<Target> {
        if let Uri::Pmem { path, emulated } = uri {
            if path.exists() && !force {
                let why = format!("{} exists, and persistent memory is written in place", path.display());
                return Err(Error::new(ErrorKind::InvalidInput, "copy", why).with_advice("say --force if you mean it"));
            }
            refuse_same(source, path)?;
            return Ok(Target { place: AnyLocator::pmem_target(path, *emulated, len, mode_of(source)?)?, draft: None });
        }
        let Uri::Ssd { path, access } = uri else {
            return Ok(Target {
                place: AnyLocator::memory_place(machine, uri, Memory { len_bytes: len, prefault: true })?,
                draft: None,
            });
        };
        let path = &named(path, source)?;
        refuse_same(source, path)?;
        if is_block_device(path) {
            let ssd = with_access(open_device(path, len, force)?, *access)?;
            return Ok(Target { place: AnyLocator::Ssd(ssd), draft: None });
        }
        let draft = AtomicFile::replacing(path, mode_of(source)?)?;
        draft.ssd().preallocate(len)?;
        let place = AnyLocator::Ssd(with_access(draft.ssd().clone(), *access)?);
        Ok(Target { place, draft: Some(draft) })
    }
}

/// A new file is no more readable than its source, as `cp` has it.
fn mode_of(source: &AnyLocator) -> Result<FileMode> {
    match source {
        AnyLocator::Ssd(ssd) => FileMode::of(ssd),
        AnyLocator::Pmem(pmem) => {
            let shown = || pmem.path().display().to_string();
            let meta = std::fs::metadata(pmem.path()).map_err(|e| Error::io("look at", e, shown()))?;
            Ok(FileMode::like(meta.permissions().mode()))
        }
        AnyLocator::Dram(_) | AnyLocator::Cache(_) | AnyLocator::Numa(_) => Ok(FileMode::USUAL),
    }
}

/// Refuses a target that is the source, by whatever name: another link to it, another mount,
/// another node of the device.
fn refuse_same(source: &AnyLocator, target: &Path) -> Result<()> {
    let from = match source {
        AnyLocator::Ssd(ssd) => {
            let fd = ssd.file().cached_fd();
            rustix::fs::fstat(fd)
                .map_err(|e| Error::os("look at", e.raw_os_error(), ssd.path().display().to_string()))?
        }
        AnyLocator::Pmem(pmem) => match rustix::fs::stat(pmem.path()) {
            Ok(stat) => stat,
            // Whatever the target is, it is not what has no name any more.
            Err(_) => return Ok(()),
        },
        AnyLocator::Dram(_) | AnyLocator::Cache(_) | AnyLocator::Numa(_) => return Ok(()),
    };
    let Ok(to) = rustix::fs::stat(target) else { return Ok(()) };
    let same_device = from.st_mode & libc::S_IFMT == to.st_mode & libc::S_IFMT
        && matches!(from.st_mode & libc::S_IFMT, libc::S_IFBLK | libc::S_IFCHR)
        && from.st_rdev == to.st_rdev;
    if same_device || (from.st_dev, from.st_ino) == (to.st_dev, to.st_ino) {
        let name = match source {
            AnyLocator::Pmem(pmem) => pmem.path().display().to_string(),
            other => other.ssd().map_or_else(String::new, |ssd| ssd.path().display().to_string()),
        };
        let why = format!("{name} and {} are the same file", target.display());
        return Err(Error::new(ErrorKind::InvalidInput, "copy", why));
    }
    Ok(())
}

/// In a folder, the file has the name of the source.
fn named(path: &Path, source: &AnyLocator) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_path_buf());
    }
    let name = source.ssd().and_then(|ssd| ssd.path().file_name());
    let name = name.ok_or_else(|| {
        let why = format!("{} is a folder, and the source has no file name", path.display());
        Error::new(ErrorKind::InvalidInput, "copy", why).with_advice("name a file in it")
    })?;
    Ok(path.join(name))
}

fn open_device(path: &Path, len: u64, force: bool) -> Result<Ssd> {
    if !force {
        let why = format!("{} is a block device, whose contents would be lost", path.display());
        return Err(Error::new(ErrorKind::InvalidInput, "copy", why).with_advice("say --force if you mean it"));
    }
    let ssd = Ssd::open_rw(path)?;
    if ssd.len()? < len {
        let why = format!("{len} bytes to {}, which has {}", path.display(), ssd.len()?);
        return Err(Error::new(ErrorKind::NoSpace, "copy", why));
    }
    Ok(ssd)
}

fn copy(
    machine: &Machine,
    (args, metrics): (&Args, &CommandMetrics<'_>),
    source: &AnyLocator,
    target: Target,
    len: u64,
) -> Result<Outcome> {
    let windows = Windows { source: window(source, len)?, target: window(&target.place, len)? };
    if args.verify && (windows.source < len || windows.target < len) {
        let error = Error::new(ErrorKind::InvalidInput, "verify", format!("memory holds less than the {len} bytes"));
        return Err(error.with_advice("give dram: without a size, or leave --verify out"));
    }
    let pipe = machine.connect_with(source, &target.place, &args.demands.constraints(len))?;
    let done = AtomicU64::new(0);
    let visible = progress::wanted();
    let (started, cpu) = (Instant::now(), child::own_cpu_seconds());
    // The comparison reads as many bytes again.
    let later = if args.verify { len } else { 0 };
    let state = || State { phase: "copying", done: done.load(Relaxed), total: len, later };
    let columns = args.report_page.report_html.is_some().then(|| page::columns(pipe.route().hops.len()));
    let work = || progress::during(visible, state, || move_all(&pipe, windows, len, &done));
    let work = || offering::during("dpipe copy", || pipe.report().samples("copy"), work);
    let work = || metrics.during(|| pipe.report().samples("copy"), work);
    let (moved, recording) = record(columns, || page::values(&pipe), work);
    moved?;
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), child::own_cpu_seconds() - cpu);
    let started = Instant::now();
    target.place.sync()?;
    let sync_seconds = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let mut verified = if args.verify { Some(equal(machine, args, source, &target.place, len)?) } else { None };
    // A file that is not equal does not get its name.
    if let Some(draft) = target.draft
        && verified != Some(false)
    {
        let path = draft.path().to_path_buf();
        // Where the bytes were copied into the file that was there, what counts is what it has.
        if files::publish(draft, len)? && args.verify {
            verified = Some(equal(machine, args, source, &AnyLocator::Ssd(Ssd::open(path)?), len)?);
        }
    }
    let verify_seconds = if args.verify { started.elapsed().as_secs_f64() } else { 0.0 };
    let (mut route, mut report) = (pipe.route().clone(), pipe.report());
    (route.source, route.target) = (args.source.clone(), args.target.clone());
    (report.source, report.target) = (args.source.clone(), args.target.clone());
    let bytes_per_second = units::bytes_per_second(len, seconds);
    Ok(Outcome {
        bytes: len,
        seconds,
        sync_seconds,
        bytes_per_second,
        cpu_seconds,
        verified,
        route,
        report,
        verify_seconds,
        recording,
    })
}

/// Whether both ends have the same bytes; a line says where they do not.
fn equal(machine: &Machine, args: &Args, source: &AnyLocator, target: &AnyLocator, len: u64) -> Result<bool> {
    let done = AtomicU64::new(0);
    let state = || State { phase: "comparing", done: done.load(Relaxed), total: len, later: 0 };
    let compare = || verify::first_difference(machine, source, target, len, &done);
    let difference = progress::during(progress::wanted(), state, compare)?;
    if let Some(at) = difference {
        print_error(&format!("dpipe copy: {} and {} differ at byte {at}\n", args.source, args.target));
    }
    Ok(difference.is_none())
}

/// How many bytes each end has before it starts over.
#[derive(Clone, Copy)]
struct Windows {
    source: u64,
    target: u64,
}

fn window(place: &AnyLocator, len: u64) -> Result<u64> {
    Ok(if place.memory().is_some() { place.len()?.min(len).max(1) } else { u64::MAX })
}

fn move_all(pipe: &Pipe, windows: Windows, len: u64, done: &AtomicU64) -> Result<()> {
    let smaller = windows.source.min(windows.target);
    // Transfers under way at once must not write the same bytes of memory.
    let piece = match smaller / IN_FLIGHT / 4096 * 4096 {
        0 => smaller,
        half => half.min(PIECE),
    };
    let in_flight = (windows.target / piece).clamp(1, IN_FLIGHT) as usize;
    let mut flying: VecDeque<(u64, Transfer)> = VecDeque::new();
    let mut at = 0;
    loop {
        while flying.len() < in_flight && at < len {
            signals::check("copy")?;
            let (source, target) = (at % windows.source, at % windows.target);
            let part = piece.min(len - at).min(windows.source - source).min(windows.target - target);
            flying.push_back((part, pipe.start(Span { source, target, len: part })?));
            at += part;
        }
        let Some((part, transfer)) = flying.pop_front() else { return Ok(()) };
        transfer.wait()?;
        done.fetch_add(part, Relaxed);
    }
}
