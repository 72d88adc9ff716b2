//! Jobs and their requests, and the one place where a kernel's result is interpreted.
//!
//! ```text
//! next_request:   front of the rests -> cut one request off, put the remainder back in front
//! finish_request: done  -> are all requests of the job done? then its leases end, and it is done
//!                 short -> the remainder to the front of the rests, to be cut again
//!                          (its alignment may differ now)
//!                 EINTR -> the same, at most TRIES times without progress
//!                 EINVAL past the page cache -> the same, through it, if the caller permits
//!                 error -> rests behind it are dropped; those before it still move, so that
//!                          `bytes_done` is a prefix
//! ```
#![allow(unsafe_code)] // Calls the copies of `bounce` with addresses that jobs lease.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use datapipes_core::backend::{CompletionNotifier, Counters, Job, JobCompletion};
use datapipes_core::memory::{Access, RawLease};
use datapipes_core::{Error, ErrorKind, Result, Span};

use super::bounce::BounceBuffer;
use super::request_plan::{CacheMode, Direction, RemainingPart};
use super::site::MoverContext;
use crate::faults::{FaultVerdict, Operation};
use crate::nvme::{IoCommand, Status};

/// How often a request is repeated without progress before its errno is reported.
const TRIES: u16 = 1000;

/// A request that is being made.
pub(crate) struct IoRequest {
    slot: usize,
    /// The offset of its useful bytes in the job.
    at: u64,
    useful: u64,
    skip: u64,
    tries: u16,
    bounce: Option<BounceBuffer>,
    /// The errno that replaces its result, if any.
    injected: Option<i32>,
    /// Whether the kernel is to lose it.
    pub(crate) lost: bool,
    /// The command that it is, where it is one.
    pub(crate) command: Option<IoCommand>,
    /// Why the device refused it.
    status: Option<Status>,
    /// The cache mode, which determines the descriptor.
    pub(crate) lane: CacheMode,
    /// The offset in the file.
    pub(crate) file_at: u64,
    /// The bytes asked of the kernel.
    pub(crate) len: u32,
    /// The address that they go to or come from.
    pub(crate) address: usize,
    /// The offset in the region, where the address is in the job's own memory.
    pub(crate) region_at: Option<usize>,
    /// Whether it names registered memory.
    pub(crate) registered: bool,
    /// The job's notifier, if nothing of the job is left beside this request, or if it rang before.
    pub(crate) notifier: Option<Arc<CompletionNotifier>>,
}

impl IoRequest {
    /// Returns the kernel's result, or once the one that replaces it.
    pub(crate) fn result(&mut self, result: i32) -> i32 {
        self.injected.take().map_or(result, |errno| -errno)
    }

    /// Whether it is a command to a device.
    pub(crate) fn is_command(&self) -> bool {
        self.command.is_some()
    }

    /// Returns a queue's answer as that of a read or a write: bytes, or a negative errno. A command
    /// moves all of its bytes or none, and its answer is a status, which is kept.
    pub(crate) fn answered(&mut self, answer: i32) -> i32 {
        match (&self.command, answer) {
            (Some(command), 0) => i32::try_from(command.len).unwrap_or(i32::MAX),
            (Some(_), 1..) => {
                // It has 15 bits.
                let status = Status(answer as u16);
                self.status = Some(status);
                -status.errno()
            }
            _ => answer,
        }
    }

    /// Whether this result says that a queue returned the request undone, and not for the first
    /// time. A request is returned when the thread that submitted it has ended. The next one is
    /// returned too where the kernel may not make a thread for it.
    pub(crate) fn is_given_back(&self, result: i32) -> bool {
        result == -libc::ECANCELED && self.tries > 0
    }
}

/// The part of a job that was not requested yet.
struct PendingRange {
    slot: usize,
    at: u64,
    len: u64,
    tries: u16,
}

#[deny(clippy::arithmetic_side_effects)]
impl PendingRange {
    /// Returns what is left of it after `done` bytes. It lies within its job's span, which ends
    /// within the kernel's largest offset.
    fn after(&self, done: u64, tries: u16) -> PendingRange {
        let done = done.min(self.len);
        PendingRange { slot: self.slot, at: self.at.saturating_add(done), len: self.len.saturating_sub(done), tries }
    }
}

/// The place of a byte of a job.
struct Spot {
    file_at: u64,
    address: usize,
    region_at: usize,
}

