//! Reads many short extents of files into memory of its own, for one caller at a time.
//!
//! ```text
//! one extent:   pread
//! several:      requests into the ring, one io_uring_enter for a group; take answers; submit the
//!               next group; hand out the bytes
//! ```
//!
//! The ring is made with the first call for several extents, for the calling thread
//! (`SINGLE_ISSUER`, `DEFER_TASKRUN`: answers are taken when the thread enters the kernel, so none
//! interrupts it, and a wait for several is one sleep). Another thread cannot use such a ring. If
//! another thread calls, the reader makes a ring that any thread may use (`COOP_TASKRUN`), until
//! one thread has called often enough in a row. Where no ring can be made, extents are read one by
//! one, and `explain` says why.
//!
//! Unsafe code: requests refer to the reader's own buffers. No other code has them, and a buffer is
//! in one request at a time. No call returns or unwinds before the kernel has answered all
//! requests. If the ring itself fails, the buffers are never freed.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use datapipes_core::backend::{Counters, ExtentOptions, ExtentReader, ExtentSource, OnExtent, ReadExtent};
use datapipes_core::memory::{Access, MapOptions, Pages, RawLease, Region};
use datapipes_core::process::OwningProcess;
use datapipes_core::threads::ThreadNumber;
use datapipes_core::{Error, ErrorKind, Result};
use io_uring::{IoUring, opcode, squeue, types};

use super::iowq_keepalive;
use super::watchdog::{NOTICE, TIMER, Watchdog, lost};
use crate::faults::{FaultInjector, FaultVerdict, Operation};
use crate::short_requests::ring_serves;

/// The number of buffers per outstanding request. Those of one group are handed out while the next
/// group is read.
const SPARE: usize = 2;
/// How often a request is repeated without progress before its errno is reported.
const TRIES: u16 = 1000;
/// The time before requests are submitted again to a kernel that is short of memory for them.
const PAUSE: Duration = Duration::from_millis(1);
/// The time before a refused ring is requested again.
const RETRY: Duration = Duration::from_secs(1);
/// The number of calls of one thread in a row after which it gets a ring of its own again.
const REGULAR: u32 = 64;
/// The alignment of the first buffer, and of every buffer where the device asks for it. It
/// satisfies direct I/O on every device known to us.
const PAGE: usize = 4096;
/// The size of a cache line; no two buffers share one.
const LINE: usize = 64;

/// A request that is in flight or repeated.
#[derive(Clone, Copy, Default)]
struct ReadAttempt {
    extent: u32,
    /// The bytes that were read.
    got: u32,
    tries: u16,
    injected: Option<i32>,
    /// Whether the kernel is to lose it.
    lost: bool,
}

/// What to do with a request that was answered.
enum Next {
    Done,
    Again,
    Failed(Error),
}

/// A ring, and the thread that it belongs to.
struct Ring {
    ring: IoUring,
    /// `None` if any thread may use it.
    of: Option<ThreadNumber>,
    registered: bool,
    watchdog: Watchdog,
}

/// The reader of extents of files.
pub(crate) struct FileExtentReader {
    ring: Option<Ring>,
    /// The thread that read last, and how often in a row.
    last: Option<(ThreadNumber, u32)>,
    /// The time since which there is no ring, and why.
    refused: Option<(Instant, String)>,
    /// Set when the ring failed: memory that it may still write to is not touched again.
    broken: Option<(ErrorKind, String)>,
    buffers: Option<RawLease>,
    slot_bytes: usize,
    /// From one buffer to the next in this call.
    stride: usize,
    depth: usize,
    longest: u32,
    flights: Vec<ReadAttempt>,
    faults: Option<Arc<dyn FaultInjector>>,
    may_ring: std::result::Result<(), String>,
    owner: OwningProcess,
    counters: Counters,
}

