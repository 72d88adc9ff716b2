//! What the storage costs, by a short real run on a nameless file: latency of random reads, rate of
//! long transfers, and the rate of each primitive that a backend has for it.
//!
//! The file is small enough to be quick, so a device with a large cache of its own looks faster
//! than it is in the long run.

use std::path::Path;
use std::time::{Duration, Instant};

use datapipes::{Constraints, Dram, FileAccess, Locator, Machine, Pipe, Result, Span, Ssd};
use serde::Serialize;

use crate::system::signals;
use crate::system::window::direct;

const FILE: u64 = 256 << 20;
/// For the rate of one primitive among several.
const PART: u64 = 64 << 20;
const PAGE: u64 = 4096;
const READS: u64 = 2000;
const READS_TIME: Duration = Duration::from_secs(1);

/// The cost of storage.
#[derive(Debug, Serialize)]
pub(super) struct StorageCost {
    /// The folder of the file that was used.
    pub(super) dir: String,
    /// "past the page cache", or that it could not be bypassed.
    pub(super) access: &'static str,
    /// The median latency of random reads of 4 KiB, one at a time, in nanoseconds.
    pub(super) random_read_p50_ns: f64,
    /// The 99th percentile of the same reads, in nanoseconds.
    pub(super) random_read_p99_ns: f64,
    /// Rate of a long read in requests of 1 MiB.
    pub(super) read_bytes_per_second: f64,
    /// Rate of a long write in requests of 1 MiB into preallocated space, with the sync at its end.
    pub(super) write_bytes_per_second: f64,
    /// The cost of each primitive.
    pub(super) primitives: Vec<PrimitiveCost>,
}

/// The rate of one primitive.
#[derive(Debug, Serialize)]
pub(super) struct PrimitiveCost {
    /// The backend.
    pub(super) backend: &'static str,
    /// The primitive.
    pub(super) name: &'static str,
    /// The kinds of places: "ssd -> dram".
    pub(super) between: &'static str,
    /// The rate, or why there is none.
    pub(super) bytes_per_second: std::result::Result<f64, String>,
}

/// Measures the storage behind a folder; it takes some seconds.
pub(super) fn measure(machine: &Machine, dir: &Path) -> Result<StorageCost> {
    let plain = Ssd::unlinked_in(dir)?;
    plain.preallocate(FILE)?;
    let ssd = direct(&plain)?;
    let bypasses = ssd.file().access() == FileAccess::Direct;
    let memory = Dram::allocate(PART as usize)?;
    fill(&memory)?;
    let constraints = Constraints::default().typical_len(PART).request_bytes(1 << 20);

    let down = machine.connect_with(&memory, &ssd, &constraints)?;
    // Fresh extents cost more than written ones: the first pass is for the file, the second is the
    // measurement.
    long(&down, Direction::ToFile, FILE)?;
    ssd.sync()?;
    let started = Instant::now();
    long(&down, Direction::ToFile, FILE)?;
    ssd.sync()?;
    let write_bytes_per_second = FILE as f64 / started.elapsed().as_secs_f64();

    let up = machine.connect_with(&ssd, &memory, &constraints)?;
    let started = Instant::now();
    long(&up, Direction::FromFile, FILE)?;
    let read_bytes_per_second = FILE as f64 / started.elapsed().as_secs_f64();
    let mut times = random_reads(machine, &ssd, &memory)?;
    times.sort_by(f64::total_cmp);
    let quantile = |q: f64| times.get((times.len() as f64 * q) as usize).or(times.last()).copied().unwrap_or(0.0);
    Ok(StorageCost {
        dir: dir.display().to_string(),
        access: if bypasses { "past the page cache" } else { "through the page cache, which this file system needs" },
        random_read_p50_ns: quantile(0.5),
        random_read_p99_ns: quantile(0.99),
        read_bytes_per_second,
        write_bytes_per_second,
        primitives: by_primitive(machine, dir, &plain, &memory)?,
    })
}

#[derive(Clone, Copy)]
enum Direction {
    ToFile,
    FromFile,
}

/// Moves `len` bytes of a file, one piece of memory after another.
fn long(pipe: &Pipe, direction: Direction, len: u64) -> Result<()> {
    for at in (0..len).step_by(PART as usize) {
        signals::check("measure")?;
        let len = PART.min(len - at);
        pipe.transfer(match direction {
            Direction::ToFile => Span { source: 0, target: at, len },
            Direction::FromFile => Span { source: at, target: 0, len },
        })?;
    }
    Ok(())
}

/// The times of reads of a page, in nanoseconds.
fn random_reads(machine: &Machine, ssd: &Ssd, memory: &Dram) -> Result<Vec<f64>> {
    let constraints = Constraints::default().typical_len(PAGE);
    let pipe = machine.connect_with(ssd, memory, &constraints)?;
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut state = 1_u64;
    for _ in 0..READS {
        if begun.elapsed() > READS_TIME {
            break;
        }
        signals::check("measure")?;
        state = next(state);
        let source = (state >> 20) % (FILE / PAGE) * PAGE;
        let started = Instant::now();
        pipe.transfer(Span { source, target: 0, len: PAGE })?;
        times.push(started.elapsed().as_nanos() as f64);
    }
    Ok(times)
}

/// The rate of every primitive that carries bytes between a file and memory, and between two files.
fn by_primitive(machine: &Machine, dir: &Path, ssd: &Ssd, memory: &Dram) -> Result<Vec<PrimitiveCost>> {
    let mut costs = Vec::new();
    for backend in machine.backends() {
        for primitive in backend.primitives().iter().filter(|p| p.available.is_ok()) {
            let only = |len| Constraints::default().only(vec![primitive.name.to_owned()]).typical_len(len);
            let mut add = |between, source: &dyn Locator, target: &dyn Locator| -> Result<()> {
                // What cannot serve this pair of places is not of interest here: the route explains
                // it.
                let Ok(pipe) = machine.connect_with(source, target, &only(PART)) else { return Ok(()) };
                signals::check("measure")?;
                let started = Instant::now();
                let moved = pipe.transfer(Span { source: 0, target: 0, len: PART });
                let seconds = started.elapsed().as_secs_f64();
                let bytes_per_second = moved.map(|()| PART as f64 / seconds).map_err(|e| e.to_string());
                costs.push(PrimitiveCost { backend: backend.name(), name: primitive.name, between, bytes_per_second });
                Ok(())
            };
            let second = Ssd::unlinked_in(dir)?;
            second.preallocate(PART)?;
            // A primitive takes one of the two accesses and refuses the other. The last pair has
            // the choice.
            add("ssd -> dram", &direct(ssd)?, memory)?;
            add("dram -> ssd", memory, &direct(&second)?)?;
            add("ssd -> ssd", ssd, &second)?;
            add("ssd -> dram", &ssd.with_access(FileAccess::Cached)?, memory)?;
            add("dram -> ssd", memory, &second.with_access(FileAccess::Cached)?)?;
        }
    }
    Ok(costs)
}

/// Bytes that no device compresses.
fn fill(memory: &Dram) -> Result<()> {
    let mut state = 7_u64;
    for word in memory.lease_mut()?.as_slice_of::<u64>()? {
        state = next(state);
        *word = state ^ (state >> 31);
    }
    Ok(())
}

fn next(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}
