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
//! | `origin`, `waiting` | where bytes come from; waits that a signal and patience end |
//! | `chain`, `bodies`, `codecs`, `program`, `keeper` | what was asked for, as devices and programs |
//! | `one`, `watch`, `meter`, `view` | one stream, from its start to its name |
//! | `replay`, `blocks` | what must arrive, computed here |

mod blocks;
mod bodies;
mod chain;
mod codecs;
mod device_progress;
mod one;
mod origin;
mod program;
mod replay;
mod supervisor;
mod table;
mod trust;
mod view;
mod waiting;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use datapipes::topology::Topology;
use datapipes::{Error, ErrorKind, Result};
use datapipes_cpu::Calibration;
use datapipes_fabric::channel::{ChannelShape, Copies};
use datapipes_fabric::placement::Placement;
use serde::Serialize;

use crate::arguments::command_line::size;
use crate::outcome::{CommandStatus, json, print, print_error};
use crate::system::signals::{self, WaitsFor};
pub(crate) use bodies::functions;
use chain::{Step, Work, names};
use one::Run;
use origin::{Origin, Sum};
pub(crate) use supervisor::enter as keeper;
use trust::TrustLevel;
use waiting::WaitTimeout;

/// A private copy of each block under way is kept by each receiver, and charged to it: see `Limits`
/// of the fabric.
const MAX_BLOCK_BYTES: u64 = 8 << 20;
/// As long as anybody waits: beyond that a time cannot be added to the clock.
const MAX_PATIENCE_SECONDS: f64 = 1e9;

/// Nothing is at the target's name unless all of it arrived. Exit code 1 where what is on disk is
/// not what was sent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Transforms, one after the other, each in a process of its own:
  lz4, zstd[=1..19], gzip[=0..9]  compress; the whole stream becomes one frame, which the tool of that name reads
  unlz4, unzstd, gunzip           decompress what those tools wrote; damage, a cut end and bytes behind it are errors
                                  (a frame of `lz4 -l` has no mark of its end: cut between two of its blocks it passes)
  crc32                           passes blocks on, and reports the checksum of the stream
  xor=KEY, forward                changes each byte, changes nothing
  sort-u64                        sorts each block's numbers; a block must be a whole number of 8 bytes
  lz4-compress, lz4-decompress    raw blocks, for one another only
  exec:COMMAND                    `sh -c COMMAND`: it reads the stream on its standard input, and writes it on its standard output

A program (exec:) runs as you, outside of the isolation. All that follows exec: is its command, commas too; give --through once more
for what comes behind it. It must read all of its input and end with exit code 0, or nothing gets the target's name. Its standard
error is shown. What it started and left running is ended with it, except what changed its user. Two processes see to that, and
one of them is enough; who kills both leaves what the shell started.

Verified means: the origin was read once more, the transforms were applied to it here, and the bytes read back from the disk are the
same. What can be read only once (tcp:, a named pipe, -) or run only once (exec:) is not verified behind a transform that changes
bytes: the disk is compared with what the sink received, and the report says so. With --to - nothing can be read back, the report
goes to the standard error, and what fails under way has been written in part.")]
pub(crate) struct Args {
    /// generate:SIZE (made by this command and sent over TCP), tcp:HOST:PORT (what a listener sends
    /// until it closes), file:PATH (a file, a block device or a named pipe), - (the standard input)
    #[arg(long, default_value = "generate:256M", value_name = "ORIGIN")]
    from: Origin,
    /// Transforms on the way, separated by commas: see below. Given more than once, the lists
    /// follow each other
    #[arg(long, default_value = "crc32", value_name = "LIST")]
    through: Vec<String>,
    /// The file to write, or - for the standard output. What is there is replaced when all of it
    /// has arrived, and keeps its mode; a link is followed. A new file is no more readable than the
    /// file that it came from
    #[arg(long, value_name = "PATH")]
    to: Target,
    /// Where the protocol between the devices runs; all: one after the other, and a comparison
    #[arg(long, value_enum, default_value_t = Where::Distributed)]
    placement: Where,
    /// Bytes of a block, up to 8M
    #[arg(long, default_value = "1M", value_name = "SIZE", value_parser = size)]
    blocks: u64,
    /// Blocks under way on a channel
    #[arg(long, default_value_t = 4, value_name = "N")]
    credits: u32,
    /// How far receivers trust senders not to write a block again
    #[arg(long, value_enum, default_value_t = TrustLevel::Copy)]
    trust: TrustLevel,
    /// Give up when no block has moved for so long, when nobody answers or writes, or when the sink
    /// takes so long to make the file durable; may have a fraction. Without it, wait for as long as
    /// it takes
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    patience: Option<Duration>,
    /// Neither apply the transforms to the origin once more nor read the file back: only what the
    /// devices counted is compared
    #[arg(long)]
    no_verify: bool,
    /// Print JSON: from, through, to, block_bytes, credits, trust, runs, verified
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// In the application, which talks to each device
    Application,
    /// In a process beside the devices
    Central,
    /// In the devices
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

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    File(PathBuf),
    /// The standard output.
    Output,
}