impl FileExtentReader {
    pub(crate) fn new(
        options: ExtentOptions,
        may_ring: std::result::Result<(), String>,
        faults: Option<Arc<dyn FaultInjector>>,
    ) -> Result<FileExtentReader> {
        let depth = options.depth.clamp(1, 4096) as usize;
        let slot_bytes = (options.longest.clamp(1, 1 << 20) as usize).next_multiple_of(PAGE);
        let len = depth * SPARE * slot_bytes;
        let region = Region::map(len, MapOptions::default().pages(Pages::Small).prefault(false))?;
        Ok(FileExtentReader {
            ring: None,
            last: None,
            refused: None,
            broken: None,
            buffers: Some(region.range(0, len)?.raw_lease(Access::Write)?),
            slot_bytes,
            stride: slot_bytes,
            depth,
            longest: options.longest,
            flights: vec![ReadAttempt::default(); depth * SPARE],
            faults,
            may_ring,
            owner: OwningProcess::here(),
            counters: Counters::default(),
        })
    }

    /// Returns the distance between two buffers for these extents, which is no more than the
    /// longest needs. With a page for each extent of 512 bytes, a thread that copies out of a
    /// hundred of them needs as many address translations.
    fn stride(&self, from: ExtentSource<'_>, extents: &[ReadExtent]) -> usize {
        let longest = extents.iter().map(|extent| extent.len as usize).max().unwrap_or(0).max(1);
        let (len, memory) = match from.direct {
            true => (longest.next_multiple_of(from.file.offset_align().max(1) as usize), from.file.memory_align()),
            false => (longest, 1),
        };
        len.next_multiple_of((memory as usize).clamp(LINE, PAGE)).min(self.slot_bytes)
    }

    /// Returns the address of a buffer.
    fn slot(&self, slot: usize) -> *mut u8 {
        let at = slot * self.stride;
        match &self.buffers {
            // SAFETY: slots are numbered below `depth * SPARE`, and the lease holds that many.
            Some(lease) if at < lease.len() => unsafe { lease.address().add(at) },
            _ => std::ptr::null_mut(),
        }
    }

    /// Returns the bytes of a buffer that were read.
    fn bytes(&self, slot: usize, len: u32) -> &[u8] {
        let start = self.slot(slot);
        if start.is_null() || len as usize > self.stride {
            return &[];
        }
        // SAFETY: the bytes are within the reader's own memory, as was just checked, and mapped
        // memory is initialized. No request into this slot is in flight: it was answered, and the
        // slot is not used again before the borrow ends.
        unsafe { std::slice::from_raw_parts(start, len as usize) }
    }

    /// Returns why an extent cannot be read in this way, if it cannot.
    fn refusal(&self, from: ExtentSource<'_>, extent: ReadExtent) -> Option<Error> {
        let align = u64::from(from.file.offset_align().max(1));
        let misaligned = from.direct && !extent.offset.is_multiple_of(align);
        let room = u64::from(extent.len).next_multiple_of(if from.direct { align } else { 1 });
        let too_long = extent.len > self.longest || room > self.stride as u64;
        let beyond = i64::try_from(extent.offset).is_err() || i64::try_from(extent.end()).is_err();
        (misaligned || too_long || beyond || extent.len == 0).then(|| {
            let context = format!("{}: an extent of {} bytes", from.file.path().display(), extent.len);
            Error::new(ErrorKind::InvalidInput, "read", context).with_offset(extent.offset)
        })
    }

    /// Returns the offset and the length of the next request, after the bytes that were read
    /// already.
    fn request(&mut self, from: ExtentSource<'_>, extent: ReadExtent, flight: &mut ReadAttempt) -> (u64, u32) {
        let align = if from.direct { from.file.offset_align().max(1) } else { 1 };
        let offset = extent.offset + u64::from(flight.got);
        let mut len = (extent.len - flight.got).next_multiple_of(align);
        let nth = self.counters.requests;
        self.counters.requests += 1;
        (flight.injected, flight.lost) = (None, false);
        if let Some(faults) = &self.faults {
            match faults.verdict(&Operation { write: false, offset, len, nth }) {
                FaultVerdict::Pass => {}
                FaultVerdict::Errno(errno) => flight.injected = Some(errno),
                FaultVerdict::Lost => flight.lost = true,
                FaultVerdict::Short(short) => len = short.max(1).next_multiple_of(align).min(len),
            }
        }
        (offset, len)
    }

