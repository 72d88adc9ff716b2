//! The thread that talks to servers: all requests of a client are made on it.
//!
//! Its callers' threads stay free. A caller waits for it by a channel, so that it may itself be
//! within another asynchronous runtime.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::ThreadId;
use std::time::Duration;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, threads};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

/// A started thread with its tasks. It ends when this value is dropped.
pub(crate) struct Reactor {
    handle: Handle,
    thread: ThreadId,
    owner: OwningProcess,
    stop: Arc<Notify>,
}

impl Reactor {
    /// Starts the thread.
    ///
    /// # Errors
    /// `System` where the kernel refuses a thread, or what its event loop needs.
    pub(crate) fn start() -> Result<Arc<Reactor>> {
        let (started, starting) = sync_channel(1);
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        threads::spawn("dp-object", move || {
            let runtime = match Builder::new_current_thread().enable_io().enable_time().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok((runtime.handle().clone(), std::thread::current().id())));
            runtime.block_on(stopped.notified());
            // Names that are still being looked up may take long, and nobody waits for them.
            runtime.shutdown_background();
        })?;
        let ended = || Error::new(ErrorKind::System, "start", "the thread that talks to servers ended at once");
        let (handle, thread) = starting
            .recv()
            .map_err(|_| ended())?
            .map_err(|e| Error::io("start", e, "the event loop of the thread that talks to servers"))?;
        Ok(Arc::new(Reactor { handle, thread, owner: OwningProcess::here(), stop }))
    }

    /// Refuses a use in a child of the process that started the thread.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        self.owner.check(operation)
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(task));
    }

    /// Carries out a task, and waits for it.
    ///
    /// # Errors
    /// The task's error; `Forked` in a child; `InvalidInput` on the thread itself.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.check(operation)?;
        if std::thread::current().id() == self.thread {
            return Err(Error::new(ErrorKind::InvalidInput, operation, "the thread that talks to servers cannot wait"));
        }
        let (done, outcome) = sync_channel(1);
        self.spawn(async move {
            let _ = done.send(task.await);
        });
        let ended = || Error::new(ErrorKind::System, operation, "the task that talks to the server ended early");
        outcome.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Carries out a task, and waits for it up to a bound where this thread may wait at all.
    pub(crate) fn finish(&self, bound: Duration, task: impl Future<Output = ()> + Send + 'static) {
        if !self.owner.is_here() {
            return;
        }
        let (done, outcome) = sync_channel(1);
        self.spawn(async move {
            task.await;
            let _ = done.send(());
        });
        if std::thread::current().id() != self.thread {
            let _ = outcome.recv_timeout(bound);
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.stop.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_waited_for_and_a_panic_is_an_error() {
        let reactor = Reactor::start().unwrap();
        assert_eq!(reactor.run("add", async { Ok(1 + 1) }).unwrap(), 2);
        let error = reactor.run::<()>("fail", async { panic!("as the test wants") }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::System);
        assert_eq!(reactor.run("add", async { Ok(1) }).unwrap(), 1);
    }
}
