//! Figure 6c of "Data Pipes: Declarative Control over Data Movement" (CIDR'23), line by line: a
//! pipe is a descriptor.
//!
//! ```text
//! cargo run --release -p datapipes --example fig6c [PMEM RUN_BYTES]
//! ```
//! The figure's lines are comments above ours. The example loads sorted runs from persistent memory
//! into the caches of the cores, k at a time, and merges them there. PMEM holds 64-bit numbers in
//! sorted runs of RUN_BYTES (figure 6b leaves such a place). Without it a file of 64 MiB is made
//! that emulates one, and the route says so.

mod made;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes::{
    ConnectFdOptions, CoreCache, Dram, Error, ErrorKind, Machine, Pmem, PmemOptions, Result, Runtime, Span,
};
use made::{MadeFiles, random_numbers};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

fn main() -> Result<()> {
    let machine = datapipes::discover();
    let mut args = std::env::args_os().skip(1);
    let given = args.next().zip(args.next()).map(|(path, run)| (PathBuf::from(path), run));
    let Some((path, run)) = given else {
        let (mut made, run_sz) = (MadeFiles::of("fig6c"), machine.l2_size() / 4);
        let pmem = make_runs(&made.path("pmem"), 64 << 20, run_sz)?;
        return merge_runs(&machine, &pmem, run_sz);
    };
    let run_sz = run.to_str().and_then(|run| run.parse().ok()).filter(|run| run % 8 == 0 && *run > 0);
    let Some(run_sz) = run_sz else {
        return Err(Error::new(ErrorKind::InvalidInput, "merge", format!("{} is no length of a run", run.display())));
    };
    merge_runs(&machine, &Pmem::open(path)?, run_sz)
}

