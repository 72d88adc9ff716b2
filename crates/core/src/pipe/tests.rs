//! The queue over a mover that completes from another thread, in any order, when the test says so.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::chain::{Chain, Stage};
use super::queue::Queue;
use crate::backend::{Counters, InlineMover, Job, JobCompletion, QueuedMover};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::Dram;
use crate::memory::{MapOptions, MemoryRange, Pages, Region};
use crate::plan::RouteShape;
use crate::span::{Bounds, Span};

#[derive(Default)]
struct State {
    /// Jobs at the device, in the order of their submission.
    jobs: Vec<Job>,
    done: Vec<JobCompletion>,
    /// Submissions are refused.
    full: bool,
    /// The device is lost.
    broken: bool,
    /// Threads inside `complete(wait)`, and the most there ever were.
    waiting: usize,
    most_waiting: usize,
}

/// The device and its mover: the test completes jobs, the queue fetches them.
#[derive(Clone, Default)]
struct Device(Arc<(Mutex<State>, Condvar)>);

impl Device {
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let result = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        result
    }

    /// Completes the job that was submitted as the `nth` of those outstanding; its leases end here.
    fn finish(&self, nth: usize, result: Result<()>) {
        self.with(|state| {
            let Job { token, source, target, .. } = state.jobs.remove(nth);
            drop((source, target));
            state.done.push(JobCompletion { token, result });
        });
    }

    /// Completes all jobs at once.
    fn finish_all(&self) {
        self.with(|state| {
            for Job { token, .. } in state.jobs.drain(..) {
                state.done.push(JobCompletion { token, result: Ok(()) });
            }
        });
    }

    fn outstanding(&self) -> usize {
        self.with(|state| state.jobs.len())
    }

    /// Returns when `n` jobs are outstanding.
    fn until_outstanding(&self, n: usize) {
        let (state, changed) = &*self.0;
        let patience = Duration::from_secs(30);
        let (mut state, waited) =
            changed.wait_timeout_while(state.lock().unwrap(), patience, |s| s.jobs.len() < n).unwrap();
        if waited.timed_out() {
            // Whoever waits for the device must end, or the test would not.
            state.broken = true;
            drop(state);
            changed.notify_all();
            panic!("never were {n} jobs outstanding");
        }
    }
}

impl QueuedMover for Device {
    #[allow(clippy::result_large_err)] // The job comes back whole.
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        self.with(|state| {
            if state.full {
                return Err((job, Error::new(ErrorKind::Busy, "submit", "the queue is full")));
            }
            state.jobs.push(job);
            Ok(())
        })
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting += 1;
        state.most_waiting = state.most_waiting.max(state.waiting);
        if wait {
            state = changed.wait_while(state, |s| s.done.is_empty() && !s.jobs.is_empty() && !s.broken).unwrap();
        }
        state.waiting -= 1;
        if state.broken {
            return Err(Error::new(ErrorKind::Device, "complete", "the device is gone"));
        }
        done.append(&mut state.done);
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn memory(len: usize) -> MemoryRange {
    Region::map(len, MapOptions { pages: Pages::Small, prefault: false, node: None }).unwrap().range(0, len).unwrap()
}

/// A queue from a device to 1000 bytes of memory.
fn reading() -> (Device, MemoryRange, Arc<Queue>) {
    let (device, target) = (Device::default(), memory(1000));
    let queue = Queue::new(Box::new(device.clone()), None, Some(target.clone()));
    (device, target, Arc::new(queue))
}

fn span(at: u64, len: u64) -> Span {
    Span { source: 77, target: at, len }
}

#[test]
fn waiters_get_their_own_result_whatever_the_order() {
    let (device, _, queue) = reading();
    const N: u64 = 6;
    let tokens: Vec<u64> = (0..N).map(|i| queue.submit(span(i * 10, 10)).unwrap()).collect();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let waiters: Vec<_> = tokens.iter().map(|token| scope.spawn(|| queue.wait(*token))).collect();
        // The last goes first, then from the middle; the odd ones fail.
        for nth in [5, 2, 0, 1, 1, 0] {
            let target = device.with(|state| state.jobs[nth].span.target);
            let failure = Error::new(ErrorKind::Device, "read", format!("at {target}")).with_bytes_done(target);
            device.finish(nth, if target / 10 % 2 == 1 { Err(failure) } else { Ok(()) });
            std::thread::yield_now();
        }
        waiters.into_iter().map(|w| w.join().unwrap()).collect()
    });
    for (i, result) in results.into_iter().enumerate() {
        match result {
            Ok(()) => assert_eq!(i % 2, 0),
            Err(e) => {
                assert!(i % 2 == 1 && e.bytes_done() == i as u64 * 10 && e.kind() == ErrorKind::Device, "{i}: {e}")
            }
        }
    }
    assert_eq!(device.with(|state| state.most_waiting), 1, "one completes, the others sleep");
    assert!(format!("{queue:?}").contains("0 transfers"));
}

