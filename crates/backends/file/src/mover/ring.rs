//! The engine with an io_uring for each mover: registered files and memory, a deep queue, batched
//! submission.
//!
//! ```text
//! submit:    [state] job in, requests out to the ring, one io_uring_enter for all of them
//! complete:  [reaper] loop: [state] results in, requests out, io_uring_enter;
//!                           a job is done? return; io_uring_enter(wait for 1)
//! ```
//!
//! The wait holds `reaper`, not `state`, so other threads submit meanwhile. Only the thread with
//! `reaper` takes results, so no other thread can take the one that it waits for. DEFER_TASKRUN and
//! SINGLE_ISSUER are not used, because several threads use one ring. No thread polls.
//!
//! A program may close the ring's descriptor (daemons close all that they find). The ring itself
//! stays, because its queues are mapped: the kernel answers what it has taken, and those answers
//! are looked for. What it has not taken fails. So leases end also then, and never while the kernel
//! may write. That the number may name another ring by then is not found out.
//!
//! Unsafe code: entries that refer to memory which jobs lease. A job, its leases and its bounce
//! buffers stay in `state` until the kernel has answered all of its requests, and the drop of the
//! ring waits for that.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::backend::{CompletionNotifier, Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::{Error, ErrorKind, Result};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::blocking::run_blocking;
use super::entries::RingEntry;
use super::iowq_keepalive;
use super::jobs::{IoRequest, JobTable};
use super::page_cache;
use super::request_plan::{CacheMode, Direction};
use super::site::MoverContext;
use super::slices::Slices;
use super::watchdog::{NOTICE, TIMER, Watchdog, lost};
use crate::priority::PriorityBudget;

/// The time before requests are submitted again to a kernel that is short of memory for them.
const PAUSE: Duration = Duration::from_millis(1);

/// Entries beside the requests and their notifiers: a wake-up, and a timer with its notifier.
const OTHERS: u32 = 3;

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;

/// Marks the answers to notifiers. [`NOTICE`] and [`TIMER`] have this bit too, but no notifier has
/// their numbers.
const BELL: u64 = 1 << 63;

struct State {
    jobs: JobTable,
    /// Requests at the kernel, by their `user_data`.
    flights: Vec<Option<IoRequest>>,
    free: Vec<usize>,
    slices: Slices,
    /// Notifiers whose byte is on its way, by the number in its `user_data`.
    notifiers: HashMap<u64, Arc<CompletionNotifier>>,
    next_bell: u64,
    watchdog: Watchdog,
    /// For an urgent mover, its time with urgent requests, and which requests in flight are urgent.
    duty: Option<(PriorityBudget, Vec<bool>)>,
    /// How many entries were put into the queue.
    pushed: u64,
    /// For each request in flight, how many entries were put there before its own.
    place: Vec<u64>,
    /// The error by which it was found out that the ring's descriptor is gone.
    gone: Option<i32>,
}

/// The engine with a ring, whose entries are wide where requests are commands to a device. The
/// fields drop in order: the ring before the memory that is registered with it.
pub(crate) struct Ring<E: RingEntry = squeue::Entry> {
    ring: IoUring<E, E::Answer>,
    site: Arc<MoverContext>,
    /// Whether the descriptors are registered: cached at 0, direct at 1, for commands at 2.
    fixed_files: bool,
    state: Mutex<State>,
    reaper: Mutex<()>,
    calls: AtomicU64,
}

