//! The events of a modelled kernel, for tests under chosen schedules: as `events.rs`, of which it
//! knows those descriptors that model devices declare readable. Time is a count of the questions
//! for it, and may jump to where somebody waits for it.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::event_source::Interest;
use crate::error::Result;
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) const WAKE: u64 = u64::MAX;

#[derive(Default)]
struct Kernel {
    readable: HashSet<RawFd>,
    /// By instance and descriptor: its name, and whether an event of it is waited for.
    known: HashMap<(u64, RawFd), (u64, bool)>,
    called: HashSet<u64>,
    instances: u64,
}

shuttle::lazy_static! {
    static ref KERNEL: Mutex<Kernel> = Mutex::new(Kernel::default());
    static ref CHANGED: Condvar = Condvar::new();
}

fn kernel() -> MutexGuard<'static, Kernel> {
    KERNEL.lock()
}

fn change(change: impl FnOnce(&mut Kernel)) {
    change(&mut kernel());
    CHANGED.notify_all();
}

/// Says whether a descriptor is readable.
#[cfg(test)]
pub(crate) fn set_readable(fd: RawFd, readable: bool) {
    change(|kernel| {
        if readable {
            kernel.readable.insert(fd);
        } else {
            kernel.readable.remove(&fd);
        }
    });
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

pub(super) struct Events {
    id: u64,
    now: AtomicU64,
}

impl Events {
    pub(super) fn new() -> Result<Events> {
        let mut kernel = kernel();
        kernel.instances += 1;
        Ok(Events { id: kernel.instances, now: AtomicU64::new(0) })
    }

    pub(super) fn now(&self) -> u64 {
        self.now.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, name: u64, interest: Option<Interest>) -> rustix::io::Result<()> {
        change(|kernel| _ = kernel.known.insert((self.id, fd.as_raw_fd()), (name, interest.is_some())));
        Ok(())
    }

    pub(super) fn arm(&self, fd: BorrowedFd<'_>, name: u64, _interest: Interest) -> rustix::io::Result<()> {
        change(|kernel| _ = kernel.known.insert((self.id, fd.as_raw_fd()), (name, true)));
        Ok(())
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        change(|kernel| _ = kernel.known.remove(&(self.id, fd.as_raw_fd())));
        Ok(())
    }

    pub(super) fn call(&self) -> bool {
        change(|kernel| _ = kernel.called.insert(self.id));
        true
    }

    pub(super) fn called(&self) {
        kernel().called.remove(&self.id);
    }

    /// The descriptor is a real one, of which the model hears nothing: it looks at it again and
    /// again.
    pub(super) fn wait_for(&self, fd: BorrowedFd<'_>) {
        while !is_readable(fd) {
            shuttle::thread::yield_now();
        }
    }

    pub(super) fn wait(&self, until: Option<u64>, beside: Option<BorrowedFd<'_>>) -> Vec<u64> {
        let mut state = kernel();
        loop {
            let Kernel { readable, known, called, .. } = &mut *state;
            let mut due: Vec<(RawFd, u64)> = Vec::new();
            for ((id, fd), (name, armed)) in known.iter_mut() {
                if *id == self.id && readable.contains(fd) && std::mem::replace(armed, false) {
                    due.push((*fd, *name));
                }
            }
            // A map has no order; a schedule that is repeated needs one.
            due.sort_unstable();
            let mut names: Vec<u64> = due.into_iter().map(|(_, name)| name).collect();
            if called.contains(&self.id) {
                names.push(WAKE);
            }
            if !names.is_empty() {
                return names;
            }
            if let Some(fd) = beside {
                if is_readable(fd) {
                    return names;
                }
                drop(state);
                shuttle::thread::yield_now();
                state = kernel();
                continue;
            }
            if let Some(until) = until {
                self.now.fetch_max(until, Ordering::Relaxed);
                drop(state);
                // Others may do something first.
                shuttle::thread::yield_now();
                return names;
            }
            state = CHANGED.wait(state);
        }
    }
}
