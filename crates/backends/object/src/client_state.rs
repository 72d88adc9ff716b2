//! What all objects of a client share: options, settings, connections, the thread, the paces.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use datapipes_core::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use tokio::sync::watch;

use crate::costs::RequestCosts;
use crate::options::ObjectOptions;
use crate::pace::Pace;
use crate::reactor::Reactor;
use crate::server::Transport;
use crate::server::retry::Attempts;
use crate::server::settings::Settings;

/// The shared state of a client.
pub(crate) struct ClientState {
    pub(crate) options: ObjectOptions,
    pub(crate) settings: Settings,
    pub(crate) transport: Transport,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) reads: Arc<Pace>,
    pub(crate) writes: Arc<Pace>,
    pub(crate) read_costs: RequestCosts,
    seeds: AtomicU64,
    stopped: watch::Sender<bool>,
    /// Requests under way that publish.
    publishing: AtomicUsize,
    /// Uploads that may be at a server, and that nobody ends any more.
    pub(crate) unfinished: AtomicU64,
}

/// While a request that publishes is under way.
#[derive(Debug)]
pub(crate) struct Publishing<'a>(&'a AtomicUsize);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The error of what a client does not do any more.
pub(crate) fn stopped(operation: &'static str) -> Error {
    Error::new(ErrorKind::Interrupted, operation, "the client of the server was stopped")
}

impl ClientState {
    pub(crate) fn new(
        options: ObjectOptions,
        settings: Settings,
        transport: Transport,
        reactor: Arc<Reactor>,
    ) -> ClientState {
        let (reads, writes) = (Pace::new(options.connections), Pace::new(options.connections));
        let read_costs = RequestCosts::default();
        let (seeds, stopped) = (AtomicU64::new(1), watch::Sender::new(false));
        let (publishing, unfinished) = (AtomicUsize::new(0), AtomicU64::new(0));
        ClientState {
            options,
            settings,
            transport,
            reactor,
            reads,
            writes,
            read_costs,
            seeds,
            stopped,
            publishing,
            unfinished,
        }
    }

    /// Ends all requests but those that end uploads.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(crate) fn has_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Counts a request that publishes until the value goes.
    pub(crate) fn publishes(&self) -> Publishing<'_> {
        self.publishing.fetch_add(1, SeqCst);
        Publishing(&self.publishing)
    }

    pub(crate) fn is_publishing(&self) -> bool {
        self.publishing.load(SeqCst) > 0
    }

    /// Waits until it is stopped.
    pub(crate) async fn has_to_stop(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as this value, so an error is impossible.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// The outcome of a task, unless the client is stopped before it.
    pub(crate) async fn unless_stopped<T>(
        &self,
        operation: &'static str,
        task: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match select(pin!(self.has_to_stop()), pin!(task)).await {
            Either::Left(_) => Err(stopped(operation)),
            Either::Right((outcome, _)) => outcome,
        }
    }

    /// The attempts at a request.
    pub(crate) fn attempts(&self) -> Attempts {
        let seed = self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        Attempts::new(&self.options, seed ^ u64::from(std::process::id()))
    }
}
