//! Prefetching: a thread of the pool reads and caches extents that a caller says will be read soon.
//!
//! The thread starts with the first advice and ends with the pool. Extents wait in a queue of fixed
//! length, whose extents have at most as many bytes as the budget. Extents that find it full are
//! not accepted. They are read in pieces, into a reserved part of the budget. This is advice: an
//! error is met again by whoever reads the extent.

use std::collections::VecDeque;
use std::sync::Weak;

use datapipes_core::guard::{self, ForeignCode};
use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};

use super::file::{FileHandle, Inner};
use crate::bytes::zeroed;
use crate::store::PAGE;
use crate::sync::{Arc, Condvar, Mutex};

/// The most extents that wait.
const MAX_PREFETCH_EXTENTS: usize = 4096;
/// The number of extents that are read together.
const TOGETHER: usize = 64;
/// The least and the most bytes that are read together.
const BYTES: [usize; 2] = [4 * PAGE as usize, 256 << 10];
/// The part of the budget for bytes that are read together.
const BYTES_PART: usize = 128;
/// The part of the budget for waiting extents.
const QUEUE_PART: usize = 256;

/// An extent of a file. It does not keep the file open.
struct Extent {
    file: Weak<Inner>,
    offset: u64,
    len: usize,
}

#[derive(Default)]
struct Queue {
    /// The waiting extents. The capacity is fixed when the first one comes.
    extents: VecDeque<Extent>,
    /// The sum of their bytes.
    bytes: usize,
    has_thread: bool,
    ended: bool,
}

/// The queue of extents to prefetch.
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// The most bytes that wait: more would be evicted again before they are read.
    budget: usize,
    /// The number of bytes that are read together.
    together: usize,
    /// The most extents that wait.
    most: usize,
}

impl Ahead {
    /// Makes a queue that fits a part of a budget.
    pub(crate) fn within(budget: usize) -> Ahead {
        Ahead {
            queue: Mutex::default(),
            bell: Condvar::new(),
            budget,
            together: (budget / BYTES_PART).clamp(BYTES[0], BYTES[1]) / PAGE as usize * PAGE as usize,
            most: (budget / QUEUE_PART / size_of::<Extent>()).clamp(TOGETHER, MAX_PREFETCH_EXTENTS),
        }
    }

    /// The most bytes of memory that it uses.
    pub(crate) fn most_bytes(&self) -> usize {
        self.together + self.most * size_of::<Extent>()
    }

    /// The bytes of memory that it uses now.
    pub(crate) fn bytes(&self) -> usize {
        match self.queue.lock().extents.capacity() {
            0 => 0,
            some => self.together + some * size_of::<Extent>(),
        }
    }

    /// How many bytes of an extent to prefetch, with `left` bytes of room. Returns None for an
    /// extent that is not within the file. With a check it is all of the extent or None.
    fn useful(&self, file: &Inner, (offset, len): (u64, usize), left: usize) -> Option<usize> {
        let checked = file.options.verify.is_some();
        let is_read = len > 0 && !file.is_beyond(offset, len) && (!checked || len <= self.together);
        is_read.then(|| if checked { len } else { len.min(left) })
    }

    /// Accepts extents as far as there is room, and returns how many. With `thread`, a thread reads
    /// them.
    ///
    /// # Errors
    /// Errors of starting a thread. `OutOfMemory` where there is no memory for the queue.
    pub(crate) fn take(self: &Arc<Ahead>, file: &Arc<Inner>, extents: &[(u64, usize)], thread: bool) -> Result<usize> {
        let mut queue = self.queue.lock();
        if queue.extents.capacity() == 0 && !extents.is_empty() {
            let refused =
                |_| Error::new(ErrorKind::OutOfMemory, "read ahead", format!("a queue of {} extents", self.most));
            queue.extents.try_reserve_exact(self.most).map_err(refused)?;
        }
        if thread && !queue.has_thread && !extents.is_empty() {
            let own = self.clone();
            threads::spawn("fine-prefetch", move || own.run())
                .map_err(|e| e.within("the thread of a cache that reads ahead"))?;
            queue.has_thread = true;
        }
        let mut taken = 0;
        for &(offset, len) in extents {
            if queue.extents.len() >= self.most || queue.bytes >= self.budget {
                break;
            }
            taken += 1;
            if let Some(len) = self.useful(file, (offset, len), self.budget - queue.bytes) {
                queue.bytes += len;
                queue.extents.push_back(Extent { file: Arc::downgrade(file), offset, len });
            }
        }
        drop(queue);
        self.bell.notify_one();
        Ok(taken)
    }

    /// Reads the waiting extents on this thread.
    pub(crate) fn read_all(&self) {
        let mut left = self.queue.lock().bytes;
        while left > 0 {
            // The lock is released before anything is read: a check is foreign code, which may give
            // advice, too.
            let some = self.some(&mut self.queue.lock());
            let Some(some) = some else { return };
            left = left.saturating_sub(some.iter().map(|e| e.len).sum());
            read_guarded(&some);
        }
    }

    /// Makes the thread end.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.bell.notify_all();
    }

    /// Takes the next extents of one file, or the next piece of one that is too long to be read at
    /// once.
    fn some(&self, queue: &mut Queue) -> Option<Vec<Extent>> {
        let mut some: Vec<Extent> = Vec::new();
        let mut bytes = 0;
        while some.len() < TOGETHER
            && let Some(next) = queue.extents.front_mut()
            && some.first().is_none_or(|first| Weak::ptr_eq(&next.file, &first.file))
        {
            if next.len <= self.together - bytes {
                bytes += next.len;
                some.extend(queue.extents.pop_front());
                continue;
            }
            if some.is_empty() {
                // The piece ends at the border of a page, so that no page is read twice.
                let len = self.together - (next.offset % PAGE) as usize;
                some.push(Extent { file: next.file.clone(), offset: next.offset, len });
                (next.offset, next.len, bytes) = (next.offset + len as u64, next.len - len, len);
            }
            break;
        }
        queue.bytes -= bytes;
        (!some.is_empty()).then_some(some)
    }

    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let some = loop {
                if queue.ended {
                    return;
                }
                match self.some(&mut queue) {
                    Some(some) => break some,
                    None => queue = self.bell.wait(queue),
                }
            };
            drop(queue);
            read_guarded(&some);
        }
    }
}

/// Reads extents. The caller's check may panic: that affects the extents that it was asked about,
/// and no thread. The panic is counted for the process (`guard::panics`), as there is nobody else
/// to tell.
fn read_guarded(some: &[Extent]) {
    let _ = guard::call(ForeignCode::Thread, || read(some));
}

/// Reads extents of one file into the cache.
fn read(some: &[Extent]) {
    // The file stays open while it is read. A closed file is skipped.
    let Some(file) = some.first().and_then(|e| e.file.upgrade()).and_then(FileHandle::again) else { return };
    let within: Vec<(u64, usize)> =
        some.iter().map(|e| (e.offset, e.len)).filter(|&(at, len)| !file.is_beyond(at, len)).collect();
    let sum = within.iter().try_fold(0usize, |sum, &(_, len)| sum.checked_add(len));
    if let Some(mut out) = sum.and_then(|len| zeroed(len).ok())
        && file.owner.is_here()
    {
        // Errors are ignored here: a later reader gets them.
        let _ = file.gather_ranges(&within, &mut out);
    }
}
