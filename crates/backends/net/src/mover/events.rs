//! What wakes a thread that waits for a mover, behind one descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use datapipes_core::{Error, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// How often somebody who waits on the descriptor looks while jobs are open: UCX does not tell that
/// a full queue of the peer has room again, and patience has an end.
const TICK: Duration = Duration::from_millis(20);

const UCX: u64 = 0;
const CONTROL: u64 = 1;
const RESULTS: u64 = 2;
const TICKS: u64 = 3;

/// The descriptors of a mover.
pub(super) struct MoverEvents {
    epoll: OwnedFd,
    /// Readable while there are results that nobody has taken.
    results: OwnedFd,
    ticks: OwnedFd,
}

/// The descriptors that were ready and that a mover looks after itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    /// The control connection: the end of the export.
    pub(super) control: bool,
    pub(super) tick: bool,
    /// The event of UCX.
    pub(super) ucx: bool,
}

impl MoverEvents {
    /// Watches the event of a worker and the control connection.
    ///
    /// # Errors
    /// Errors of making descriptors.
    pub(super) fn over(worker: BorrowedFd<'_>, control: BorrowedFd<'_>) -> Result<MoverEvents> {
        let os = |e: Errno| Error::os("connect", e.raw_os_error(), "the events of remote memory");
        let events = MoverEvents {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?,
            results: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?,
            ticks: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
                .map_err(os)?,
        };
        for (fd, name) in
            [(worker, UCX), (control, CONTROL), (events.results.as_fd(), RESULTS), (events.ticks.as_fd(), TICKS)]
        {
            epoll::add(&events.epoll, fd, EventData::new_u64(name), EventFlags::IN).map_err(os)?;
        }
        Ok(events)
    }

    /// Readable while one of them is.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits, for at most this long.
    pub(super) fn wait(&self, timeout: Duration) -> Ready {
        let mut found = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 4];
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut ready = Ready::default();
        // After an error (a signal) the caller looks again.
        if let Ok((found, _)) = epoll::wait(&self.epoll, &mut found[..], Some(&timeout)) {
            for event in found.iter() {
                match event.data.u64() {
                    CONTROL => ready.control = true,
                    TICKS => ready.tick = true,
                    UCX => ready.ucx = true,
                    _ => {}
                }
            }
        }
        ready
    }

    /// Makes the descriptor readable for results, or no longer.
    pub(super) fn show_results(&self, there_are: bool) {
        // Both fail only where there is nothing to change.
        if there_are {
            let _ = rustix::io::write(&self.results, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.results, &mut [0; 8]);
        }
    }

    /// Ticks, or does not.
    pub(super) fn set_ticking(&self, ticks: bool) {
        let time = if ticks { TICK } else { Duration::ZERO };
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
        let _ =
            timerfd_settime(&self.ticks, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: time, it_value: time });
    }

    /// Takes a tick, so that the descriptor is no longer readable for it.
    pub(super) fn take_tick(&self) {
        let _ = rustix::io::read(&self.ticks, &mut [0; 8]);
    }
}
