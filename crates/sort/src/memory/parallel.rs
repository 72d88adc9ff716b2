//! Running one piece of work on several cores, and slices that they divide among themselves.

use std::marker::PhantomData;

use datapipes_core::locks::Mutex;
use datapipes_core::threads;

use crate::waits::{SortWait, SortWaits};

/// Calls `work` with 0..threads, each on a thread of its own, and returns when all calls have
/// returned. The caller's thread is one of them, and does the work of threads that the system
/// refuses to start.
pub(crate) fn run_on_threads(threads: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        let mut refused = threads;
        for t in 1..threads {
            let work = &work;
            if threads::spawn_scoped(scope, "sort", move || work(t)).is_err() {
                refused = t;
                break;
            }
        }
        (0..threads.min(1)).chain(refused..threads).for_each(&work);
    });
}

/// Calls `work` with 0..parts, each on a thread of its own, as one step of a sort on `threads`
/// threads. Those without a part count as idle, and so does each whose part is done, until all are.
pub(crate) fn run_parts(waits: &SortWaits, threads: usize, parts: usize, work: impl Fn(usize) + Sync) {
    let _others = waits.begin(SortWait::Idle, threads.saturating_sub(parts));
    let done = Mutex::new(Vec::with_capacity(parts));
    run_on_threads(parts, |part| {
        work(part);
        done.lock().push(waits.begin(SortWait::Idle, 1));
    });
}

/// A slice whose elements several threads write, never two of them the same element at once.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    whole: PhantomData<&'a mut [T]>,
}

// SAFETY: it gives out no reference by itself; callers of its unsafe methods promise not to alias.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), whole: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the elements `at..at + len`.
    ///
    /// # Safety
    /// While the result lives, no other reference reaches any of these elements.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "a part of a divided slice lies within it");
        // SAFETY: the part lies within the slice that `new` borrowed for 'a, and the caller
        // promises that no other reference reaches it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// `at` is within the slice, and no other thread reaches this element meanwhile.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn write(&self, at: usize, value: T)
    where
        T: Copy,
    {
        debug_assert!(at < self.len);
        // SAFETY: the caller promises that `at` is within the slice, and that no other thread
        // reaches it.
        unsafe { self.start.add(at).write(value) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn threads_without_a_part_are_idle_until_the_step_ends() {
        let waits = SortWaits::default();
        let begin = Instant::now();
        // Two parts for three threads. One thread has none, and the first part ends at once: after
        // a while the idle threads' time is more than that of one thread.
        run_parts(&waits, 3, 2, |part| {
            while part == 1 && waits.seconds(SortWait::Idle) < 1.5 * begin.elapsed().as_secs_f64() {
                assert!(begin.elapsed() < Duration::from_secs(60), "one thread at most was idle");
                std::thread::sleep(Duration::from_millis(1));
            }
            if part == 1 {
                let idle = waits.seconds(SortWait::Idle);
                assert!(idle <= 2.0 * begin.elapsed().as_secs_f64(), "{idle}: only two have no part");
            }
        });
        let idle = waits.seconds(SortWait::Idle);
        // After the last part all three are idle for a moment, which is long on a busy machine.
        assert!(idle <= 3.0 * begin.elapsed().as_secs_f64(), "{idle}");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(waits.seconds(SortWait::Idle), idle);
    }
}
