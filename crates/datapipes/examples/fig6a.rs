//! Figure 6a of "Data Pipes: Declarative Control over Data Movement" (CIDR'23), line by line, on a
//! real file.
//!
//! ```text
//! cargo run --release -p datapipes --example fig6a [FILE]
//! ```
//! The figure's lines are comments above ours. The example sorts the 64-bit numbers of the file
//! into runs of the size of an L2 cache, in memory; the merge of the runs is figure 6c. Without a
//! file it makes one of 64 MiB.

mod made;

use std::path::PathBuf;

use datapipes::{CoreCache, Dram, Error, ErrorKind, Machine, Result, Span, Ssd};
use made::MadeFiles;

fn main() -> Result<()> {
    let machine = datapipes::discover();
    let mut made = MadeFiles::of("fig6a");
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => made.numbers(64 << 20)?,
    };
    sort_runs(&machine, &path)
}

fn sort_runs(machine: &Machine, path: &PathBuf) -> Result<()> {
    //  4  SSDResourceLocator ssd_locator("/path/to/ssd/file");
    let ssd = Ssd::open(path)?;
    //  1  size_t buffer_sz = 1 * GB;
    let buffer_sz = (ssd.len()? / 8 * 8).min(1_000_000_000) as usize;
    //  2  size_t run_sz = CoreCacheResourceLocator::CacheSize;
    let run_sz = machine.l2_size() as usize;
    //  5  DRAMResourceLocator dram_locator(buffer_sz);
    let dram = Dram::allocate(buffer_sz)?;

    let cores = machine.topology().usable_cores().count();
    // The figure fills the caches once; this example continues until the buffer is full.
    for base in (0..buffer_sz).step_by(cores * run_sz) {
        //  7  do_parallel_foreach_core {
        machine.each_core(|core| {
            //  8    size_t offset = core_idx * run_sz;
            let offset = base + machine.position(core) * run_sz;
            let run_sz = run_sz.min(buffer_sz.saturating_sub(offset));
            if run_sz == 0 {
                return Ok(());
            }
            //  9    //Allocate cache at the local core, backed by a memory area
            // 11    CoreCacheResourceLocator cache_locator(run_sz, dram_locator + offset);
            let cache = CoreCache::over(core, &dram.range(offset, run_sz)?)?;
            // 13    Pipe ssd_uppipe(ssd_locator, cache_locator);
            let ssd_uppipe = machine.connect(&ssd, &cache)?;
            // 14    Pipe cache_downpipe(cache_locator, dram_locator);
            let cache_downpipe = machine.connect(&cache, &dram)?;
            // 16    //Will try to use DDIO, since this is a disk to cache transfer
            // 17    ssd_uppipe.transfer(offset /*ssd offset*/, 0 /*cache offset*/, run_sz);
            ssd_uppipe.transfer(Span { source: offset as u64, target: 0, len: run_sz as u64 })?;
            // 19    sort(cache_locator.data(), run_sz);
            cache.lease_mut()?.as_slice_of::<u64>()?.sort_unstable();
            // 21    // Will try to use CLDEMOTE since this is a cache to RAM transfer
            // 22    cache_downpipe.transfer(0 /*cache offset*/, offset /*dram offset*/, run_sz);
            cache_downpipe.transfer(Span { source: 0, target: offset as u64, len: run_sz as u64 })?;
            if offset == 0 {
                print!("{}{}", ssd_uppipe.route(), cache_downpipe.route());
                print!("{}{}", ssd_uppipe.report(), cache_downpipe.report());
            }
            // 25  }
            Ok(())
        })?;
    }

    let bytes = dram.lease()?;
    let runs = bytes.as_slice_of::<u64>()?.chunks(run_sz / 8);
    let count = runs.len();
    if !runs.into_iter().all(<[u64]>::is_sorted) {
        return Err(Error::new(ErrorKind::Corrupt, "sort", "a run is not in order"));
    }
    println!("{buffer_sz} bytes of {} in {count} sorted runs of {run_sz} bytes, by {cores} cores", path.display());
    Ok(())
}
