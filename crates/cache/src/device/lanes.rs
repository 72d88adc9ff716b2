//! The engine over files. A lane is a reader of extents with its own buffers (Pipette's requester).
//!
//! A reading thread takes a lane, so that it does not wait for a lock while the device works. A
//! lane belongs to no file. A thread gets its last lane again if that is free, because the ring
//! belongs to that thread and the buffers are warm.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::backend::{ExtentOptions, ExtentReader, ExtentSource};
use datapipes_core::threads::ThreadNumber;
use datapipes_core::{Error, ErrorKind, FileAccess, Machine, Result, Ssd};

use super::engine::{EngineFacts, Extent, OnExtent, ReadEngine, RejectedWay};
use crate::store::PAGE;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The longest extent, in bytes.
const MAX_EXTENT_BYTES: u32 = PAGE as u32;
/// Approximate bytes of a lane's buffers for each outstanding request.
const BYTES_A_REQUEST: usize = 2 * PAGE as usize;

struct Lane {
    reader: Box<dyn ExtentReader>,
    last: Option<ThreadNumber>,
}

/// The free lanes, and the number of threads that wait for one.
#[derive(Default)]
struct Free {
    lanes: VecDeque<Lane>,
    waiting: usize,
    /// How often a lane was returned.
    returns: u64,
}

/// A thread waits at least this long for a lane to be returned.
const STALLED: Duration = Duration::from_secs(1);

/// Bytes of a lane's buffers, by its depth.
pub(crate) fn lane_bytes(depth: usize) -> usize {
    depth * BYTES_A_REQUEST
}

/// The limits of a set of lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Outstanding requests of a lane.
    pub(crate) depth: usize,
    /// The most lanes.
    pub(crate) most: usize,
    /// The most threads that wait for a lane.
    pub(crate) waiting: usize,
    /// How long a thread waits while no lane is returned.
    pub(crate) patience: Duration,
}

/// The lanes of a store, for all of its files.
pub(crate) struct Lanes {
    machine: Machine,
    depth: usize,
    most: usize,
    may_wait: usize,
    patience: Duration,
    made: AtomicUsize,
    free: Mutex<Free>,
    returned: Condvar,
    started: Instant,
}

impl Lanes {
    /// Makes the set, without a lane yet.
    pub(crate) fn new(machine: &Machine, shape: Shape) -> Lanes {
        Lanes {
            machine: machine.clone(),
            depth: shape.depth,
            most: shape.most.max(1),
            may_wait: shape.waiting,
            patience: shape.patience.max(STALLED),
            made: AtomicUsize::new(0),
            free: Mutex::default(),
            returned: Condvar::new(),
            started: Instant::now(),
        }
    }

    /// Describes how bytes are read, by the first free lane.
    pub(crate) fn explain(&self) -> Option<String> {
        self.free.lock().lanes.front().map(|lane| lane.reader.explain())
    }

    /// Ways in which the first free lane does not read.
    fn rejected(&self) -> Vec<RejectedWay> {
        let rejected = self.free.lock().lanes.front().map(|lane| lane.reader.rejected());
        rejected.into_iter().flatten().map(|(way, why)| RejectedWay { way: way.to_owned(), why }).collect()
    }

    /// Nanoseconds since the set was made.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Bytes of all lanes' buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.made.load(Ordering::Relaxed) * lane_bytes(self.depth)
    }

    fn make(&self) -> Result<Lane> {
        let options = ExtentOptions::default().depth(self.depth as u32).longest(MAX_EXTENT_BYTES);
        Ok(Lane { reader: self.machine.extent_reader(options)?, last: None })
    }

    /// Takes a free lane, or makes one. If none can be made, waits until another thread returns
    /// one.
    fn take(&self) -> Result<Taken<'_>> {
        let me = ThreadNumber::here();
        let taken = |lane| Ok(Taken { lanes: self, lane: Some(lane) });
        let mut free = self.free.lock();
        let mut refused = false;
        loop {
            if let Some(own) = free.lanes.iter().position(|lane| lane.last == Some(me))
                && let Some(lane) = free.lanes.remove(own)
            {
                return taken(lane);
            }
            let made = self.made.load(Ordering::Relaxed);
            // A new lane is better than another thread's, which may come back for it.
            if made < self.most && (!refused || made == 0) {
                self.made.store(made + 1, Ordering::Relaxed);
                drop(free);
                let outcome = self.make();
                free = self.free.lock();
                match outcome {
                    Ok(lane) => return taken(lane),
                    Err(error) => {
                        let left = self.made.fetch_sub(1, Ordering::Relaxed) - 1;
                        if left == 0 {
                            // No lane exists that could be returned. The waiting threads try for
                            // themselves.
                            self.returned.notify_all();
                            return Err(error);
                        }
                        // Memory is short. Other threads read, and will return their lanes.
                        refused = true;
                        continue;
                    }
                }
            }
            // This is the least recently used lane.
            if let Some(lane) = free.lanes.pop_front() {
                return taken(lane);
            }
            if free.waiting >= self.may_wait {
                let context = format!("{} threads are waiting for one of {made} lanes to the device", free.waiting);
                return Err(Error::new(ErrorKind::Busy, "read", context)
                    .with_advice("read with fewer threads, give more lanes, or let more threads wait"));
            }
            let (returns, since) = (free.returns, Instant::now());
            free.waiting += 1;
            free = self.sleep(free);
            free.waiting -= 1;
            // A slow device returns some lanes. One that returns none may never do so, such as a
            // file system that does not answer.
            if free.returns == returns && since.elapsed() >= self.patience && cfg!(not(shuttle)) {
                let context = format!("none of {made} lanes to the device was returned within {:?}", self.patience);
                return Err(Error::new(ErrorKind::Busy, "read", context)
                    .with_advice("look for a file whose file system does not answer, or give more lanes"));
            }
        }
    }

    #[cfg(not(shuttle))]
    fn sleep<'a>(&self, free: MutexGuard<'a, Free>) -> MutexGuard<'a, Free> {
        self.returned.wait_timeout(free, self.patience).0
    }

    /// The model has no time.
    #[cfg(shuttle)]
    fn sleep<'a>(&self, free: MutexGuard<'a, Free>) -> MutexGuard<'a, Free> {
        self.returned.wait(free)
    }

    fn give(&self, mut lane: Lane) {
        lane.last = Some(ThreadNumber::here());
        let mut free = self.free.lock();
        free.lanes.push_back(lane);
        free.returns += 1;
        // A notification without a waiter would still cost a system call.
        if free.waiting > 0 {
            self.returned.notify_one();
        }
    }
}