impl<E: RingEntry> Ring<E> {
    /// Opens a ring.
    ///
    /// # Errors
    /// Errors of `io_uring_setup` and of the first entry; `Unavailable` where requests are commands
    /// and the kernel refuses one.
    pub(crate) fn new(site: MoverContext) -> Result<Ring<E>> {
        let calls = AtomicU64::new(1);
        let depth = site.queue.depth.max(1);
        // Each request may be followed by a notifier, and a few entries belong to no request.
        let mut ring = IoUring::<E, E::Answer>::builder()
            .setup_clamp()
            .build((2 * depth).saturating_add(OTHERS).next_power_of_two())
            .map_err(|e| Error::io("open a ring for", e, site.file.path().display().to_string()))?;
        // A ring may be set up but not entered, as under a filter. This finds it out while another
        // primitive can still be chosen.
        calls.fetch_add(1, Ordering::Relaxed);
        ring.submit().map_err(|e| Error::io("enter a ring for", e, site.file.path().display().to_string()))?;
        let depth = depth.min((ring.params().sq_entries().saturating_sub(OTHERS)) / 2) as usize;
        if let Some(namespace) = &site.namespace {
            calls.fetch_add(1, Ordering::Relaxed);
            E::try_command(&mut ring, namespace, &site.bounces)?;
        }
        let mut files = vec![site.fd(CacheMode::Cached), site.fd(CacheMode::Direct)];
        files.extend(site.namespace.as_ref().map(|namespace| namespace.device.as_raw_fd()));
        calls.fetch_add(1, Ordering::Relaxed);
        // If it is refused (a limit on open files, an old kernel), requests use the descriptors
        // instead.
        let fixed_files = ring.submitter().register_files(&files).is_ok();
        let slices = Slices::new(&ring.submitter(), site.memory.clone(), site.queue.slice_bytes, &calls);
        let site = Arc::new(site);
        let state = State {
            jobs: JobTable::new(site.clone()),
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            slices,
            notifiers: HashMap::new(),
            next_bell: 0,
            watchdog: Watchdog::new(depth),
            duty: (site.queue.io_priority != 0).then(|| (PriorityBudget::new(Instant::now()), vec![false; depth])),
            pushed: 0,
            place: vec![0; depth],
            gone: None,
        };
        Ok(Ring { ring, site, fixed_files, state: Mutex::new(state), reaper: Mutex::new(()), calls })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes the kernel's answers.
    fn reap(&self, state: &mut State) {
        // SAFETY: the caller holds `reaper`, and the completion queue is touched only with it held.
        let answers = unsafe { self.ring.completion_shared() };
        for answer in answers.map(Into::<cqueue::Entry>::into) {
            if answer.user_data() == TIMER {
                state.watchdog.heard(answer.result());
                continue;
            }
            if answer.user_data() & BELL != 0 {
                match state.notifiers.remove(&(answer.user_data() & !BELL)) {
                    Some(notifier) if answer.result() == 1 => notifier.sent(),
                    // The socket is full or closed, or the submitting thread ended. The byte will
                    // not come and is not waited for.
                    Some(notifier) => notifier.uncount(),
                    None => {}
                }
                continue;
            }
            let index = answer.user_data() as usize;
            let Some(mut piece) = state.flights.get_mut(index).and_then(Option::take) else {
                debug_assert!(false, "an answer to a request that was never made: {index}");
                continue;
            };
            state.free.push(index);
            state.watchdog.answered(index);
            if let Some((duty, urgent)) = &mut state.duty
                && std::mem::take(&mut urgent[index])
            {
                duty.end(Instant::now());
            }
            let answered = piece.answered(answer.result());
            let mut result = piece.result(answered);
            if result == -libc::EINVAL && piece.is_command() && piece.registered {
                // Kernels before 6.1 take no registered memory in commands. Linux 6.1 refused some,
                // too.
                state.slices.refuse("the kernel refuses a command with registered memory");
                result = -libc::EAGAIN;
            }
            if piece.is_given_back(result) {
                state.jobs.counters.queue_refused += 1;
                result = run_blocking(&self.site, &piece, &self.calls);
            }
            let written = piece.is_command() && self.site.rules.direction == Direction::Write;
            let part = (piece.file_at, u64::from(piece.len));
            state.jobs.finish_request(piece, result);
            if written {
                self.calls.fetch_add(1, Ordering::Relaxed);
                page_cache::drop_pages(self.site.file.cached_fd(), part.0, part.1);
            }
        }
    }

    /// Puts as many requests into the ring as the depth allows. Returns how many the kernel has not
    /// seen yet.
    fn push_requests(&self, state: &mut State) -> u32 {
        if let Some(errno) = state.gone {
            while let Some(piece) = state.jobs.next_request() {
                state.jobs.finish_request(piece, -errno);
            }
            return 0;
        }
        // SAFETY: the submission queue is touched only under the lock of `state`, which the caller
        // holds.
        let mut entries = unsafe { self.ring.submission_shared() };
        // The kernel takes entries only in calls that are made under this lock.
        let taken = state.pushed - entries.len() as u64;
        while let Some(index) = state.free.pop() {
            let Some(mut piece) = state.jobs.next_request() else {
                state.free.push(index);
                break;
            };
            let (slices, len) = (&mut state.slices, piece.len as usize);
            let at = piece.region_at.filter(|_| self.site.rules.may_be_registered(piece.lane, piece.address as u64));
            let buffer = at.and_then(|at| slices.lookup(&self.ring.submitter(), at, len, &self.calls));
            piece.registered = buffer.is_some();
            match buffer {
                Some(_) => state.jobs.counters.fixed_buffer_hits += 1,
                None => state.jobs.counters.fixed_buffer_misses += 1,
            }
            let urgent = match &mut state.duty {
                Some((duty, urgent)) => {
                    urgent[index] = duty.begin(Instant::now());
                    urgent[index]
                }
                None => false,
            };
            let (entry, flags) = match piece.lost {
                false => (self.entry(&piece, buffer, urgent), self.fixed_file_flag()),
                true => (lost().into(), squeue::Flags::empty()),
            };
            let entry = entry.numbered(index as u64);
            state.place[index] = taken + entries.len() as u64;
            let pushed = match piece.notifier.clone() {
                Some(notifier) => {
                    let first = entry.flagged(flags | squeue::Flags::IO_HARDLINK);
                    push_with_bell(&mut entries, first, notifier, &mut state.next_bell, &mut state.notifiers)
                }
                // SAFETY: the entry's memory is leased to the request's job or is the request's
                // bounce buffer, and the request stays in `flights` until the kernel answers. The
                // descriptors live as long as the site.
                None => unsafe { entries.push(&entry.flagged(flags)) },
            };
            if pushed.is_err() {
                // The ring has enough entries for all flights. Without room, the request would be
                // tried again.
                debug_assert!(false, "no space in the ring for a request");
                state.jobs.finish_request(piece, -libc::EAGAIN);
                state.free.push(index);
                break;
            }
            state.flights[index] = Some(piece);
            state.watchdog.sent(index);
        }
        // Keeps room for every request that may still come.
        let room =
            |entries: &squeue::SubmissionQueue<'_, E>| entries.capacity() - entries.len() > 2 * state.free.len() + 2;
        let timer = state.watchdog.timer(|entry| {
            // SAFETY: the entry refers to no memory.
            room(&entries) && unsafe { entries.push(&entry.into()) }.is_ok()
        });
        if let Some(timer) = timer.filter(|_| room(&entries)) {
            // A thread that waits for a notifier learns of the timer by a notifier.
            let pushed = match state.flights.iter().flatten().find_map(|piece| piece.notifier.as_ref()) {
                Some(notifier) => {
                    let first = E::from(timer.flags(squeue::Flags::IO_HARDLINK));
                    let notifier = Arc::new(notifier.another());
                    push_with_bell(&mut entries, first, notifier, &mut state.next_bell, &mut state.notifiers)
                }
                // SAFETY: the time that the entry refers to is static.
                None => unsafe { entries.push(&timer.into()) },
            };
            if pushed.is_ok() {
                state.watchdog.armed();
            }
        }
        state.pushed = taken + entries.len() as u64;
        entries.sync();
        // This is at most the number of entries of the ring.
        entries.len() as u32
    }

    /// Wakes the threads that wait for the ring, if a job ended without a request (it was empty, or
    /// refused before a request was made). Such a job has no answer that would wake them, so an
    /// entry that does nothing makes one. Returns how many entries the kernel has not seen now.
    fn push_wakeup(&self, state: &mut State, unseen: u32) -> u32 {
        if state.jobs.done.is_empty() || state.gone.is_some() {
            return unseen;
        }
        // SAFETY: as in `push_requests`, the caller holds the lock of `state`.
        let mut entries = unsafe { self.ring.submission_shared() };
        let nothing = opcode::Nop::new().build().user_data(NOTICE);
        // SAFETY: the entry refers to no memory. Where there is no room for it, others are on their
        // way, whose answers suffice.
        if unsafe { entries.push(&nothing.into()) }.is_ok() {
            state.pushed += 1;
        }
        entries.sync();
        entries.len() as u32
    }

    fn entry(&self, piece: &IoRequest, buffer: Option<u16>, urgent: bool) -> E {
        if let (Some(command), Some(namespace)) = (&piece.command, &self.site.namespace) {
            let device = if self.fixed_files { 2 } else { namespace.device.as_raw_fd() };
            if let Some(entry) = E::command(types::Fd(device), command, buffer) {
                return entry;
            }
        }
        let fd = if self.fixed_files {
            types::Fd(RawFd::from(piece.lane == CacheMode::Direct))
        } else {
            types::Fd(self.site.fd(piece.lane))
        };
        let (at, len) = (piece.file_at, piece.len);
        let priority = if urgent { self.site.queue.io_priority } else { 0 };
        let address = std::ptr::with_exposed_provenance_mut::<u8>(piece.address);
        let plain = match (self.site.rules.direction, buffer) {
            (Direction::Read, Some(buffer)) => {
                opcode::ReadFixed::new(fd, address, len, buffer).offset(at).ioprio(priority).build()
            }
            (Direction::Read, None) => opcode::Read::new(fd, address, len).offset(at).ioprio(priority).build(),
            (Direction::Write, Some(buffer)) => {
                opcode::WriteFixed::new(fd, address, len, buffer).offset(at).ioprio(priority).build()
            }
            (Direction::Write, None) => opcode::Write::new(fd, address, len).offset(at).ioprio(priority).build(),
        };
        plain.into()
    }

    /// Makes a part of a namespace ready for commands, which the kernel's page cache knows nothing
    /// of: what the cache has for the device is written to it, as the kernel does for requests past
    /// the page cache. What is to be written then leaves the cache.
    fn prepare(&self, job: &Job) -> Result<()> {
        if self.site.namespace.is_none() || job.span.len == 0 {
            return Ok(());
        }
        let file = self.site.file.cached_fd();
        let (at, len) = match self.site.rules.direction {
            Direction::Read => (job.span.source, job.span.len),
            Direction::Write => (job.span.target, job.span.len),
        };
        self.calls.fetch_add(1, Ordering::Relaxed);
        let written = page_cache::write_back(file, at, len);
        written.map_err(|e| {
            Error::os("write back", e.raw_os_error(), self.site.file.path().display().to_string()).with_offset(at)
        })?;
        if self.site.rules.direction == Direction::Write {
            self.calls.fetch_add(1, Ordering::Relaxed);
            page_cache::drop_pages(file, at, len);
        }
        Ok(())
    }

    fn fixed_file_flag(&self) -> squeue::Flags {
        if self.fixed_files { squeue::Flags::FIXED_FILE } else { squeue::Flags::empty() }
    }

    /// Submits the new entries to the kernel, under the lock of `state`. With a count from before
    /// another thread's entries, a request could be submitted without its linked notifier, which
    /// would then ring too early. Returns false where the kernel did not take all of them, for want
    /// of memory.
    fn submit_entries(&self, state: &mut State, unseen: u32) -> Result<bool> {
        if unseen == 0 {
            return Ok(true);
        }
        let taken = match self.enter(unseen, 0) {
            Err(error) if is_gone(&error) => {
                self.fail_untaken(state, &error);
                return Ok(true);
            }
            outcome => outcome?,
        };
        iowq_keepalive::hold_workers(&self.calls);
        Ok(taken == unseen)
    }

    /// The ring cannot be entered any more: requests that the kernel has not taken fail. The others
    /// are answered, for the ring goes on as long as it is mapped.
    fn fail_untaken(&self, state: &mut State, error: &Error) {
        let errno = error.errno().unwrap_or(libc::EBADF);
        state.gone = Some(errno);
        // SAFETY: as in `push_requests`, the caller holds the lock of `state`.
        let untaken = unsafe { self.ring.submission_shared() }.len() as u64;
        let taken = state.pushed - untaken;
        for index in 0..state.flights.len() {
            if state.place[index] < taken {
                continue;
            }
            let Some(piece) = state.flights[index].take() else { continue };
            state.free.push(index);
            state.watchdog.answered(index);
            if let Some(notifier) = &piece.notifier {
                let before = state.notifiers.len();
                state.notifiers.retain(|_, other| !Arc::ptr_eq(other, notifier));
                (state.notifiers.len()..before).for_each(|_| notifier.uncount());
            }
            state.jobs.finish_request(piece, -errno);
        }
    }

    /// Appends the jobs that are done. If `least` is not 0, it sleeps until there is one, and until
    /// about `least` requests are answered.
    fn take(&self, least: usize, done: &mut Vec<JobCompletion>) -> Result<()> {
        let wait = least > 0;
        let before = done.len();
        let _reaper = match self.reaper.try_lock() {
            Some(guard) => guard,
            None if !wait => return Ok(()),
            None => self.reaper.lock(),
        };
        loop {
            let mut state = self.lock();
            self.reap(&mut state);
            let unseen = self.push_requests(&mut state);
            done.append(&mut state.jobs.done);
            let all_seen = self.submit_entries(&mut state, unseen)?;
            if state.gone.is_some() {
                // Those that never came to the kernel are done as well.
                self.push_requests(&mut state);
                done.append(&mut state.jobs.done);
            }
            if !wait || done.len() > before || state.jobs.is_idle() {
                return Ok(());
            }
            if state.jobs.outstanding() == 0 {
                let context = format!("{}: jobs without requests", self.site.file.path().display());
                return Err(Error::new(ErrorKind::System, "complete", context));
            }
            // It waits for no more answers than there are requests.
            let answers = (least as u64).min(state.jobs.outstanding()) as u32;
            let may_enter = all_seen && state.gone.is_none();
            drop(state);
            if !may_enter {
                // Perhaps no request is at the kernel, and answers that are due make room; or
                // nobody can wait in the kernel for them.
                std::thread::sleep(PAUSE);
                continue;
            }
            match self.enter(0, answers) {
                Err(error) if is_gone(&error) => self.fail_untaken(&mut self.lock(), &error),
                outcome => drop(outcome?),
            }
        }
    }

    /// Calls `io_uring_enter` once and waits for `least` answers. Returns how many entries the
    /// kernel took. The others stay in the queue for the next call.
    fn enter(&self, submit: u32, least: u32) -> Result<u32> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let flags = if least > 0 { GETEVENTS } else { 0 };
        // SAFETY: no argument is an address. What the entries refer to is kept as `push_requests`
        // says.
        let outcome = unsafe { self.ring.submitter().enter::<libc::sigset_t>(submit, least, flags, None) };
        match outcome.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)) {
            // The kernel takes no more than were offered.
            Ok(taken) => Ok(taken as u32),
            // It was interrupted, or the kernel is short of memory for requests.
            Err(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => Ok(0),
            Err(errno) => Err(Error::os("enter the ring of", errno, self.site.file.path().display().to_string())),
        }
    }
}

