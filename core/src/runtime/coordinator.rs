//! The one thread that looks after transfers nobody waits for. It sleeps in the kernel until an event is due.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::events::{Events, WAKE};
use super::station::Station;
use crate::error::{Error, Result};
use crate::pipe::queue::Queue;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// How long a completion whose event was lost stays unheard at most.
const LOOK_AGAIN_NS: u64 = 100_000_000;

pub(crate) struct Coordinator {
    events: Events,
    /// Somebody asked it to wake up, and it has not yet.
    woken: AtomicBool,
    /// When it will wake by itself, in nanoseconds since it began.
    sleeps_until: AtomicU64,
    /// When to look at everything that is under way; `u64::MAX` while nothing is.
    second_look: AtomicU64,
    stopping: AtomicBool,
    /// Threads that sleep until transfers of others end, of which nobody may wait for any.
    leaning: AtomicU64,
    watched: Mutex<Watched>,
    /// Held by the thread that does the work.
    driving: Mutex<()>,
    /// Another thread than our own does it.
    guest: Mutex<bool>,
    guest_left: Condvar,
}

/// Says that a thread sleeps until transfers of others end: while there is one, all that sets out is attended.
pub(crate) struct Leaning<'a>(&'a Coordinator);

impl Drop for Leaning<'_> {
    fn drop(&mut self) {
        self.0.leaning.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to do the coordinator's work.
pub(crate) struct Guest<'a> {
    coordinator: &'a Coordinator,
    _driving: MutexGuard<'a, ()>,
}

#[derive(Default)]
struct Watched {
    /// By descriptor.
    entries: HashMap<RawFd, Entry>,
    stations: Vec<Weak<Station>>,
}

struct Entry {
    whom: Whom,
    armed: bool,
}

enum Whom {
    Queue(Weak<Queue>),
    Other(Arc<dyn Attended>),
}

/// What an event is to say of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// There is something to read, or the other end is closed.
    Read,
    /// There is room to write.
    Write,
}

/// Something else with a descriptor that the coordinator looks after.
pub(crate) trait Attended: Send + Sync {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What was asked for is so. It is not told again unless it asks again.
    fn ready(self: Arc<Self>);
}

impl Coordinator {
    pub(crate) fn new() -> Result<Arc<Coordinator>> {
        Ok(Arc::new(Coordinator {
            events: Events::new()?,
            woken: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            second_look: AtomicU64::new(u64::MAX),
            stopping: AtomicBool::new(false),
            leaning: AtomicU64::new(0),
            watched: Mutex::new(Watched::default()),
            driving: Mutex::new(()),
            guest: Mutex::new(false),
            guest_left: Condvar::new(),
        }))
    }

    /// The runtime's clock.
    pub(crate) fn now(&self) -> u64 {
        self.events.now()
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_station(&self, station: &Arc<Station>) {
        self.watched().stations.push(Arc::downgrade(station));
    }

    /// Gets to know a queue. It is not looked after until [`attend`](Self::attend) is called.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<()> {
        let Some(fd) = queue.event() else { return Ok(()) };
        let mut watched = self.watched();
        self.events
            .add(fd, fd.as_raw_fd() as u64, None)
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a queue's event"))?;
        watched.entries.insert(fd.as_raw_fd(), Entry { whom: Whom::Queue(Arc::downgrade(queue)), armed: false });
        Ok(())
    }

    /// Forgets a queue, before its descriptor is closed.
    pub(crate) fn remove_queue(&self, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut watched = self.watched();
        watched.entries.remove(&fd.as_raw_fd());
        // It was added; were it not, there would be nothing to remove.
        let _ = self.events.remove(fd);
    }

    /// The next event of the queue wakes the coordinator.
    pub(crate) fn attend(&self, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut watched = self.watched();
        let Some(entry) = watched.entries.get_mut(&fd.as_raw_fd()) else { return };
        if !std::mem::replace(&mut entry.armed, true) {
            // It fails only for a descriptor that was not added, and this one is in the table.
            let _ = self.events.arm(fd, fd.as_raw_fd() as u64, Interest::Read);
        }
    }