    /// Interprets a kernel's result (bytes, or a negative errno), which is done only here.
    fn judge(&mut self, from: ExtentSource<'_>, extent: ReadExtent, flight: &mut ReadAttempt, result: i32) -> Next {
        let result = flight.injected.map_or(result, |errno| -errno);
        let at = extent.offset + u64::from(flight.got);
        let path = || from.file.path().display().to_string();
        let Ok(moved) = u32::try_from(result) else {
            let errno = -result;
            flight.tries += 1;
            if matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED) && flight.tries < TRIES {
                self.counters.retries += 1;
                return Next::Again;
            }
            let error = Error::os("read", errno, path()).with_offset(at).with_bytes_done(u64::from(flight.got));
            return Next::Failed(match errno == libc::EINVAL && from.direct {
                true => error.with_advice("the file system refuses this direct request: use cached access"),
                false => error,
            });
        };
        let useful = moved.min(extent.len - flight.got);
        self.counters.bytes += u64::from(useful);
        *(if from.direct { &mut self.counters.direct_bytes } else { &mut self.counters.cached_bytes }) +=
            u64::from(useful);
        flight.got += useful;
        if flight.got >= extent.len {
            return Next::Done;
        }
        let align = if from.direct { from.file.offset_align().max(1) } else { 1 };
        if moved > 0 && flight.got.is_multiple_of(align) {
            self.counters.short_finished += 1;
            flight.tries = 0;
            return Next::Again;
        }
        // This is the end of the file, perhaps in the middle of a block, unless the file has grown
        // since.
        flight.tries += 1;
        if flight.tries < TRIES && from.file.len().is_ok_and(|len| len >= extent.end()) {
            self.counters.retries += 1;
            flight.got = flight.got / align * align;
            return Next::Again;
        }
        Next::Failed(Error::end_of_source("read", path(), at).with_bytes_done(u64::from(flight.got)))
    }

    /// Reads one extent by pread into the first buffer.
    fn one(&mut self, from: ExtentSource<'_>, extent: ReadExtent) -> Result<()> {
        if let Some(error) = self.refusal(from, extent) {
            return Err(error);
        }
        let fd = descriptor(from);
        let mut flight = ReadAttempt::default();
        loop {
            let (offset, len) = self.request(from, extent, &mut flight);
            let start = self.slot(0).wrapping_add(flight.got as usize);
            self.counters.system_calls += 1;
            // SAFETY: `got + len` is within a buffer (`refusal` checked that for the rounded
            // extent), and no request into it is in flight. The descriptor lives as long as the
            // file that was passed.
            let result = unsafe { pread(fd, start, len, offset) };
            match self.judge(from, extent, &mut flight, result) {
                Next::Done => return Ok(()),
                Next::Again => {}
                Next::Failed(error) => return Err(error),
            }
        }
    }

    /// Makes sure that there is a ring for this thread; returns false where there is none.
    fn has_ring(&mut self) -> bool {
        let me = ThreadNumber::here();
        let times = match self.last {
            Some((last, times)) if last == me => times.saturating_add(1),
            _ => 1,
        };
        self.last = Some((me, times));
        match &self.ring {
            Some(Ring { of: Some(of), .. }) if *of == me => return true,
            // It belongs to another thread, or to any thread and now only this one uses it.
            Some(Ring { of: None, .. }) if times < REGULAR => return true,
            None if self.refused.as_ref().is_some_and(|(when, _)| when.elapsed() < RETRY) => return false,
            _ => {}
        }
        let is_others = self.ring.as_ref().is_some_and(|ring| ring.of.is_some());
        match self.may_ring.clone().and_then(|()| self.make_ring((!is_others).then_some(me))) {
            // No request is in flight: the old ring is closed, and with it its descriptor.
            Ok(ring) => (self.ring, self.refused) = (Some(ring), None),
            // The ring of any thread stays in use.
            Err(_) if self.ring.as_ref().is_some_and(|ring| ring.of.is_none()) => {}
            Err(why) => (self.ring, self.refused) = (None, Some((Instant::now(), why))),
        }
        self.ring.is_some()
    }

    fn make_ring(&self, of: Option<ThreadNumber>) -> std::result::Result<Ring, String> {
        // One more entry is for a timer.
        let entries = (self.depth + 1).next_power_of_two() as u32;
        // Older kernels support less: 6.1 has the first setting, 5.19 the second.
        let mut made = None;
        for flags in if of.is_some() { 0..3 } else { 1..3 } {
            let mut builder = IoUring::builder();
            builder.setup_clamp();
            match flags {
                0 => _ = builder.setup_single_issuer().setup_defer_taskrun(),
                1 => _ = builder.setup_coop_taskrun(),
                _ => {}
            }
            match builder.build(entries) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) && flags < 2 => {}
                other => {
                    made = Some((other.map_err(|e| e.to_string())?, flags));
                    break;
                }
            }
        }
        let Some((ring, flags)) = made else { return Err("the kernel accepts none of the settings".into()) };
        let of = of.filter(|_| flags == 0);
        let registered = self.buffers.as_ref().is_some_and(|lease| {
            let iovec = libc::iovec { iov_base: lease.address().cast(), iov_len: lease.len() };
            // SAFETY: the buffers are the reader's own and outlive the ring: fields drop in order,
            // the ring before them.
            unsafe { ring.submitter().register_buffers(&[iovec]) }.is_ok()
        });
        Ok(Ring { ring, of, registered, watchdog: Watchdog::new(self.flights.len()) })
    }

    fn fail(&mut self, error: &Error) {
        self.broken = Some((error.kind(), error.to_string()));
        // The kernel may still write to the buffers.
        std::mem::forget(self.buffers.take());
    }
}

