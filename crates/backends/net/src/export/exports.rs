//! What the threads of an exporter share: its options, its exports, and who uses them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapipes_core::locks::{Condvar, Mutex};
use datapipes_core::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};

use super::exportable::ExportableMemory;
use super::holder_process::HolderProgram;
use super::strangers::Strangers;
use crate::control::key::{ExportKey, ExportNumber};
use crate::control::settings::{NetworkOptions, RemoteRights};

/// The options of an [`Exporter`](crate::Exporter).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExporterOptions {
    /// How bytes travel, and whether the network is trusted.
    pub network: NetworkOptions,
    /// The program that runs as holder.
    pub program: HolderProgram,
    /// The most clients at once, each a thread here and a process of some megabytes; 64 by default.
    /// Those that have not proved a key do not count.
    pub max_clients: usize,
}

impl Default for ExporterOptions {
    fn default() -> Self {
        ExporterOptions { network: NetworkOptions::default(), program: HolderProgram::This, max_clients: 64 }
    }
}

datapipes_core::setters! {
    ExporterOptions {
        network: NetworkOptions,
        program: HolderProgram,
        max_clients: usize,
    }
}

/// What the threads of an exporter share.
pub(super) struct ExporterState {
    pub(super) options: ExporterOptions,
    pub(super) exports: Mutex<HashMap<ExportNumber, Arc<ExportState>>>,
    clients: AtomicUsize,
    pub(super) strangers: Strangers,
    /// Readable once the exporter ends.
    pub(super) stop: OwnedFd,
}

impl ExporterState {
    pub(super) fn new(options: ExporterOptions) -> Result<ExporterState> {
        let (exports, clients) = (Mutex::default(), AtomicUsize::new(0));
        Ok(ExporterState { options, exports, clients, strangers: Strangers::default(), stop: event()? })
    }

    /// Takes a place for a client; `None` where there are as many as may be.
    pub(super) fn take_place(&self) -> Option<ClientPlace<'_>> {
        let before = self.clients.fetch_add(1, Ordering::Relaxed);
        let place = ClientPlace(self);
        (before < self.options.max_clients).then_some(place)
    }
}

/// One export.
pub(super) struct ExportState {
    pub(super) memory: ExportableMemory,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) rights: RemoteRights,
    pub(super) key: ExportKey,
    usage: Mutex<Usage>,
    unused: Condvar,
    /// Readable once the export is revoked.
    pub(super) ended: OwnedFd,
}

#[derive(Default)]
struct Usage {
    revoked: bool,
    /// Clients with a holder, or that are about to have one.
    clients: usize,
}

/// A client's use of an export, which revocation waits for.
pub(super) struct ExportUse<'a>(&'a ExportState);

impl ExportState {
    pub(super) fn new(
        memory: &ExportableMemory,
        (at, len): (usize, usize),
        rights: RemoteRights,
        key: ExportKey,
    ) -> Result<ExportState> {
        let (usage, unused) = (Mutex::default(), Condvar::new());
        Ok(ExportState { memory: memory.clone(), at, len, rights, key, usage, unused, ended: event()? })
    }

    /// The clients that use it now.
    pub(super) fn clients(&self) -> usize {
        self.usage.lock().clients
    }

    /// Begins a client's use; `None` where it was revoked.
    pub(super) fn begin(&self) -> Option<ExportUse<'_>> {
        let mut usage = self.usage.lock();
        if usage.revoked {
            return None;
        }
        usage.clients += 1;
        Some(ExportUse(self))
    }

    /// Ends it for all clients, and waits until none reaches the memory.
    pub(super) fn revoke(&self) {
        let mut usage = self.usage.lock();
        usage.revoked = true;
        signal(&self.ended);
        while usage.clients > 0 {
            usage = self.unused.wait(usage);
        }
    }
}

impl Drop for ExportUse<'_> {
    fn drop(&mut self) {
        self.0.usage.lock().clients -= 1;
        self.0.unused.notify_all();
    }
}

/// A client's place among the most at once.
pub(super) struct ClientPlace<'a>(&'a ExporterState);

impl Drop for ClientPlace<'_> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes an eventfd that is not readable yet.
fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::os("export", e.raw_os_error(), "eventfd"))
}

/// Makes an eventfd readable, for good.
pub(super) fn signal(event: &OwnedFd) {
    // It fails only where the number is at its end, and then the descriptor is readable.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
