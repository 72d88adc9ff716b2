//! `dpipe stream`: a source, transforms and a sink, each a locked-down process of its own,
//! connected by data channels; the same under each placement of the protocol.
//!
//! ```text
//! generator --TCP--> source --channel--> transform --channel--> ... --channel--> sink --> a file without a name
//!                                                                  equal to what was sent? then it gets its name
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `ends` | the origin, what must arrive, and waits that a signal or a timeout ends |
//! | `steps` | what was asked for, as devices and programs |
//! | `run` | one run of the stream, from its start until the file has its name |
//! | `job` | what all runs have in common |

mod ends;
mod job;
mod run;
mod steps;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use datapipes::offer;
use datapipes::topology::Topology;
use datapipes::{Error, ErrorKind, Result};
use datapipes_cpu::Calibration;
use datapipes_fabric::channel::{ChannelShape, Copies};
use datapipes_fabric::placement::Placement;
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::metrics_file::{CommandMetrics, told};
use crate::outcome::{CommandStatus, json, print, print_as_it_is, print_error, print_error_as_it_is, shown_path};
use crate::report::options::{PageFile, ReportArgs};
use crate::system::side_files::{CommandPlaces, SideDraft, SideFile, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};
use crate::table::save;
use ends::origin::Origin;
use ends::replay;
use ends::waiting::WaitTimeout;
use job::{Job, Target};
use run::one::{self, Run};
use run::{page, picture, table};
pub(crate) use steps::bodies::functions;
use steps::chain::{Step, Work, names};
pub(crate) use steps::supervisor::enter as keeper;
use steps::trust::TrustLevel;

/// A private copy of each block under way is kept by each receiver, and charged to it: see `Limits`
/// of the fabric.
const MAX_BLOCK_BYTES: u64 = 8 << 20;
/// The longest timeout: a longer one cannot be added to the clock.
const MAX_TIMEOUT_SECONDS: f64 = 1e9;

const ENDING: Ending = Ending {
    notes: "\
Nothing is at the output's name unless all of it arrived.",
    zero: "the file holds what was sent",
    one: Some("what is on the disk is not what was sent"),
    examples: &[
        "dpipe stream --from generate:8M --output stream.bin",
        "dpipe stream --from file:data.bin --through zstd=3 --output data.zst --json",
        "dpipe stream --from file:data.bin --through exec:'tr a-z A-Z' --output upper.bin",
        "dpipe stream --from - --through gzip --placement central --output - < lines.txt > lines.gz",
        "dpipe stream --from generate:8M --placement all --output stream.bin",
        "dpipe stream --from generate:8M --placement all --output stream.bin --plot channels.svg",
    ],
};

const TRANSFORMS: &str = "\
Transforms, one after the other, each in a process of its own:
  lz4, zstd[=1..19], gzip[=0..9]  compress the stream into one frame, which the tool of that name
                                  reads
  unlz4, unzstd, gunzip           decompress what those tools wrote; damage, a cut end and bytes
                                  behind it are errors (a frame of `lz4 -l` has no mark of its
                                  end: if it is cut between two of its blocks, the cut is not
                                  found)
  crc32                           passes the blocks on, and reports the checksum of the stream
  xor=KEY, forward                changes each byte, changes nothing
  sort-u64                        sorts the numbers of each block, which must be a multiple of 8
                                  bytes
  lz4-compress, lz4-decompress    compress and decompress raw blocks, for one another only
  exec:COMMAND                    runs `sh -c COMMAND`, which reads the stream on its standard
                                  input and writes it on its standard output

A program (exec:) runs as you, outside of the isolation. All that follows exec: is its command,
commas too; give --through once more for later transforms. The program must read all of its input
and exit with 0, or nothing gets the name of the output. Its standard error is shown. What it
started and left running is ended with it, except what changed its user. Two processes see to
that, and one of them is enough; if both are killed, what the shell started stays.

Verified means: this command read the origin once more, applied the transforms to it, and found
the bytes read back from the file to be the same. An origin that can be read only once (tcp:, a
named pipe, -) and a program that can run only once (exec:) are not verified behind a transform
that changes bytes: the output is compared with what the sink received, and the report says so. With
--output - nothing can be read back, the report goes to the standard error, and what fails under
way has been written in part.";

