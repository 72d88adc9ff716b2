//! An executor for one future, whose thread does the coordinator's work while it waits.
//!
//! With any other executor a completion takes two wake-ups: the coordinator's, then that of the
//! thread that waits. Here it takes one. While the future runs, the thread has given the work back:
//! it may block, in this library or elsewhere.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};

use super::Runtime;
use super::coordinator::Coordinator;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Condvar, Mutex};
use crate::thread_role;

/// Wakes the thread that polls.
struct PollingThread {
    /// Its [`thread_role::me`].
    thread: usize,
    woken: AtomicBool,
    coordinator: Arc<Coordinator>,
    /// Threads that sleep because another one does the work: this one.
    sleepers: Mutex<u32>,
    changed: Condvar,
    /// It does the work itself.
    hosts: bool,
}

impl Wake for PollingThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // On its own thread it is awake.
        if self.woken.swap(true, Ordering::SeqCst) || thread_role::me() == self.thread {
            return;
        }
        if self.hosts {
            return self.coordinator.wake();
        }
        drop(self.sleepers.lock());
        self.changed.notify_all();
        self.coordinator.wake_blocked_waiters();
    }
}

impl Runtime {
    /// Runs a future to its end on this thread, which does the coordinator's work when the future
    /// waits: the shortest way from a completion to who awaits it. Handles may be awaited in any
    /// other executor as well.
    ///
    /// The future may call what blocks, `block_on` too. Where it blocks outside of the library,
    /// others do the coordinator's work after 100 ms. A panic of the future goes on in the caller.
    /// In a child of the process that started the runtime it runs the future all the same, in which
    /// what is the parent's fails as `Forked`.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let coordinator = &self.state.coordinator;
        let mut future = pin!(future);
        if !coordinator.owner.is_here() {
            return block_in_child(future);
        }
        let borrowed = coordinator.borrow_driver();
        let polling = Arc::new(PollingThread {
            thread: thread_role::me(),
            woken: AtomicBool::new(true),
            coordinator: coordinator.clone(),
            sleepers: Mutex::new(0),
            changed: Condvar::new(),
            hosts: borrowed.is_some(),
        });
        let waker = Waker::from(polling.clone());
        loop {
            if polling.woken.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return output;
            }
            if !coordinator.owner.is_here() {
                // The future forked, and this is the child.
                drop(borrowed);
                return block_in_child(future);
            }
            match &borrowed {
                Some(borrowed) => borrowed.drive(&polling.woken),
                None => {
                    let over = |_: &u32| polling.woken.load(Ordering::SeqCst);
                    drop(coordinator.sleep_until(&polling.sleepers, &polling.changed, |sleepers| sleepers, over));
                }
            }
        }
    }
}

/// An executor that has nothing of the runtime: it sleeps until its future is woken.
fn block_in_child<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    /// Not `std::thread::park`, which some handlers of `atexit` may not call.
    #[derive(Default)]
    struct Woken(Mutex<bool>, Condvar);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            *self.0.lock() = true;
            self.1.notify_one();
        }
    }

    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_woken = woken.0.lock();
        while !std::mem::replace(&mut *is_woken, false) {
            is_woken = woken.1.wait(is_woken);
        }
    }
}
