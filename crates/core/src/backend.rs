//! The contract between the planner and the backends, which move bytes.
//!
//! A [`Backend`] states which primitives could serve a pair of places, and at what cost. The
//! planner chooses one, and the backend opens a [`Mover`] for it. Jobs go down to the mover and
//! completions come up. A backend never chooses for the planner and never calls another backend.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use datapipes_metrics::{Label, Sample, SampleValue, vocabulary};
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, FilePlace};
use crate::memory::RawLease;
use crate::span::Span;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use crate::topology::Topology;

/// What the caller demands of a pipe. A demand that cannot be met is refused at connect, and the
/// error names the alternatives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Constraints {
    /// The primitives that are allowed, by name; all if empty. A name that no backend lists is
    /// refused.
    pub only: Vec<String>,
    /// The primitives that are not allowed, by name. A name that no backend lists is refused.
    pub deny: Vec<String>,
    /// The bytes must be moved without loads and stores of a core (a DMA engine, a device).
    pub require_offload: bool,
    /// The bytes must not go through the page cache.
    pub bypass_page_cache: bool,
    /// The bytes must not displace what is in the processor's caches.
    pub bypass_processor_cache: bool,
    /// The bytes must be in the processor's caches afterwards, as far as they fit: for who works on
    /// them at once. The opposite of `bypass_processor_cache`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fill_processor_cache: bool,
    /// The least estimated rate, in bytes per second: a finite number above zero.
    pub at_least: Option<f64>,
    /// The length of a typical transfer in bytes, by which latency is weighed against rate. The
    /// default is 1 MiB.
    pub typical_len: Option<u64>,
    /// Requests kept outstanding on a device, at least 1. By default, the device's limits decide.
    pub queue_depth: Option<u32>,
    /// Bytes of one request, at least 1. By default, the device's limits decide. Direct requests
    /// are rounded to whole blocks.
    pub request_bytes: Option<u32>,
    /// The pipe's requests go before those of others at the device (I/O priority), where the kernel
    /// honours that and the process may ask for it. They can keep the device from others, so this
    /// is for few and short requests.
    pub urgent: bool,
}

crate::setters! {
    Constraints {
        only: Vec<String>,
        deny: Vec<String>,
        require_offload: bool,
        bypass_page_cache: bool,
        bypass_processor_cache: bool,
        fill_processor_cache: bool,
        at_least: into Option<f64>,
        typical_len: into Option<u64>,
        queue_depth: into Option<u32>,
        request_bytes: into Option<u32>,
        urgent: bool,
    }
}

impl Constraints {
    /// Checks that the numbers make sense, before anything is planned.
    ///
    /// # Errors
    /// `InvalidInput` for a rate that is not a finite number above zero, and for a queue depth or a
    /// request length of 0; for bytes that are to be in the processor's caches and to bypass them.
    pub fn check(&self) -> Result<()> {
        if self.bypass_processor_cache && self.fill_processor_cache {
            let context = "bypass_processor_cache and fill_processor_cache exclude each other";
            return Err(Error::new(ErrorKind::InvalidInput, "connect", context).with_advice("demand one of them"));
        }
        if let Some(rate) = self.at_least {
            check_rate("at_least", rate)?;
        }
        check_count("queue_depth", self.queue_depth.map(u64::from))?;
        check_count("request_bytes", self.request_bytes.map(u64::from))
    }
}

/// Checks a rate in bytes per second that a caller asks for.
pub(crate) fn check_rate(knob: &str, rate: f64) -> Result<()> {
    if rate.is_finite() && rate > 0.0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{knob}: {rate} bytes/s is no rate"))
        .with_advice("give a number above zero, or leave it out"))
}

/// Checks a count that must not be 0.
pub(crate) fn check_count(knob: &str, count: Option<u64>) -> Result<()> {
    match count {
        Some(0) => Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{knob}: 0 would move nothing"))
            .with_advice("give at least 1, or leave it out")),
        _ => Ok(()),
    }
}

/// What the planner asks a backend.
pub struct OfferQuery<'a> {
    /// Where the bytes are.
    pub source: &'a Endpoint,
    /// Where they are to go.
    pub target: &'a Endpoint,
    /// What the caller demands. A backend reads the settings in it; the planner checks the rest.
    pub constraints: &'a Constraints,
    /// The hardware that was discovered.
    pub topology: &'a Topology,
}