/// Returns the bytes read, or a negative errno, as a ring does.
///
/// # Safety
/// `len` bytes at `start` must be writable, and `fd` must be open, until it returns.
unsafe fn pread(fd: i32, start: *mut u8, len: u32, offset: u64) -> i32 {
    // SAFETY: the caller guarantees what this function demands.
    let n = unsafe { libc::pread(fd, start.cast(), len as usize, offset.cast_signed()) };
    match n {
        0.. => n as i32,
        _ => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

fn descriptor(from: ExtentSource<'_>) -> i32 {
    match (from.direct, from.file.direct_fd()) {
        (true, Ok(fd)) => fd.as_raw_fd(),
        _ => from.file.cached_fd().as_raw_fd(),
    }
}

/// A call with several extents. After its drop, no request is in flight.
struct ExtentBatch<'a> {
    reader: &'a mut FileExtentReader,
    from: ExtentSource<'a>,
    extents: &'a [ReadExtent],
    told: Vec<bool>,
    free: Vec<u16>,
    /// Requests to be submitted again.
    again: Vec<u16>,
    answers: Vec<(u16, i32)>,
    /// Requests that were answered but not handed out yet.
    ready: Vec<(u16, Result<()>)>,
    next: usize,
    under_way: usize,
    /// The number of those that the kernel has not seen.
    unseen: usize,
}

impl<'a> ExtentBatch<'a> {
    fn new(reader: &'a mut FileExtentReader, from: ExtentSource<'a>, extents: &'a [ReadExtent]) -> ExtentBatch<'a> {
        let slots = reader.flights.len().min(extents.len()) as u16;
        ExtentBatch {
            reader,
            from,
            extents,
            told: vec![false; extents.len()],
            free: (0..slots).rev().collect(),
            again: Vec::new(),
            answers: Vec::with_capacity(usize::from(slots)),
            ready: Vec::with_capacity(usize::from(slots)),
            next: 0,
            under_way: 0,
            unseen: 0,
        }
    }

    /// Whether there are requests to make.
    fn has_more(&self) -> bool {
        self.next < self.extents.len() || !self.again.is_empty()
    }

    fn run(&mut self, done: &mut OnExtent<'_>) -> Result<()> {
        // New requests are submitted in groups: one system call for each would be most of their
        // cost.
        let group = (self.reader.depth / 4).max(1);
        let mut halved = false;
        loop {
            self.fill();
            if self.ready.is_empty() {
                let least = match self.under_way {
                    0 if !self.has_more() => return Ok(()),
                    all if self.has_more() => group.min(all),
                    // At the end it waits for half of the rest first, so that the device works
                    // while these are handed out.
                    all if !halved && all > group => {
                        halved = true;
                        all.div_ceil(2)
                    }
                    all => all,
                };
                self.enter(least)?;
                continue;
            }
            if self.unseen >= group || self.unseen == self.under_way {
                self.enter(0)?;
            }
            self.hand_out(done);
        }
    }

    /// Puts as many requests into the ring as the depth allows.
    fn fill(&mut self) {
        for _ in self.under_way..self.reader.depth {
            if let Some(slot) = self.again.pop() {
                self.push(slot);
                continue;
            }
            let Some(&extent) = self.extents.get(self.next) else { return };
            let Some(slot) = self.free.pop() else { return };
            self.reader.flights[usize::from(slot)] = ReadAttempt { extent: self.next as u32, ..ReadAttempt::default() };
            self.next += 1;
            match self.reader.refusal(self.from, extent) {
                Some(error) => self.ready.push((slot, Err(error))),
                None => self.push(slot),
            }
        }
    }

    fn push(&mut self, slot: u16) {
        let at = usize::from(slot);
        let mut flight = self.reader.flights[at];
        let extent = self.extents[flight.extent as usize];
        let (offset, len) = self.reader.request(self.from, extent, &mut flight);
        self.reader.flights[at] = flight;
        let address = self.reader.slot(at).wrapping_add(flight.got as usize);
        let fd = types::Fd(descriptor(self.from));
        let Some(ring) = &mut self.reader.ring else { return };
        let entry = match ring.registered {
            _ if flight.lost => lost(),
            true => opcode::ReadFixed::new(fd, address, len, 0).offset(offset).build(),
            false => opcode::Read::new(fd, address, len).offset(offset).build(),
        };
        // SAFETY: the buffer is the reader's own, has room for `got + len` bytes (`refusal`), is in
        // no other request, and stays until this one is answered (`drop`). The file, and so its
        // descriptor, is borrowed for as long.
        let pushed = unsafe { ring.ring.submission().push(&entry.user_data(u64::from(slot))) };
        debug_assert!(pushed.is_ok(), "there are as many entries as requests outstanding at once");
        ring.watchdog.sent(at);
        let counters = &mut self.reader.counters;
        *(if ring.registered { &mut counters.fixed_buffer_hits } else { &mut counters.fixed_buffer_misses }) += 1;
        self.under_way += 1;
        self.unseen += 1;
        counters.max_outstanding = counters.max_outstanding.max(self.under_way as u64);
    }

    /// Submits new requests, sleeps until `least` requests are answered, and takes the answers.
    fn enter(&mut self, least: usize) -> Result<()> {
        if self.unseen == 0 && least == 0 {
            return Ok(());
        }
        let Some(ring) = &mut self.reader.ring else { return Ok(()) };
        let mut entries = ring.ring.submission();
        // Keeps room for every request that may still come.
        let to_come = self.reader.depth.saturating_sub(self.under_way);
        let mut push = |entry: squeue::Entry| {
            // SAFETY: the entry refers to no memory except a static time.
            entries.capacity() - entries.len() > to_come && unsafe { entries.push(&entry) }.is_ok()
        };
        if ring.watchdog.timer(&mut push).is_some_and(&mut push) {
            ring.watchdog.armed();
        }
        drop(entries);
        self.reader.counters.system_calls += 1;
        match ring.ring.submitter().submit_and_wait(least) {
            Ok(_) => self.unseen = ring.ring.submission().len(),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => self.unseen = ring.ring.submission().len(),
            // The kernel is short of memory for requests. Answers that are due make room.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {
                self.unseen = ring.ring.submission().len();
                std::thread::sleep(PAUSE);
            }
            Err(e) => return Err(Error::io("enter a ring for", e, self.from.file.path().display().to_string())),
        }
        if !self.from.direct {
            iowq_keepalive::hold_workers(&AtomicU64::new(0));
        }
        for answer in ring.ring.completion() {
            match answer.user_data() {
                TIMER => ring.watchdog.heard(answer.result()),
                NOTICE => {}
                slot => {
                    ring.watchdog.answered(slot as usize);
                    self.answers.push((slot as u16, answer.result()));
                }
            }
        }
        for (slot, result) in std::mem::take(&mut self.answers) {
            self.under_way -= 1;
            let at = usize::from(slot);
            let mut flight = self.reader.flights[at];
            let extent = self.extents[flight.extent as usize];
            let result = self.given_back(at, extent, &mut flight, result);
            match self.reader.judge(self.from, extent, &mut flight, result) {
                Next::Done => self.ready.push((slot, Ok(()))),
                Next::Failed(error) => self.ready.push((slot, Err(error))),
                Next::Again => self.again.push(slot),
            }
            self.reader.flights[at] = flight;
        }
        Ok(())
    }

    /// Returns the result of a request. One that the kernel returned undone, and not for the first
    /// time, is made here: the kernel has no thread for it.
    fn given_back(&mut self, slot: usize, extent: ReadExtent, flight: &mut ReadAttempt, result: i32) -> i32 {
        let result = flight.injected.take().map_or(result, |errno| -errno);
        if result != -libc::ECANCELED || flight.tries == 0 {
            return result;
        }
        self.reader.counters.queue_refused += 1;
        self.reader.counters.system_calls += 1;
        let align = if self.from.direct { self.from.file.offset_align().max(1) } else { 1 };
        let len = (extent.len - flight.got).next_multiple_of(align);
        let (start, offset) =
            (self.reader.slot(slot).wrapping_add(flight.got as usize), extent.offset + u64::from(flight.got));
        // SAFETY: as for the request that was returned (`push`), which is no longer in flight.
        unsafe { pread(descriptor(self.from), start, len, offset) }
    }

    /// Hands out the extents that were answered.
    fn hand_out(&mut self, done: &mut OnExtent<'_>) {
        for (slot, result) in self.ready.drain(..) {
            let number = self.reader.flights[usize::from(slot)].extent as usize;
            self.told[number] = true;
            let bytes = self.reader.bytes(usize::from(slot), self.extents[number].len);
            done(number, result.map(|()| bytes));
            self.free.push(slot);
        }
    }

    /// Reports an error for all extents that are left, since the ring is broken.
    fn give_up(mut self, error: &Error, done: &mut OnExtent<'_>) {
        self.under_way = 0;
        self.reader.fail(error);
        for number in (0..self.extents.len()).filter(|&number| !self.told[number]) {
            done(number, Err(Error::relayed(error.kind(), error.to_string())));
        }
    }
}

impl Drop for ExtentBatch<'_> {
    fn drop(&mut self) {
        // The callback may panic. Requests in flight must end before their buffers are used again.
        while self.under_way > 0 {
            if let Err(error) = self.enter(self.under_way) {
                self.under_way = 0;
                self.reader.fail(&error);
            }
        }
    }
}

