//! Copies from file to file in the kernel: a reflink where the file system shares blocks, else
//! `copy_file_range`.
//!
//! ```text
//! transfer: whole blocks on both sides, equally misaligned?  FICLONERANGE: no byte is moved
//!           the rest (all of it, if cloning is refused)      copy_file_range, until done
//! ```
//!
//! Cloned bytes count as direct (they bypass the page cache), copied ones as cached.
//!
//! Unsafe code: one `ioctl`.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use datapipes_core::backend::{Counters, InlineMover, Quality};
use datapipes_core::locator::FilePlace;
use datapipes_core::locks::Mutex;
use datapipes_core::{Error, ErrorKind, Result, Span};
use rustix::io::Errno;

/// The most bytes of one `copy_file_range`, so that a signal does not wait long.
const AT_ONCE: u64 = 64 << 20;
/// How often a request is repeated without progress before its errno is reported.
const TRIES: u32 = 1000;
/// Bytes that go through memory at once, where the kernel stops early.
const BY_HAND: usize = 256 << 10;

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_at: u64,
    len: u64,
    target_at: u64,
}

/// Shares the blocks of a range.
fn clone_range(source: BorrowedFd<'_>, target: BorrowedFd<'_>, span: Span) -> Result<(), Errno> {
    /// `_IOW(0x94, 13, struct file_clone_range)`.
    const FICLONERANGE: libc::c_ulong = 0x4020_940d;
    let range = CloneRange {
        source: i64::from(source.as_raw_fd()),
        source_at: span.source,
        len: span.len,
        target_at: span.target,
    };
    // SAFETY: the structure has the kernel's layout and outlives the call; the descriptors are
    // borrowed.
    let rc = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE as _, &raw const range) };
    if rc == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Tests whether the file system can share blocks of the two files. A misaligned request changes
