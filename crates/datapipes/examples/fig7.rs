//! Figure 7 of "Data Pipes: Declarative Control over Data Movement" (CIDR'23): abstract pipes to a
//! staging area, which the library instantiates while the job runs.
//!
//! ```text
//! cargo run --release -p datapipes --example fig7 [FILE [PLACES]]
//!
//! (a)  SSD -> cache: sort -> [staging] -> merge -> SSD        as the program declares it
//! (b)  [staging] = persistent memory, then the SSD            as the library instantiates it
//! ```
//! It sorts the 64-bit numbers of FILE. PLACES is a list like that of `dpipe sort -T`; without it
//! the places are a file that emulates a persistent memory too small for the job, and then the
//! folder of temporary files. Without FILE it makes one of 64 MiB.

mod made;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use datapipes::graph::{BufferSet, Graph, Item};
use datapipes::{Dram, Error, ErrorKind, Machine, Pmem, PmemOptions, Result, Runtime, Span, Ssd, StagePlace, Staging};
use made::MadeFiles;

fn main() -> Result<()> {
    let machine = datapipes::discover();
    let mut args = std::env::args_os().skip(1);
    let (file, places) = (args.next().map(PathBuf::from), args.next());
    let scratch = std::env::temp_dir();
    let mut made = MadeFiles::of("fig7");
    let input = match file {
        Some(file) => file,
        None => made.numbers(64 << 20)?,
    };
    let ssd = Ssd::open(&input)?;
    let len = ssd.len()? / 8 * 8;
    let places = match places {
        Some(list) => StagePlace::parse_list(&list.to_string_lossy())?,
        None => {
            // It is too small on purpose: a third of what is staged.
            let options = PmemOptions::default().len((len / 3).next_multiple_of(4096).max(4096)).emulated(true);
            let pmem = Pmem::open_with(made.path("pmem"), options)?;
            vec![StagePlace::over(pmem), StagePlace::folder(&scratch).in_tier(1)]
        }
    };
    sort(&machine, &ssd, len, &Staging::open(places)?, &scratch)
}

fn sort(machine: &Machine, source: &Ssd, len: u64, staging: &Staging, scratch: &Path) -> Result<()> {
    let runtime = Runtime::start(machine)?;
    let cores = machine.topology().usable_cores().count();
    let run_sz = machine.l2_size();
    let runs = len.div_ceil(run_sz);
    let of_run = |run: u64| (run * run_sz, run_sz.min(len - run * run_sz));

    // (a) The program declares the source and the target; the staging area is abstract.
    let slots = Dram::allocate((cores + 1) * run_sz as usize)?;
    let up = runtime.connect(source, &slots)?;
    let spill = runtime.connect(&slots, staging)?;
    print!("{}", spill.route());

    let buffers = BufferSet::new(cores + 1);
    let at_slot = |item: &Item| Ok::<_, Error>(item.buffer(buffers)? as u64 * run_sz);
    let mut phase = Graph::new("runs");
    let read = phase.pipe("read", &up, |item| {
        let (at, len) = of_run(item.index());
        Ok(Span { source: at, target: at_slot(item)?, len })
    });
    let sort = phase.compute("sort", |item| {
        let run = slots.range(at_slot(item)? as usize, of_run(item.index()).1 as usize)?;
        run.lease_mut()?.as_slice_of::<u64>()?.sort_unstable();
        Ok(())
    });
    let write = phase.pipe("stage", &spill, |item| {
        let (at, len) = of_run(item.index());
        Ok(Span { source: at_slot(item)?, target: at, len })
    });
    phase.after(sort, read)?;
    phase.after(write, sort)?;
    for stage in [read, sort, write] {
        phase.uses(stage, buffers)?;
    }
    print!("{}", runtime.run(&phase, runs)?);

    // (b) The places that the library used.
    for place in staging.uses() {
        println!(
            "  {}: {} bytes ({}{})",
            place.place,
            place.placed,
            place.reason,
            match &place.left {
                Some(why) => format!("; left: {why}"),
                None => String::new(),
            }
        );
    }

    // The merge reads each run piece by piece, wherever it is.
    let piece = (slots.len() as u64 / runs / 4096 * 4096).max(4096).min(run_sz);
    let window = Dram::allocate((runs * piece) as usize)?;
    let load_window = runtime.connect(staging, &window)?;
    let output = Ssd::unlinked_in(scratch)?;
    let out_buffer = Dram::allocate(run_sz as usize)?;
    let down = runtime.connect(&out_buffer, &output)?;
    let mut heads: Vec<Head> = (0..runs).map(|run| Head { run, next: 0, at: 0, filled: 0 }).collect();
    let mut heap = BinaryHeap::new();
    let fill = |head: &mut Head| -> Result<Option<u64>> {
        let (start, run_len) = of_run(head.run);
        if head.at == head.filled {
            let len = piece.min(run_len - head.next);
            if len == 0 {
                return Ok(None);
            }
            load_window.transfer(Span { source: start + head.next, target: head.run * piece, len })?.wait()?;
            staging.free(start + head.next, len);
            (head.next, head.at, head.filled) = (head.next + len, 0, len);
        }
        let at = (head.run * piece + head.at) as usize;
        head.at += 8;
        let bytes = window.range(at, 8)?.lease()?;
        Ok(bytes.as_slice_of::<u64>()?.first().copied())
    };
    for head in &mut heads {
        heap.extend(fill(head)?.map(|number| Reverse((number, head.run))));
    }
    let mut written = 0;
    while written < len {
        let part = run_sz.min(len - written);
        let buffer = out_buffer.range(0, part as usize)?;
        for out in buffer.lease_mut()?.as_slice_of::<u64>()? {
            let Some(Reverse((number, run))) = heap.pop() else { break };
            *out = number;
            heap.extend(fill(&mut heads[run as usize])?.map(|next| Reverse((next, run))));
        }
        down.transfer(Span { source: 0, target: written, len: part })?.wait()?;
        written += part;
    }

    let check = Dram::allocate(len as usize)?;
    runtime.connect(&output, &check)?.transfer(Span { source: 0, target: 0, len })?.wait()?;
    if !check.lease()?.as_slice_of::<u64>()?.is_sorted() {
        return Err(Error::new(ErrorKind::Corrupt, "sort", "the output is not in order"));
    }
    println!("{len} bytes sorted by way of {} places", staging.uses().iter().filter(|place| place.placed > 0).count());
    Ok(())
}

/// The position of the merge in a run.
struct Head {
    run: u64,
    /// Bytes of the run that were loaded.
    next: u64,
    /// Bytes of the window that were taken, and bytes that it holds.
    at: u64,
    filled: u64,
}
