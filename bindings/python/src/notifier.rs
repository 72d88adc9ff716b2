//! Completions for event loops: a descriptor, and the numbers of the transfers that are done.
//!
//! ```text
//! the loop's own epoll --> epoll of the notifier --> eventfd: what threads of the runtime told
//!                                             \---> rings of the pipes that the loop watches itself
//! ```

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use datapipes::locks::Mutex;
use datapipes::process::OwningProcess;
use datapipes::{Error, Result};
use pyo3::prelude::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::errors::{attached, detached};
use crate::watched::WatchedPipe;

/// What a loop watches, in an epoll of its own.
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn add(&self, event: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.0, event, EventData::new_u64(0), EventFlags::IN)
            .map_err(|e| Error::os("watch", e.raw_os_error(), "a descriptor of an event loop"))
    }

    /// Ends `add`. A child of `fork` must not call it: it shares the epoll with its parent.
    pub(crate) fn remove(&self, event: BorrowedFd<'_>) {
        // It fails only where it was not watched.
        let _ = epoll::delete(&self.0, event);
    }
}

/// What the runtime's threads and the notifier share.
pub(crate) struct Told {
    watch: Arc<Watch>,
    event: OwnedFd,
    numbers: Mutex<Vec<u64>>,
    /// Locked only by holders of the interpreter's lock.
    watched: Mutex<Vec<Weak<WatchedPipe>>>,
    owner: OwningProcess,
}

impl Told {
    fn new() -> Result<Told> {
        let failed = |e: rustix::io::Errno| Error::os("open", e.raw_os_error(), "a descriptor of an event loop");
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let watch = Arc::new(Watch(epoll::create(CreateFlags::CLOEXEC).map_err(failed)?));
        watch.add(event.as_fd())?;
        let (numbers, watched) = (Mutex::default(), Mutex::default());
        Ok(Told { watch, event, numbers, watched, owner: OwningProcess::here() })
    }

    pub(crate) fn tell(&self, number: u64) {
        let is_first = {
            let mut numbers = self.numbers.lock();
            numbers.push(number);
            numbers.len() == 1
        };
        // Who told the first number wakes up the reader for all.
        if is_first {
            // A full counter wakes up its reader as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Takes note of a pipe whose event is watched.
    pub(crate) fn add(&self, pipe: &Arc<WatchedPipe>) {
        let mut watched = self.watched.lock();
        watched.retain(|known| known.strong_count() > 0);
        watched.push(Arc::downgrade(pipe));
    }

    fn take(&self) -> Vec<u64> {
        let pipes: Vec<_> = self.watched.lock().iter().filter_map(Weak::upgrade).collect();
        let done: Vec<u64> = pipes.iter().filter_map(|pipe| pipe.poll()).collect();
        let mut numbers = std::mem::take(&mut *self.numbers.lock());
        if !numbers.is_empty() || done.is_empty() {
            // A number may have been taken before the eventfd was written for it: where nothing was
            // found, that is what is read here.
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
        numbers.extend(done);
        numbers
    }
}

/// A descriptor that becomes readable when transfers are done, for one event loop.
#[pyclass(frozen, weakref, module = "datapipes._datapipes", name = "Notifier")]
pub(crate) struct Notifier {
    told: Arc<Told>,
}

impl Notifier {
    pub(crate) fn share(&self, py: Python<'_>) -> PyResult<Arc<Told>> {
        attached(py, || self.told.owner.check("read"))?;
        Ok(self.told.clone())
    }
}

#[pymethods]
impl Notifier {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Notifier> {
        Ok(Notifier { told: Arc::new(detached(py, Told::new)?) })
    }

    fn fileno(&self) -> i32 {
        self.told.watch.0.as_raw_fd()
    }

    /// The numbers of the transfers that are done since the last call.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.share(py)?.take())
    }
}
