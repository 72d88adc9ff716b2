//! Figure 6b of "Data Pipes: Declarative Control over Data Movement" (CIDR'23), line by line, on
//! real files.
//!
//! ```text
//! cargo run --release -p datapipes --example fig6b [FILE [PMEM]]
//! ```
//! The figure's lines are comments above ours. The example sorts the 64-bit numbers of FILE into
//! runs and stores the runs on persistent memory, by a runtime that moves them while the cores
//! continue. PMEM is a file of a DAX file system or a DAX device; without it an ordinary file
//! emulates it, and the route says so. Without FILE it makes one of 64 MiB.

mod made;

use std::path::PathBuf;

use datapipes::{CoreCache, Dram, Error, ErrorKind, Machine, Pmem, PmemOptions, Result, Runtime, Span, Ssd};
use made::MadeFiles;

fn main() -> Result<()> {
    let machine = datapipes::discover();
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (file, pmem) = (args.next(), args.next());
    let mut made = MadeFiles::of("fig6b");
    let input = match file {
        Some(file) => file,
        None => made.numbers(64 << 20)?,
    };
    let ssd = Ssd::open(&input)?;
    let sz = ssd.len()? / 8 * 8;
    // PMemResourceLocator pmem_locator("/dev/dax0.1", pmem_offset, sz);
    let pmem_locator = match &pmem {
        Some(path) => Pmem::open_with(path, PmemOptions::default().len(sz))?,
        None => Pmem::open_with(made.path("pmem"), PmemOptions::default().len(sz).emulated(true))?,
    };
    store_runs(&machine, &ssd, &pmem_locator, sz)
}

fn store_runs(machine: &Machine, ssd: &Ssd, pmem_locator: &Pmem, sz: u64) -> Result<()> {
    let run_sz = machine.l2_size().min(sz);
    let cores = machine.topology().usable_cores().count() as u64;
    // The bytes that the cores sort before they wait: several runs for each.
    let watermark = (4 * cores * run_sz).min(sz);
    // Two halves: one is sorted while the other is stored.
    let dram_locator = Dram::allocate(2 * watermark as usize)?;

    //  1  size_t base = 0;
    let mut base = 0;
    //  6  PipeRuntime runtime;
    //  7  runtime.fork_and_start();
    let runtime = Runtime::start(machine)?;
    //  8  Pipe dram_downpipe(dram_locator, pmem_locator, &runtime);
    let dram_downpipe = runtime.connect(&dram_locator, pmem_locator)?;
    print!("{}", dram_downpipe.route());

    let mut moves: Option<datapipes::Handles> = None;
    // 10  while (is_sorting_runs) {
    while base < sz {
        let half = (base / watermark % 2) * watermark;
        let len = watermark.min(sz - base);
        sort_runs(machine, ssd, &dram_locator.range(half as usize, len as usize)?, base, run_sz)?;
        // 25    // Block until all moves are done      (ours: those of the other half)
        // 26    wait_all(futures).wait();
        if let Some(moves) = moves.take() {
            moves.wait()?;
        }
        // 11    //Collect pending tasks
        // 12    vector<future> futures;
        // 13    for (size_t offset = 0; offset < watermark; offset += run_sz) {
        let spans = (0..len).step_by(run_sz as usize).map(|offset| {
            // 15      promise<void> write_promise;
            // 16      futures.push_back(write_promise.get_future());
            // 18      //Uses I/OAT with disabled DCA to not pollute the cache. Moves are
            //         scheduled asynchronously by the runtime, the promise is transferred to
            //         the runtime.
            // 19      dram_downpipe.transfer_with_cb(offset /*dram offset*/,
            //                                        base+offset /*pmem offset*/,
            // 22                                     run_sz, move(write_promise));
            Span { source: half + offset, target: base + offset, len: run_sz.min(len - offset) }
        });
        // 23    }
        moves = Some(dram_downpipe.transfer_all(spans)?);
        // 24    base += watermark;
        base += watermark;
        // 27    futures.clear();
        // 28  }
    }
    if let Some(moves) = moves {
        moves.wait()?;
    }

    print!("{}", dram_downpipe.report());
    // SAFETY: the file is this example's own, and nothing moves into it any more.
    let runs = unsafe { pmem_locator.range(0, sz as usize)?.memory().lease_unchecked()? };
    let mut in_runs = runs.as_slice_of::<u64>()?.chunks(run_sz as usize / 8);
    if !in_runs.all(<[u64]>::is_sorted) {
        return Err(Error::new(ErrorKind::Corrupt, "store", "a run on persistent memory is not in order"));
    }
    println!("{sz} bytes in sorted runs of {run_sz} bytes on {pmem_locator:?}");
    Ok(())
}

/// Figure 6a: each core sorts runs in its cache.
fn sort_runs(machine: &Machine, ssd: &Ssd, dram: &Dram, base: u64, run_sz: u64) -> Result<()> {
    let cores = machine.topology().usable_cores().count() as u64;
    machine.each_core(|core| {
        let first = machine.position(core) as u64 * run_sz;
        for at in (first..dram.len() as u64).step_by((cores * run_sz) as usize) {
            let len = run_sz.min(dram.len() as u64 - at);
            let cache = CoreCache::over(core, &dram.range(at as usize, len as usize)?)?;
            machine.connect(ssd, &cache)?.transfer(Span { source: base + at, target: 0, len })?;
            cache.lease_mut()?.as_slice_of::<u64>()?.sort_unstable();
            machine.connect(&cache, dram)?.transfer(Span { source: 0, target: at, len })?;
        }
        Ok(())
    })
}
