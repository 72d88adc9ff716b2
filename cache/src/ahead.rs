//! Reads to come: extents of which somebody says that they will be wanted are read and cached by a
//! thread of the pool's.
//!
//! The thread begins with the first word of this kind, and ends with the pool. Extents wait in a
//! queue of a fixed length, which has no more bytes of files than the budget; what finds it full is
//! not taken. They are read in pieces, into a part of the budget that is set aside. It is advice:
//! an extent that cannot be read is met again by whoever reads it.

use std::collections::VecDeque;
use std::sync::Weak;

use datapipes_core::guard::{self, ForeignCode};
use datapipes_core::{Error, ErrorKind, Result};

use crate::fine::{FineGrained, Inner};
use crate::store::PAGE;
use crate::sync::{Arc, Condvar, Mutex, PoisonError, lock};

/// Extents that wait at most.
const MAX_PREFETCH_EXTENTS: usize = 4096;
/// Extents that are read together.
const TOGETHER: usize = 64;
/// Bytes that are read together at most, and at least.
const BYTES: [usize; 2] = [4 * PAGE as usize, 256 << 10];
/// The part of the budget for bytes that are read together.
const BYTES_PART: usize = 128;
/// The part of the budget for extents that wait.
const QUEUE_PART: usize = 256;

/// An extent of a file, which is not kept open by it.
struct Extent {
    file: Weak<Inner>,
    offset: u64,
    len: usize,
}

#[derive(Default)]
struct Queue {
    /// Of a fixed capacity, once there was one.
    extents: VecDeque<Extent>,
    /// Of all of them together.
    bytes: usize,
    has_thread: bool,
    ended: bool,
}

/// Extents that will be wanted.
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// Bytes of files that are wanted at most: more would go again before they are read.
    budget: usize,
    /// Bytes that are read together.
    together: usize,
    /// Extents that wait.
    most: usize,
}

impl Ahead {
    /// In a part of a budget.
    pub(crate) fn within(budget: usize) -> Ahead {
        Ahead {
            queue: Mutex::default(),
            bell: Condvar::new(),
            budget,
            together: (budget / BYTES_PART).clamp(BYTES[0], BYTES[1]) / PAGE as usize * PAGE as usize,
            most: (budget / QUEUE_PART / size_of::<Extent>()).clamp(TOGETHER, MAX_PREFETCH_EXTENTS),
        }
    }

    /// Bytes that it takes at most.
    pub(crate) fn most_bytes(&self) -> usize {
        self.together + self.most * size_of::<Extent>()
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        match lock(&self.queue).extents.capacity() {
            0 => 0,
            some => self.together + some * size_of::<Extent>(),
        }
    }

    /// What is of use of an extent, where as many bytes are left: none of one that is not within
    /// the file, and nothing but all of one that is to be checked.
    fn useful(&self, file: &Inner, (offset, len): (u64, usize), left: usize) -> Option<usize> {
        let checked = file.options.verify.is_some();
        let is_read = len > 0 && !file.is_beyond(offset, len) && (!checked || len <= self.together);
        is_read.then(|| if checked { len } else { len.min(left) })
    }

    /// Takes extents, as far as there is room; returns how many. With `thread`, they are read by
    /// one.
    ///
    /// # Errors
    /// What starting a thread meets; `OutOfMemory` where there is none for the queue.
    pub(crate) fn take(self: &Arc<Ahead>, file: &Arc<Inner>, extents: &[(u64, usize)], thread: bool) -> Result<usize> {
        let mut queue = lock(&self.queue);
        if queue.extents.capacity() == 0 && !extents.is_empty() {
            let refused =
                |_| Error::new(ErrorKind::OutOfMemory, "read ahead", format!("a queue of {} extents", self.most));
            queue.extents.try_reserve_exact(self.most).map_err(refused)?;
        }
        if thread && !queue.has_thread && !extents.is_empty() {
            let own = self.clone();
            std::thread::Builder::new()
                .name("fine-prefetch".into())
                .spawn(move || own.run())
                .map_err(|e| Error::io("start", &e, "the thread of a cache that reads ahead"))?;
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

    /// Reads what waits now, on this thread.
    pub(crate) fn read_all(&self) {
        let mut left = lock(&self.queue).bytes;
        while left > 0 {
            // Let go of before anything is read: a check is code of others, which may give advice,
            // too.
            let some = self.some(&mut lock(&self.queue));
            let Some(some) = some else { return };
            left = left.saturating_sub(some.iter().map(|e| e.len).sum());
            read_guarded(&some);
        }
    }

    /// The thread ends.
    pub(crate) fn end(&self) {
        lock(&self.queue).ended = true;
        self.bell.notify_all();
    }

    /// The next extents, all of one file, or the next piece of one that is too long to be read at
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
                // Up to the border of a page, so that no page is read twice.
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
            let mut queue = lock(&self.queue);
            let some = loop {
                if queue.ended {
                    return;
                }
                match self.some(&mut queue) {
                    Some(some) => break some,
                    None => queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            read_guarded(&some);
        }
    }
}

/// A check of the caller's may panic: that harms the extents that it was asked about, and no
/// thread. It is counted for the whole process (`guard::panics`): there is nobody else to tell.
fn read_guarded(some: &[Extent]) {
    let _ = guard::call(ForeignCode::Thread, || read(some));
}

/// Reads extents of one file into the cache.
fn read(some: &[Extent]) {
    // Open while it is read; one that is closed is left alone.
    let Some(fine) = some.first().and_then(|e| e.file.upgrade()).and_then(FineGrained::again) else { return };
    let within: Vec<(u64, usize)> =
        some.iter().map(|e| (e.offset, e.len)).filter(|&(at, len)| !fine.0.is_beyond(at, len)).collect();
    let sum = within.iter().try_fold(0usize, |sum, &(_, len)| sum.checked_add(len));
    if let Some(mut out) = sum.and_then(|len| crate::fine::zeroed(len).ok()) {
        // Whoever reads what could not be read hears why.
        let _ = fine.gather_ranges(&within, &mut out);
    }
}
