//! The pipe of a file that one event loop watches itself.
//!
//! ```text
//! loop: start --> ring --> the loop's epoll (the ring is readable) --> poll: copy, set the outcome
//! ```
//!
//! No thread stands between the device and the loop. That is quicker for one short read at a time,
//! which would cost two more wake-ups otherwise. Where several are under way, the runtime's thread
//! copies and submits beside the loop, so all but the first are left to it.
//!
//! A turn of the loop takes 60 us of the processor, which is longer than a quick disk takes for the read. So
//! where nothing else is under way, and the last reads were done that soon, the caller looks for the
//! read's end for [`MAX_LOOK`] before it goes to the loop.
//!
//! The ring fills memory of this pipe, and the loop copies from there. So a loop that is gone leaves
//! nothing that a device writes to.
//!
//! Unsafe code: the copy between leased bytes.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use datapipes::locks::Mutex;
use datapipes::memory::{Access, RawLease};
use datapipes::process::OwningProcess;
use datapipes::{Constraints, Dram, MapOptions, Pipe, Result, Span, Ssd, Transfer};

use crate::foreign::copy_out;
use crate::machine;
use crate::notifier::{Told, Watch};
use crate::pending::Op;

/// The longest read that it serves. The loop's thread copies it.
const MAX_LEN: u64 = 64 << 10;

/// So long a caller looks for the end of a read, at most. The loop does nothing else meanwhile.
const MAX_LOOK: Duration = Duration::from_micros(100);

/// So many reads are not looked for, at most, after those that took longer.
const MAX_PASSED: u32 = 1023;

/// All of them, for those who ask beside their loops. Locked only by holders of the interpreter's lock.
static ALL: Mutex<Vec<Weak<WatchedPipe>>> = Mutex::new(Vec::new());

/// Reads that are under way on all of them.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Ends the reads that are done. A loop that is not running, or is gone, would not see them, and their
/// targets would stay leased. One that runs is told.
pub(crate) fn poll_all() {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 {
        return;
    }
    let pipes: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    for pipe in pipes {
        pipe.poll_beside_the_loop();
    }
}

/// In a child of `fork`: the reads are the parent's.
pub(crate) fn forget_parents() {
    UNDER_WAY.store(0, Ordering::Relaxed);
    std::mem::forget(std::mem::take(&mut *ALL.lock()));
}

/// A read that is under way.
struct Read {
    transfer: Transfer,
    skip: usize,
    target: RawLease,
    op: Arc<Op>,
}

/// Whether to look for the end of the next read.
#[derive(Default)]
struct Looks {
    /// So many reads are not looked for.
    pass: u32,
    /// How many were not, the last time: twice as many after the next one that takes long.
    passed: u32,
}

/// A pipe into memory for one read. The lock is taken only by holders of the interpreter's lock.
pub(crate) struct WatchedPipe {
    /// Before the pipe, whose queue waits for what is under way.
    read: Mutex<Option<Read>>,
    /// Locked likewise.
    looks: Mutex<Looks>,
    pipe: Pipe,
    memory: Dram,
    /// The block of the file, by which reads are rounded.
    block: u64,
    watch: Arc<Watch>,
    told: Weak<Told>,
    owner: OwningProcess,
}

impl WatchedPipe {
    pub(crate) fn is_for(target: &Dram) -> bool {
        target.len() as u64 <= MAX_LEN
    }

    /// Connects it, and has the loop watch it; `None` where the route has nothing to watch.
    pub(crate) fn connect(ssd: &Ssd, told: &Arc<Told>) -> Result<Option<Arc<WatchedPipe>>> {
        let block = u64::from(ssd.file().offset_align()).max(4096);
        // The blocks that a read begins and ends in.
        let len = (MAX_LEN + 2 * block) as usize;
        let memory = Dram::allocate_for_with(ssd, 0, len, MapOptions::default().prefault(false))?;
        let pipe = machine().connect_with(ssd, &memory, &Constraints::default().typical_len(MAX_LEN))?;
        let Some(event) = pipe.event()? else { return Ok(None) };
        let watch = told.watch().clone();
        watch.add(event)?;
        let (read, looks, owner) = (Mutex::default(), Mutex::default(), OwningProcess::here());
        let made = Arc::new(WatchedPipe { read, looks, pipe, memory, block, watch, told: Arc::downgrade(told), owner });
        told.add(&made);
        let mut all = ALL.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&made));
        drop(all);
        Ok(Some(made))
    }

    /// Starts to read as many bytes as there are in the target. False where another read is under
    /// way.
    pub(crate) fn start(&self, offset: u64, target: &Dram, op: &Arc<Op>) -> Result<bool> {
        let mut read = self.read.lock();
        if read.is_some() {
            return Ok(false);
        }
        let target = target.memory().raw_lease(Access::Write)?;
        let skip = offset % self.block;
        // The file may end before the block does, so the end is not rounded.
        let span = Span { source: offset - skip, target: 0, len: skip + target.len() as u64 };
        let transfer = self.pipe.start(span)?;
        *read = Some(Read { transfer, skip: skip as usize, target, op: op.clone() });
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Looks for the end of the read that was just started, for a short while, if the last ones ended
    /// so soon.
    pub(crate) fn look(&self) {
        let mut looks = self.looks.lock();
        if looks.pass > 0 {
            looks.pass -= 1;
            return;
        }
        let begun = Instant::now();
        loop {
            let is_done = self.poll().is_some();
            if is_done || begun.elapsed() >= MAX_LOOK {
                looks.passed = if is_done { 0 } else { (2 * looks.passed + 1).min(MAX_PASSED) };
                looks.pass = looks.passed;
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// As [`poll`](Self::poll), for others than the loop, which no longer sees the ring readable.
    pub(crate) fn poll_beside_the_loop(&self) {
        if self.owner.is_here()
            && let Some(number) = self.poll()
            && let Some(told) = self.told.upgrade()
        {
            told.tell(number);
        }
    }

    /// Ends the read that is under way, if it is done, and returns its number.
    pub(crate) fn poll(&self) -> Option<u64> {
        let done = self.read.lock().take_if(|read| read.transfer.is_done())?;
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        let Read { transfer, skip, target, op } = done;
        let result = transfer.wait().and_then(|()| {
            let from = self.memory.memory().range(skip, target.len())?;
            let source = from.raw_lease(Access::Read)?;
            // SAFETY: both leases are over `target.len()` bytes, one for reading and one for
            // writing. The memory is this object's own, so they do not overlap.
            unsafe { copy_out(&source, &target) }
        });
        drop(target);
        op.set(result);
        Some(op.number)
    }
}

impl Drop for WatchedPipe {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // It is the parent's, and so is the lease.
            return std::mem::forget(self.read.lock().take());
        }
        if let Ok(Some(event)) = self.pipe.event() {
            self.watch.remove(event);
        }
        if self.read.lock().is_some() {
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
