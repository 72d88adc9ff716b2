//! What the coordinator looks after, as far as it knows it.

use std::os::fd::BorrowedFd;

use crate::sync::Arc;

/// What an event is to say of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// There is something to read, or the other end is closed.
    Read,
    /// There is room to write.
    Write,
}

/// Something with a descriptor that is no queue of a pipe.
pub(crate) trait EventSource: Send + Sync {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What was asked for is so. It is not told again unless it asks again.
    fn ready(self: Arc<Self>);

    /// The runtime is gone: nobody looks after it any more.
    fn runtime_gone(&self);
}

/// A shared resource: it has transfers that go on at a time that its scheduler named, and requests
/// at a device whose events may be lost.
pub(crate) trait AttendedResource: Send + Sync {
    /// When the coordinator is to call [`dispatch`](Self::dispatch), in the coordinator's
    /// nanoseconds.
    fn next_for_coordinator(&self) -> Option<u64>;

    /// Starts what may go, where something was held back.
    fn dispatch(&self);

    /// Takes what is done, whether an event told of it or not; true if something is still out.
    fn poll_all(&self) -> bool;
}
