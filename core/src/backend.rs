//! The contract between the planner and those who move bytes.
//!
//! A [`Backend`] states, for a pair of places, which primitives could serve and at what quality;
//! the planner decides; the backend then opens a [`Mover`] for the primitive that was chosen.
//! Descriptors flow down (jobs), completions flow up. A backend never chooses for the planner and
//! never calls another backend.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, FilePlace};
use crate::memory::RawLease;
use crate::span::Span;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::topology::Topology;

/// What the caller demands of a pipe. What cannot be met is refused at connect, with the
/// alternatives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constraints {
    /// Only these primitives, by name (empty: any).
    pub only: Vec<String>,
    /// None of these primitives.
    pub deny: Vec<String>,
    /// The bytes must be moved without loads and stores of a core (a DMA engine, a device).
    pub require_offload: bool,
    /// The bytes must not go through the page cache.
    pub bypass_page_cache: bool,
    /// The bytes must not displace what is in the processor's caches.
    pub bypass_processor_cache: bool,
    /// The estimated rate must be at least this, in bytes per second: a finite number above zero.
    pub at_least: Option<f64>,
    /// The length of a typical transfer in bytes, by which latency is weighed against rate; 1 MiB
    /// if not given.
    pub typical_len: Option<u64>,
    /// Requests kept outstanding on a device, at least 1; by the device's limits if not given.
    pub queue_depth: Option<u32>,
    /// Bytes of one request, at least 1; by the device's limits if not given. Direct requests are
    /// rounded to whole blocks.
    pub request_bytes: Option<u32>,
    /// Its requests go before those of others at the device (I/O priority), where the kernel
    /// honours that and the process may ask for it. A device may be kept from others by it: for few
    /// and short requests.
    pub urgent: bool,
}

impl Constraints {
    /// Whether the numbers make sense: what nobody can mean is refused before anything is planned.
    ///
    /// # Errors
    /// `InvalidInput` for a rate that is no number above zero, and for a queue or a request of
    /// nothing.
    pub fn check(&self) -> Result<()> {
        if let Some(rate) = self.at_least {
            check_rate("at_least", rate)?;
        }
        check_count("queue_depth", self.queue_depth.map(u64::from))?;
        check_count("request_bytes", self.request_bytes.map(u64::from))
    }
}

/// A rate in bytes per second that somebody asks for.
pub(crate) fn check_rate(knob: &str, rate: f64) -> Result<()> {
    if rate.is_finite() && rate > 0.0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{knob}: {rate} bytes/s is no rate"))
        .advice("give a number above zero, or leave it out"))
}

/// A number of something, which cannot be none.
pub(crate) fn check_count(knob: &str, count: Option<u64>) -> Result<()> {
    match count {
        Some(0) => Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{knob}: 0 would move nothing"))
            .advice("give at least 1, or leave it out")),
        _ => Ok(()),
    }
}

/// The question to a backend.
pub struct OfferQuery<'a> {
    /// Where the bytes are.
    pub source: &'a Endpoint,
    /// Where they are to go.
    pub target: &'a Endpoint,
    /// What the caller demands; a backend reads the knobs, the planner checks the rest.
    pub constraints: &'a Constraints,
    /// What was discovered.
    pub topology: &'a Topology,
}

/// How good a primitive is for a pair of places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Time of a transfer of no bytes, in nanoseconds.
    pub latency_ns: f64,
    /// Rate of a long transfer, in bytes per second.
    pub bytes_per_s: f64,
    /// Core seconds used per second of transfer.
    pub cpu_share: f64,
    /// Whether a device moves the bytes, not a core.
    pub offload: bool,
    /// Whether the bytes displace others in the processor's caches.
    pub fills_processor_cache: bool,
    /// Whether the bytes go through the page cache.
    pub fills_page_cache: bool,
    /// Whether the figures were measured on this machine, rather than assumed.
    pub measured: bool,
}

