//! What the sessions and the threads of a service have in common.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use datapipes_core::guard::{self, ForeignCode};
use datapipes_core::locks::{Condvar, Mutex, MutexGuard, RwLock};
use datapipes_core::{Error, ErrorKind, Result, Runtime};

use super::config::ServerOptions;
use super::descriptors::intake::Intake;
use super::pulse::Pulse;
use super::quotas::account::{Ledger, SessionFacts};
use crate::status::ExportTotals;

/// The state shared by the sessions.
pub(super) struct Shared {
    pub(super) config: ServerOptions,
    /// `None` when the service stops.
    pub(super) runtime: RwLock<Option<Runtime>>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) intake: Intake,
    pub(super) sessions: Mutex<BTreeMap<u64, Arc<SessionFacts>>>,
    /// Notified when a session has ended.
    pub(super) left: Condvar,
    pub(super) stopping: AtomicBool,
    /// Readable once no more clients are accepted.
    pub(super) closing: OwnedFd,
    /// Readable for ever once the sessions must end.
    pub(super) ending: OwnedFd,
    /// Readable when the accepting thread is to show that it goes on.
    pub(super) asked: OwnedFd,
    pub(super) pulse: Pulse,
    pub(super) turned_away: AtomicU64,
    pub(super) began: Instant,
    /// Counts what is exported.
    pub(super) counts_exports: Mutex<Option<ExportCount>>,
}

/// A function of the program that counts what it exports.
pub(super) type ExportCount = Arc<dyn Fn() -> ExportTotals + Send + Sync>;

impl Shared {
    /// What is exported; nothing where the function that counts it panics.
    pub(super) fn exports(&self) -> ExportTotals {
        // Not under the lock: it is code of the program.
        let count = self.counts_exports.lock().clone();
        count.and_then(|count| guard::call(ForeignCode::Callback, || count()).ok()).unwrap_or_default()
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<SessionFacts>>> {
        self.sessions.lock()
    }

    /// Calls `what` with the runtime.
    ///
    /// # Errors
    /// `Unavailable` when the service stops.
    pub(super) fn with_runtime<R>(&self, what: impl FnOnce(&Runtime) -> Result<R>) -> Result<R> {
        let runtime = self.runtime.read();
        match &*runtime {
            Some(runtime) if !self.stopping.load(Ordering::SeqCst) => what(runtime),
            _ => Err(stops()),
        }
    }
}

/// The error for clients that come too late.
pub(super) fn stops() -> Error {
    Error::new(ErrorKind::Unavailable, "ask", "the service stops").with_advice("connect again when it is back")
}