/// How good a primitive is for a pair of places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Time of an empty transfer, in nanoseconds.
    pub latency_ns: f64,
    /// Rate of a long transfer, in bytes per second.
    #[serde(rename = "bytes_per_second")]
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
    /// How good it would be, or why it cannot serve.
    pub verdict: std::result::Result<Quality, String>,
    /// The reason for the verdict, for the explanation of a route.
    pub why: String,
}

/// What a backend says of a primitive on this machine, for no particular pair of places.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Primitive {
    /// The primitive's name.
    pub name: &'static str,
    /// What it does, in one line.
    pub what: &'static str,
    /// How it was found on this machine, or why it is absent.
    pub available: std::result::Result<String, String>,
}

/// A library of primitives for one technology.
pub trait Backend: Send + Sync {
    /// Its name, such as "cpu" or "file".
    fn name(&self) -> &'static str;

    /// Its primitives, including those that this machine lacks.
    fn primitives(&self) -> Vec<Primitive>;

    /// Returns the primitives that could carry bytes from source to target, and those that could
    /// not. The list is empty where the backend does not deal with such a pair.
    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer>;

    /// Opens a mover for a primitive that it offered.
    ///
    /// # Errors
    /// The error that prevents it now, though it was offered.
    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover>;

    /// Makes a reader of many short extents of files, or returns `None` where the backend reads no
    /// files.
    ///
    /// # Errors
    /// The error that prevents it now.
    fn extent_reader(&self, options: ExtentOptions) -> Option<Result<Box<dyn ExtentReader>>> {
        let _ = options;
        None
    }

    /// The settings that can be changed, with their present values (CIDR'23, section 6, principle
    /// 3).
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

/// A mover that is done when it returns. It takes the leases on memory itself.
pub trait InlineMover: Send + Sync {
    /// Moves the span.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`, and the errors of the primitive.
    fn transfer(&self, span: Span) -> Result<()>;

    /// The same mover for parts of a job whose leases the caller holds, or `None` where each call
    /// must take its own leases.
    fn parts(&self) -> Option<&dyn Chunked> {
        None
    }

    /// What the mover did so far.
    fn counters(&self) -> Counters;
}

/// An inline mover that can move a job part by part, so that a runtime can interrupt a long copy.
pub trait Chunked: Send + Sync {
    /// Moves one part. `whole` is the length of the whole transfer, by which the kernel is chosen.
    /// The job is borrowed mutably because its leases permit only one thread at a time to move the
    /// bytes.
    ///
    /// # Errors
    /// `InvalidInput` where the job's leases are missing, do not permit the copy, or differ in
    /// length from its span.
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

/// A mover with a queue. Each job brings its leases, and the mover keeps them until the device is
/// done.
pub trait QueuedMover: Send + Sync {
    /// Accepts a job of any length. The mover cuts it into requests and finishes short ones.
    ///
    /// # Errors
    /// The job comes back with the error.
    #[allow(clippy::result_large_err)]
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)>;

    /// Accepts as many jobs as it can from the front, and submits them to the device together.
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

    /// A descriptor that is readable while [`complete`](Self::complete) has something to do.
    /// Without one (`None`), `submit` may block, and a thread has to wait in `complete`.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Appends the jobs that are done. With `wait`, it returns only when there is at least one, or
    /// no job is left. Other threads may submit meanwhile.
    ///
    /// # Errors
    /// Only where the queue itself is broken. A job's own error is in its [`JobCompletion`].
    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()>;

    /// Waits as `complete` does, if possible until about `least` jobs are done, so that the caller
    /// wakes less often. It never waits for more jobs than are in flight.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    fn complete_several(&self, least: usize, done: &mut Vec<JobCompletion>) -> Result<()> {
        let _ = least;
        self.complete(true, done)
    }

    /// What the mover did so far.
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
    /// Returns the offset behind its last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

/// A callback for each extent. It gets the extent's number, and its bytes or the error.
pub type OnExtent<'a> = dyn FnMut(usize, Result<&[u8]>) + 'a;

/// The options of an [`ExtentReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtentOptions {
    /// The most requests outstanding at once; 64 by default.
    pub depth: u32,
    /// The longest extent, in bytes; 64 KiB by default.
    pub longest: u32,
}

impl Default for ExtentOptions {
    fn default() -> Self {
        ExtentOptions { depth: 64, longest: 64 << 10 }
    }
}