struct ActiveJob {
    token: u64,
    span: Span,
    lease: RawLease,
    /// The other lease, if both ends are memory; kept as long as the job.
    _other: Option<RawLease>,
    address: usize,
    region_at: usize,
    file_at: u64,
    in_flight: u32,
    rests: u32,
    /// The error nearest to the start of the span, with its distance from the start.
    failure: Option<(u64, Error)>,
    /// The notifier that the last request rings.
    notifier: Option<Arc<CompletionNotifier>>,
    /// Whether it rang. From then on only the thread that hears it looks after the job, so later
    /// requests of the job ring as well.
    rung: bool,
}

#[deny(clippy::arithmetic_side_effects)]
impl ActiveJob {
    /// Returns the place of the byte `at` bytes into the span. Nothing wraps: `admit` checked that
    /// the span ends within the kernel's largest offset, and that as many bytes of memory are
    /// leased.
    fn spot(&self, at: u64) -> Spot {
        let here = at as usize;
        Spot {
            file_at: self.file_at.saturating_add(at),
            address: self.address.wrapping_add(here),
            region_at: self.region_at.saturating_add(here),
        }
    }
}

/// The jobs of a mover (or of one call, where the engine blocks).
pub(crate) struct JobTable {
    site: Arc<MoverContext>,
    slots: Vec<Option<ActiveJob>>,
    free: Vec<usize>,
    rests: VecDeque<PendingRange>,
    /// Jobs that are done and not yet fetched.
    pub(crate) done: Vec<JobCompletion>,
    pub(crate) counters: Counters,
    outstanding: u64,
    active: usize,
    busy_since: Option<Instant>,
}

impl JobTable {
    pub(crate) fn new(site: Arc<MoverContext>) -> Self {
        JobTable {
            site,
            slots: Vec::new(),
            free: Vec::new(),
            rests: VecDeque::new(),
            done: Vec::new(),
            counters: Counters::default(),
            outstanding: 0,
            active: 0,
            busy_since: None,
        }
    }

    /// Whether no job is unfinished.
    pub(crate) fn is_idle(&self) -> bool {
        self.active == 0
    }

