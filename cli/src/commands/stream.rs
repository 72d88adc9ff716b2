//! `dpipe stream`: a network source, transforms and a storage sink, each a locked-down process of its own, connected by data
//! channels; the same under each placement of the protocol.
//!
//! ```text
//! generator --TCP--> source --channel--> transform --channel--> ... --channel--> sink --> a file without a name
//!                                                                  equal to what was sent? then it gets its name
//! ```

mod bodies;
mod meter;
mod one;
mod origin;
mod table;
mod trust;
mod view;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clap::ValueEnum;
use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::channel::Shape;
use datapipes_fabric::placement::Placement;
use serde::Serialize;

use crate::command_line::size;
use crate::outcome::{Verdict, print, print_json};
use crate::progress::{self, State};
use crate::signals::{self, WaitsFor};
pub(crate) use bodies::functions;
use one::Run;
use origin::{Origin, Sum, most_bytes};
use trust::Trusts;

/// An LZ4 frame of the legacy kind has no longer block.
const MOST_BLOCK_BYTES: u64 = 8 << 20;

/// Nothing is at the target's name unless all of it arrived. Exit code 1 where what is on disk is not what was sent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Transforms: forward, crc32, xor=KEY, lz4 (frames that `lz4 -d` reads), lz4-compress and lz4-decompress (a block at a time),
sort-u64 (each block for itself).")]
pub(crate) struct Args {
    /// generate:SIZE (made by this command and sent over TCP), tcp:HOST:PORT (what a listener sends until it closes), file:PATH
    #[arg(long, default_value = "generate:256M", value_name = "ORIGIN")]
    from: Origin,
    /// Transforms on the way, each a device of its own
    #[arg(long, default_value = "crc32", value_name = "LIST", value_delimiter = ',')]
    through: Vec<String>,
    /// The file to write; what is there is replaced when all of it has arrived
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
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
    #[arg(long, value_enum, default_value_t = Trusts::Copy)]
    trust: Trusts,
    /// Neither apply the functions to the origin once more nor read the file back: only what the devices counted is compared
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

/// A transform that was asked for.
#[derive(Debug)]
struct Step {
    /// As it was asked for.
    name: String,
    function: String,
    arguments: serde_json::Value,
}

/// What all runs have in common.
#[derive(Debug)]
struct Job {
    origin: Origin,
    steps: Vec<Step>,
    to: PathBuf,
    /// Of the edges, in order: into each transform, and into the sink.
    shapes: Vec<Shape>,
    trust: Trusts,
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
    /// The file.
    to: PathBuf,
    /// Of the source.
    block_bytes: u64,
    /// Of each channel.
    credits: u32,
    /// Of each receiver.
    trust: Trusts,
    /// One for each placement.
    runs: Vec<Run>,
    /// Whether all of them hold; null where nobody looked.
    verified: Option<bool>,
}

pub(crate) fn run(args: &Args) -> Result<Verdict> {
    let mut job = job(args)?;
    signals::catch(WaitsFor::Places);
    // Before anything is started: what is wrong with the input is told at once, and the runs are not held up by it.
    let functions = functions();
    let chain = job.steps.iter().map(|step| functions.function(&step.function, &step.arguments));
    let mut chain = chain.collect::<Result<Vec<_>>>()?;
    if job.verifies {
        let (done, total) = (AtomicU64::new(0), job.origin.len());
        let state = || State { phase: "applying", done: done.load(Relaxed), total };
        job.due = progress::during(progress::wanted(), state, || {
            job.origin.replay(job.shapes[0].block_bytes, &mut chain, |bytes| {
                done.store(bytes, Relaxed);
                signals::check("stream")
            })
        })?;
    }
    let mut runs = Vec::new();
    for placement in args.placement.placements() {
        signals::check("stream")?;
        let run = one::run(&job, placement)?;
        if !args.json {
            print(&table::run(&job, &run))?;
        }
        runs.push(run);
    }
    let is_wrong = runs.iter().any(|run| run.verified == Some(false));
    let verified = if is_wrong { Some(false) } else { job.verifies.then_some(true) };
    if args.json {
        print_json(&Outcome {
            from: shown(&args.from),
            through: job.steps.into_iter().map(|step| step.name).collect(),
            to: job.to,
            block_bytes: args.blocks,
            credits: args.credits,
            trust: job.trust,
            runs,
            verified,
        })?;
    } else if runs.len() > 1 {
        print(&table::comparison(&runs))?;
    }
    Ok(if is_wrong { Verdict::Bad } else { Verdict::Good })
}

fn job(args: &Args) -> Result<Job> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "stream", what);
    if args.blocks == 0 || args.blocks > MOST_BLOCK_BYTES {
        return Err(wrong(format!("blocks of {} bytes, where 1 to {MOST_BLOCK_BYTES} can be", args.blocks)));
    }
    args.from.check()?;
    let checked = args.trust == Trusts::InPlaceChecked;
    let (mut steps, functions) = (Vec::new(), functions());
    let mut shapes = vec![Shape { checked, ..Shape::new(args.credits, args.blocks as usize) }];
    for name in args.through.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        let step = step(name)?;
        functions.function(&step.function, &step.arguments)?;
        let before = shapes[shapes.len() - 1];
        let grows = matches!(step.function.as_str(), "lz4" | "lz4-compress");
        shapes.push(Shape {
            block_bytes: if grows { most_bytes(before.block_bytes) } else { before.block_bytes },
            ..before
        });
        steps.push(step);
    }
    shapes.iter().try_for_each(Shape::check)?;
    Ok(Job {
        origin: args.from.clone(),
        steps,
        to: args.to.clone(),
        shapes,
        trust: args.trust,
        verifies: !args.no_verify,
        due: None,
    })
}

fn step(name: &str) -> Result<Step> {
    let (function, arguments) = match name.split_once('=') {
        None => (name, serde_json::Value::Null),
        Some(("xor", key)) => ("xor", serde_json::json!({ "key": key.parse::<u8>().ok() })),
        Some((function, _)) => {
            let what = format!("`{name}`: {function} takes no argument");
            return Err(Error::new(ErrorKind::InvalidInput, "stream", what));
        }
    };
    Ok(Step { name: name.into(), function: function.into(), arguments })
}

fn shown(origin: &Origin) -> String {
    match origin {
        Origin::Generate(len) => format!("generate:{len}"),
        Origin::Tcp(address) => format!("tcp:{address}"),
        Origin::File(path) => format!("file:{}", path.display()),
    }
}
