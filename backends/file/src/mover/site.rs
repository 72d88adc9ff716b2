//! What the requests of one mover have in common.
#![deny(clippy::arithmetic_side_effects)]

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use datapipes_core::locator::FilePlace;
use datapipes_core::memory::MemoryRange;
use datapipes_core::{Error, ErrorKind, Result};

use super::bounce::BouncePool;
use super::request_plan::{BOUNCE, CacheMode, Direction, Rules};
use crate::faults::FaultInjector;

/// How a mover queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSettings {
    /// Requests outstanding at once.
    pub(crate) depth: u32,
    /// Bytes of a request of a job that is cut into few of them: smaller ones overlap better. A
    /// long job takes the rules' size, which costs fewer interrupts.
    pub(crate) short_request: u64,
    /// Bytes of a registered slice of memory, a power of two; 0 registers none.
    pub(crate) slice_bytes: usize,
    /// The I/O priority of requests, as the kernel writes it; 0 is that of the process.
    pub(crate) io_priority: u16,
}

/// The two ends of a mover, and the rules between them.
pub(crate) struct MoverContext {
    pub(crate) file: Arc<FilePlace>,
    pub(crate) memory: MemoryRange,
    pub(crate) rules: Rules,
    pub(crate) queue: QueueSettings,
    pub(crate) faults: Option<Arc<dyn FaultInjector>>,
    /// Requests made so far.
    pub(crate) requests: AtomicU64,
    pub(crate) bounces: BouncePool,
    direct: RawFd,
    /// Whether requests that the file system refuses past the page cache may be made through it.
    falls_back: bool,
    /// It refused one: all later ones go through the page cache.
    fell_back: AtomicBool,
}

impl MoverContext {
    /// The file and the memory, with the alignments taken from the file.
    pub(crate) fn new(
        (file, memory): (Arc<FilePlace>, MemoryRange),
        rules: Rules,
        falls_back: bool,
        queue: QueueSettings,
        faults: Option<Arc<dyn FaultInjector>>,
    ) -> Result<MoverContext> {
        let direct = match (rules.lane, file.direct_fd()) {
            (_, Ok(fd)) => fd.as_raw_fd(),
            (CacheMode::Cached, Err(_)) => file.cached_fd().as_raw_fd(),
            (CacheMode::Direct, Err(why)) => {
                let context = format!("{}: {why}", file.path().display());
                return Err(Error::new(ErrorKind::Unavailable, "open direct", context).advice("use cached access"));
            }
        };
        let buffer = BOUNCE.max(rules.edge_align).max(rules.offset_align);
        let bounces = BouncePool::new(usize::try_from(buffer).unwrap_or(1 << 20));
        let fell_back = AtomicBool::new(false);
        let requests = AtomicU64::new(0);
        Ok(MoverContext { file, memory, rules, queue, faults, requests, bounces, direct, falls_back, fell_back })
    }

    /// The rules as they are now: those of the page cache, once the file system refused what goes
    /// past it.
    pub(crate) fn rules_now(&self) -> Rules {
        match self.fell_back.load(Ordering::Relaxed) {
            true => Rules { lane: CacheMode::Cached, ..self.rules },
            false => self.rules,
        }
    }

    /// The file system refused a request past the page cache. True where it is to be made again,
    /// through it.
    pub(crate) fn fall_back(&self, errno: i32) -> bool {
        if self.falls_back && !self.fell_back.swap(true, Ordering::Relaxed) {
            let errno = std::io::Error::from_raw_os_error(errno);
            self.file
                .refuse_direct(format!("the file system opens it past the page cache and refuses requests: {errno}"));
        }
        self.falls_back
    }

    /// The descriptor of a lane. It lives as long as the site, which holds the file.
    pub(crate) fn fd(&self, lane: CacheMode) -> RawFd {
        match lane {
            CacheMode::Direct => self.direct,
            CacheMode::Cached => self.file.cached_fd().as_raw_fd(),
        }
    }

    /// The most bytes of a request from an offset in the region, of a job of `len` bytes: up to the
    /// border of the slice, and an eighth of the job, but no less than a short request.
    pub(crate) fn max_request_len(&self, region_at: usize, len: u64) -> u64 {
        // A request has a byte at least, whatever the knobs say: one of nothing would never end.
        let share = self.queue.short_request.max(len / 8).max(1);
        match self.queue.slice_bytes {
            0 => share,
            // The length of a slice is a power of two.
            slice => share.min(slice.saturating_sub(region_at & slice.wrapping_sub(1)) as u64),
        }
    }

    /// What the operation is called in errors.
    pub(crate) fn operation(&self) -> &'static str {
        match self.rules.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}
