//! An object that is written: its parts, its upload at the server, and how it ends.
//!
//! ```text
//! dropped, or publishing failed -> end: writes are refused, requests that send parts are cut
//!                                  quiet: no request is under way that may leave something
//!                                  then the upload is aborted (`sending`)
//! ```
//!
//! The value that a user holds ends it, not the last of those that know it: pipes, jobs and parts
//! on their way may live longer, and none of them can publish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use datapipes_core::Error;
use datapipes_core::locks::Mutex;
use tokio::sync::{Notify, OnceCell, watch};

use super::parts::{Parts, Phase};

/// An object that is written.
pub(crate) struct Upload {
    pub(crate) parts: Mutex<Parts>,
    /// A buffer arrived, a part failed, or a request ended.
    pub(crate) changed: Notify,
    /// The name of the upload at the server, once it has begun.
    pub(super) id: OnceCell<String>,
    /// Jobs of pipes that write it.
    pub(crate) active: AtomicU64,
    pub(super) only_new: bool,
    /// Requests under way that may leave something at the server: those that begin the upload, and
    /// those that send parts.
    requests: AtomicU64,
    ended: watch::Sender<bool>,
    /// Whether a request was cut that the server may still carry out.
    pub(super) was_cut: AtomicBool,
}

impl Upload {
    pub(crate) fn new(parts: Parts, only_new: bool) -> Upload {
        Upload {
            parts: Mutex::new(parts),
            changed: Notify::new(),
            id: OnceCell::new(),
            active: AtomicU64::new(0),
            only_new,
            requests: AtomicU64::new(0),
            ended: watch::Sender::new(false),
            was_cut: AtomicBool::new(false),
        }
    }

    /// A part failed: nothing is published any more.
    pub(crate) fn fail(&self, error: &Error) {
        let mut parts = self.parts.lock();
        if !matches!(parts.phase, Phase::Failed(..) | Phase::Dropped) {
            // Without its offset and advice: later errors have their own.
            parts.phase = Phase::Failed(error.kind(), error.context().to_owned(), error.advice().map(str::to_owned));
        }
        drop(parts);
        self.changed.notify_waiters();
    }

    /// Nobody can publish it any more: writes are refused from now on, and requests that send parts
    /// are cut. Returns whether anything of it may be at the server, once.
    pub(super) fn end(&self) -> bool {
        let mut parts = self.parts.lock();
        if matches!(parts.phase, Phase::Published(_)) {
            return false;
        }
        if !matches!(parts.phase, Phase::Failed(..)) {
            parts.phase = Phase::Dropped;
        }
        drop(parts);
        let had_ended = self.ended.send_replace(true);
        self.changed.notify_waiters();
        // A request that is counted after this look sees that the upload has ended.
        !had_ended && (self.id.initialized() || self.requests.load(SeqCst) > 0)
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as this value, so an error is impossible.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Counts a request until the value is dropped.
    pub(super) fn request(self: &Arc<Self>) -> UploadRequest {
        self.requests.fetch_add(1, SeqCst);
        UploadRequest(self.clone())
    }

    /// Waits until no request is under way.
    pub(super) async fn quiet(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no notice is missed.
            changed.as_mut().enable();
            if self.requests.load(SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// A request under way.
pub(super) struct UploadRequest(Arc<Upload>);

impl Drop for UploadRequest {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, SeqCst);
        self.0.changed.notify_waiters();
    }
}