impl ExtentReader for FileExtentReader {
    fn read(&mut self, from: ExtentSource<'_>, extents: &[ReadExtent], done: &mut OnExtent<'_>) {
        let failed = match (self.owner.check("read"), &self.broken) {
            (Err(forked), _) => Some((forked.kind(), forked.to_string())),
            (Ok(()), broken) => broken.clone(),
        };
        if let Some((kind, text)) = failed {
            return (0..extents.len()).for_each(|number| done(number, Err(Error::relayed(kind, text.clone()))));
        }
        // Nothing is under way between two calls.
        self.stride = self.stride(from, extents);
        if extents.len() > 1 && ring_serves(from.file).is_ok() && self.has_ring() {
            let mut many = ExtentBatch::new(self, from, extents);
            if let Err(error) = many.run(done) {
                many.give_up(&error, done);
            }
            return;
        }
        for (number, extent) in extents.iter().enumerate() {
            let outcome = self.one(from, *extent);
            self.counters.max_outstanding = self.counters.max_outstanding.max(1);
            done(number, outcome.map(|()| self.bytes(0, extent.len)));
        }
    }

    fn memory_bytes(&self) -> usize {
        self.depth * SPARE * self.slot_bytes
    }

    fn explain(&self) -> String {
        let how = match (&self.ring, &self.may_ring, &self.refused) {
            (_, Err(why), _) | (None, _, Some((_, why))) => format!("one by one by pread ({why})"),
            (Some(Ring { of, registered, .. }), ..) => format!(
                "a single extent by pread, several by an io_uring of {} requests of {}, {}",
                self.depth,
                if of.is_some() { "one thread" } else { "any thread" },
                if *registered { "registered memory" } else { "memory that could not be registered" }
            ),
            (None, Ok(()), None) => {
                format!("a single extent by pread, several by an io_uring of {} requests", self.depth)
            }
        };
        let rings = self.may_ring.is_ok() && self.refused.is_none();
        let others = if rings { "; all by pread on file systems that a server provides (FUSE, network)" } else { "" };
        format!("extents-of-files: {how}{others}")
    }