crate::setters! {
    ExtentOptions {
        depth: u32,
        longest: u32,
    }
}

/// The file that an [`ExtentReader`] reads, and its cache mode.
#[derive(Clone, Copy)]
pub struct ExtentSource<'a> {
    /// The file.
    pub file: &'a Arc<FilePlace>,
    /// Whether to read past the page cache. Offsets and the longest extent are then multiples of
    /// [`FilePlace::offset_align`].
    pub direct: bool,
}

/// A reader of many short extents of files, for one caller at a time; a cache uses it for its
/// misses.
///
/// A pipe does the same with leases, tokens and a queue for many threads, which cost as much as the
/// kernel's part of a read of 512 bytes. Here the reader owns the memory and shows it to the caller
/// in a callback, so none of these are needed.
pub trait ExtentReader: Send {
    /// Reads the extents in any order, several at once. It calls `done` once for each on this
    /// thread, before it returns. An error concerns only its own extent; an extent that reaches
    /// beyond the end of the file is an `EndOfFile`.
    fn read(&mut self, from: ExtentSource<'_>, extents: &[ReadExtent], done: &mut OnExtent<'_>);

    /// The bytes of memory that it holds.
    fn memory_bytes(&self) -> usize;

    /// How it reads, and why.
    fn explain(&self) -> String;

    /// Ways in which it does not read, and why.
    fn rejected(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What the reader did so far.
    fn counters(&self) -> Counters;
}

/// A transfer on its way to a queue.
#[derive(Debug)]
pub struct Job {
    /// Returned in [`JobCompletion`].
    pub token: u64,
    /// The bytes to move.
    pub span: Span,
    /// The lease on the source, if it is in memory.
    pub source: Option<RawLease>,
    /// The lease on the target, if it is in memory.
    pub target: Option<RawLease>,
    /// A notifier that the device signals when the job is done. A mover whose device cannot do that
    /// ignores it.
    pub notifier: Option<Arc<CompletionNotifier>>,
}

/// A byte that the device writes into a socket when a job is done, so that no thread has to wake up
/// to send it. An io_uring sends it after the job's last request. It means "look" and does not tell
/// the result: a job with a request that must be repeated sends one too.
#[derive(Debug)]
pub struct CompletionNotifier {
    notifier_socket: Arc<NotifierSocket>,
    /// Bytes that were sent or will be sent.
    rings: AtomicU64,
}

/// The socket that several notifiers write to, and what is certain about the bytes in it. All bytes
/// are alike, so a thread that hears of its own job may read the byte of another.
#[derive(Debug)]
pub struct NotifierSocket {
    socket: OwnedFd,
    /// Bytes that are known to have been sent, minus bytes that were read. While it is above 0, the
    /// socket holds at least one byte.
    sure: AtomicI64,
}

impl NotifierSocket {
    /// Takes the writing end of a socket.
    pub fn new(socket: OwnedFd) -> Arc<NotifierSocket> {
        Arc::new(NotifierSocket { socket, sure: AtomicI64::new(0) })
    }