/// A primitive's answer to an [`OfferQuery`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offer {
    /// The primitive's name, unique over all backends.
    pub primitive: &'static str,
    /// How good it would be, or why it cannot.
    pub verdict: std::result::Result<Quality, String>,
    /// Why it is as good as it is, for the explanation.
    pub why: String,
}

/// What a backend says of a primitive on this machine, apart from any pair of places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Primitive {
    /// The primitive's name.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Whether this machine has it: what it was found by, or why it is absent.
    pub available: std::result::Result<String, String>,
}

/// Something that moves bytes.
pub trait Backend: Send + Sync {
    /// Its name: "cpu", "file".
    fn name(&self) -> &'static str;

    /// Its primitives on this machine, the absent ones too.
    fn primitives(&self) -> Vec<Primitive>;

    /// The primitives that could or could not carry bytes from source to target; none at all where
    /// the pair is not this backend's business.
    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer>;

    /// Opens a mover for a primitive that it offered.
    ///
    /// # Errors
    /// Whatever prevents it now, though it was offered.
    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover>;

    /// Makes a reader of many short extents of files. None where that is not this backend's
    /// business.
    ///
    /// # Errors
    /// Whatever prevents it now.
    fn extent_reader(&self, options: ExtentOptions) -> Option<Result<Box<dyn ExtentReader>>> {
        let _ = options;
        None
    }

    /// The knobs that can be turned, with their present values (CIDR'23, section 6, principle 3).
    fn knobs(&self) -> Vec<Knob> {
        Vec::new()
    }
}

/// A setting of a backend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Knob {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Where the value came from: "measured", "default", "set by the user".
    pub origin: String,
}

/// An open primitive between two places.
pub enum Mover {
    /// Moves the bytes on the caller's core, before it returns.
    Inline(Box<dyn InlineMover>),
    /// Takes jobs and completes them later.
    Queued(Box<dyn QueuedMover>),
}

/// A mover that is done when it returns. It leases the bytes in memory itself.
pub trait InlineMover: Send + Sync {
    /// Moves the span.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`, and what the primitive can meet.
    fn transfer(&self, span: Span) -> Result<()>;

    /// The same for parts of a job whose leases somebody else holds; None where each call must
    /// lease for itself.
    fn parts(&self) -> Option<&dyn Chunked> {
        None
    }

    /// What it did so far.
    fn counters(&self) -> Counters;
}

/// An inline mover that can be used piece by piece: how a runtime keeps a long copy interruptible.
pub trait Chunked: Send + Sync {
    /// Moves one part. `whole` is the length of what it is a part of, so that a kernel is chosen
    /// for the whole. The job is borrowed for writing: its leases permit one thread at a time to
    /// move the bytes.
    ///
    /// # Errors
    /// `InvalidInput` where the job's leases are missing, do not permit it, or are of other lengths
    /// than its span.
    ///
    /// ```compile_fail,E0596
    /// # use datapipes_core::backend::{Chunked, Job};
    /// fn twice_at_once(mover: &dyn Chunked, part: &Job) {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| mover.transfer_part(part, 1)); // refused: not borrowed for writing
    ///         scope.spawn(|| mover.transfer_part(part, 1));
    ///     });
    /// }
    /// ```
    fn transfer_part(&self, part: &mut Job, whole: u64) -> Result<()>;
}

/// A mover with a queue. Jobs bring their leases along, and the mover keeps them until the device
/// is done.
pub trait QueuedMover: Send + Sync {
    /// Accepts a job of any length; cutting it into requests and finishing short ones is the
    /// mover's work.
    ///
    /// # Errors
    /// The job comes back with the error.
    #[allow(clippy::result_large_err)]
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)>;

    /// Accepts jobs from the front, as many as it can, telling the device of them together.
    ///
    /// # Errors
    /// The job that was refused is left at the front.
    fn submit_all(&self, jobs: &mut VecDeque<Job>) -> Result<()> {
        while let Some(job) = jobs.pop_front() {
            if let Err((job, error)) = self.submit(job) {
                jobs.push_front(job);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A descriptor that is readable while [`complete`](Self::complete) has something to do. None
    /// where there is no such thing: then `submit` may block, and somebody has to wait in
    /// `complete`.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Appends the jobs that are done. With `wait`, returns only when there is at least one, or no
    /// job at all. Other threads may submit meanwhile.
    ///
    /// # Errors
    /// Only where the queue itself is broken; a job's own error is in its [`JobCompletion`].
    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()>;

    /// As `complete` with `wait`, and better if it returns only when about `least` jobs are done: a
    /// mover that can sleep until then wakes its caller less often. Not more than are under way.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    fn complete_several(&self, least: usize, done: &mut Vec<JobCompletion>) -> Result<()> {
        let _ = least;
        self.complete(true, done)
    }

    /// What it did so far.
    fn counters(&self) -> Counters;
}

/// A piece of a file that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadExtent {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u32,
}

