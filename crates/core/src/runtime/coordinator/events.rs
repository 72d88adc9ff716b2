//! What wakes the coordinator: descriptors, a time, other threads. Here it is the kernel's epoll;
//! with `--cfg shuttle` the file `events_model.rs` stands in its place.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::event_source::Interest;
use crate::error::{Error, Result};

/// The name of the event by which others wake it.
pub(super) const WAKE: u64 = u64::MAX;

/// How often it looks at what there is without events.
const BLIND: Duration = Duration::from_millis(10);

pub(super) struct Events {
    epoll: OwnedFd,
    wake: OwnedFd,
    begun: Instant,
}

impl Events {
    pub(super) fn new() -> Result<Events> {
        let os = |what: &'static str| move |e: Errno| Error::os("start the runtime", e.raw_os_error(), what);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("epoll_create"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("eventfd"))?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN).map_err(os("epoll_ctl"))?;
        Ok(Events { epoll, wake, begun: Instant::now() })
    }

    /// Nanoseconds since it began.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Gets to know a descriptor, by a name; without an interest it waits for nothing yet.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, name: u64, interest: Option<Interest>) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(name), interest.map_or(EventFlags::ONESHOT, flags))
    }

    /// Waits for one more event of it.
    pub(super) fn arm(&self, fd: BorrowedFd<'_>, name: u64, interest: Interest) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, fd, EventData::new_u64(name), flags(interest))
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        epoll::delete(&self.epoll, fd)
    }

    /// Makes the event [`WAKE`] due. False where that is impossible, because somebody closed the
    /// descriptor, as daemons do that close all: who sleeps now sleeps on.
    pub(super) fn call(&self) -> bool {
        // It fails also when the counter would overflow, and then it is due.
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()) != Err(Errno::BADF)
    }

    /// The event [`WAKE`] was seen.
    pub(super) fn called(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
    }

    /// Sleeps until an event is due, or the time comes, or another descriptor is readable; gives
    /// the names of the events.
    pub(super) fn wait(&self, until: Option<u64>, beside: Option<BorrowedFd<'_>>) -> Vec<u64> {
        let mut timeout = until.map(|at| {
            let ns = at.saturating_sub(self.now());
            Timespec { tv_sec: (ns / 1_000_000_000).cast_signed(), tv_nsec: (ns % 1_000_000_000).cast_signed() }
        });
        if let Some(beside) = beside {
            let mut fds = [PollFd::from_borrowed_fd(beside, PollFlags::IN), PollFd::new(&self.epoll, PollFlags::IN)];
            // Interrupted, or short of memory: there may be events all the same.
            let _ = poll(&mut fds, timeout.as_ref());
            timeout = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let mut events = [const { MaybeUninit::uninit() }; 32];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready.iter().map(|event| event.data.u64()).collect(),
            Err(Errno::INTR) => Vec::new(),
            // Somebody closed the descriptor. Then there are no events but times and what other
            // threads say, for which it looks now and then.
            Err(_) => {
                let left = until.map_or(BLIND, |at| Duration::from_nanos(at.saturating_sub(self.now())));
                std::thread::sleep(left.min(BLIND));
                Vec::new()
            }
        }
    }

    /// Sleeps until a descriptor is readable.
    pub(super) fn wait_for(&self, fd: BorrowedFd<'_>) {
        // Interrupted, or short of memory: the caller looks again.
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None);
    }
}

fn flags(interest: Interest) -> EventFlags {
    EventFlags::ONESHOT
        | match interest {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
        }
}
