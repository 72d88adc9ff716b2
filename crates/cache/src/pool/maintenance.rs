//! The maintenance thread (Pipette, section 3.2.3): it watches evictions, moves slabs, applies the
//! time to live and looks for changes from outside.
//!
//! In the paper a second thread moves slabs. Here a move holds one shard's lock for some
//! microseconds, so the first thread does it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use datapipes_core::process::OwningProcess;
use datapipes_core::threads;
use datapipes_core::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Pool;
use crate::config::ExternalChanges;
use crate::sync::{Arc, Weak};

/// How often it looks, unless settings need shorter intervals.
const TICK: Duration = Duration::from_millis(100);

/// The smallest counter value that makes the thread end. A lower value makes it look again.
const STOP: u64 = 1 << 32;

/// A handle of the thread, which ends when this is dropped.
pub(crate) struct Maintenance {
    stop: Arc<OwnedFd>,
    owner: OwningProcess,
}

impl Maintenance {
    pub(crate) fn start(pool: &Arc<Pool>) -> Result<Maintenance> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("start", e.raw_os_error(), "the maintenance thread of a cache"))?;
        let stop = Arc::new(stop);
        let (weak, theirs) = (Arc::downgrade(pool), stop.clone());
        threads::spawn("fine-background", move || run(&weak, &theirs))
            .map_err(|e| e.within("the maintenance thread of a cache"))?;
        Ok(Maintenance { stop, owner: OwningProcess::here() })
    }

    /// Wakes the thread, because there may be a queue of events now, or a shorter tick.
    pub(crate) fn ring(&self) {
        self.add(1);
    }

    fn add(&self, number: u64) {
        // A full counter means that the thread was woken already.
        let _ = rustix::io::write(&*self.stop, &number.to_ne_bytes());
    }
}

/// The interval of looks that one file needs.
pub(crate) fn tick_of(outside: ExternalChanges, ttl: Option<Duration>) -> Duration {
    let look = match outside {
        ExternalChanges::Every(time) | ExternalChanges::Times(time) => Some(time),
        ExternalChanges::Never | ExternalChanges::Events => None,
    };
    let tick = [Some(TICK), ttl.map(|ttl| ttl / 4), look].into_iter().flatten().min().unwrap_or(TICK);
    tick.max(Duration::from_millis(1))
}

fn run(pool: &Weak<Pool>, stop: &OwnedFd) {
    let mut looked = Instant::now();
    loop {
        // Files may be opened at any time, and the thread is woken then.
        let Some((queue, tick)) = pool.upgrade().map(|pool| (pool.queue(), pool.tick())) else { return };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if let Some(queue) = &queue {
            fds.push(PollFd::from_borrowed_fd(queue.fd(), PollFlags::IN));
        }
        let left = tick.saturating_sub(looked.elapsed());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // An interrupted sleep only ends early.
        let _ = poll(&mut fds, Some(&time));
        let mut count = [0; 8];
        if !fds[0].revents().is_empty()
            && rustix::io::read(stop, &mut count).is_ok()
            && u64::from_ne_bytes(count) >= STOP
        {
            return;
        }
        let told = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        // The pool is held only for the time of the look: dropping the last handle ends the cache
        // and this thread.
        let Some(pool) = pool.upgrade() else { return };
        if told {
            pool.take_events();
        }
        if looked.elapsed() < tick {
            continue;
        }
        looked = Instant::now();
        pool.maintain();
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        // In a forked child the counter is the parent's, too, and the thread is the parent's alone.
        if self.owner.is_here() {
            self.add(STOP);
        }
    }
}