    /// The number of requests at the kernel.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Returns the time with work so far, including the present work.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.counters.busy_ns + self.busy_since.map_or(0, elapsed_ns)
    }

    /// Accepts a job.
    #[allow(clippy::result_large_err)]
    pub(crate) fn admit(&mut self, job: Job) -> Result<(), (Job, Error)> {
        let Job { token, span, source, target, notifier } = job;
        let (file_at, lease, other) = match self.site.rules.direction {
            Direction::Read => (span.source, target, source),
            Direction::Write => (span.target, source, target),
        };
        let give_back = |lease: Option<RawLease>, other: Option<RawLease>| {
            let (source, target) = match self.site.rules.direction {
                Direction::Read => (other, lease),
                Direction::Write => (lease, other),
            };
            Job { token, span, source, target, notifier: notifier.clone() }
        };
        let Some(lease) = lease else {
            let e = Error::new(ErrorKind::InvalidInput, self.site.operation(), "a job without a lease on its memory");
            return Err((give_back(None, other), e));
        };
        let end = file_at.checked_add(span.len).filter(|end| i64::try_from(*end).is_ok());
        if !self.permits(&lease) {
            let context = format!("{span:?} of {}: {lease:?} does not permit it", self.path());
            let e = Error::new(ErrorKind::InvalidInput, self.site.operation(), context);
            return Err((give_back(Some(lease), other), e));
        }
        if end.is_none() || lease.len() as u64 != span.len {
            let e = Error::new(
                ErrorKind::InvalidInput,
                self.site.operation(),
                format!("{} bytes at {file_at} of {} with {} leased", span.len, self.path(), lease.len()),
            );
            return Err((give_back(Some(lease), other), e));
        }
        let (address, region_at) = (lease.address().expose_provenance(), lease.place().1);
        let active = ActiveJob {
            token,
            span,
            lease,
            _other: other,
            address,
            region_at,
            file_at,
            in_flight: 0,
            rests: 0,
            failure: None,
            notifier,
            rung: false,
        };
        let slot = self.free.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push(Some(active));
        } else {
            self.slots[slot] = Some(active);
        }
        if self.active == 0 {
            self.busy_since = Some(Instant::now());
        }
        self.active += 1;
        if span.len > 0 {
            self.rest(PendingRange { slot, at: 0, len: span.len, tries: 0 }, false);
        }
        self.finish_if_quiet(slot);
        Ok(())
    }

    /// Whether bytes may be moved under a lease. It must be on memory of this mover, which the ring
    /// registered, and permit writing where the memory is the target.
    fn permits(&self, lease: &RawLease) -> bool {
        let (memory, (region, at)) = (&self.site.memory, lease.place());
        let within = || {
            at.checked_sub(memory.at()).and_then(|at| memory.len().checked_sub(at)).is_some_and(|n| n >= lease.len())
        };
        let ours = region.id() == memory.region().id() && within();
        ours && (self.site.rules.direction == Direction::Write || lease.access() == Access::Write)
    }

    /// Returns the next request to make.
    pub(crate) fn next_request(&mut self) -> Option<IoRequest> {
        while let Some(rest) = self.rests.pop_front() {
            let slot = rest.slot;
            let at = rest.at;
            self.job(slot).rests -= 1;
            let outcome = if self.job(slot).failure.as_ref().is_some_and(|f| f.0 <= at) {
                Ok(None)
            } else {
                self.make_request(rest).map(Some)
            };
            match outcome {
                Ok(Some(piece)) => return Some(piece),
                Ok(None) => {}
                Err(e) => self.fail(slot, at, e),
            }
            self.finish_if_quiet(slot);
        }
        None
    }

    fn make_request(&mut self, rest: PendingRange) -> Result<IoRequest> {
        let site = self.site.clone();
        let job = self.job(rest.slot);
        let Spot { file_at, address, region_at } = job.spot(rest.at);
        // Commands do not end at the end of the namespace by themselves.
        let left = site.namespace.as_ref().map_or(u64::MAX, |namespace| namespace.facts.len().saturating_sub(file_at));
        if left == 0 {
            return Err(self.beyond_the_end(&rest));
        }
        let need = RemainingPart {
            file_at,
            len: rest.len.min(left),
            address: address as u64,
            room: site.max_request_len(region_at, job.span.len),
        };
        let cut = site.rules_now().plan(&need);
        let nth = site.requests.fetch_add(1, Ordering::Relaxed);
        let Fate { len, injected, lost } = verdict(&site, cut.lane, cut.file_at, cut.io_len, nth);
        let mut piece = IoRequest {
            slot: rest.slot,
            at: rest.at,
            useful: cut.useful,
            skip: cut.skip,
            tries: rest.tries,
            bounce: None,
            injected,
            lost,
            command: None,
            status: None,
            lane: cut.lane,
            file_at: cut.file_at,
            len,
            address,
            region_at: Some(region_at),
            registered: false,
            notifier: None,
        };
        if cut.bounce {
            let mut bounce = site.bounces.take()?;
            if site.rules.direction == Direction::Write {
                // SAFETY: the bytes lie within the job's lease, since `rest` does and `cut.useful`
                // is at most its length.
                let filled = unsafe { bounce.fill(address, cut.useful as usize, site.memory.region()) };
                if let Err(gone) = filled {
                    site.bounces.give_back(bounce);
                    return Err(self.gone(&rest, gone.error(site.operation(), site.memory.region())));
                }
            }
            piece.address = bounce.address();
            piece.region_at = None;
            piece.bounce = Some(bounce);
            self.counters.bounces += 1;
            self.counters.bounced_bytes += cut.useful;
        }
        if let (Some(namespace), CacheMode::Direct) = (&site.namespace, piece.lane) {
            let write = site.rules.direction == Direction::Write;
            piece.command = namespace.facts.command(write, piece.file_at, piece.len, piece.address as u64);
            if piece.command.is_none() {
                return Err(self.outside(&rest, piece));
            }
        }
        let job = self.job(rest.slot);
        if job.rung || job.in_flight == 0 && job.rests == 0 && rest.len == cut.useful {
            piece.notifier = job.notifier.clone();
            job.rung = piece.notifier.is_some();
        }
        job.in_flight += 1;
        self.outstanding += 1;
        self.counters.requests += 1;
        self.counters.max_outstanding = self.counters.max_outstanding.max(self.outstanding);
        if rest.len > cut.useful {
            self.rest(rest.after(cut.useful, 0), true);
        }
        Ok(piece)
    }

    /// Interprets a kernel's result (bytes, or a negative errno), which is done only here. It
    /// becomes progress, another try, or the job's error.
    pub(crate) fn finish_request(&mut self, mut piece: IoRequest, result: i32) {
        let result = piece.result(result);
        let IoRequest { slot, at, useful, skip, tries, bounce, lane, status, ref command, .. } = piece;
        let is_command = command.is_some();
        self.outstanding -= 1;
        self.job(slot).in_flight -= 1;
        let mut moved = u64::try_from(result).unwrap_or(0).saturating_sub(skip).min(useful);
        let mut gone = None;
        if moved > 0 {
            if let (Some(bounce), Direction::Read) = (&bounce, self.site.rules.direction) {
                let target = self.job(slot).spot(at).address;
                // SAFETY: the target lies within the job's lease, as in `make_request`; `moved` is
                // at most `useful`.
                let emptied = unsafe { bounce.empty(skip as usize, target, moved as usize, self.site.memory.region()) };
                if let Err(e) = emptied {
                    moved = e.done as u64;
                    gone = Some(e.error(self.site.operation(), self.site.memory.region()));
                }
            }
            self.counters.bytes += moved;
            match lane {
                CacheMode::Direct => self.counters.direct_bytes += moved,
                CacheMode::Cached => self.counters.cached_bytes += moved,
            }
        }
        if let Some(bounce) = bounce {
            self.site.bounces.give_back(bounce);
        }
        if moved < useful {
            let tries = if moved > 0 { 0 } else { tries.saturating_add(1) };
            let rest = PendingRange { slot, at, len: useful, tries }.after(moved, tries);
            let outcome = match gone {
                Some(error) => Err(self.gone(&rest, error)),
                None if is_command && moved == 0 => self.check_command(&rest, result, status),
                None => self.check_retry(&rest, lane, result, moved),
            };
            match outcome {
                Ok(()) => self.rest(rest, true),
                Err(e) => self.fail(slot, rest.at, e),
            }
        }
        self.finish_if_quiet(slot);
    }

    /// Makes the error of a job whose memory lost a page, in the form of the other errors: with the
    /// offset in the file and the bytes done.
    fn gone(&mut self, rest: &PendingRange, error: Error) -> Error {
        let file_at = self.job(rest.slot).spot(rest.at).file_at;
        error.within(self.path()).with_offset(file_at).with_bytes_done(rest.at)
    }

    /// Makes the error of a part behind the end of a namespace, in the form of the other errors.
    fn beyond_the_end(&mut self, rest: &PendingRange) -> Error {
        let file_at = self.job(rest.slot).spot(rest.at).file_at;
        let error = match self.site.rules.direction {
            Direction::Read => Error::end_of_source("read", self.path(), file_at),
            Direction::Write => Error::os("write", libc::ENOSPC, self.path()).with_offset(file_at),
        };
        error.with_bytes_done(rest.at)
    }

    /// Makes the error of a request that is no command to the namespace. The rules of the mover
    /// make none, unless the namespace was formatted anew.
    fn outside(&mut self, rest: &PendingRange, piece: IoRequest) -> Error {
        let context = format!("{}: {} bytes at {} are not whole blocks of it", self.path(), piece.len, piece.file_at);
        if let Some(bounce) = piece.bounce {
            self.site.bounces.give_back(bounce);
        }
        Error::new(ErrorKind::InvalidInput, self.site.operation(), context)
            .with_offset(piece.file_at)
            .with_bytes_done(rest.at)
    }

    /// Decides whether a command that failed is tried again; otherwise returns the job's error.
    fn check_command(&mut self, rest: &PendingRange, result: i32, status: Option<Status>) -> Result<()> {
        let again = match status {
            Some(status) => status.may_be_repeated(rest.tries),
            None => matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED) && rest.tries < TRIES,
        };
        if again {
            self.counters.retries += 1;
            return Ok(());
        }
        let context = match status {
            Some(status) => format!("{}: {status}", self.path()),
            None => self.path(),
        };
        let file_at = self.job(rest.slot).spot(rest.at).file_at;
        let error = Error::os(self.site.operation(), -result, context).with_offset(file_at).with_bytes_done(rest.at);
        Err(match (status, -result) {
            (None, libc::EINVAL | libc::EOPNOTSUPP | libc::EACCES) => {
                error.with_advice("the kernel refuses the command: use uring-direct")
            }
            _ => error,
        })
    }

    /// Decides whether a request that stopped early is tried again; otherwise returns the job's
    /// error.
    fn check_retry(&mut self, rest: &PendingRange, lane: CacheMode, result: i32, moved: u64) -> Result<()> {
        let file_at = self.job(rest.slot).spot(rest.at).file_at;
        let os = |errno: i32| {
            Error::os(self.site.operation(), errno, self.path()).with_offset(file_at).with_bytes_done(rest.at)
        };
        // ECANCELED means that the submitting thread ended, and its workers with it. The request
        // itself is valid.
        let again = matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED);
        if moved > 0 {
            self.counters.short_finished += 1;
            return Ok(());
        }
        if again && rest.tries < TRIES {
            self.counters.retries += 1;
            return Ok(());
        }
        if lane == CacheMode::Direct && matches!(-result, libc::EINVAL | libc::EOPNOTSUPP) {
            if self.site.fall_back(-result) {
                self.counters.direct_refused += 1;
                return Ok(());
            }
            return Err(os(-result).with_advice("the file system refuses this direct request: use cached access"));
        }
        if -result == libc::EFAULT {
            let advice =
                "the memory lost a page: check whether a file that it maps was truncated, or the file system is full";
            return Err(os(-result).with_advice(advice));
        }
        if result < 0 {
            return Err(os(-result));
        }
        if self.site.rules.direction == Direction::Write {
            let context = format!("{}: the kernel took no bytes", self.path());
            return Err(Error::new(ErrorKind::System, "write", context).with_offset(file_at).with_bytes_done(rest.at));
        }
        // The block ends before the requested bytes: this is the end of the file, unless the file
        // grew meanwhile.
        if result > 0 && rest.tries < TRIES && self.site.file.len().is_ok_and(|len| len > file_at) {
            self.counters.retries += 1;
            return Ok(());
        }
        Err(Error::end_of_source("read", self.path(), file_at).with_bytes_done(rest.at))
    }

    fn fail(&mut self, slot: usize, at: u64, error: Error) {
        let job = self.job(slot);
        if job.failure.as_ref().is_none_or(|f| at < f.0) {
            job.failure = Some((at, error));
        }
    }

    fn finish_if_quiet(&mut self, slot: usize) {
        let quiet = |job: &mut ActiveJob| job.in_flight == 0 && job.rests == 0;
        let Some(ActiveJob { token, span, lease, failure, .. }) = self.slots[slot].take_if(quiet) else { return };
        // The leases end before the job is reported, so that the caller finds the bytes free.
        drop(lease);
        self.free.push(slot);
        self.active -= 1;
        if self.active == 0
            && let Some(since) = self.busy_since.take()
        {
            self.counters.busy_ns += elapsed_ns(since);
        }
        let result = match failure {
            None => {
                self.counters.transfers += 1;
                Ok(())
            }
            Some((at, error)) => {
                debug_assert!(at <= span.len);
                self.counters.failed += 1;
                Err(error)
            }
        };
        self.done.push(JobCompletion { token, result });
    }

    fn rest(&mut self, rest: PendingRange, front: bool) {
        self.job(rest.slot).rests += 1;
        if front { self.rests.push_front(rest) } else { self.rests.push_back(rest) }
    }

    fn job(&mut self, slot: usize) -> &mut ActiveJob {
        let Some(job) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            unreachable!("a request keeps its job, but slot {slot} has none")
        };
        job
    }

    fn path(&self) -> String {
        self.site.file.path().display().to_string()
    }
}

/// What a fault injector does to a request.
struct Fate {
    len: u32,
    /// The errno that replaces its result, if any.
    injected: Option<i32>,
    lost: bool,
}

fn verdict(site: &MoverContext, lane: CacheMode, offset: u64, len: u64, nth: u64) -> Fate {
    // Requests are much shorter than 4 GiB.
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let fate = Fate { len, injected: None, lost: false };
    let Some(faults) = &site.faults else { return fate };
    let write = site.rules.direction == Direction::Write;
    match faults.verdict(&Operation { write, offset, len, nth }) {
        FaultVerdict::Pass => fate,
        FaultVerdict::Errno(errno) => Fate { injected: Some(errno), ..fate },
        FaultVerdict::Lost => Fate { lost: true, ..fate },
        FaultVerdict::Short(short) => {
            let unit = match (lane, site.rules.direction) {
                (CacheMode::Cached, _) => 1,
                (CacheMode::Direct, Direction::Read) => site.rules.offset_align,
                (CacheMode::Direct, Direction::Write) => site.rules.edge_align,
            };
            let short = u64::from(short.max(1)).next_multiple_of(unit);
            Fate { len: u32::try_from(short).unwrap_or(len).min(len), ..fate }
        }
    }
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