fn merge_runs(machine: &Machine, pmem_locator: &Pmem, run_sz: u64) -> Result<()> {
    //  1  int k = 4;
    let k = 4;
    //  2  size_t merge_sz = k * run_sz;
    let merge_sz = k * run_sz;
    let sz = pmem_locator.len() as u64 / merge_sz * merge_sz;
    let cores: Vec<_> = machine.topology().usable_cores().collect();
    let backing = Dram::allocate(cores.len() * merge_sz as usize)?;
    let merged = Dram::allocate(sz as usize)?;

    let runtime = Runtime::start(machine)?;
    //  8  int epoll_fd = epoll_create1(0);
    let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
    let mut pipes = Vec::new();
    for (i, core) in cores.iter().enumerate() {
        let cache_locator = CoreCache::over(core, &backing.range(i * merge_sz as usize, merge_sz as usize)?)?;
        //  4  int pmem_uppipe_fd = create_pipe(
        //  5      pmem_locator,
        //  6      cache_locator);
        let ask = ConnectFdOptions::default().place(i as u64).depth(1);
        let pmem_uppipe_fd = runtime.connect_fd_with(pmem_locator, &cache_locator, &ask)?;
        //  9  epoll_event pmem_pipe_op;
        // 10  pmem_pipe_op.events = EPOLLTRANSFER;        (ours: EPOLLOUT, it can take a transfer)
        // 11  pmem_pipe_op.fd = pmem_uppipe_fd;
        // 12  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &pmem_pipe_op);
        let once = EventFlags::OUT | EventFlags::ONESHOT;
        epoll::add(&epoll_fd, &pmem_uppipe_fd, EventData::new_u64(i as u64), once).map_err(os)?;
        pipes.push((pmem_uppipe_fd, cache_locator));
    }
    print!("{}", pipes[0].0.route());

    let next = AtomicU64::new(0);
    // 14  do_parallel_for_each_core {
    machine.each_core(|_| {
        loop {
            // 15    // Wait until the pipe can make the transfer as the I/OAT unit might be
            //       occupied elsewhere.
            // 16    epoll_event event;
            // 17    epoll_wait(epoll_fd, &event, 1);
            let mut event = Vec::with_capacity(1);
            match epoll::wait(&epoll_fd, rustix::buffer::spare_capacity(&mut event), None) {
                Err(Errno::INTR) => continue,
                // 18    if (/* error */)
                // 19      break;
                Err(e) => return Err(os(e)),
                Ok(_) => {}
            }
            let Some(locator) = event.first().map(|event| event.data.u64()) else { continue };
            let (pmem_uppipe_fd, cache_locator) = &pipes[locator as usize];
            // 21    size_t offset = core_idx*merge_sz;       (ours: the next one that is free)
            let offset = next.fetch_add(merge_sz, Ordering::Relaxed);
            // The event was for one thread; now the pipe is ready for the next one.
            let again =
                |flags| epoll::modify(&epoll_fd, pmem_uppipe_fd, EventData::new_u64(locator), flags).map_err(os);
            if offset >= sz {
                again(EventFlags::OUT)?; // so that the other threads end too
                return Ok(());
            }
            // 22    // Issue a DMA request from PMem using I/OAT. Recall that the cache locator
            //       is backed by a memory area
            // 24    pipe_transfer(
            // 25      pmem_uppipe_fd,
            // 26      offset /*pmem offset*/,
            // 27      0 /*cache offset*/,
            // 28      merge_sz);
            pmem_uppipe_fd.submit(Span { source: offset, target: 0, len: merge_sz })?;
            let done = pmem_uppipe_fd.complete_wait()?;
            done.result?;
            // 29    merge(k, event.locator);
            merge(cache_locator, run_sz, &merged.range(offset as usize, merge_sz as usize)?)?;
            again(EventFlags::OUT | EventFlags::ONESHOT)?;
        }
        // 30  }
    })?;

    let merged = merged.lease()?;
    if !merged.as_slice_of::<u64>()?.chunks(merge_sz as usize / 8).all(<[u64]>::is_sorted) {
        return Err(Error::new(ErrorKind::Corrupt, "merge", "what was merged is not in order"));
    }
    print!("{}", pipes[0].0.pipe().report());
    println!("{sz} bytes of {pmem_locator:?}: {} runs of {run_sz} bytes merged by {k}", sz / run_sz);
    Ok(())
}

/// Merges the runs in a cache.
fn merge(cache: &CoreCache, run_sz: u64, merged: &Dram) -> Result<()> {
    let runs = cache.lease()?;
    let mut runs: Vec<_> = runs.as_slice_of::<u64>()?.chunks(run_sz as usize / 8).map(|run| run.iter()).collect();
    let mut heads: BinaryHeap<_> =
        runs.iter_mut().enumerate().filter_map(|(i, run)| Some(Reverse((*run.next()?, i)))).collect();
    for out in merged.lease_mut()?.as_slice_of::<u64>()? {
        let Some(Reverse((least, i))) = heads.pop() else { break };
        *out = least;
        heads.extend(runs[i].next().map(|next| Reverse((*next, i))));
    }
    Ok(())
}

/// Makes sorted runs on a file that emulates persistent memory.
fn make_runs(path: &Path, len: u64, run_sz: u64) -> Result<Pmem> {
    let pmem = Pmem::open_with(path, PmemOptions::default().len(len).emulated(true))?;
    let mut numbers = random_numbers();
    // SAFETY: the file was just made for this example alone, and no pipe is connected to it yet.
    let mut lease = unsafe { pmem.memory().lease_mut_unchecked()? };
    for run in lease.as_slice_of::<u64>()?.chunks_mut(run_sz as usize / 8) {
        run.iter_mut().zip(&mut numbers).for_each(|(place, number)| *place = number);
        run.sort_unstable();
    }
    drop(lease);
    pmem.sync()?;
    Ok(pmem)
}

fn os(e: Errno) -> Error {
    Error::os("wait", e.raw_os_error(), "epoll")
}
