//! An executor for one future, whose thread does the coordinator's work while it waits.
//!
//! With any other executor a completion takes two wake-ups: the coordinator's, then that of the thread that waits. Here it
//! takes one.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use super::Runtime;
use super::coordinator::Coordinator;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, Thread, ThreadId};

/// Wakes the thread that does the coordinator's work.
struct Driver {
    thread: ThreadId,
    woken: AtomicBool,
    coordinator: Arc<Coordinator>,
}

impl Wake for Driver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // On its own thread it is awake.
        if !self.woken.swap(true, Ordering::SeqCst) && thread::current().id() != self.thread {
            self.coordinator.wake();
        }
    }
}

/// Wakes a thread that parks, because another one does the work already.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Runtime {
    /// Runs a future to its end on this thread, which does the coordinator's work meanwhile: the shortest way from a
    /// completion to who awaits it. Handles may be awaited in any other executor as well. It must not be called from
    /// within a future that it runs.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let coordinator = &self.inner.coordinator;
        let mut future = pin!(future);
        let Some(guest) = coordinator.host() else {
            let waker = Waker::from(Arc::new(Parked(thread::current())));
            loop {
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(output) => return output,
                    Poll::Pending => thread::park(),
                }
            }
        };
        let thread = thread::current().id();
        let driver = Arc::new(Driver { thread, woken: AtomicBool::new(true), coordinator: coordinator.clone() });
        let waker = Waker::from(driver.clone());
        loop {
            if driver.woken.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return output;
            }
            if !driver.woken.load(Ordering::SeqCst) {
                guest.turn();
            }
        }
    }
}