    /// Sends a byte on behalf of no device. The call fails where the socket is full, and therefore
    /// readable, or where nobody reads it any more; both are ignored.
    pub(crate) fn ring(&self) {
        self.sure.fetch_add(1, Ordering::SeqCst);
        if rustix::net::send(&self.socket, CompletionNotifier::BYTE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err()
        {
            self.sure.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Notes that a byte was read.
    pub(crate) fn read(&self) {
        self.sure.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the socket is certainly readable.
    pub(crate) fn is_readable(&self) -> bool {
        self.sure.load(Ordering::SeqCst) > 0
    }
}

impl CompletionNotifier {
    /// The byte that is sent.
    pub const BYTE: &'static [u8; 1] = &[1];

    /// Makes a notifier for one job.
    pub fn new(notifier_socket: Arc<NotifierSocket>) -> CompletionNotifier {
        CompletionNotifier { notifier_socket, rings: AtomicU64::new(0) }
    }

    /// Makes a notifier on the same socket for a byte that belongs to no job.
    pub fn another(&self) -> CompletionNotifier {
        CompletionNotifier::new(self.notifier_socket.clone())
    }

    /// The socket that the byte is sent to.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.notifier_socket.socket.as_fd()
    }

    /// Counts a byte that is about to be sent.
    pub fn count(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a counted byte was sent.
    pub fn sent(&self) {
        self.notifier_socket.sure.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back a counted byte that could not be sent.
    pub fn uncount(&self) {
        self.rings.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many bytes were sent or will be sent.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }
}

/// A finished job. Its leases have ended.
#[derive(Debug)]
pub struct JobCompletion {
    /// The job's token.
    pub token: u64,
    /// Success means that all bytes of the span were moved. An error carries the number of bytes
    /// done.
    pub result: Result<()>,
}

/// What a mover did, so that a route's claims can be checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
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
    /// Bytes that went through a bounce buffer.
    pub bounced_bytes: u64,
    /// Requests that moved less than was asked and were finished by another.
    pub short_finished: u64,
    /// Requests repeated after EINTR or EAGAIN.
    pub retries: u64,
    /// Requests that the file system refused past the page cache although it had opened the file
    /// for that. They were made again through the page cache.
    pub direct_refused: u64,
    /// Requests that the kernel twice returned undone because it had no thread for them. The thread
    /// that took the answer carried them out.
    pub queue_refused: u64,
    /// Bytes that the device left and a core copied: after a page fault, an error or the loss of
    /// the device.
    pub core_finished_bytes: u64,
    /// Bytes that a core copied as its share of a copy, beside a device.
    pub core_share_bytes: u64,
    /// Devices that were lost during transfers.
    pub devices_lost: u64,
    /// The most requests outstanding at once.
    pub max_outstanding: u64,
    /// Time during which the mover had work, in nanoseconds. Transfers below 64 KiB on a core are
    /// counted but not timed.
    pub busy_ns: u64,
    /// Transfers into a core's cache that ran on another core.
    pub wrong_core: u64,
}

crate::setters! {
    Counters {
        transfers: u64,
        failed: u64,
        bytes: u64,
        requests: u64,
        system_calls: u64,
        direct_bytes: u64,
        cached_bytes: u64,
        fixed_buffer_hits: u64,
        fixed_buffer_misses: u64,
        bounces: u64,
        bounced_bytes: u64,
        short_finished: u64,
        retries: u64,
        direct_refused: u64,
        queue_refused: u64,
        core_finished_bytes: u64,
        core_share_bytes: u64,
        devices_lost: u64,
        max_outstanding: u64,
        busy_ns: u64,
        wrong_core: u64,
    }
}

impl Counters {
    /// Returns them as samples with these labels, of which the measurements of a pipe have
    /// `product`, `pipe`, `route`, `step` and `primitive`.
    pub fn samples(&self, labels: &[(Label, &str)]) -> Vec<Sample> {
        let of = |measurement, value: SampleValue| {
            labels.iter().fold(Sample::new(measurement, value), |sample, (label, value)| sample.label(*label, *value))
        };
        let transfers = |n: u64, outcome| of(&vocabulary::PIPE_TRANSFERS, n.into()).label(Label::Outcome, outcome);
        vec![
            of(&vocabulary::PIPE_BYTES, self.bytes.into()),
            transfers(self.transfers, "completed"),
            transfers(self.failed, "failed"),
            of(&vocabulary::PIPE_REQUESTS, self.requests.into()),
            of(&vocabulary::PIPE_SYSTEM_CALLS, self.system_calls.into()),
            of(&vocabulary::PIPE_DIRECT, self.direct_bytes.into()),
            of(&vocabulary::PIPE_CACHED, self.cached_bytes.into()),
            of(&vocabulary::PIPE_BOUNCED, self.bounced_bytes.into()),
            of(&vocabulary::PIPE_CORE_FINISHED, self.core_finished_bytes.into()),
            of(&vocabulary::PIPE_RETRIES, self.retries.saturating_add(self.short_finished).into()),
            of(&vocabulary::PIPE_REFUSED, self.direct_refused.saturating_add(self.queue_refused).into()),
            of(&vocabulary::PIPE_DEVICES_LOST, self.devices_lost.into()),
            of(&vocabulary::PIPE_BUSY, Duration::from_nanos(self.busy_ns).into()),
            of(&vocabulary::PIPE_MOST_OUTSTANDING, self.max_outstanding.into()),
        ]
    }

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
        self.core_finished_bytes += other.core_finished_bytes;
        self.core_share_bytes += other.core_share_bytes;
        self.devices_lost += other.devices_lost;
        self.max_outstanding = self.max_outstanding.max(other.max_outstanding);
        self.busy_ns += other.busy_ns;
        self.wrong_core += other.wrong_core;
    }
}