impl From<std::ffi::OsString> for Target {
    fn from(text: std::ffi::OsString) -> Target {
        if text == "-" { Target::Output } else { Target::File(text.into()) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(path) => path.display().fmt(f),
            Target::Output => f.write_str("-"),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("give seconds, more than 0 and at most {MAX_PATIENCE_SECONDS}");
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= MAX_PATIENCE_SECONDS).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero()).ok_or_else(wrong)
}

/// What all runs have in common.
#[derive(Debug)]
struct Job {
    origin: Origin,
    steps: Vec<Step>,
    to: Target,
    /// Of the edges, in order: into each transform, and into the sink.
    shapes: Vec<ChannelShape>,
    trust: TrustLevel,
    patience: WaitTimeout,
    /// Which copies go past the caches.
    copies: Copies,
    /// Whether the standard error has the report as JSON, and nothing else.
    quiet: bool,
    /// Whether the origin is read once more, and the file read back.
    verifies: bool,
    /// What was sent and what must be on disk, where it can be computed again.
    due: Option<(Sum, Sum)>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome {
    /// As it was asked for.
    from: String,
    /// As it was asked for.
    through: Vec<String>,
    /// The file, or "-".
    to: String,
    /// Of the source.
    block_bytes: u64,
    /// Of each channel.
    credits: u32,
    /// Of each receiver.
    trust: TrustLevel,
    /// One for each placement.
    runs: Vec<Run>,
    /// Whether all of them hold; null where that is not known of each.
    verified: Option<bool>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let mut job = job(args)?;
    signals::catch(WaitsFor::Places);
    signals::keep_children();
    // Before anything is started: what is wrong with the input is told at once, and the runs are
    // not held up by it.
    if job.verifies {
        job.due = replay::replay(&job)?;
    }
    let mut runs = Vec::new();
    for placement in args.placement.placements() {
        signals::check("stream")?;
        let run = one::run(&job, placement)?;
        if !args.json {
            say(&job.to, &table::run(&job, &run))?;
        }
        runs.push(run);
    }
    let is_wrong = runs.iter().any(|run| run.verified == Some(false));
    let is_known = runs.iter().all(|run| run.verified.is_some());
    let verified = if is_wrong { Some(false) } else { is_known.then_some(true) };
    if args.json {
        let outcome = Outcome {
            from: args.from.to_string(),
            through: job.steps.into_iter().map(|step| step.name).collect(),
            to: job.to.to_string(),
            block_bytes: args.blocks,
            credits: args.credits,
            trust: job.trust,
            runs,
            verified,
        };
        say(&args.to, &(json(&outcome)? + "\n"))?;
    } else if runs.len() > 1 {
        say(&job.to, &table::comparison(&runs))?;
    }
    Ok(if is_wrong { CommandStatus::Bad } else { CommandStatus::Good })
}

/// Says how it went, where the bytes do not go.
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
    if args.blocks == 0 || args.blocks > MAX_BLOCK_BYTES {
        return Err(wrong(format!("blocks of {} bytes, where 1 to {MAX_BLOCK_BYTES} can be", args.blocks)));
    }
    let many = args.placement.placements().len() > 1;
    if many && args.to == Target::Output {
        return Err(wrong("all placements, one after the other, into one stream".into()).advice("choose a placement"));
    }
    args.from.check()?;
    if many && args.from.is_read_once() && !matches!(args.from, Origin::Tcp(_)) {
        return Err(wrong(format!("all placements from {}, which can be read once", args.from))
            .advice("choose a placement, or copy it to a file"));
    }
    let checked = args.trust == TrustLevel::InPlaceChecked;
    let mut steps = Vec::new();
    let mut shapes = vec![ChannelShape { checked, ..ChannelShape::new(args.credits, args.blocks as usize) }];
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
        to: args.to.clone(),
        shapes,
        trust: args.trust,
        patience: WaitTimeout(args.patience),
        copies: calibrated(),
        quiet: args.json && args.to == Target::Output,
        verifies: !args.no_verify,
        due: None,
    })
}

/// What was measured of this machine by `dpipe calibrate`; without that all copies go through the
/// caches.
fn calibrated() -> Copies {
    match Calibration::load(&Topology::discover()) {
        Ok(Calibration { handoff_nt_min_bytes: Some(from), prefetch_bytes, .. }) => {
            Copies::past_caches_from(usize::try_from(from).unwrap_or(usize::MAX)).with_prefetch(prefetch_bytes)
        }
        _ => Copies::ORDINARY,
    }
}

/// The longest that `lz4-compress` makes of so many bytes: a tenth more, its own 20 bytes, and the
/// length before it.
fn max_compressed_len(len: usize) -> usize {
    len + len / 10 + 24
}
