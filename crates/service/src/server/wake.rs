//! Events by which threads are told to look around.

use std::os::fd::OwnedFd;

use datapipes_core::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};

/// Makes an event that others can wait for.
pub(super) fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::os("serve", e.raw_os_error(), "an event"))
}

/// Makes an event readable.
pub(super) fn ring(event: &OwnedFd) {
    // This fails only if the counter would overflow, and then the event is readable.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes an event that came unreadable again.
pub(super) fn quiet(event: &OwnedFd) {
    // This fails only if the event has not come, and then it is unreadable.
    let _ = rustix::io::read(event, &mut [0; 8]);
}