/// Whether an error of `io_uring_enter` says that the descriptor is closed, or is no ring's any
/// more.
fn is_gone(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EBADF | libc::EOPNOTSUPP))
}

/// Puts two linked entries into the queue: the first, and behind it the byte of a notifier.
fn push_with_bell<E: RingEntry>(
    entries: &mut squeue::SubmissionQueue<'_, E>,
    first: E,
    notifier: Arc<CompletionNotifier>,
    next: &mut u64,
    notifiers: &mut HashMap<u64, Arc<CompletionNotifier>>,
) -> std::result::Result<(), squeue::PushError> {
    let number = *next;
    *next = (number + 1) & !BELL;
    let send = opcode::Send::new(types::Fd(notifier.socket().as_raw_fd()), CompletionNotifier::BYTE.as_ptr(), 1)
        .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        .build()
        .user_data(BELL | number);
    // SAFETY: the caller keeps what the first entry refers to until the kernel answers. The byte is
    // static, and the socket is kept in `notifiers` for as long.
    unsafe { entries.push_multiple(&[first, send.into()]) }?;
    // The kernel sees the entries only after `sync`.
    notifier.count();
    notifiers.insert(number, notifier);
    Ok(())
}

impl<E: RingEntry> QueuedMover for Ring<E> {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        if let Err(error) = self.prepare(&job) {
            return Err((job, error));
        }
        let mut state = self.lock();
        state.jobs.admit(job)?;
        let unseen = self.push_requests(&mut state);
        let unseen = self.push_wakeup(&mut state, unseen);
        // The job is accepted. `complete` meets an error of the ring again and reports it.
        let _ = self.submit_entries(&mut state, unseen);
        Ok(())
    }

    fn submit_all(&self, jobs: &mut VecDeque<Job>) -> Result<()> {
        let mut state = self.lock();
        let mut outcome = Ok(());
        while let Some(job) = jobs.pop_front() {
            let admitted = match self.prepare(&job) {
                Ok(()) => state.jobs.admit(job),
                Err(error) => Err((job, error)),
            };
            if let Err((job, error)) = admitted {
                jobs.push_front(job);
                outcome = Err(error);
                break;
            }
        }
        let unseen = self.push_requests(&mut state);
        let unseen = self.push_wakeup(&mut state, unseen);
        // The result is ignored as in `submit`.
        let _ = self.submit_entries(&mut state, unseen);
        outcome
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring, and with it its descriptor, lives as long as the borrow of self.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        self.take(usize::from(wait), done)
    }

    fn complete_several(&self, least: usize, done: &mut Vec<JobCompletion>) -> Result<()> {
        self.take(least.max(1), done)
    }

    fn counters(&self) -> Counters {
        let state = self.lock();
        let mut counters = state.jobs.counters.clone();
        counters.busy_ns = state.jobs.busy_ns();
        counters.system_calls = self.calls.load(Ordering::Relaxed);
        counters
    }
}

impl<E: RingEntry> Drop for Ring<E> {
    fn drop(&mut self) {
        // The kernel may still write into leased memory, so this waits for it. A ring that is
        // permanently broken leaks its jobs with their leases rather than freeing memory that the
        // kernel may write.
        let mut done = Vec::new();
        while !self.lock().jobs.is_idle() {
            if self.complete(true, &mut done).is_err() {
                let mut state = self.lock();
                let jobs = std::mem::replace(&mut state.jobs, JobTable::new(self.site.clone()));
                std::mem::forget(jobs);
                std::mem::forget(std::mem::take(&mut state.flights));
                return;
            }
        }
        // The kernel removes a ring later, at its own time. This releases what is registered at
        // once, so that an unlinked file frees its space, a file system can be unmounted, and
        // memory is returned when the pipe is gone.
        if self.fixed_files {
            let _ = self.ring.submitter().unregister_files();
        }
        let _ = self.ring.submitter().unregister_buffers();
    }
}
