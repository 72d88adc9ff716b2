//! Figures 5a and 5b of *Data Pipes*: copies between persistent memory and DRAM, by a core or by an
//! engine, into the caches or past them.

use std::time::{Duration, Instant};

use datapipes::backend::Constraints;
use datapipes::memory::MemoryRange;
use datapipes::{Dram, Error, ErrorKind, Locator, Machine, Result, Span, Uri};
use datapipes_counters::{CounterSet, difference};

use super::figure::{CHUNKS, Curve, Figure, Latencies, Point, absence, misses_per_line};
use crate::any_locator::{AnyLocator, Memory};
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::system::child::own_cpu_seconds;
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};

const ENDING: Ending = Ending {
    notes: "\
Each primitive that can move the bytes gives a curve, and so does an engine where there is one.
Without --pmem, DRAM stands in for persistent memory, and the output says so. The copies are
compared with their source.",
    zero: "measured",
    one: None,
    examples: &[
        "dpipe experiment fig5a --size 4M --ms 5 --chunks 4K,64K",
        "dpipe experiment fig5a --pmem 'pmem:data.bin?emulated' --size 1M --ms 5 --chunks 64K --json",
        "dpipe experiment fig5b --pmem pmem:/dev/dax0.0 --overwrite  # needs persistent memory",
    ],
};

/// Copies between persistent memory and DRAM, by a core or by an engine.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// The persistent memory: pmem:PATH, on a DAX file system or a DAX device
    #[arg(long, value_name = "PLACE")]
    pmem: Option<Uri>,
    /// Let fig5b overwrite the first --size bytes of --pmem
    #[arg(long, requires = "pmem")]
    overwrite: bool,
    /// The bytes of each end that are used
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Sizes of chunks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    chunks: Vec<u64>,
    /// Requests under way
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// The time of each point, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    ms: u64,
    /// Print JSON: experiment, paper, processor, kernel, setup, curves (name, primitive, points),
    /// left_out
    #[arg(long)]
    json: bool,
    /// Draw the curves as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    FromPersistent,
    ToPersistent,
}

const MAX_SIZE: u64 = 16 << 30;
const ENGINE: &str = "an engine";