impl ReadExtent {
    /// Where it ends.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// Called for each extent with its number, and its bytes or why they are not to be had.
pub type OnExtent<'a> = dyn FnMut(usize, Result<&[u8]>) + 'a;

/// What is asked of an [`ExtentReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentOptions {
    /// Requests outstanding at once, at most.
    pub depth: u32,
    /// The longest extent, in bytes.
    pub longest: u32,
}

/// The file that an [`ExtentReader`] is to read, and how.
#[derive(Clone, Copy)]
pub struct ExtentSource<'a> {
    /// The file.
    pub file: &'a Arc<FilePlace>,
    /// Past the page cache: offsets are multiples of [`FilePlace::offset_align`], which the longest
    /// extent is a multiple of.
    pub direct: bool,
}

/// Reads many short extents of files, for one caller at a time: what a cache needs for its misses.
///
/// A pipe does the same with leases, tokens and a queue for many threads, which cost as much as the
/// kernel's part of a read of 512 bytes. Here the memory is the reader's own and the caller sees it
/// in a callback, so that none of this is needed.
pub trait ExtentReader: Send {
    /// Reads the extents in any order, several side by side, and calls `done` once for each on this
    /// thread, before it returns. An error concerns only the extent it is told of; an extent that
    /// ends behind the end of the file is an `EndOfFile`.
    fn read(&mut self, from: ExtentSource<'_>, extents: &[ReadExtent], done: &mut OnExtent<'_>);

    /// Bytes of memory that it holds.
    fn memory_bytes(&self) -> usize;

    /// How it reads, and why so.
    fn explain(&self) -> String;

    /// What it did so far.
    fn counters(&self) -> Counters;
}

/// A transfer on its way to a queue.
#[derive(Debug)]
pub struct Job {
    /// Returned in [`JobCompletion`].
    pub token: u64,
    /// What to move.
    pub span: Span,
    /// The lease on the source, if it is in memory.
    pub source: Option<RawLease>,
    /// The lease on the target, if it is in memory.
    pub target: Option<RawLease>,
    /// To be rung when it is done, by a mover whose device can do so by itself; others leave it
    /// alone.
    pub notifier: Option<Arc<CompletionNotifier>>,
}

/// A byte into a socket, sent when a job is done, not by a thread that must wake up for it but by
/// the device (an io_uring sends it behind the last request of the job). It says "look", not how it
/// went: a request that must be repeated rings as well.
#[derive(Debug)]
pub struct CompletionNotifier {
    notifier_socket: Arc<NotifierSocket>,
    /// Bytes that were or will be sent.
    rings: AtomicU64,
}

/// The socket of notifiers, and what is known for certain of the bytes in it. Bytes look alike:
/// whoever hears of a job may read another one's.
#[derive(Debug)]
pub struct NotifierSocket {
    socket: OwnedFd,
    /// Bytes that are known to have been sent, less bytes that were read. While it is above 0,
    /// there is one in the socket.
    sure: AtomicI64,
}

impl NotifierSocket {
    /// The end of a socket that is written to.
    pub fn new(socket: OwnedFd) -> Arc<NotifierSocket> {
        Arc::new(NotifierSocket { socket, sure: AtomicI64::new(0) })
    }

