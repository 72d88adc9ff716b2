//! Reads to come: extents of which somebody says that they will be wanted are read and cached by a thread of the pool's.
//!
//! The thread begins with the first word of this kind, and ends with the pool. Extents wait in a queue of a fixed length; what finds
//! it full is not taken. It is advice: an extent that cannot be read is met again by whoever reads it.

use std::collections::VecDeque;
use std::sync::Weak;

use datapipes_core::guard::{self, Foreign};
use datapipes_core::{Error, Result};

use crate::fine::{FineGrained, Inner};
use crate::sync::{Arc, Condvar, Mutex, PoisonError, lock};

/// Extents that wait at most.
const MOST: usize = 4096;
/// Extents that are read together.
const TOGETHER: usize = 64;
/// Bytes that are read together, unless one extent has more.
const BYTES: usize = 256 << 10;

/// An extent of a file, which is not kept open by it.
struct Extent {
    file: Weak<Inner>,
    offset: u64,
    len: usize,
}

#[derive(Default)]
struct Queue {
    extents: VecDeque<Extent>,
    has_thread: bool,
    ended: bool,
}

/// Extents that will be wanted.
#[derive(Default)]
pub(crate) struct Ahead {
    queue: Mutex<Queue>,
    bell: Condvar,
}

impl Ahead {
    /// Takes extents, as far as there is room; returns how many. With `thread`, they are read by one.
    ///
    /// # Errors
    /// What starting a thread meets.
    pub(crate) fn take(self: &Arc<Ahead>, file: &Arc<Inner>, extents: &[(u64, usize)], thread: bool) -> Result<usize> {
        let mut queue = lock(&self.queue);
        if thread && !queue.has_thread && !extents.is_empty() {
            let own = self.clone();
            std::thread::Builder::new()
                .name("fine-prefetch".into())
                .spawn(move || own.run())
                .map_err(|e| Error::io("start", &e, "the thread of a cache that reads ahead"))?;
            queue.has_thread = true;
        }
        let taken = extents.len().min(MOST - queue.extents.len().min(MOST));
        let some = extents[..taken].iter();
        queue.extents.extend(some.map(|&(offset, len)| Extent { file: Arc::downgrade(file), offset, len }));
        drop(queue);
        self.bell.notify_one();
        Ok(taken)
    }

    /// Reads what waits now, on this thread.
    pub(crate) fn read_all(&self) {
        let mut left = lock(&self.queue).extents.len();
        while left > 0 {
            // Let go of before anything is read: a check is code of others, which may give advice, too.
            let some = self.some(&mut lock(&self.queue));
            let Some(some) = some else { return };
            left = left.saturating_sub(some.len());
            read_guarded(&some);
        }
    }

    /// The thread ends.
    pub(crate) fn end(&self) {
        lock(&self.queue).ended = true;
        self.bell.notify_all();
    }

    /// The next extents, all of one file.
    fn some(&self, queue: &mut Queue) -> Option<Vec<Extent>> {
        let first = queue.extents.pop_front()?;
        let (mut some, mut bytes) = (vec![first], 0usize);
        while some.len() < TOGETHER
            && let Some(next) = queue.extents.front()
            && Weak::ptr_eq(&next.file, &some[0].file)
        {
            bytes = bytes.saturating_add(next.len);
            if bytes > BYTES {
                break;
            }
            some.extend(queue.extents.pop_front());
        }
        Some(some)
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

/// A check of the caller's may panic: that harms the extents that it was asked about, and no thread. It is counted for the whole
/// process (`guard::panics`): there is nobody else to tell.
fn read_guarded(some: &[Extent]) {
    let _ = guard::call(Foreign::Thread, || read(some));
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