/// Streams from a source through transforms to a file, by isolated processes, under each placement
/// of the protocol.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.after(TRANSFORMS))]
pub(crate) struct Args {
    /// Origin: generate:SIZE (made by this command and sent over TCP), tcp:HOST:PORT (what a
    /// listener sends until it closes), file:PATH (a file, a block device or a named pipe), - (the
    /// standard input)
    #[arg(long, default_value = "generate:256M", value_name = "ORIGIN")]
    from: Origin,
    /// Transforms on the way, separated by commas; the list is below. If it is given more than
    /// once, the lists follow each other
    #[arg(long, default_value = "crc32", value_name = "LIST")]
    through: Vec<String>,
    /// File to write, or - for the standard output. A file that exists is replaced when all bytes
    /// have arrived, and keeps its mode; a link is followed. A new file is no more readable than
    /// the file that it came from
    #[arg(long, short, alias = "to", value_name = "PATH")]
    output: Target,
    /// Where the protocol between the devices runs; all: one after the other, with a comparison
    #[arg(long, value_enum, default_value_t = Where::Distributed)]
    placement: Where,
    /// Bytes of a block, up to 8M
    #[arg(long, alias = "blocks", default_value = "1M", value_name = "SIZE", value_parser = parse_size)]
    block_size: u64,
    /// Blocks under way on a channel
    #[arg(long, default_value_t = 4, value_name = "N")]
    credits: u32,
    /// How far receivers trust senders not to write a block again
    #[arg(long, value_enum, default_value_t = TrustLevel::Copy)]
    trust: TrustLevel,
    /// Seconds, with a fraction if you like, after which to give up if no block moves, nobody
    /// answers or writes, or the sink does not make the file durable [default: never]
    #[arg(long, alias = "patience", value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Compare only what the devices counted: neither apply the transforms once more nor read the
    /// file back
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    report_page: ReportArgs,
    /// Print JSON: from, through, to, block_bytes, credits, trust, runs, verified
    #[arg(long)]
    json: bool,
    /// Draw the data channels under each placement that ran, as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics: Option<SideFileArgument>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// In the application, which talks to each device
    Application,
    /// In a process beside the devices
    Central,
    /// In the devices themselves
    Distributed,
    /// Whichever is estimated to be best here, with reasons
    Auto,
    /// The three, one after the other
    All,
}

impl Where {
    fn placements(self) -> Vec<Placement> {
        match self {
            Where::Application => vec![Placement::ApplicationSide],
            Where::Central => vec![Placement::CentralResourceSide],
            Where::Distributed => vec![Placement::DistributedResourceSide],
            Where::Auto => vec![Placement::Auto],
            Where::All => Placement::ALL.to_vec(),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("give seconds, more than 0 and at most {MAX_TIMEOUT_SECONDS}");
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= MAX_TIMEOUT_SECONDS).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero()).ok_or_else(wrong)
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    /// As the user gave it.
    from: String,
    /// As the user gave it.
    through: Vec<String>,
    /// The file, or "-".
    to: String,
    /// Bytes of a block of the source.
    block_bytes: u64,
    /// Blocks under way on each channel.
    credits: u32,
    /// Trust of each receiver in its sender.
    trust: TrustLevel,
    /// The runs, one for each placement.
    runs: Vec<Run>,
    /// Whether all runs are verified; null if one is unknown and none is wrong.
    verified: Option<bool>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let from = if let Origin::File(path) = &args.from { Some(path) } else { None };
    let to = if let Target::File(path) = &args.output { Some(path) } else { None };
    let mut side_files = SideFiles::beside(CommandPlaces::of("stream").files(from).files(to));
    let metrics = side_files.take("--metrics", args.metrics.as_ref())?;
    let asked =
        Asked { plot: side_files.begin("--plot", args.plot.as_ref())?, page: args.report_page.take(&mut side_files)? };
    told(metrics.as_ref(), "stream", |metrics| run_told(args, metrics, asked))
}

/// The files to be made of how it went.
struct Asked {
    plot: Option<SideDraft>,
    page: Option<SideFile>,
}