/// A lane in use, which is free again when this is dropped. The callbacks for read bytes run no
/// code of the cache's user, which might need a lane, too.
struct Taken<'a> {
    lanes: &'a Lanes,
    lane: Option<Lane>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.lanes.give(lane);
        }
    }
}

/// One file, read through lanes.
pub(crate) struct FileEngine {
    ssd: Ssd,
    lanes: Arc<Lanes>,
    /// Whether reads bypass the page cache.
    direct: bool,
}

impl FileEngine {
    /// Opens an engine over a file that is open for reading. It makes a lane if there is none, so
    /// that errors show now.
    pub(crate) fn open(ssd: &Ssd, lanes: &Arc<Lanes>) -> Result<FileEngine> {
        let file = ssd.file();
        if !file.readable() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "read",
                format!("{} is open for writing only", ssd.path().display()),
            ));
        }
        // Reads bypass the page cache, in the device's own blocks: a page cache would hold the same
        // bytes again, as pages.
        let direct = file.direct_fd().is_ok() && u64::from(file.offset_align()) <= PAGE;
        let direct = direct && file.access() != FileAccess::Cached;
        drop(lanes.take()?);
        Ok(FileEngine { ssd: ssd.clone(), lanes: lanes.clone(), direct })
    }

    /// Describes how bytes are read, and why.
    pub(crate) fn explain(&self) -> String {
        let how = self.lanes.explain().unwrap_or_else(|| "every lane is in use".to_owned());
        let way = match (self.direct, self.ssd.file().direct_fd()) {
            (true, _) => "past the page cache".to_owned(),
            (false, Err(why)) => format!("through the page cache ({why})"),
            (false, Ok(_)) => "through the page cache (as asked, or for its large blocks)".to_owned(),
        };
        format!("{}, {way}: {how}", self.ssd.path().display())
    }

    /// Ways in which bytes are not read.
    pub(crate) fn rejected(&self) -> Vec<RejectedWay> {
        let (way, why) = match (self.direct, self.ssd.file().direct_fd()) {
            (true, _) => ("through the page cache", "it would keep the same bytes again, as pages".to_owned()),
            (false, Err(why)) => ("past the page cache", why.to_string()),
            (false, Ok(_)) => {
                let align = self.ssd.file().offset_align();
                ("past the page cache", format!("it was not asked for, or blocks of {align} bytes are too large"))
            }
        };
        let mut rejected = vec![RejectedWay { way: way.to_owned(), why }];
        rejected.extend(self.lanes.rejected());
        rejected
    }
}

impl ReadEngine for FileEngine {
    fn facts(&self) -> EngineFacts {
        let granularity = if self.direct { self.ssd.file().offset_align() } else { 1 };
        EngineFacts { granularity, depth: self.lanes.depth as u32, longest: MAX_EXTENT_BYTES }
    }

    fn len_bytes(&self) -> Result<u64> {
        self.ssd.len()
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        if extents.is_empty() {
            return;
        }
        let mut lane = match self.lanes.take() {
            Ok(lane) => lane,
            Err(error) => {
                let (kind, text) = (error.kind(), error.to_string());
                (0..extents.len()).for_each(|i| done(i, Err(Error::relayed(kind, text.clone()))));
                return;
            }
        };
        if let Some(lane) = &mut lane.lane {
            lane.reader.read(ExtentSource { file: self.ssd.file(), direct: self.direct }, extents, done);
        }
    }

    fn now_ns(&self) -> u64 {
        self.lanes.now_ns()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::CacheOptions;
    use crate::fine::FineGrained;

    #[test]
    fn threads_that_wait_beyond_the_limit_are_refused() {
        let path = std::env::temp_dir().join(format!("fine-lanes-{}", std::process::id()));
        std::fs::write(&path, vec![7; 200_000]).unwrap();
        // There is one lane, and no thread may wait for it.
        let mut config = CacheOptions::new(&datapipes::discover()).budget(2 << 20);
        (config.lanes, config.waiting, config.prefault) = (1, 0, false);
        let fine = FineGrained::over(&Ssd::open(&path).unwrap(), config).unwrap();
        let mut refused = None;
        fine.0.engine.read(&[Extent { offset: 0, len: 4096 }], &mut |_, bytes| {
            assert_eq!(bytes.unwrap(), [7; 4096]);
            refused = fine.read(100_000, &mut [0; 64]).err();
        });
        let error = refused.unwrap();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Busy, Some(100_000)), "{error}");
        fine.read(100_000, &mut [0; 64]).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
