//! A device under the model: jobs go in, a thread completes them in any order, with the outcome
//! that a test asks for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;

use crate::backend::{CompletionNotifier, Counters, Job, JobCompletion, QueuedMover};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MapOptions, MemoryRange, Pages, Region};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, thread};

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    done: Vec<JobCompletion>,
    /// No job will follow: the device's thread ends when there is none left.
    over: bool,
    /// From now on `complete` fails.
    broken: bool,
    /// Jobs taken, at most, before the next is refused; for a device that refuses some.
    refuses_after: Option<usize>,
    /// Bells of jobs that are done, for which no byte was sent yet.
    to_ring: Vec<Arc<CompletionNotifier>>,
    /// Bells whose byte was sent, or could not be, of which nobody heard yet.
    rung: Vec<(Arc<CompletionNotifier>, bool)>,
    /// Threads in `complete(wait)`, and the most there ever were.
    waiting: usize,
    most_waiting: usize,
}

/// Who is told whether a descriptor is readable.
pub(crate) type Tell = fn(RawFd, bool);

struct Parts {
    state: Mutex<State>,
    changed: Condvar,
    /// The descriptor by which events are known, and who is told that it is readable.
    event: Option<(OwnedFd, Tell)>,
    /// Jobs that begin here fail.
    bad: Option<u64>,
    /// It rings the notifiers of its jobs.
    rings: bool,
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
        Device(Arc::new(Parts {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            event,
            bad,
            rings: false,
        }))
    }

    /// One that sends a byte behind each job that has a notifier.
    pub(crate) fn ringing(tell: Tell) -> Device {
        let event = Some((eventfd(0, EventfdFlags::CLOEXEC).unwrap(), tell));
        let (state, changed) = (Mutex::new(State::default()), Condvar::new());
        Device(Arc::new(Parts { state, changed, event, bad: None, rings: true }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    fn tell(&self, readable: bool) {
        if let Some((fd, tell)) = &self.0.event {
            tell(fd.as_raw_fd(), readable);
        }
    }

    /// The device's own thread: completes what there is, in any order, until it is over and nothing
    /// is left.
    pub(crate) fn run(&self) -> thread::JoinHandle<()> {
        let device = self.clone();
        thread::spawn(move || while device.finish_one() {})
    }

    /// Completes any of the jobs, or rings a notifier behind one; false when there will be none.
    fn finish_one(&self) -> bool {
        use shuttle::rand::{Rng, thread_rng};
        let mut state = self.lock();
        while state.jobs.is_empty() && state.to_ring.is_empty() {
            if state.over {
                return false;
            }
            state = self.0.changed.wait(state);
        }
        let nth = thread_rng().gen_range(0..state.jobs.len() + state.to_ring.len());
        if nth >= state.jobs.len() {
            let nth = nth - state.jobs.len();
            self.ring(state, nth);
            return true;
        }
        let Job { token, span, source, target, notifier, .. } = state.jobs.remove(nth);
        drop((source, target));
        state.to_ring.extend(notifier.filter(|_| self.0.rings));
        let bad = self.0.bad.is_some_and(|bad| span.source <= bad && bad < span.source + span.len);
        let result = if bad {
            let at = self.0.bad.unwrap_or_default();
            Err(Error::new(ErrorKind::Device, "read", "a bad spot")
                .with_errno(5)
                .with_offset(at)
                .with_bytes_done(at - span.source))
        } else {
            Ok(())
        };
        state.done.push(JobCompletion { token, result });
        // With the lock, as the kernel: an answer is there and readable at once.
        self.tell(true);
        drop(state);
        self.0.changed.notify_all();
        true
    }

    /// Sends a byte behind a job that is done. The kernel cannot where the thread that submitted it
    /// has ended; here, where its completion was taken note of, so that nobody depends on the
    /// second look, which the model does not have.
    fn ring(&self, mut state: MutexGuard<'_, State>, nth: usize) {
        use shuttle::rand::{Rng, thread_rng};
        let notifier = state.to_ring.swap_remove(nth);
        let fails = state.done.is_empty() && thread_rng().gen_ratio(1, 2);
        let sent =
            !fails && rustix::net::send(notifier.socket(), CompletionNotifier::BYTE, SendFlags::NOSIGNAL).is_ok();
        state.rung.push((notifier, sent));
        self.tell(true);
        drop(state);
        self.0.changed.notify_all();
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

impl QueuedMover for Device {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let mut state = self.lock();
        if let Some(left) = &mut state.refuses_after {
            if *left == 0 {
                return Err((job, Error::new(ErrorKind::Busy, "submit", "the device takes no more")));
            }
            *left -= 1;
        }
        if let Some(notifier) = job.notifier.as_ref().filter(|_| self.0.rings) {
            notifier.count();
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

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let mut state = self.lock();
        if wait {
            state.waiting += 1;
            state.most_waiting = state.most_waiting.max(state.waiting);
            while state.done.is_empty() && !state.jobs.is_empty() && !state.broken {
                state = self.0.changed.wait(state);
            }
            state.waiting -= 1;
        }
        if state.broken {
            return Err(Error::new(ErrorKind::Device, "complete", "the device is gone"));
        }
        done.append(&mut state.done);
        let rung = std::mem::take(&mut state.rung);
        self.tell(false);
        drop(state);
        for (notifier, sent) in rung {
            if sent { notifier.sent() } else { notifier.uncount() }
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

pub(crate) fn memory(len: usize) -> MemoryRange {
    Region::map(len, MapOptions { pages: Pages::Small, prefault: false, node: None }).unwrap().range(0, len).unwrap()
}