pub(crate) fn run(args: &Args, direction: Direction) -> Result<()> {
    let plot = SideFiles::beside(CommandPlaces::of("experiment")).begin("--plot", args.plot.as_ref())?;
    let chunks = if args.chunks.is_empty() { &CHUNKS[..] } else { &args.chunks };
    let wrong = chunks.iter().find(|chunk| **chunk == 0 || chunk.saturating_mul(args.depth.into()) > args.size);
    let wrong = match wrong {
        Some(chunk) => Some(format!("chunks of {chunk} bytes at depth {} in {} bytes", args.depth, args.size)),
        None => (args.size > MAX_SIZE).then(|| format!("{} bytes", args.size)),
    };
    if let Some(why) = wrong {
        let advice = "all chunks under way must fit into --size, which is at most 16G";
        return Err(Error::new(ErrorKind::InvalidInput, "experiment", why).with_advice(advice));
    }
    if direction == Direction::ToPersistent && args.pmem.is_some() && !args.overwrite {
        let error = Error::new(ErrorKind::InvalidInput, "experiment", "fig5b writes to what --pmem names");
        return Err(error.with_advice("add --overwrite if its content may be lost"));
    }
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let len = usize::try_from(args.size).unwrap_or(usize::MAX);
    let dram = Dram::allocate(len)?;
    let persistent = Persistent::open(&machine, args.pmem.as_ref(), args.size)?;
    let (experiment, paper, from, to) = match direction {
        Direction::FromPersistent => ("fig5a", "Figure 5a of Data Pipes (CIDR 2023)", &persistent.name[..], "DRAM"),
        Direction::ToPersistent => ("fig5b", "Figure 5b of Data Pipes (CIDR 2023)", "DRAM", &persistent.name[..]),
    };
    let words = format!("from {from} to {to}, depth {}, {} of each", args.depth, units::memory(args.size));
    let mut figure = Figure::new(machine.topology(), experiment, paper, words);
    if args.pmem.is_none() {
        figure.leave_out("persistent memory", "none was named with --pmem: DRAM stands in for it");
    }
    let copies = Copies {
        machine: &machine,
        ends: match direction {
            Direction::FromPersistent => ((&persistent.place, &persistent.memory), (&dram, dram.memory())),
            Direction::ToPersistent => ((&dram, dram.memory()), (&persistent.place, &persistent.memory)),
        },
        size: args.size,
        depth: args.depth.into(),
        span: Duration::from_millis(args.ms),
    };
    // What is in persistent memory is copied as it is.
    if direction == Direction::ToPersistent || args.pmem.is_none() {
        copies.number()?;
    }
    let names: Vec<&str> = machine
        .backends()
        .iter()
        .flat_map(|backend| backend.primitives())
        .filter(|primitive| primitive.available.is_ok())
        .map(|primitive| primitive.name)
        .collect();
    for name in names {
        // What serves files, say, is not asked about here.
        let demands = Constraints::default().only(vec![name.to_owned()]);
        if machine.explain(copies.ends.0.0, copies.ends.1.0, &demands).is_ok() {
            copies.measure(&mut figure, name, &demands, chunks)?;
        }
    }
    let demands = Constraints::default().require_offload(true);
    match machine.explain(copies.ends.0.0, copies.ends.1.0, &demands) {
        Ok(_) => copies.measure(&mut figure, ENGINE, &demands, chunks)?,
        Err(error) => {
            figure.leave_out(format!("copies by {ENGINE}"), error.to_string());
            figure.leave_out("the engine's writes into the cache or past it (DCA)", "there is no engine");
        }
    }
    if let Some(why) = absence(&CounterSet::open().read(), "llc_misses") {
        figure.leave_out("misses of the last-level cache", why);
    }
    figure.leave_out("bytes that the medium itself moved (write amplification)", "nothing counts them here");
    figure.show(args.json, plot)
}

/// The end that is persistent, or stands in for it.
struct Persistent {
    place: AnyLocator,
    memory: MemoryRange,
    name: String,
}

impl Persistent {
    fn open(machine: &Machine, uri: Option<&Uri>, size: u64) -> Result<Persistent> {
        let stand_in = Uri::Dram { len: size, node: None };
        let place =
            AnyLocator::memory_place(machine, uri.unwrap_or(&stand_in), Memory { len_bytes: size, prefault: true })?;
        let (memory, name) = match &place {
            AnyLocator::Pmem(pmem) => {
                pmem.prefault()?;
                let emulated = if pmem.is_emulated() { " (EMULATED: a file that is no persistent memory)" } else { "" };
                (pmem.memory().clone(), format!("{}{emulated}", pmem.path().display()))
            }
            AnyLocator::Dram(dram) if uri.is_none() => {
                (dram.memory().clone(), "DRAM IN PLACE OF PERSISTENT MEMORY".to_owned())
            }
            _ => {
                let error = Error::new(ErrorKind::InvalidInput, "experiment", "--pmem names no persistent memory");
                return Err(error.with_advice("write pmem:PATH"));
            }
        };
        if (memory.len() as u64) < size {
            let why = format!("{} has {} bytes, and {size} are to be used", name, memory.len());
            return Err(Error::new(ErrorKind::InvalidInput, "experiment", why).with_advice("give a smaller --size"));
        }
        Ok(Persistent { place, memory, name })
    }
}

type End<'a> = (&'a dyn Locator, &'a MemoryRange);

struct Copies<'a> {
    machine: &'a Machine,
    ends: (End<'a>, End<'a>),
    size: u64,
    depth: u64,
    span: Duration,
}