    /// Sends a byte that is no device's to send. It fails where the socket is full, and so
    /// readable, or has nobody who reads.
    pub(crate) fn ring(&self) {
        self.sure.fetch_add(1, Ordering::SeqCst);
        if rustix::net::send(&self.socket, CompletionNotifier::BYTE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err()
        {
            self.sure.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A byte was read.
    pub(crate) fn read(&self) {
        self.sure.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the socket is readable for certain.
    pub(crate) fn is_readable(&self) -> bool {
        self.sure.load(Ordering::SeqCst) > 0
    }
}

impl CompletionNotifier {
    /// What is sent.
    pub const BYTE: &'static [u8; 1] = &[1];

    /// A notifier of one job.
    pub fn new(notifier_socket: Arc<NotifierSocket>) -> CompletionNotifier {
        CompletionNotifier { notifier_socket, rings: AtomicU64::new(0) }
    }

    /// A notifier of the same notifier socket, for what is nobody's job.
    pub fn another(&self) -> CompletionNotifier {
        CompletionNotifier::new(self.notifier_socket.clone())
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.notifier_socket.socket.as_fd()
    }

    /// Counts a byte that is about to be sent.
    pub fn count(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
    }

    /// A byte that was counted was sent.
    pub fn sent(&self) {
        self.notifier_socket.sure.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes a byte back that was counted and could not be sent.
    pub fn uncount(&self) {
        self.rings.fetch_sub(1, Ordering::SeqCst);
    }

    /// How often it was or will be rung.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }
}

/// A job that is done; its leases are gone.
#[derive(Debug)]
pub struct JobCompletion {
    /// The job's token.
    pub token: u64,
    /// Success means all bytes of the span; an error carries the bytes done.
    pub result: Result<()>,
}

/// What a mover did, so that what a route claims can be checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Transfers completed without an error.
    pub transfers: u64,
    /// Transfers that failed.
    pub failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests to the device or the kernel.
    pub requests: u64,
    /// System calls made.
    pub system_calls: u64,
    /// Bytes that went past the page cache.
    pub direct_bytes: u64,
    /// Bytes that went through the page cache.
    pub cached_bytes: u64,
    /// Requests from or to memory registered with the kernel.
    pub fixed_buffer_hits: u64,
    /// Requests from or to memory that was not registered.
    pub fixed_buffer_misses: u64,
    /// Pieces that went through a bounce buffer, because of alignment.
    pub bounces: u64,
    /// Their bytes.
    pub bounced_bytes: u64,
    /// Requests that moved less than was asked and were finished by another.
    pub short_finished: u64,
    /// Requests repeated after EINTR or EAGAIN.
    pub retries: u64,
    /// Requests that the file system refused past the page cache, though it opened the file for
    /// that; they were made again through it.
    pub direct_refused: u64,
    /// Requests that the kernel gave back undone, twice, because it had no thread to carry them
    /// out; whoever took the answer carried them out.
    pub queue_refused: u64,
    /// The most requests outstanding at once.
    pub max_outstanding: u64,
    /// Time during which the mover had work, in nanoseconds (transfers below 64 KiB on a core are
    /// counted, not timed).
    pub busy_ns: u64,
    /// Transfers into a core's cache that ran on another core.
    pub wrong_core: u64,
}

impl Counters {
    /// Adds another mover's counters to these.
    pub fn add(&mut self, other: &Counters) {
        self.transfers += other.transfers;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.system_calls += other.system_calls;
        self.direct_bytes += other.direct_bytes;
        self.cached_bytes += other.cached_bytes;
        self.fixed_buffer_hits += other.fixed_buffer_hits;
        self.fixed_buffer_misses += other.fixed_buffer_misses;
        self.bounces += other.bounces;
        self.bounced_bytes += other.bounced_bytes;
        self.short_finished += other.short_finished;
        self.retries += other.retries;
        self.direct_refused += other.direct_refused;
        self.queue_refused += other.queue_refused;
        self.max_outstanding = self.max_outstanding.max(other.max_outstanding);
        self.busy_ns += other.busy_ns;
        self.wrong_core += other.wrong_core;
    }
}
