//! A share of the machine for the threads of a runtime.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode};
use crate::threads;

/// A share of caches or of memory bandwidth that the threads of a runtime get
/// ([`RuntimeOptions::thread_share`](super::RuntimeOptions::thread_share)).
///
/// `datapipes_knobs::ThreadGroup` is one: a group of Linux's resource control (CIDR'23, section 6,
/// principle 3).
pub trait ThreadShare: Send + Sync + fmt::Debug {
    /// Gives the calling thread the share. Each thread that a runtime starts calls it first.
    ///
    /// # Errors
    /// Why the thread does not get it.
    fn take_in_this_thread(&self) -> Result<()>;

    /// What the threads get, in a few words, for routes and reports.
    fn summary(&self) -> String;
}

/// Gives this thread the share. A panic is an error.
pub(super) fn enter(share: &dyn ThreadShare) -> Result<()> {
    guard::call(ForeignCode::ThreadShare, || share.take_in_this_thread())
        .unwrap_or_else(|panicked| Err(panicked.error("start")))
        .map_err(|e| e.within("a share for the threads of a runtime"))
}

/// What the threads get, in words.
pub(super) fn words_of(share: &dyn ThreadShare) -> Result<String> {
    let words = guard::call(ForeignCode::ThreadShare, || share.summary());
    words.map_err(|panicked| panicked.error("start"))
}

/// Checks that a thread can get the share, in a thread of its own.
pub(super) fn check(share: &Arc<dyn ThreadShare>) -> Result<String> {
    let share = share.clone();
    let tried = threads::spawn("dp-share", move || enter(&*share).and_then(|()| words_of(&*share)))?;
    threads::join(tried)
        .map_err(|_| Error::new(ErrorKind::System, "start", "the thread that tries a share did not end"))?
}
