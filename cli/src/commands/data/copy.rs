//! `dpipe copy`: the bytes of one place to another.

mod completion;
mod moving;
mod outcome;
mod page;
mod several;
pub(crate) mod verify;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::metrics::{Label, Sample, vocabulary};
use datapipes::{AtomicFile, Error, ErrorKind, FileMode, Machine, Result, Ssd, Uri};

use super::constraints::Demands;
use super::share::TransferShareArgs;
use crate::any_locator::{AnyLocator, Memory, NamedPlace, is_block_device, with_access};
use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::metrics_file::{CommandMetrics, told};
use crate::objects::{ObjectAccess, address_in, is_pattern, shown};
use crate::outcome::{CommandStatus, note, print_as_it_is, print_json};
use crate::progress::{self, State};
use crate::remote_memory::AnyRemote;
use crate::report::options::{PageFile, ReportArgs};
use crate::report::recorder::record;
use crate::system::side_files::{CommandPlaces, SideFile, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};
use crate::{arguments::units, colors, offering, system::child};
use completion::{CopiedBytes, Ended, Target, complete};
use moving::{Windows, move_all, window};
use outcome::{Outcome, text};
use several::SeveralCopies;

const ENDING: Ending = Ending {
    notes: "\
A file appears under its name when it is complete and synced. Holes of the source are written as
zeros. `-` is the name of a file here, not a stream. If one end is memory that is smaller than the
other end, the bytes go through it again and again, which tests the bandwidth. hbm:DEVICE is
fresh memory of a GPU, as long as the other end. An object
(s3://BUCKET/KEY, gs://, az://; http:// and https:// as a source) is read at one version, and appears
when all its parts are stored and checked; credentials and endpoint are those of the cloud's own
tools (AWS_*, AWS_ENDPOINT_URL). With --verify an object that was written is read again. A source that
ends in `*` (s3://BUCKET/in/part-*) stands for all objects that it fits, which are copied one after
the other into a folder or behind an address that ends in `/`, each as a whole.
remote://TICKET is memory that another process exports (`dpiped --export`); TICKET is the file that
it wrote. It is written in place. Options: ?network=trusted (bytes go by a network, unencrypted),
&transports=NAMES and &devices=NAMES as UCX calls them.",
    zero: "all bytes were moved",
    one: Some("--verify found a difference"),
    examples: &[
        "dpipe copy data.bin copy.bin --verify",
        "dpipe copy data.bin dram:4M --json",
        "dpipe copy dram:64M zeros.bin --size 8M",
        "dpipe copy data.bin pmem:/mnt/pmem/data.bin  # needs persistent memory",
        "dpipe copy data.bin hbm:0 --verify  # needs a GPU",
        "dpipe copy data.bin s3://bucket/data.bin  # needs a dpipe built with objects",
        "dpipe copy 's3://bucket/in/part-*' folder  # needs a dpipe built with objects",
        "dpipe copy data.bin remote:///run/user/1000/ticket  # needs UCX",
    ],
};

/// Moves the bytes of one place to another, and says how they went.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Place to copy from
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    source: String,
    /// Place to copy to: a new file, a file to replace, a folder, a block device, memory, an
    /// object, memory of another process
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
    /// report, and objects: what was asked of servers; of a pattern copies (a list of these), bytes
    /// and seconds
    #[arg(long)]
    json: bool,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics: Option<SideFileArgument>,
    #[command(flatten)]
    report_page: ReportArgs,
    #[command(flatten)]
    demands: Demands,
    #[command(flatten)]
    share: TransferShareArgs,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    if is_pattern(&args.source) {
        let copying = SeveralCopies {
            source: &args.source,
            target: &args.target,
            json: args.json,
            for_one: [
                ("--size", args.size.is_some()),
                ("--metrics", args.metrics.is_some()),
                ("--report-html", args.report_page.report_html.is_some()),
            ],
        };
        return told(None, "copy", |metrics| {
            copying.run(|machine, address, target, named| {
                let ends = CopyEnds { named: [address, named], target, is_folder: false };
                one(machine, args, &ends, metrics, None).map(|(outcome, _)| outcome)
            })
        });
    }
    let (source, target) = (NamedPlace::parse(&args.source)?, NamedPlace::parse(&args.target)?);
    let mut side_files = SideFiles::beside(places(&source, &target));
    let metrics = side_files.take("--metrics", args.metrics.as_ref())?;
    let page = args.report_page.take(&mut side_files)?;
    told(metrics.as_ref(), "copy", |metrics| run_told(args, metrics, page))
}

/// The files that are read and written.
fn places(source: &NamedPlace, target: &NamedPlace) -> CommandPlaces {
    let ends = [source, target];
    let files = ends.into_iter().flat_map(|end| end.path().into_iter().chain(end.ticket()));
    // In a folder, the file has the name of the source.
    let in_folder = target.path().zip(source.file_name()).map(|(folder, name)| folder.join(name));
    CommandPlaces::of("copy").files(files).files(in_folder)
}

fn run_told(args: &Args, metrics: &CommandMetrics<'_>, page: Option<SideFile>) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let target = NamedPlace::parse(&args.target)?;
    let ends = CopyEnds { named: [&args.source, &args.target], target: &target, is_folder: true };
    let (outcome, page_file) = one(&machine, args, &ends, metrics, page)?;
    if args.json {
        print_json(&outcome)?;
    } else {
        let color = colors::on_output();
        print_as_it_is(&text(&outcome, |words, meaning| colors::paint(words, meaning, color)))?;
    }
    if let (Some(file), Some(recording)) = (page_file, &outcome.recording) {
        file.write(&page::page(&outcome, recording))?;
    }
    Ok(outcome.status())
}

/// What is copied where.
struct CopyEnds<'a> {
    /// Source and target, as they were named.
    named: [&'a str; 2],
    target: &'a NamedPlace,
    /// Whether the target may be a folder, in which a file has the name of the source.
    is_folder: bool,
}

/// Copies one place.
fn one(
    machine: &Machine,
    args: &Args,
    ends: &CopyEnds<'_>,
    metrics: &CommandMetrics<'_>,
    page: Option<SideFile>,
) -> Result<(Outcome, Option<PageFile>)> {
    let (named, target) = (ends.named[0], ends.target);
    let source = NamedPlace::parse(named)?;
    let known = match target {
        NamedPlace::Uri(Uri::Dram { len, .. }) => *len,
        _ => 0,
    };
    if matches!(source, NamedPlace::Uri(Uri::Dram { len: 0, .. })) && args.size.is_none() && known == 0 {
        let error = Error::new(ErrorKind::InvalidInput, "copy", format!("{named}: of what size?"));
        return Err(error.with_advice("give dram:SIZE, or --size"));
    }
    let source =
        AnyLocator::source(machine, &source, Memory { len_bytes: args.size.unwrap_or(known), prefault: true })?;
    let len = args.size.unwrap_or(source.len()?);
    if source.memory().is_none() && source.len()? < len {
        let why = format!("{} bytes of {}, which has {}", len, shown(named), source.len()?);
        return Err(Error::new(ErrorKind::OutOfRange, "copy", why).with_advice("give a smaller --size"));
    }
    let page_file = PageFile::open(page)?;
    let target = Target::open(machine, ends, &source, len, args.force)?;
    signals::catch(WaitsFor::Places);
    signals::undo_says(target.undone(ends.named[1]));
    let outcome = copy(machine, (args, ends, metrics), &source, target, len)?;
    Ok((outcome, page_file))
}

impl Target {
    /// What a signal leaves behind, in words.
    fn undone(&self, name: &str) -> String {
        match (&self.draft, &self.place) {
            (Some(_), _) => format!("{name} is as it was before"),
            (None, AnyLocator::Object(_)) => format!("{name} is as it was before"),
            (None, AnyLocator::Ssd(_) | AnyLocator::Pmem(_) | AnyLocator::Remote(_)) => {
                format!("{name} was written in part")
            }
            (None, _) => "nothing is left behind".to_owned(),
        }
    }

    fn open(machine: &Machine, ends: &CopyEnds<'_>, source: &AnyLocator, len: u64, force: bool) -> Result<Target> {
        let uri = match ends.target {
            NamedPlace::Uri(uri) => uri,
            NamedPlace::Object(address) => {
                let address = address_of(address, source)?;
                if matches!(source, AnyLocator::Object(object) if object.address() == address) {
                    let why = format!("{address} is both the source and the target");
                    return Err(Error::new(ErrorKind::InvalidInput, "copy", why));
                }
                let object = ObjectAccess::to_write()?.create(&address, Some(len), 1)?;
                object.notes().iter().for_each(|text| note(&format!("dpipe copy: note: {text}\n")));
                return Ok(Target { place: AnyLocator::Object(object), draft: None });
            }
            NamedPlace::Remote(address) => {
                let remote = AnyRemote::open(address)?;
                if remote.len() < len {
                    let why = format!("{len} bytes to {address}, which has {}", remote.len());
                    return Err(Error::new(ErrorKind::NoSpace, "copy", why).with_advice("give a smaller --size"));
                }
                return Ok(Target { place: AnyLocator::Remote(remote), draft: None });
            }
        };
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
        let path = &if ends.is_folder { named(path, source)? } else { path.clone() };
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
        // What was memory may be a secret; what was an object has no mode.
        AnyLocator::Remote(_) => Ok(FileMode::like(0o600)),
        AnyLocator::Object(_)
        | AnyLocator::Dram(_)
        | AnyLocator::Cache(_)
        | AnyLocator::Numa(_)
        | AnyLocator::Hbm(_) => Ok(FileMode::USUAL),
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
        AnyLocator::Object(_)
        | AnyLocator::Remote(_)
        | AnyLocator::Dram(_)
        | AnyLocator::Cache(_)
        | AnyLocator::Numa(_)
        | AnyLocator::Hbm(_) => return Ok(()),
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
    let name = match source {
        AnyLocator::Object(object) => object.file_name().map(std::ffi::OsStr::new),
        other => other.ssd().and_then(|ssd| ssd.path().file_name()),
    };
    let name = name.ok_or_else(|| {
        let why = format!("{} is a folder, and the source has no file name", path.display());
        Error::new(ErrorKind::InvalidInput, "copy", why).with_advice("name a file in it")
    })?;
    Ok(path.join(name))
}

/// Behind a `/` at the end, an object has the name of the source.
fn address_of(address: &str, source: &AnyLocator) -> Result<String> {
    if !address.ends_with('/') {
        return Ok(address.to_owned());
    }
    let name = match source {
        AnyLocator::Object(object) => object.file_name(),
        other => other.ssd().and_then(|ssd| ssd.path().file_name()).and_then(|name| name.to_str()),
    };
    let name = name.ok_or_else(|| {
        let why = format!("{address} ends in `/`, and the source has no file name");
        Error::new(ErrorKind::InvalidInput, "copy", why).with_advice("name an object")
    })?;
    Ok(address_in(address, name))
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
    (args, ends, metrics): (&Args, &CopyEnds<'_>, &CommandMetrics<'_>),
    source: &AnyLocator,
    target: Target,
    len: u64,
) -> Result<Outcome> {
    let windows = Windows { source: window(source, len)?, target: window(&target.place, len)? };
    if args.verify && (windows.source < len || windows.target < len) {
        let error = Error::new(ErrorKind::InvalidInput, "verify", format!("memory holds less than the {len} bytes"));
        return Err(error.with_advice("give dram: without a size, or leave --verify out"));
    }
    let pipe = args.share.connect(machine, (source, &target.place), &args.demands.constraints(len))?;
    let visible = progress::wanted();
    let (started, cpu) = (Instant::now(), child::own_cpu_seconds());
    // The comparison reads as many bytes again.
    let later = if args.verify { len } else { 0 };
    // What the pipe has counted: whole pieces would stand still for long on a slow disk.
    let state = || State { phase: "copying", done: pipe.report().bytes().min(len), total: len, later };
    let columns = args.report_page.report_html.is_some().then(|| page::columns(pipe.route().hops.len()));
    let is_distant = [source, &target.place].iter().any(|place| matches!(place, AnyLocator::Object(_)));
    let compared = AtomicU64::new(0);
    let work = || -> Result<Ended> {
        progress::during(visible, state, || move_all(&pipe, windows, is_distant, len))?;
        let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), child::own_cpu_seconds() - cpu);
        let copied = CopiedBytes {
            machine,
            source,
            names: ends.named,
            len,
            is_to_be_compared: args.verify,
            reopen: &|| reopened(ends, source),
            compared: &compared,
        };
        let ended = complete(&copied, target)?;
        Ok(Ended { seconds, cpu_seconds, ..ended })
    };
    let samples = || {
        let mut samples = pipe.report().samples("copy");
        if args.verify {
            let bytes = Sample::new(&vocabulary::PIPE_BYTES, compared.load(Relaxed));
            samples.push(bytes.label(Label::Product, "pipe").label(Label::Pipe, "comparison"));
        }
        samples
    };
    let work = || offering::during("dpipe copy", samples, work);
    let work = || metrics.during(samples, work);
    let (ended, recording) = record(columns, || page::values(&pipe, compared.load(Relaxed)), work);
    let Ended { seconds, cpu_seconds, sync_seconds, verified, verify_seconds, is_object, objects } = ended?;
    let (mut route, mut report) = (pipe.route().clone(), pipe.report());
    let [from, to] = ends.named.map(shown);
    (route.source, route.target) = (from.clone(), to.clone());
    (report.source, report.target) = (from, to);
    let bytes_per_second = units::bytes_per_second(len, seconds);
    Ok(Outcome {
        bytes: len,
        seconds,
        sync_seconds,
        bytes_per_second,
        cpu_seconds,
        verified,
        visible: is_object,
        route,
        report,
        verify_seconds,
        objects,
        recording,
    })
}

/// The object that was written, opened for reading.
fn reopened(ends: &CopyEnds<'_>, source: &AnyLocator) -> Result<AnyLocator> {
    let address = match ends.target {
        NamedPlace::Object(address) => address_of(address, source)?,
        NamedPlace::Uri(_) | NamedPlace::Remote(_) => ends.named[1].to_owned(),
    };
    Ok(AnyLocator::Object(ObjectAccess::to_read()?.open(&address)?))
}