    fn rejected(&self) -> Vec<(&'static str, String)> {
        match (&self.ring, &self.may_ring, &self.refused) {
            (_, Err(why), _) | (None, _, Some((_, why))) => vec![("several extents by io_uring", why.clone())],
            _ => {
                let why = "each would wait for the one before it";
                vec![("several extents one by one, by pread", why.to_owned())]
            }
        }
    }

    fn counters(&self) -> Counters {
        self.counters.clone().transfers(self.counters.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_core::Ssd;
    use datapipes_testkit::bounded;
    use std::io::Write;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const LEN: usize = 200_000;

    fn byte(at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn file() -> Ssd {
        let ssd = Ssd::unlinked_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let mut to = std::fs::File::from(ssd.file().cached_fd().try_clone_to_owned().unwrap());
        to.write_all(&(0..LEN as u64).map(byte).collect::<Vec<_>>()).unwrap();
        to.sync_all().unwrap();
        ssd
    }

    fn reader(depth: u32, may_ring: bool, faults: Option<Arc<dyn FaultInjector>>) -> FileExtentReader {
        let may_ring = if may_ring { Ok(()) } else { Err("the test forbids it".into()) };
        FileExtentReader::new(ExtentOptions::default().depth(depth).longest(4096), may_ring, faults).unwrap()
    }

    /// Reads, and returns the result that was reported for each extent.
    fn read(
        reader: &mut FileExtentReader,
        ssd: &Ssd,
        direct: bool,
        extents: &[ReadExtent],
    ) -> Vec<Result<(), ErrorKind>> {
        let mut told: Vec<Option<Result<(), ErrorKind>>> = vec![None; extents.len()];
        reader.read(ExtentSource { file: ssd.file(), direct }, extents, &mut |number, bytes| {
            assert!(told[number].is_none(), "{number} is reported twice");
            let extent = extents[number];
            told[number] = Some(bytes.map_err(|e| e.kind()).map(|bytes| {
                assert_eq!(bytes.len(), extent.len as usize);
                let right = (extent.offset..).zip(bytes).all(|(at, b)| *b == byte(at));
                assert!(right, "wrong bytes of {extent:?}");
            }));
        });
        told.into_iter().map(|t| t.unwrap()).collect()
    }

    fn some_extents(count: u64) -> Vec<ReadExtent> {
        (0..count)
            .map(|i| ReadExtent { offset: i * 7919 % 380 * 512, len: [512, 1024, 4096][i as usize % 3] })
            .collect()
    }

    #[test]
    fn extents_come_as_they_are_in_the_file_by_ring_and_by_pread() {
        let ssd = file();
        for (depth, may_ring) in [(1, true), (4, true), (64, true), (8, false)] {
            let mut reader = reader(depth, may_ring, None);
            for direct in [true, false] {
                if direct && (ssd.file().direct_fd().is_err() || ssd.file().offset_align() > 512) {
                    println!("SKIPPED: extents past the page cache: the file system does no direct I/O at 512 bytes");
                    continue;
                }
                for count in [0, 1, 2, 3, 63, 64, 65, 500] {
                    assert!(read(&mut reader, &ssd, direct, &some_extents(count)).iter().all(Result::is_ok));
                }
            }
            assert_eq!(reader.explain().contains("io_uring"), may_ring, "{}", reader.explain());
        }
    }

    #[test]
    fn errors_concern_only_their_own_extents() {
        let ssd = file();
        let extent = |offset, len| ReadExtent { offset, len };
        let end = LEN as u64;
        let mut extents = some_extents(40);
        let bad = [
            (extent(end - end % 512, (end % 512) as u32), Ok(())),
            (extent(end - end % 512, 512), Err(ErrorKind::EndOfFile)),
            (extent((end + 4096) / 512 * 512, 512), Err(ErrorKind::EndOfFile)),
            (extent(0, 4097), Err(ErrorKind::InvalidInput)),
            (extent(u64::MAX - 511, 512), Err(ErrorKind::InvalidInput)),
            (extent(0, 0), Err(ErrorKind::InvalidInput)),
        ];
        bad.iter().for_each(|(e, _)| extents.push(*e));
        for (may_ring, direct) in [(true, true), (true, false), (false, true), (false, false)] {
            if direct && (ssd.file().direct_fd().is_err() || ssd.file().offset_align() > 512) {
                continue;
            }
            let told = read(&mut reader(8, may_ring, None), &ssd, direct, &extents);
            assert!(told[..40].iter().all(Result::is_ok));
            assert_eq!(told[40..], bad.map(|(_, expected)| expected), "ring {may_ring}, direct {direct}");
        }
        let odd = read(&mut reader(8, true, None), &ssd, true, &[extent(100, 512), extent(0, 512)]);
        assert!(ssd.file().direct_fd().is_err() || odd == [Err(ErrorKind::InvalidInput), Ok(())], "{odd:?}");
    }

    /// Interrupts, shortens and refuses requests.
    struct Odd;

    impl FaultInjector for Odd {
        fn verdict(&self, op: &Operation) -> FaultVerdict {
            match op.nth % 7 {
                1 => FaultVerdict::Errno(libc::EINTR),
                2 => FaultVerdict::Errno(libc::EAGAIN),
                3 | 4 => FaultVerdict::Short(512),
                _ if (8192..12_288).contains(&op.offset) => FaultVerdict::Errno(libc::EIO),
                _ => FaultVerdict::Pass,
            }
        }
    }

    #[test]
    fn short_and_interrupted_requests_are_finished_and_errors_are_reported() {
        let ssd = file();
        for (may_ring, direct) in [(true, false), (true, true), (false, false)] {
            if direct && (ssd.file().direct_fd().is_err() || ssd.file().offset_align() > 512) {
                continue;
            }
            let mut reader = reader(16, may_ring, Some(Arc::new(Odd)));
            let extents: Vec<_> = some_extents(300);
            let told = read(&mut reader, &ssd, direct, &extents);
            for (extent, told) in extents.iter().zip(&told) {
                let bad = extent.offset < 12_288 && extent.end() > 8192;
                assert!(told.is_ok() || bad && *told == Err(ErrorKind::Device), "{extent:?}: {told:?}");
            }
            assert!(told.iter().any(Result::is_err));
            let counters = reader.counters();
            assert!(counters.retries > 10 && counters.short_finished > 10, "{counters:?}");
        }
    }

    /// Loses some requests.
    struct Loses;

    impl FaultInjector for Loses {
        fn verdict(&self, op: &Operation) -> FaultVerdict {
            if op.nth.is_multiple_of(50) { FaultVerdict::Lost } else { FaultVerdict::Pass }
        }
    }

    #[test]
    fn requests_that_the_kernel_loses_are_made_again() {
        for depth in [2, 16] {
            bounded("reads of which some are lost", move || {
                let mut reader = reader(depth, true, Some(Arc::new(Loses)));
                assert!(read(&mut reader, &file(), false, &some_extents(60)).iter().all(Result::is_ok));
                assert!(reader.counters().retries >= 2, "{:?}", reader.counters());
            });
        }
    }

    #[test]
    fn the_callback_may_panic_and_threads_take_turns() {
        let ssd = file();
        let mut reader = reader(16, true, None);
        for round in 0..4 {
            let extents = some_extents(100);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                reader.read(ExtentSource { file: ssd.file(), direct: false }, &extents, &mut |number, _| {
                    assert!(number != 17 + round, "the callback panics");
                });
            }));
            assert!(panicked.is_err());
            // It is called from another thread each time, and then from this one often enough to
            // get its own ring again.
            reader = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| {
                    let mut reader = reader;
                    assert!(read(&mut reader, &ssd, false, &extents).iter().all(Result::is_ok));
                    reader
                });
                theirs.join().unwrap()
            });
            assert!(reader.explain().contains("any thread"), "{}", reader.explain());
            for _ in 0..REGULAR + 1 {
                assert!(read(&mut reader, &ssd, false, &extents[..3]).iter().all(Result::is_ok));
            }
            let own = reader.explain().contains("one thread");
            assert!(own || reader.ring.is_some(), "{}", reader.explain());
        }
    }
}