#[test]
fn threads_that_submit_and_wait_at_once_all_end() {
    let (device, target, queue) = reading();
    let (threads, turns) = (4u64, if cfg!(miri) { 8 } else { 300 });
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let queue = &queue;
            scope.spawn(move || {
                (0..turns).for_each(|_| queue.wait(queue.submit(span(thread * 8, 8)).unwrap()).unwrap())
            });
        }
        for turn in 0..threads * turns {
            device.until_outstanding(1);
            // Not always the oldest.
            let n = device.outstanding();
            device.finish(turn as usize % n, Ok(()));
        }
    });
    assert!(target.lease_mut().is_ok());
}

#[test]
fn bytes_in_flight_are_leased_until_the_device_is_done() {
    let (device, target, queue) = reading();
    let token = queue.submit(span(100, 50)).unwrap();
    let busy = |at, len| target.range(at, len).unwrap().lease().is_err_and(|e| e.kind() == ErrorKind::Busy);
    assert!(busy(100, 1) && busy(149, 1) && !busy(99, 1) && !busy(150, 1));
    assert_eq!(queue.submit(span(149, 2)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(device.outstanding(), 1);
    // The handle is gone; the device may still write.
    queue.forget(token);
    assert!(busy(100, 50));
    device.finish(0, Ok(()));
    assert!(!busy(100, 50));
    // Its result is of interest to nobody, and must not be kept.
    let next = queue.submit(span(0, 1)).unwrap();
    device.finish(0, Ok(()));
    queue.wait(next).unwrap();
    assert!(format!("{queue:?}").contains("0 transfers"));
}

#[test]
fn a_forgotten_transfer_stands_in_nobodys_way() {
    let (device, _, queue) = reading();
    let (first, second) = (queue.submit(span(0, 10)).unwrap(), queue.submit(span(10, 10)).unwrap());
    device.finish(0, Ok(()));
    assert!(queue.is_done(first) && !queue.is_done(second));
    // Forgotten when it is finished already.
    queue.forget(first);
    assert_eq!(queue.wait(first).unwrap_err().kind(), ErrorKind::InvalidInput);
    device.finish(0, Err(Error::new(ErrorKind::EndOfFile, "read", "the end")));
    assert_eq!(queue.wait(second).unwrap_err().kind(), ErrorKind::EndOfFile);
    assert_eq!(queue.wait(second).unwrap_err().kind(), ErrorKind::InvalidInput, "a result is given once");
}

#[test]
fn a_queue_that_is_dropped_waits_for_the_device() {
    let (device, target, queue) = reading();
    let token = queue.submit(span(0, 1000)).unwrap();
    queue.forget(token);
    std::thread::scope(|scope| {
        let dropped = scope.spawn(move || drop(queue));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!dropped.is_finished(), "the device may still write, and its queue is gone");
        device.finish(0, Ok(()));
        dropped.join().unwrap();
    });
    assert!(target.lease_mut().is_ok());
}

#[test]
fn what_was_not_accepted_is_not_leased() {
    let (device, target, queue) = reading();
    device.with(|state| state.full = true);
    assert_eq!(queue.submit(span(0, 10)).unwrap_err().to_string(), "submit: the queue is full");
    assert!(target.lease_mut().is_ok() && format!("{queue:?}").contains("0 transfers"));
    for (at, len) in [(991, 10), (1001, 0), (u64::MAX, 1), (0, u64::MAX)] {
        assert_eq!(queue.submit(span(at, len)).unwrap_err().kind(), ErrorKind::OutOfRange, "{at} {len}");
    }
    device.with(|state| state.full = false);
    let token = queue.submit(span(1000, 0)).unwrap();
    device.finish(0, Ok(()));
    queue.wait(token).unwrap();
}

#[test]
fn a_broken_device_is_an_error_for_every_waiter() {
    let (device, _, queue) = reading();
    let tokens: Vec<u64> = (0..3).map(|i| queue.submit(span(i * 10, 10)).unwrap()).collect();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = tokens.iter().map(|token| scope.spawn(|| queue.wait(*token))).collect();
        device.with(|state| state.broken = true);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Device);
        }
    });
    assert!(queue.is_done(tokens[0]), "`wait` would not block");
}

/// Reads at once, and notes at each read how many jobs the device of the other hop has.
#[derive(Clone)]
struct Reads {
    device: Device,
    seen: Arc<Mutex<Vec<usize>>>,
    done: Arc<Mutex<Vec<JobCompletion>>>,
}

impl Reads {
    fn note(&self) {
        self.seen.lock().unwrap().push(self.device.outstanding());
    }
}

