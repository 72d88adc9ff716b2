//! The role: the right to run the event loop, and what its holders know of each other.

use std::collections::VecDeque;
use std::task::Waker;

use crate::threads::JoinHandle;

/// Who may run the event loop, and what there is to call.
#[derive(Default)]
pub(super) struct Role {
    pub(super) holder: Option<RoleHolder>,
    /// Threads that want it and for whom it is to be given back.
    pub(super) wanted: usize,
    /// A thread in `block_on` takes it when it would sleep, so the own thread leaves it alone.
    pub(super) is_borrowed: bool,
    /// Callbacks for the own thread to call.
    pub(super) calls: VecDeque<Box<dyn FnOnce() + Send>>,
    /// Wakers for it to call before them; for the stand-in, while a callback keeps it.
    pub(super) wakes: VecDeque<Waker>,
    /// The number of the call that the own thread is in.
    pub(super) calling: Option<u64>,
    pub(super) called: u64,
    /// The own thread sleeps, because another has the role.
    pub(super) own_sleeps: bool,
    /// Blocked waiters that sleep while another has the role.
    pub(super) waiters_asleep: usize,
    pub(super) stand_in: StandIn,
    /// It sleeps until the own thread is within a callback.
    pub(super) stand_in_sleeps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleHolder {
    OwnThread,
    /// A thread in `block_on`.
    BorrowedDriver,
    BlockedWaiter,
    StandIn,
}

#[derive(Default)]
pub(super) enum StandIn {
    /// Nobody asked for a callback yet.
    #[default]
    None,
    Started(JoinHandle<()>),
    /// The kernel gave no thread.
    Refused,
}

/// What the own thread calls.
pub(super) enum ForeignCall {
    Waker(Waker),
    Callback(Box<dyn FnOnce() + Send>),
}

impl Role {
    /// Whether nobody has the role and nobody wants it.
    pub(super) fn is_free(&self) -> bool {
        self.holder.is_none() && self.wanted == 0
    }

    /// Whether the own thread should take it. A thread in `block_on` takes it by itself when it
    /// would sleep, but where another thread sleeps it may be away for long.
    pub(super) fn is_for_own_thread(&self) -> bool {
        self.is_free() && (!self.is_borrowed || self.waiters_asleep > 0)
    }

    /// Whether there is something to call.
    pub(super) fn has_calls(&self) -> bool {
        !(self.calls.is_empty() && self.wakes.is_empty())
    }

    /// What is to be called next.
    pub(super) fn next_call(&mut self) -> Option<ForeignCall> {
        self.wakes.pop_front().map(ForeignCall::Waker).or_else(|| self.calls.pop_front().map(ForeignCall::Callback))
    }
}
