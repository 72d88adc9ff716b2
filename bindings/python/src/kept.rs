//! Pipes of a file that are kept for the reads that `pread` starts.
//!
//! A pipe is made for two places, and costs a ring. So short reads of a file share one pipe into
//! staging memory, and are copied from there:
//!
//! ```text
//! file --pipe--> slot of the staging memory --copy by the thread that completes--> target
//!                 (none free: the read waits in a queue, and takes the next that is)
//! ```
//!
//! A slot is placed for the file's blocks, so that reads of any offset go past the page cache
//! without a bounce.
//!
//! Unsafe code: the copy between leased bytes.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use datapipes::locks::Mutex;
use datapipes::memory::{Access, RawLease};
use datapipes::process::OwningProcess;
use datapipes::{ConnectOptions, Constraints, Dram, Error, MapOptions, Result, Runtime, RuntimePipe, Span, Ssd};

use crate::foreign::copy_out;
use crate::notifier::Told;
use crate::watched::WatchedPipe;

/// Slots by their size: the longest read that they serve, and their number.
const SIZES: [(u64, usize); 2] = [(64 << 10, 32), (1 << 20, 8)];

/// A loop, and the pipe that it watches, if there can be one.
type Watched = (Weak<Told>, Option<Arc<WatchedPipe>>);

/// What is called with the result of a read.
pub(crate) type Finish = Box<dyn FnOnce(Result<()>) + Send>;

/// The kept pipes of a file, of one process.
pub(crate) struct KeptPipes {
    /// By size. Locked only by holders of the interpreter's lock.
    staged: Mutex<[Option<Arc<Staged>>; SIZES.len()]>,
    /// For each loop that awaited a read: its pipe, if there can be one. Locked likewise.
    watched: Mutex<Vec<Watched>>,
    owner: OwningProcess,
}

impl Default for KeptPipes {
    fn default() -> KeptPipes {
        KeptPipes { staged: Mutex::default(), watched: Mutex::default(), owner: OwningProcess::here() }
    }
}

impl KeptPipes {
    /// Returns the place in the list of sizes for reads of this length, if they are staged.
    pub(crate) fn size_for(len: u64) -> Option<usize> {
        SIZES.iter().position(|(longest, _)| len <= *longest)
    }

    /// Returns the pipe for a size, if it was made.
    pub(crate) fn get(&self, size: usize) -> Option<Arc<Staged>> {
        self.staged.lock()[size].clone()
    }

    /// Keeps a pipe, and returns the one that is used: another thread may have been quicker.
    pub(crate) fn keep(&self, size: usize, made: Arc<Staged>) -> Arc<Staged> {
        self.staged.lock()[size].get_or_insert(made).clone()
    }

    /// Returns what is known of the pipe that a loop watches: `Some(None)` where there can be none.
    pub(crate) fn watched_by(&self, told: &Arc<Told>) -> Option<Option<Arc<WatchedPipe>>> {
        let watched = self.watched.lock();
        watched.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(told)).map(|(_, pipe)| pipe.clone())
    }

    /// Keeps the pipe of a loop as long as the loop is there, and returns it.
    pub(crate) fn keep_watched(&self, told: &Arc<Told>, made: Option<Arc<WatchedPipe>>) -> Option<Arc<WatchedPipe>> {
        let gone: Vec<_> = {
            let mut watched = self.watched.lock();
            let gone = watched.extract_if(.., |(known, _)| known.strong_count() == 0).collect();
            watched.push((Arc::downgrade(told), made.clone()));
            gone
        };
        drop(gone);
        made
    }
}

impl Drop for KeptPipes {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // They are the parent's.
            std::mem::forget(std::mem::take(&mut *self.staged.lock()));
            std::mem::forget(std::mem::take(&mut *self.watched.lock()));
        }
    }
}

/// A read that was asked for.
struct Job {
    offset: u64,
    target: RawLease,
    finish: Finish,
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// Not empty only while no slot is free.
    waiting: VecDeque<Job>,
}

/// A pipe into staging memory.
pub(crate) struct Staged {
    pipe: RuntimePipe,
    memory: Dram,
    /// The block of the file, by which reads are rounded.
    block: u64,
    slot: usize,
    slots: Mutex<Slots>,
}

impl Staged {
    pub(crate) fn connect(runtime: &Runtime, ssd: &Ssd, size: usize) -> Result<Arc<Staged>> {
        let (longest, count) = SIZES[size];
        let block = u64::from(ssd.file().offset_align()).max(4096);
        // The blocks that a read begins and ends in.
        let slot = (longest + 2 * block) as usize;
        let memory = Dram::allocate_for_with(ssd, 0, slot * count, MapOptions::default().prefault(false))?;
        let options =
            ConnectOptions::default().constraints(Constraints::default().typical_len(longest)).queue(2 * count);
        let pipe = runtime.connect_with(ssd, &memory, &options)?;
        let slots = Mutex::new(Slots { free: (0..count).rev().collect(), waiting: VecDeque::new() });
        Ok(Arc::new(Staged { pipe, memory, block, slot, slots }))
    }

    /// Starts to read as many bytes as there are in the target, from `offset` of a file of `end`
    /// bytes.
    pub(crate) fn read(self: &Arc<Staged>, offset: u64, target: &Dram, finish: Finish) -> Result<()> {
        let job = Job { offset, target: target.memory().raw_lease(Access::Write)?, finish };
        let mut slots = self.slots.lock();
        let Some(slot) = slots.free.pop() else {
            slots.waiting.push_back(job);
            return Ok(());
        };
        drop(slots);
        self.launch(slot, job).map_err(|(_, error)| {
            self.reuse(slot);
            error
        })
    }

    fn launch(self: &Arc<Staged>, slot: usize, job: Job) -> std::result::Result<(), (Job, Error)> {
        let skip = job.offset % self.block;
        let from = (slot * self.slot) as u64;
        // The file may end before the block does, so the end is not rounded.
        let span = Span { source: job.offset - skip, target: from, len: skip + job.target.len() as u64 };
        match self.pipe.transfer(span) {
            Ok(handle) => {
                let staged = self.clone();
                handle.on_done(move |result| staged.done(slot, skip, job, result));
                Ok(())
            }
            Err(error) => Err((job, error)),
        }
    }

    /// Copies what was read, gives the slot to the next read, and tells the result.
    fn done(self: &Arc<Staged>, slot: usize, skip: u64, job: Job, result: Result<()>) {
        let Job { target, finish, .. } = job;
        let result = result.and_then(|()| {
            let from = self.memory.memory().range(slot * self.slot + skip as usize, target.len())?;
            let source = from.raw_lease(Access::Read)?;
            // SAFETY: both leases are over `target.len()` bytes, one for reading and one for
            // writing. The staging memory is this object's own, so they do not overlap.
            unsafe { copy_out(&source, &target) }
        });
        drop(target);
        self.reuse(slot);
        finish(result);
    }

    /// Gives a slot to the next read that can be started.
    fn reuse(self: &Arc<Staged>, slot: usize) {
        loop {
            let mut slots = self.slots.lock();
            let Some(next) = slots.waiting.pop_front() else { return slots.free.push(slot) };
            drop(slots);
            match self.launch(slot, next) {
                Ok(()) => return,
                Err((Job { target, finish, .. }, error)) => {
                    drop(target);
                    finish(Err(error));
                }
            }
        }
    }
}
