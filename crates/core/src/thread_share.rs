//! A share of caches and memory bandwidth for threads: for those of a runtime as long as they live,
//! for those that carry out a pipe's transfers as long as that takes.
//!
//! ```text
//! runtime:  thread starts -> take_in_this_thread
//! pipe:     transfer -> lend_to_this_thread -> the bytes are moved -> take_back_from_this_thread
//! ```
//! A share is foreign code: it may panic, which is an error here.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode};
use crate::threads;

/// A share of caches or of memory bandwidth that threads get: those of a runtime
/// ([`RuntimeOptions::thread_share`](crate::runtime::RuntimeOptions::thread_share)), or those that
/// carry out the transfers of a pipe, meanwhile
/// ([`Machine::connect_with_share`](crate::Machine::connect_with_share)).
///
/// `datapipes_knobs::ThreadGroup` is one: a group of Linux's resource control (CIDR'23, section 6,
/// principle 3).
pub trait ThreadShare: Send + Sync + fmt::Debug {
    /// Gives the calling thread the share for good. Each thread that a runtime starts calls it
    /// first.
    ///
    /// # Errors
    /// Why the thread does not get it.
    fn take_in_this_thread(&self) -> Result<()>;

    /// What the threads get, in a few words, for routes and reports.
    fn summary(&self) -> String;

    /// Gives the calling thread the share for one transfer. The library then calls
    /// [`take_back_from_this_thread`](Self::take_back_from_this_thread) on the same thread, also
    /// where the transfer fails or panics. Transfers within a transfer (of a reader, an observer)
    /// nest: what was lent last is taken back first.
    ///
    /// # Errors
    /// Why the thread does not get it, and has what it had. By default a share is for the threads
    /// of a runtime alone.
    fn lend_to_this_thread(&self) -> Result<()> {
        let context = "this share is for the threads of a runtime, not for those of a pipe's transfers";
        Err(Error::new(ErrorKind::Unsupported, "lend a share", context))
    }

    /// Gives the calling thread back what it had before the share was lent to it.
    ///
    /// # Errors
    /// Why it keeps the share.
    fn take_back_from_this_thread(&self) -> Result<()> {
        Ok(())
    }

    /// Whether what a thread with the share brings into the last-level cache stays in a part of it,
    /// so that the rest is left to others.
    fn confines_cache(&self) -> bool {
        false
    }
}

/// Gives this thread the share. A panic is an error.
pub(crate) fn enter(share: &dyn ThreadShare) -> Result<()> {
    called("start", || share.take_in_this_thread())
        .and_then(|taken| taken)
        .map_err(|e| e.within("a share for the threads of a runtime"))
}

/// Checks that a thread can get the share, in a thread of its own; returns it in words.
pub(crate) fn check(share: &Arc<dyn ThreadShare>) -> Result<String> {
    let share = share.clone();
    let tried = threads::spawn("dp-share", move || enter(&*share).and_then(|()| called("start", || share.summary())))?;
    threads::join(tried)
        .map_err(|_| Error::new(ErrorKind::System, "start", "the thread that tries a share did not end"))?
}

fn called<R>(operation: &'static str, f: impl FnOnce() -> R) -> Result<R> {
    guard::call(ForeignCode::ThreadShare, f).map_err(|panicked| panicked.error(operation))
}

/// The share of a pipe, and what went wrong with it.
#[derive(Debug)]
pub(crate) struct TransferShare {
    share: Arc<dyn ThreadShare>,
    summary: String,
    confines_cache: bool,
    /// How often a thread completed a transfer without the share, or kept it afterwards.
    troubles: AtomicU64,
    first_trouble: OnceLock<String>,
}

impl TransferShare {
    /// Tries the share on this thread.
    pub(crate) fn new(share: Arc<dyn ThreadShare>) -> Result<Arc<TransferShare>> {
        let (summary, confines_cache) = called("connect", || (share.summary(), share.confines_cache()))?;
        let troubles = AtomicU64::new(0);
        let tried = TransferShare { share, summary, confines_cache, troubles, first_trouble: OnceLock::new() };
        drop(tried.lend()?);
        match tried.first_trouble.get() {
            None => Ok(Arc::new(tried)),
            Some(why) => Err(Error::new(ErrorKind::System, "connect", why.clone())),
        }
    }

    pub(crate) fn summary(&self) -> &str {
        &self.summary
    }

    pub(crate) fn confines_cache(&self) -> bool {
        self.confines_cache
    }

    /// How often something went wrong, and what first.
    pub(crate) fn troubles(&self) -> (u64, Option<String>) {
        (self.troubles.load(Ordering::Relaxed), self.first_trouble.get().cloned())
    }

    /// Gives this thread the share until the result is dropped.
    pub(crate) fn lend(&self) -> Result<LentShare<'_>> {
        called("transfer", || self.share.lend_to_this_thread())
            .and_then(|lent| lent)
            .map_err(|e| e.within("the share of the pipe's transfers"))?;
        Ok(LentShare { of: self, stays_on_its_thread: PhantomData })
    }

    /// As [`lend`](Self::lend), for a transfer that was started and must be completed: without the
    /// share where that is refused, which the report says.
    pub(crate) fn lend_if_possible(&self) -> Option<LentShare<'_>> {
        self.lend().inspect_err(|e| self.note(e)).ok()
    }

    fn note(&self, error: &Error) {
        self.troubles.fetch_add(1, Ordering::Relaxed);
        // Only the first is kept.
        let _ = self.first_trouble.set(error.to_string());
    }
}

/// While it exists, this thread has the share.
#[must_use]
pub(crate) struct LentShare<'a> {
    of: &'a TransferShare,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for LentShare<'_> {
    fn drop(&mut self) {
        // The transfer went as it went: that the thread keeps the share is told in the report.
        let back = called("take back a share", || self.of.share.take_back_from_this_thread());
        if let Err(e) = back.and_then(|back| back) {
            self.of.note(&e.within("a thread keeps the share of the pipe's transfers"));
        }
    }
}