    /// To be called before those are attended that are out already: either these are seen, or who submits more sees this.
    pub(crate) fn lean(&self) -> Leaning<'_> {
        self.leaning.fetch_add(1, Ordering::SeqCst);
        Leaning(self)
    }

    /// Whether somebody leans on the coordinator.
    pub(crate) fn is_leaned_on(&self) -> bool {
        self.leaning.load(Ordering::SeqCst) > 0
    }

    /// Has everything that is at a device looked at within [`LOOK_AGAIN_NS`]. Completions are told by events; this is for one
    /// whose event was lost (the kernel gives up what a thread submitted that ended meanwhile, a bell among it), and for requests
    /// that the kernel had no memory for when they were submitted.
    pub(crate) fn look_again(&self) {
        // Under schedules chosen at random a completion that nobody hears of must be found, not healed.
        if cfg!(shuttle) || self.second_look.load(Ordering::Relaxed) != u64::MAX {
            return;
        }
        let at = self.now() + LOOK_AGAIN_NS;
        if self.second_look.compare_exchange(u64::MAX, at, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.be_awake_at(at);
        }
    }

    /// It must be awake at this time.
    pub(crate) fn be_awake_at(&self, at: u64) {
        if at < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.events.call();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// The thread's work.
    pub(crate) fn run(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
            while *guest {
                guest = self.guest_left.wait(guest).unwrap_or_else(PoisonError::into_inner);
            }
            drop(guest);
            let _driving = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
            self.turn();
        }
    }

    /// Lets this thread do the work; None where another one does it already.
    pub(crate) fn host(&self) -> Option<Guest<'_>> {
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *guest, true) {
            return None;
        }
        drop(guest);
        // Our own thread lets go when it wakes up, and sleeps until the guest has left.
        self.wake();
        let driving = self.driving.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Guest { coordinator: self, _driving: driving })
    }

    /// Sleeps until something is due, and sees to it. The caller holds `driving`.
    fn turn(&self) {
        // Announced before the stations are asked, so that whoever names an earlier time after that wakes us.
        self.sleeps_until.store(u64::MAX, Ordering::SeqCst);
        let until = self.next_time();
        if let Some(until) = until {
            self.sleeps_until.store(until, Ordering::SeqCst);
        }
        let ready = self.events.wait(until);
        self.sleeps_until.store(0, Ordering::SeqCst);
        for name in ready {
            if name == WAKE {
                self.events.called();
                self.woken.store(false, Ordering::SeqCst);
                continue;
            }
            self.see_to(name as RawFd);
        }
        let now = self.now();
        let stations: Vec<_> = self.watched().stations.iter().filter_map(Weak::upgrade).collect();
        if self.second_look.load(Ordering::SeqCst) <= now {
            self.second_look.store(u64::MAX, Ordering::SeqCst);
            let mut left = false;
            for station in &stations {
                left |= station.look_at_all();
            }
            if left {
                self.look_again();
            }
        }
        for station in stations {
            if station.next_at().is_some_and(|at| at <= now) {
                station.go_on();
            }
        }
    }

    fn see_to(&self, fd: RawFd) {
        let mut watched = self.watched();
        let Some(entry) = watched.entries.get_mut(&fd) else { return };
        entry.armed = false;
        let queue = match &entry.whom {
            Whom::Queue(queue) => queue.upgrade(),
            Whom::Other(other) => {
                let other = other.clone();
                drop(watched);
                return other.ready();
            }
        };
        drop(watched);
        let Some(queue) = queue else { return };
        // An error is a broken queue, whose parts were told.
        if queue.attend().unwrap_or(false) {
            self.attend(&queue);
        }
    }

    /// Gets to know something else with a descriptor, which is kept until it is forgotten, and waits for its first event.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_other(&self, other: Arc<dyn Attended>) -> Result<()> {
        let raw = other.fd().as_raw_fd();
        let mut watched = self.watched();
        self.events
            .add(other.fd(), raw as u64, Some(Interest::Read))
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a descriptor"))?;
        watched.entries.insert(raw, Entry { whom: Whom::Other(other), armed: true });
        Ok(())
    }

    /// Waits for another event of it.
    pub(crate) fn attend_other(&self, other: &dyn Attended, interest: Interest) {
        let fd = other.fd();
        // It fails only where it was forgotten, and then nobody waits.
        let _ = self.events.arm(fd, fd.as_raw_fd() as u64, interest);
    }

    /// Forgets it, before its descriptor is closed.
    pub(crate) fn remove_other(&self, other: &dyn Attended) {
        let entry = self.watched().entries.remove(&other.fd().as_raw_fd());
        if entry.is_some() {
            let _ = self.events.remove(other.fd());
        }
        // Dropped without the lock: it may be the last one, with a pipe in it.
        drop(entry);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let entries = std::mem::take(&mut self.watched().entries);
        drop(entries);
    }

    fn next_time(&self) -> Option<u64> {
        let mut watched = self.watched();
        watched.stations.retain(|station| station.strong_count() > 0);
        let times = watched.stations.iter().filter_map(|station| station.upgrade()?.next_at());
        let second_look = Some(self.second_look.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX);
        times.chain(second_look).min()
    }
}

impl Guest<'_> {
    /// Sleeps until something is due, and sees to it.
    pub(crate) fn turn(&self) {
        self.coordinator.turn();
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        *self.coordinator.guest.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.coordinator.guest_left.notify_all();
    }
}