impl InlineMover for Reads {
    fn transfer(&self, _: Span) -> Result<()> {
        self.note();
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

impl QueuedMover for Reads {
    #[allow(clippy::result_large_err)] // The job comes back whole.
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        self.note();
        self.done.lock().unwrap().push(JobCompletion { token: job.token, result: Ok(()) });
        Ok(())
    }

    fn complete(&self, _: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        done.append(&mut self.done.lock().unwrap());
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn a_buffer_that_was_filled_is_emptied_while_the_next_is_filled() {
    for is_queued in [false, true] {
        let device = Device::default();
        let reads = Reads { device: device.clone(), seen: Arc::default(), done: Arc::default() };
        let seen = reads.seen.clone();
        let region = Region::map(8192, MapOptions::default().pages(Pages::Small)).unwrap();
        let buffers = [0, 4096].map(|at| Dram::over(region.range(at, 4096).unwrap())).to_vec();
        let whole = region.range(0, 8192).unwrap();
        let up = match is_queued {
            true => Stage::Queued(Arc::new(Queue::new(Box::new(reads), None, Some(whole.clone())))),
            false => Stage::Inline(Box::new(reads)),
        };
        let down = Queue::new(Box::new(device.clone()), Some(whole), None);
        let chain = Chain::new(RouteShape::Bounce, vec![up, Stage::Queued(Arc::new(down))], buffers);
        let bounds = Bounds { source: u64::MAX, target: u64::MAX, one_file: None };
        let span = bounds.check(Span { source: 0, target: 0, len: 4 * 4096 }).unwrap();
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| chain.transfer(span));
            for left in (0..4).rev() {
                // The last piece is alone; otherwise the next one is under way as well.
                device.until_outstanding(if left == 0 { 1 } else { 2 });
                device.finish(0, Ok(()));
            }
            moving.join().unwrap().unwrap();
        });
        // With each read but the first, the write of the piece before it is under way.
        assert_eq!(*seen.lock().unwrap(), [0, 1, 1, 1]);
    }
}

#[test]
fn what_is_read_while_a_write_is_under_way_is_written_at_once() {
    let (source, target) = (Device::default(), Device::default());
    let region = Region::map(8192, MapOptions::default().pages(Pages::Small)).unwrap();
    let buffers = [0, 4096].map(|at| Dram::over(region.range(at, 4096).unwrap())).to_vec();
    let whole = region.range(0, 8192).unwrap();
    let up = Queue::new(Box::new(source.clone()), None, Some(whole.clone()));
    let down = Queue::new(Box::new(target.clone()), Some(whole), None);
    let stages = [up, down].map(|queue| Stage::Queued(Arc::new(queue)));
    let chain = Chain::new(RouteShape::Bounce, stages.into(), buffers);
    let bounds = Bounds { source: u64::MAX, target: u64::MAX, one_file: None };
    let span = bounds.check(Span { source: 0, target: 0, len: 4 * 4096 }).unwrap();
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| chain.transfer(span));
        // Both buffers are filled at once, and each is emptied as soon as it is full.
        source.until_outstanding(2);
        source.finish(0, Ok(()));
        target.until_outstanding(1);
        source.finish(0, Ok(()));
        target.until_outstanding(2);
        while !moving.is_finished() {
            for device in [&source, &target].into_iter().filter(|device| device.outstanding() > 0) {
                device.finish(0, Ok(()));
            }
            std::thread::yield_now();
        }
        moving.join().unwrap().unwrap();
    });
}

/// A hop that works on this thread gets one buffer, and the next one is filled before it gets
/// another.
#[test]
fn a_free_buffer_is_filled_before_another_is_handed_on() {
    struct Writes(Device, Arc<Mutex<Vec<usize>>>);
    impl InlineMover for Writes {
        fn transfer(&self, _: Span) -> Result<()> {
            self.1.lock().unwrap().push(self.0.outstanding());
            Ok(())
        }
        fn counters(&self) -> Counters {
            Counters::default()
        }
    }
    let (source, seen) = (Device::default(), Arc::default());
    let region = Region::map(8192, MapOptions::default().pages(Pages::Small)).unwrap();
    let buffers = [0, 4096].map(|at| Dram::over(region.range(at, 4096).unwrap())).to_vec();
    let up = Queue::new(Box::new(source.clone()), None, Some(region.range(0, 8192).unwrap()));
    let down = Stage::Inline(Box::new(Writes(source.clone(), Arc::clone(&seen))));
    let chain = Chain::new(RouteShape::Bounce, vec![Stage::Queued(Arc::new(up)), down], buffers);
    let bounds = Bounds { source: u64::MAX, target: u64::MAX, one_file: None };
    let span = bounds.check(Span { source: 0, target: 0, len: 4 * 4096 }).unwrap();
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| chain.transfer(span));
        source.until_outstanding(2);
        // Both are over before one is looked at.
        source.finish_all();
        source.until_outstanding(2);
        source.finish_all();
        moving.join().unwrap().unwrap();
    });
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert_eq!(seen.lock().unwrap()[1], 1, "the first buffer was filled again before the second was emptied");
}