impl Copies<'_> {
    /// Numbers the words of the source.
    fn number(&self) -> Result<()> {
        let mut next = 1u64;
        write_pieces(self.ends.0.1, |piece| {
            for word in piece.as_chunks_mut::<8>().0 {
                *word = next.to_le_bytes();
                next += 1;
            }
        })
    }

    fn measure(&self, figure: &mut Figure, name: &str, demands: &Constraints, chunks: &[u64]) -> Result<()> {
        let mut curve = Curve { name: name.into(), primitive: String::new(), points: Vec::new() };
        for chunk in chunks {
            signals::check("experiment")?;
            let demands = demands.clone().typical_len(*chunk).queue_depth(u32::try_from(self.depth).ok());
            let route = self.machine.explain(self.ends.0.0, self.ends.1.0, &demands)?;
            let fills = route.hops.iter().any(|hop| hop.quality.fills_processor_cache);
            curve.primitive = route.primitives().join(", ");
            curve.name = format!("{name}{}", if fills { "" } else { ", past the caches" });
            let point = self.point(*chunk, &demands)?;
            // What was cut off is no measurement.
            signals::check("experiment")?;
            curve.points.push(point);
        }
        figure.curves.push(curve);
        Ok(())
    }

    fn point(&self, chunk: u64, demands: &Constraints) -> Result<Point> {
        let ((source, of_source), (target, of_target)) = self.ends;
        // What was there before must not pass for a copy.
        write_pieces(of_target, |piece| piece.fill(0xEE))?;
        let pipe = self.machine.connect_with(source, target, demands)?;
        let places = self.size / chunk;
        let mut batch = pipe.batch();
        let mut started = vec![Instant::now(); self.depth as usize];
        let mut latencies = Latencies::default();
        let (mut next, mut done) = (0u64, 0u64);
        let counters = CounterSet::open();
        let (before, cpu) = (counters.read(), own_cpu_seconds());
        let since = Instant::now();
        while next < self.depth {
            (started[next as usize], next) = (Instant::now(), next + 1);
            batch.submit([(next - 1, span(next - 1, places, chunk))]);
        }
        while let Some(finished) = batch.next()? {
            finished.result?;
            latencies.add(started[finished.tag as usize]);
            done += 1;
            if since.elapsed() < self.span && !signals::arrived() {
                started[finished.tag as usize] = Instant::now();
                batch.submit([(finished.tag, span(next, places, chunk))]);
                next += 1;
            }
        }
        drop(batch);
        let (seconds, cpu) = (since.elapsed().as_secs_f64(), own_cpu_seconds() - cpu);
        let misses = misses_per_line(&difference(&before, &counters.read()), done * chunk);
        let copied = (done.min(places) * chunk) as usize;
        if !are_equal(of_source, of_target, copied)? {
            let why = format!(
                "{}: chunks of {chunk} bytes are not those of the source",
                pipe.route().primitives().join(", ")
            );
            return Err(Error::new(ErrorKind::Corrupt, "experiment", why));
        }
        Ok(Point {
            chunk_bytes: chunk,
            chunks: done,
            bytes_per_second: (done * chunk) as f64 / seconds,
            p50_us: latencies.below(0.5),
            p99_us: latencies.below(0.99),
            cpu_share: cpu / seconds,
            load_bytes_per_second: None,
            llc_misses_per_line: misses,
        })
    }
}

/// One place after the other, from the same offset of both ends.
fn span(number: u64, places: u64, chunk: u64) -> Span {
    let at = number % places * chunk;
    Span { source: at, target: at, len: chunk }
}

/// What is looked at at once: persistent memory is mapped from a file, and is copied out of.
const PIECE: usize = 1 << 20;

/// Writes all of a memory, piece by piece.
fn write_pieces(memory: &MemoryRange, mut content: impl FnMut(&mut [u8])) -> Result<()> {
    let mut piece = vec![0; PIECE];
    for at in (0..memory.len()).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(memory.len() - at)];
        content(piece);
        memory.write(at, piece)?;
    }
    Ok(())
}

/// Whether two memories begin with the same bytes.
fn are_equal(one: &MemoryRange, other: &MemoryRange, len: usize) -> Result<bool> {
    let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
    for at in (0..len).step_by(PIECE) {
        let here = PIECE.min(len - at);
        one.read(at, &mut a[..here])?;
        other.read(at, &mut b[..here])?;
        if a[..here] != b[..here] {
            return Ok(false);
        }
    }
    Ok(true)
}
