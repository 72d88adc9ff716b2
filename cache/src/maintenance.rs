//! The maintenance thread (Pipette, section 3.2.3): it watches evictions, moves slabs, ends the time to live and looks for
//! changes from outside.
//!
//! The paper has a second thread that moves slabs on its behalf; here a move takes one shard's lock for some microseconds,
//! so the first thread does it itself.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use datapipes_core::process::Owner;
use datapipes_core::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::config::Outside;
use crate::events::Events;
use crate::fine::Inner;
use crate::sync::{Arc, Weak};

/// How often it looks, unless settings want it more often.
const TICK: Duration = Duration::from_millis(100);

/// The thread; it ends when this is dropped.
pub(crate) struct Maintenance {
    stop: Arc<OwnedFd>,
    owner: Owner,
}

impl Maintenance {
    pub(crate) fn start(inner: &Arc<Inner>) -> Result<Maintenance> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("start", e.raw_os_error(), "the maintenance thread of a cache"))?;
        let stop = Arc::new(stop);
        let events = match (&inner.config.outside, &inner.ssd) {
            (Outside::Events, Some(ssd)) => Some(Events::of(ssd)?),
            _ => None,
        };
        let (weak, theirs) = (Arc::downgrade(inner), stop.clone());
        let period = inner.config.ttl.map(|ttl| ttl / 4);
        let look = match inner.config.outside {
            Outside::Every(time) => Some(time),
            Outside::Never | Outside::Events => None,
        };
        let tick = [Some(TICK), period, look].into_iter().flatten().min().unwrap_or(TICK);
        let tick = tick.max(Duration::from_millis(1));
        std::thread::Builder::new()
            .name("fine-maintenance".into())
            .spawn(move || run(&weak, &theirs, events.as_ref(), tick))
            .map_err(|e| Error::io("start", &e, "the maintenance thread of a cache"))?;
        Ok(Maintenance { stop, owner: Owner::here() })
    }
}

fn run(inner: &Weak<Inner>, stop: &OwnedFd, events: Option<&Events>, tick: Duration) {
    let mut looked = Instant::now();
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        if let Some(events) = events {
            fds.push(PollFd::from_borrowed_fd(events.fd(), PollFlags::IN));
        }
        let left = tick.saturating_sub(looked.elapsed());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&time));
        if !fds[0].revents().is_empty() {
            return;
        }
        // Only for the time of the look: who drops the last handle ends the cache, and this thread with it.
        let Some(inner) = inner.upgrade() else { return };
        if events.is_some_and(Events::take) {
            inner.changed_by_others();
        }
        if looked.elapsed() < tick {
            continue;
        }
        looked = Instant::now();
        inner.maintain();
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        // The counter is the parent's, too, and the thread is the parent's alone.
        if self.owner.is_here() {
            // A full counter means that it was told already.
            let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        }
    }
}