fn run_told(args: &Args, metrics: &CommandMetrics<'_>, asked: Asked) -> Result<CommandStatus> {
    let mut job = job(args)?;
    let page_file = PageFile::open(asked.page)?;
    signals::catch(WaitsFor::Places);
    signals::undo_says(match &args.output {
        Target::File(path) => format!("{} is as it was before", shown_path(path)),
        Target::Output => "what is on the standard output is not all".to_owned(),
    });
    signals::keep_children();
    // Before anything is started: what is wrong with the input is told at once, and the runs are
    // not held up by it.
    if job.verifies {
        let begun = Instant::now();
        job.due = replay::replay(&job)?;
        job.replay_seconds = begun.elapsed().as_secs_f64();
    }
    let (mut runs, mut counted) = (Vec::new(), Vec::new());
    for placement in args.placement.placements() {
        signals::check("stream")?;
        let run = one::run(&job, placement, metrics, &counted)?;
        if !args.json {
            say(&job.to, &table::run(&job, &run))?;
        }
        counted.extend(run.samples.iter().cloned());
        runs.push(run);
    }
    if let Some(file) = asked.plot {
        save(file, &picture::svg(&runs))?;
    }
    if let Some(file) = page_file {
        file.write(&page::page(&job, &runs))?;
    }
    let is_wrong = runs.iter().any(|run| run.verified == Some(false));
    let is_known = runs.iter().all(|run| run.verified.is_some());
    let verified = if is_wrong { Some(false) } else { is_known.then_some(true) };
    if args.json {
        let outcome = Outcome {
            from: args.from.to_string(),
            through: job.steps.into_iter().map(|step| step.name).collect(),
            to: job.to.to_string(),
            block_bytes: args.block_size,
            credits: args.credits,
            trust: job.trust,
            runs,
            verified,
        };
        let text = json(&outcome)? + "\n";
        match &args.output {
            Target::File(_) => print_as_it_is(&text)?,
            Target::Output => print_error_as_it_is(&text),
        }
    } else if runs.len() > 1 {
        say(&job.to, &table::comparison(&runs))?;
    }
    Ok(if is_wrong { CommandStatus::Bad } else { CommandStatus::Good })
}

/// Prints the report to the standard stream that does not carry the bytes.
fn say(to: &Target, text: &str) -> Result<()> {
    match to {
        Target::File(_) => print(text),
        Target::Output => {
            print_error(text);
            Ok(())
        }
    }
}

fn job(args: &Args) -> Result<Job> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "stream", what);
    if args.block_size == 0 || args.block_size > MAX_BLOCK_BYTES {
        return Err(wrong(format!("blocks of {} bytes, where 1 to {MAX_BLOCK_BYTES} can be", args.block_size)));
    }
    let many = args.placement.placements().len() > 1;
    if many && args.output == Target::Output {
        return Err(
            wrong("all placements, one after the other, into one stream".into()).with_advice("choose a placement")
        );
    }
    args.from.check()?;
    if many && args.from.is_read_once() && !matches!(args.from, Origin::Tcp(_)) {
        return Err(wrong(format!("all placements from {}, which can be read once", args.from))
            .with_advice("choose a placement, or copy it to a file"));
    }
    let checked = args.trust == TrustLevel::InPlaceChecked;
    let mut steps = Vec::new();
    let mut shapes = vec![ChannelShape { checked, ..ChannelShape::new(args.credits, args.block_size as usize) }];
    for name in args.through.iter().flat_map(|list| names(list)) {
        let step = Step::parse(name)?;
        let before = shapes[shapes.len() - 1];
        let grows = matches!(&step.work, Work::Function { function, .. } if function == "lz4-compress");
        let block_bytes = if grows { max_compressed_len(before.block_bytes) } else { before.block_bytes };
        shapes.push(ChannelShape { block_bytes, ..before });
        steps.push(step);
    }
    shapes.iter().try_for_each(ChannelShape::check)?;
    Ok(Job {
        origin: args.from.clone(),
        steps,
        to: args.output.clone(),
        shapes,
        trust: args.trust,
        patience: WaitTimeout(args.timeout),
        copies: calibrated(),
        quiet: args.json && args.output == Target::Output,
        verifies: !args.no_verify,
        records: args.report_page.report_html.is_some(),
        measures: args.metrics.is_some() || offer::is_allowed(),
        due: None,
        replay_seconds: 0.0,
    })
}

/// What was measured of this machine by `dpipe calibrate`; without that all copies go through the
/// caches.
fn calibrated() -> Copies {
    match Calibration::load(&Topology::discover()) {
        Ok(found) => {
            let bytes = |from: u64| usize::try_from(from).unwrap_or(usize::MAX);
            let copies = match found.handoff_nt_min_bytes {
                Some(from) => Copies::past_caches_from(bytes(from)).with_prefetch(found.prefetch_bytes),
                None => Copies::ORDINARY,
            };
            match found.handoff_rep_movsb_min_bytes {
                Some(from) => copies.by_string_from(bytes(from)),
                None => copies,
            }
        }
        Err(_) => Copies::ORDINARY,
    }
}

/// The longest that `lz4-compress` makes of so many bytes: a tenth more, its own 20 bytes, and the
/// length before it.
fn max_compressed_len(len: usize) -> usize {
    len + len / 10 + 24
}
