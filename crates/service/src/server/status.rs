//! The status of the service, as each viewer may see it.

use std::sync::atomic::Ordering;

use datapipes_core::Result;

use super::quotas::account::SessionFacts;
use super::shared::Shared;
use crate::status::{ClientStatus, ClientTransfers, ServiceStatus};

/// Who looks at the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Somebody who may see every client.
    All,
    /// A user, who sees his own clients; root and the service's own user see all.
    User(u32),
    /// Somebody unknown, who sees no client.
    Nobody,
}

/// Makes the status of the service.
///
/// # Errors
/// `Unavailable` when the service stops.
pub(super) fn service_status(shared: &Shared, viewer: Viewer) -> Result<ServiceStatus> {
    let mut report = shared.with_runtime(|runtime| Ok(runtime.report()))?;
    let (sees_all, user) = match viewer {
        Viewer::All => (true, None),
        Viewer::User(user) => (user == 0 || user == rustix::process::getuid().as_raw(), Some(user)),
        Viewer::Nobody => (false, None),
    };
    let sessions: Vec<_> = shared.sessions().values().cloned().collect();
    let seen = sessions.iter().filter(|other| sees_all || Some(other.peer.uid) == user);
    if !sees_all {
        // What each pipe of others asks for and does is nobody's business.
        report.resources.iter_mut().for_each(|resource| resource.stats.flows.clear());
    }
    Ok(ServiceStatus {
        pid: std::process::id(),
        up_s: shared.began.elapsed().as_secs(),
        descriptors: own_descriptors(),
        mapped_bytes: shared.ledger.mapped(),
        turned_away: shared.turned_away.load(Ordering::Relaxed),
        connected: sessions.len() as u64,
        clients: seen.map(|facts| client_status(facts)).collect(),
        exports: shared.exports(),
        limits: shared.config.limits.clone(),
        runtime: report,
    })
}

fn client_status(facts: &SessionFacts) -> ClientStatus {
    ClientStatus {
        number: facts.number,
        name: facts.name.lock().clone(),
        uid: facts.peer.uid,
        pid: facts.peer.pid,
        pipes: facts.pipes.load(Ordering::Relaxed),
        mapped_bytes: facts.mapped.load(Ordering::Relaxed),
        transfers: facts.transfers().into_iter().map(|(class, of)| ClientTransfers { class, of }).collect(),
    }
}

/// The descriptors that this process has open, without the one that reads the folder.
fn own_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1) as u64)
}