/// nothing; the kernel answers `EINVAL` where it can share blocks, and another errno where it
/// cannot.
fn shares_blocks(source: &FilePlace, target: &FilePlace) -> Result<(), Errno> {
    match clone_range(source.cached_fd(), target.cached_fd(), Span { source: 1, target: 1, len: 1 }) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Returns how good a copy in the kernel would be, with the reason, or why there is none.
pub(crate) fn offer(source: &FilePlace, target: &FilePlace) -> (Result<Quality, String>, String) {
    let refuse = |why: &str| (Err(why.to_owned()), String::new());
    if source.is_block_device() || target.is_block_device() {
        return refuse("the kernel copies between files, not block devices");
    }
    if !source.readable() {
        return refuse("the source is open for writing only");
    }
    if let Some(why) = target.not_writable() {
        return refuse(&format!("it cannot be a target: {why}"));
    }
    let quality = |latency_ns, bytes_per_s, cpu_share, cached: bool| Quality {
        latency_ns,
        bytes_per_s,
        cpu_share,
        offload: !cached,
        fills_processor_cache: cached,
        fills_page_cache: cached,
        measured: false,
    };
    let why = match shares_blocks(source, target) {
        Ok(()) => return (Ok(quality(50e3, 50e9, 0.1, false)), "the file system shares blocks (reflink)".into()),
        Err(Errno::XDEV) => "the two are on different file systems".to_owned(),
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => "the file system does not share blocks".to_owned(),
        Err(e) => format!("sharing blocks is refused: {e}"),
    };
    // An empty copy is refused where a copy would be.
    match rustix::fs::copy_file_range(source.cached_fd(), Some(&mut 0), target.cached_fd(), Some(&mut 0), 0) {
        Ok(_) => (Ok(quality(10e3, 0.9e9, 0.9, true)), format!("{why}; copy_file_range goes through the page cache")),
        Err(e) => (Err(format!("{why}; copy_file_range is refused: {e}")), String::new()),
    }
}

/// The whole blocks of a span: the number of bytes before the first one, and their length.
struct Whole {
    head: u64,
    len: u64,
}

impl Whole {
    /// Returns `None` where source and target begin at different offsets in a block, or there is no
    /// whole block.
    fn blocks(span: Span, block: u64) -> Option<Whole> {
        let misfit = span.source.checked_rem(block)?;
        if span.target.checked_rem(block)? != misfit {
            return None;
        }
        let head = if misfit == 0 { 0 } else { block.checked_sub(misfit)? };
        let len = span.len.checked_sub(head)?;
        let len = len.checked_sub(len.checked_rem(block)?)?;
        (len > 0).then_some(Whole { head, len })
    }
}

fn add(to: &mut u64, n: u64) {
    *to = to.saturating_add(n);
}

/// Counts a request and its system call.
fn asked(counters: &mut Counters) {
    add(&mut counters.requests, 1);
    add(&mut counters.system_calls, 1);
}

/// The mover from file to file.
pub(crate) struct KernelCopy {
    source: Arc<FilePlace>,
    target: Arc<FilePlace>,
    /// The block size in which the file system shares blocks.
    block: u64,
    shares: AtomicBool,
    counters: Mutex<Counters>,
}

impl KernelCopy {
    pub(crate) fn new(source: Arc<FilePlace>, target: Arc<FilePlace>) -> Self {
        let shares = AtomicBool::new(shares_blocks(&source, &target).is_ok());
        let block = rustix::fs::fstatvfs(target.cached_fd()).map_or(4096, |fs| fs.f_bsize).max(1);
        KernelCopy { source, target, block, shares, counters: Mutex::new(Counters::default()) }
    }

    fn carry_out(&self, span: Span, counters: &mut Counters) -> Result<()> {
        let mut done = 0;
        if self.shares.load(Ordering::Relaxed)
            && let Some(Whole { head, len }) = Whole::blocks(span, self.block)
        {
            self.copy(span.part(0, head)?, 0, counters)?;
            done = head;
            asked(counters);
            match clone_range(self.source.cached_fd(), self.target.cached_fd(), span.part(head, len)?) {
                Ok(()) => {
                    add(&mut counters.bytes, len);
                    add(&mut counters.direct_bytes, len);
                    add(&mut done, len);
                }
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY) => self.shares.store(false, Ordering::Relaxed),
                // It may be past the end, a swap file, or blocks of another size. The copy below
                // reports or handles that.
                Err(_) => {}
            }
        }
        self.copy(span.part(done, span.len.saturating_sub(done))?, done, counters)
    }

    /// Copies all of `span`; `before` bytes of the transfer are done already.
    fn copy(&self, span: Span, before: u64, counters: &mut Counters) -> Result<()> {
        let (mut done, mut tries) = (0u64, 0u32);
        while let Some(left) = span.len.checked_sub(done).filter(|left| *left > 0) {
            let len = left.min(AT_ONCE);
            let Span { source: from, target: to, .. } = span.part(done, len)?;
            let at = |e: Error| e.with_offset(from).with_bytes_done(before.saturating_add(done));
            asked(counters);
            let (source, target) = (self.source.cached_fd(), self.target.cached_fd());
            let (mut source_at, mut target_at) = (from, to);
            // The length is at most AT_ONCE.
            let outcome =
                rustix::fs::copy_file_range(source, Some(&mut source_at), target, Some(&mut target_at), len as usize);
            match outcome {
                // This is the end of the file, or a file system with a server stopped before it and
                // would do so again.
                Ok(0) => match self.copy_by_hand(from, to, len, counters).map_err(at)? {
                    0 => return Err(at(Error::end_of_source("copy", self.pair(), from))),
                    n => (done, tries) = (done.saturating_add(n), 0),
                },
                Ok(n) => {
                    let n = n as u64;
                    add(&mut counters.short_finished, u64::from(n < len));
                    add(&mut counters.bytes, n);
                    add(&mut counters.cached_bytes, n);
                    (done, tries) = (done.saturating_add(n), 0);
                }
                Err(Errno::INTR | Errno::AGAIN) if tries < TRIES => {
                    add(&mut counters.retries, 1);
                    tries = tries.saturating_add(1);
                }
                Err(e) => return Err(at(Error::os("copy", e.raw_os_error(), self.pair()))),
            }
        }
        Ok(())
    }

    /// Copies some of `len` bytes through memory of this process and returns how many; 0 at the end
    /// of the source.
    fn copy_by_hand(&self, from: u64, to: u64, len: u64, counters: &mut Counters) -> Result<u64> {
        let os = |e: Errno| Error::os("copy", e.raw_os_error(), self.pair());
        let mut buffer = vec![0; BY_HAND.min(usize::try_from(len).unwrap_or(BY_HAND))];
        asked(counters);
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(self.source.cached_fd(), &mut buffer, from));
        let mut left = buffer.get(..read.map_err(os)?).unwrap_or_default();
        let (mut to, read) = (to, left.len() as u64);
        while !left.is_empty() {
            asked(counters);
            let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(self.target.cached_fd(), left, to));
            let written = written.map_err(os)?;
            if written == 0 {
                return Err(Error::new(
                    ErrorKind::System,
                    "copy",
                    format!("{}: the kernel took no bytes", self.pair()),
                ));
            }
            left = left.get(written..).unwrap_or_default();
            to = to.saturating_add(written as u64);
        }
        add(&mut counters.short_finished, u64::from(read > 0));
        add(&mut counters.bytes, read);
        add(&mut counters.cached_bytes, read);
        Ok(read)
    }

    fn pair(&self) -> String {
        format!("{} to {}", self.source.path().display(), self.target.path().display())
    }
}

impl InlineMover for KernelCopy {
    fn transfer(&self, span: Span) -> Result<()> {
        let fits = |at: u64| at.checked_add(span.len).is_some_and(|end| i64::try_from(end).is_ok());
        if !fits(span.source) || !fits(span.target) {
            return Err(Error::new(ErrorKind::OutOfRange, "copy", format!("{span:?} of {}", self.pair())));
        }
        let since = Instant::now();
        let mut counters = Counters::default();
        let result = self.carry_out(span, &mut counters);
        match &result {
            Ok(()) => counters.transfers = 1,
            Err(_) => counters.failed = 1,
        }
        counters.max_outstanding = u64::from(counters.requests > 0);
        counters.busy_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counters.lock().add(&counters);
        result
    }

    fn counters(&self) -> Counters {
        self.counters.lock().clone()
    }
}
