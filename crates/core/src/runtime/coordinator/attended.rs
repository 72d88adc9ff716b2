//! The table of what the coordinator looks after: queues of pipes, other event sources, and shared
//! resources.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

use super::event_source::{AttendedResource, EventSource, Interest};
use super::events::Events;
use crate::error::{Error, Result};
use crate::pipe::queue::Queue;
use crate::sync::{Arc, Mutex, MutexGuard, Weak};

#[derive(Default)]
pub(super) struct Attended(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// What is watched, by descriptor.
    entries: HashMap<RawFd, Entry>,
    resources: Vec<Weak<dyn AttendedResource>>,
    /// Entries that are not queues.
    others: usize,
}

struct Entry {
    target: EventTarget,
    armed: bool,
}

enum EventTarget {
    Queue(Weak<Queue>),
    Other(Arc<dyn EventSource>),
}

impl Attended {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    pub(super) fn add_resource(&self, resource: Weak<dyn AttendedResource>) {
        self.lock().resources.push(resource);
    }

    /// The resources that are still there.
    pub(super) fn resources(&self) -> Vec<Arc<dyn AttendedResource>> {
        let mut table = self.lock();
        table.resources.retain(|resource| resource.strong_count() > 0);
        table.resources.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether there is an event source that is no queue.
    pub(super) fn has_others(&self) -> bool {
        self.lock().others > 0
    }

    /// Gets to know a queue. It is not looked after until [`arm`](Self::arm) is called.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(super) fn add_queue(&self, events: &Events, queue: &Arc<Queue>) -> Result<()> {
        let Some(fd) = queue.event() else { return Ok(()) };
        let mut table = self.lock();
        events
            .add(fd, fd.as_raw_fd() as u64, None)
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a queue's event"))?;
        let entry = Entry { target: EventTarget::Queue(Arc::downgrade(queue)), armed: false };
        table.entries.insert(fd.as_raw_fd(), entry);
        Ok(())
    }

    /// Forgets a queue, before its descriptor is closed.
    pub(super) fn remove_queue(&self, events: &Events, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut table = self.lock();
        table.entries.remove(&fd.as_raw_fd());
        // It was added; were it not, there would be nothing to remove.
        let _ = events.remove(fd);
    }

    /// Waits for the next event of a queue.
    pub(super) fn arm(&self, events: &Events, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(&fd.as_raw_fd()) else { return };
        if !std::mem::replace(&mut entry.armed, true) {
            // It fails only for a descriptor that was not added, and this one is in the table.
            let _ = events.arm(fd, fd.as_raw_fd() as u64, Interest::Read);
        }
    }

    /// Gets to know another event source, which is kept until it is forgotten, and waits for its
    /// first event.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(super) fn add_source(&self, events: &Events, other: Arc<dyn EventSource>) -> Result<()> {
        let raw = other.fd().as_raw_fd();
        let mut table = self.lock();
        events
            .add(other.fd(), raw as u64, Some(Interest::Read))
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a descriptor"))?;
        table.entries.insert(raw, Entry { target: EventTarget::Other(other), armed: true });
        table.others += 1;
        Ok(())
    }

    /// Forgets another event source, before its descriptor is closed.
    pub(super) fn remove_source(&self, events: &Events, other: &dyn EventSource) {
        let mut table = self.lock();
        let entry = table.entries.remove(&other.fd().as_raw_fd());
        if entry.is_some() {
            table.others -= 1;
            let _ = events.remove(other.fd());
        }
        drop(table);
        // Dropped without the lock: it may be the last one, with a pipe in it.
        drop(entry);
    }

    /// Forgets everything, and says so to the event sources.
    pub(super) fn clear(&self) {
        let mut table = self.lock();
        let entries = std::mem::take(&mut table.entries);
        table.others = 0;
        drop(table);
        for entry in entries.into_values() {
            if let EventTarget::Other(other) = entry.target {
                other.runtime_gone();
            }
        }
    }

    /// Handles an event of a descriptor.
    pub(super) fn handle_event(&self, events: &Events, fd: RawFd) {
        let mut table = self.lock();
        let Some(entry) = table.entries.get_mut(&fd) else { return };
        entry.armed = false;
        let queue = match &entry.target {
            EventTarget::Queue(queue) => queue.upgrade(),
            EventTarget::Other(other) => {
                let other = other.clone();
                drop(table);
                return other.ready();
            }
        };
        drop(table);
        let Some(queue) = queue else { return };
        // An error is a broken queue, whose parts were told.
        if queue.drive_for_coordinator().unwrap_or(false) {
            self.arm(events, &queue);
        }
    }
}
