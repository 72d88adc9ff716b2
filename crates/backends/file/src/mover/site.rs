//! The context that all requests of one mover share.
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
use crate::nvme::OpenNamespace;

/// The queue settings of a mover.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueSettings {
    /// Requests outstanding at once.
    pub(crate) depth: u32,
    /// Bytes of a request, for a job that is cut into few requests: shorter ones overlap better.
    /// Long jobs use the size in the rules, which costs fewer interrupts.
    pub(crate) short_request: u64,
    /// Bytes of a registered slice of memory, a power of two; 0 registers none.
    pub(crate) slice_bytes: usize,
    /// The I/O priority of requests, in the kernel's form; 0 is that of the process.
    pub(crate) io_priority: u16,
}

/// The two ends of a mover, and the rules between them.
pub(crate) struct MoverContext {
    pub(crate) file: Arc<FilePlace>,
    pub(crate) memory: MemoryRange,
    pub(crate) rules: Rules,
    pub(crate) queue: QueueSettings,
    pub(crate) faults: Option<Arc<dyn FaultInjector>>,
    /// The namespace that direct requests go to as commands, if they do.
    pub(crate) namespace: Option<OpenNamespace>,
    /// The number of requests made so far.
    pub(crate) requests: AtomicU64,
    pub(crate) bounces: BouncePool,
    direct: RawFd,
    /// Whether requests that the file system refuses past the page cache may go through it.
    falls_back: bool,
    /// Whether it refused one. All later requests then go through the page cache.
    fell_back: AtomicBool,
}

impl MoverContext {
    /// Makes the context, with the alignments of the file.
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
                return Err(Error::new(ErrorKind::Unavailable, "open direct", context).with_advice("use cached access"));
            }
        };
        let buffer = BOUNCE.max(rules.edge_align).max(rules.offset_align);
        let bounces = BouncePool::new(usize::try_from(buffer).unwrap_or(1 << 20));
        let fell_back = AtomicBool::new(false);
        let requests = AtomicU64::new(0);
        Ok(MoverContext {
            file,
            memory,
            rules,
            queue,
            faults,
            namespace: None,
            requests,
            bounces,
            direct,
            falls_back,
            fell_back,
        })
    }

    /// The same, with direct requests as commands to a namespace.
    pub(crate) fn by_commands(self, namespace: OpenNamespace) -> MoverContext {
        MoverContext { namespace: Some(namespace), falls_back: false, ..self }
    }

    /// Returns the present rules: those of the page cache, once the file system refused a request
    /// past it.
    pub(crate) fn rules_now(&self) -> Rules {
        match self.fell_back.load(Ordering::Relaxed) {
            true => Rules { lane: CacheMode::Cached, ..self.rules },
            false => self.rules,
        }
    }

    /// Notes that the file system refused a request past the page cache. Returns whether it is to
    /// be made again through the page cache.
    pub(crate) fn fall_back(&self, errno: i32) -> bool {
        if self.falls_back && !self.fell_back.swap(true, Ordering::Relaxed) {
            let errno = std::io::Error::from_raw_os_error(errno);
            self.file
                .refuse_direct(format!("the file system opens it past the page cache and refuses requests: {errno}"));
        }
        self.falls_back
    }

    /// Returns the descriptor for a cache mode. It lives as long as the site, which holds the file.
    pub(crate) fn fd(&self, lane: CacheMode) -> RawFd {
        match lane {
            CacheMode::Direct => self.direct,
            CacheMode::Cached => self.file.cached_fd().as_raw_fd(),
        }
    }

    /// Returns the most bytes of a request at an offset in the region, for a job of `len` bytes. A
    /// request ends at the end of its slice at the latest, and covers an eighth of the job, or a
    /// short request if that is more.
    pub(crate) fn max_request_len(&self, region_at: usize, len: u64) -> u64 {
        // A request has at least one byte, whatever the settings are. An empty one would never make
        // progress.
        let share = self.queue.short_request.max(len / 8).max(1);
        match self.queue.slice_bytes {
            0 => share,
            // The length of a slice is a power of two.
            slice => share.min(slice.saturating_sub(region_at & slice.wrapping_sub(1)) as u64),
        }
    }

    /// The name of the operation in errors.
    pub(crate) fn operation(&self) -> &'static str {
        match self.rules.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}
