//! A device under the model: jobs go in, a thread completes them in any order, with the outcome that a test asks for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::backend::{Counters, Done, Job, Queued};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MapOptions, MemoryRange, Pages, Region};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, thread};

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    done: Vec<Done>,
    /// No job will follow: the device's thread ends when there is none left.
    over: bool,
    /// From now on `complete` fails.
    broken: bool,
    /// Jobs taken, at most, before the next is refused; for a device that refuses some.
    refuses_after: Option<usize>,
    /// Threads in `complete(wait)`, and the most there ever were.
    waiting: usize,
    most_waiting: usize,
}

/// Who is told whether a descriptor is readable.
type Tell = fn(RawFd, bool);

struct Parts {
    state: Mutex<State>,
    changed: Condvar,
    /// The descriptor by which events are known, and who is told that it is readable.
    event: Option<(OwnedFd, Tell)>,
    /// Jobs that begin here fail.
    bad: Option<u64>,
}

#[derive(Clone)]
pub(crate) struct Device(Arc<Parts>);

impl Device {
    /// One whose queue somebody has to wait in.
    pub(crate) fn new() -> Device {
        Device::with(None, None)
    }

    pub(crate) fn with(event: Option<Tell>, bad: Option<u64>) -> Device {
        // Any descriptor will do: it is only a name.
        let event = event.map(|tell| (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), tell));
        Device(Arc::new(Parts { state: Mutex::new(State::default()), changed: Condvar::new(), event, bad }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn tell(&self, readable: bool) {
        if let Some((fd, tell)) = &self.0.event {
            tell(fd.as_raw_fd(), readable);
        }
    }

    /// The device's own thread: completes what there is, in any order, until it is over and nothing is left.
    pub(crate) fn run(&self) -> thread::JoinHandle<()> {
        let device = self.clone();
        thread::spawn(move || while device.finish_one() {})
    }

    /// Completes any of the jobs; false when there will be none.
    fn finish_one(&self) -> bool {
        use shuttle::rand::{Rng, thread_rng};
        let mut state = self.lock();
        while state.jobs.is_empty() {
            if state.over {
                return false;
            }
            state = self.0.changed.wait(state).unwrap();
        }
        let nth = thread_rng().gen_range(0..state.jobs.len());
        let Job { token, span, source, target, .. } = state.jobs.remove(nth);
        drop((source, target));
        let bad = self.0.bad.is_some_and(|bad| span.source <= bad && bad < span.source + span.len);
        let result = if bad {
            let at = self.0.bad.unwrap_or_default();
            Err(Error::new(ErrorKind::Device, "read", "a bad spot").errno(5).offset(at).bytes_done(at - span.source))
        } else {
            Ok(())
        };
        state.done.push(Done { token, result });
        // With the lock, as the kernel: an answer is there and readable at once.
        self.tell(true);
        drop(state);
        self.0.changed.notify_all();
        true
    }

    pub(crate) fn refuse_after(&self, jobs: usize) {
        self.lock().refuses_after = Some(jobs);
    }

    /// The device is lost.
    pub(crate) fn break_down(&self) {
        self.lock().broken = true;
        self.tell(true);
        self.0.changed.notify_all();
    }

    pub(crate) fn over(&self) {
        self.lock().over = true;
        self.0.changed.notify_all();
    }

    pub(crate) fn most_waiting(&self) -> usize {
        self.lock().most_waiting
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.lock().jobs.len()
    }
}

impl Queued for Device {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let mut state = self.lock();
        if let Some(left) = &mut state.refuses_after {
            if *left == 0 {
                return Err((job, Error::new(ErrorKind::Busy, "submit", "the device takes no more")));
            }
            *left -= 1;
        }
        state.jobs.push(job);
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }

    fn submit_all(&self, jobs: &mut VecDeque<Job>) -> Result<()> {
        while let Some(job) = jobs.pop_front() {
            if let Err((job, error)) = self.submit(job) {
                jobs.push_front(job);
                return Err(error);
            }
        }
        Ok(())
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.0.event.as_ref().map(|(fd, _)| fd.as_fd())
    }

    fn complete(&self, wait: bool, done: &mut Vec<Done>) -> Result<()> {
        let mut state = self.lock();
        if wait {
            state.waiting += 1;
            state.most_waiting = state.most_waiting.max(state.waiting);
            while state.done.is_empty() && !state.jobs.is_empty() && !state.broken {
                state = self.0.changed.wait(state).unwrap();
            }
            state.waiting -= 1;
        }
        if state.broken {
            return Err(Error::new(ErrorKind::Device, "complete", "the device is gone"));
        }
        done.append(&mut state.done);
        self.tell(false);
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

pub(crate) fn memory(len: usize) -> MemoryRange {
    Region::map(len, MapOptions { pages: Pages::Small, prefault: false, node: None }).unwrap().range(0, len).unwrap()
}
