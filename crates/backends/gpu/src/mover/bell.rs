//! What wakes a thread that waits for a mover: a descriptor that the driver makes readable.
//!
//! Unsafe code: a function that the driver calls, once for each call that it was asked for, with a
//! reference that it then drops.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datapipes_core::{Error, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::driver::stream::{Event, Stream};
use crate::driver::{Driver, Failure};

/// How often somebody who waits on the descriptor looks while jobs are open: of a device that is
/// lost the driver calls nobody.
const TICK: Duration = Duration::from_millis(50);

/// The descriptors of a mover, behind one.
pub(super) struct MoverEvents {
    epoll: OwnedFd,
    results: Arc<OwnedFd>,
    ticks: OwnedFd,
}

impl MoverEvents {
    /// Makes them.
    ///
    /// # Errors
    /// Errors of making descriptors.
    pub(super) fn new() -> Result<MoverEvents> {
        let os = |e: Errno| Error::os("connect", e.raw_os_error(), "the events of a GPU's copies");
        let events = MoverEvents {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?,
            results: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os)?),
            ticks: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
                .map_err(os)?,
        };
        for fd in [events.results.as_fd(), events.ticks.as_fd()] {
            epoll::add(&events.epoll, fd, EventData::new_u64(0), EventFlags::IN).map_err(os)?;
        }
        Ok(events)
    }

    /// A bell that makes the descriptor readable.
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::new(Bell { results: self.results.clone(), is_armed: AtomicBool::new(false) })
    }

    /// Readable while there is something to look at.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Waits for at most this long.
    pub(super) fn wait(&self, timeout: Duration) {
        // `epoll_wait` counts in milliseconds.
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        // After an error (a signal) the caller looks again.
        let _ = poll(&mut fds, Some(&timeout));
    }

    /// Makes the descriptor readable.
    pub(super) fn show(&self) {
        ring(&self.results);
    }

    /// Makes it readable only for what comes from now on.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&*self.results, &mut [0; 8]);
        let _ = rustix::io::read(&self.ticks, &mut [0; 8]);
    }

    /// Ticks, or does not.
    pub(super) fn set_ticking(&self, ticks: bool) {
        let time = if ticks { TICK } else { Duration::ZERO };
        let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        let _ =
            timerfd_settime(&self.ticks, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: time, it_value: time });
    }
}

fn ring(results: &OwnedFd) {
    // It fails only where the descriptor is readable already.
    let _ = rustix::io::write(results, &1u64.to_ne_bytes());
}

/// Rings when the device has come to an event.
pub(super) struct Bell {
    results: Arc<OwnedFd>,
    /// The driver was asked to call, and has not.
    is_armed: AtomicBool,
}

impl Bell {
    /// Has the driver ring when the event is over, unless it is to ring already. `stream` is for
    /// this alone, so that no copy waits for the call.
    ///
    /// # Errors
    /// Those of the driver. The context must be current.
    pub(super) fn arm(self: &Arc<Bell>, driver: &Driver, stream: &Stream, event: &Event) -> Result<(), Failure> {
        if self.is_armed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let value = Arc::into_raw(self.clone()).cast_mut().cast();
        // SAFETY: `call_back` takes the reference that `value` is, calls nothing of the driver, and
        // cannot unwind.
        let asked = stream.wait_for(driver, event).and_then(|()| unsafe { stream.call(driver, call_back, value) });
        if asked.is_err() {
            // SAFETY: the driver refused the call, so the reference is still this function's.
            drop(unsafe { Arc::from_raw(value.cast::<Bell>().cast_const()) });
            self.is_armed.store(false, Ordering::SeqCst);
        }
        asked
    }
}

/// What the driver calls, on a thread of its own.
unsafe extern "C" fn call_back(value: *mut c_void) {
    // SAFETY: the value is the reference that `arm` made for this call.
    let bell = unsafe { Arc::from_raw(value.cast::<Bell>().cast_const()) };
    // Before the write: whoever is woken by it may arm the bell again.
    bell.is_armed.store(false, Ordering::SeqCst);
    ring(&bell.results);
}
