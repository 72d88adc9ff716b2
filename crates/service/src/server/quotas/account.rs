//! Accounting of clients' memory.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::runtime::{MeteredTransfers, PriorityClass, TransferMeter};
use datapipes_core::{Error, ErrorKind};

use crate::server::entrance::peer::Peer;
use crate::server::wake::ring;

/// The memory of all clients together.
pub(in crate::server) struct Ledger {
    mapped: AtomicU64,
    /// Bytes by user; users with none are not in the map.
    of_users: Mutex<HashMap<u32, u64>>,
    most: Most,
}

/// The most bytes that may be mapped.
#[derive(Clone, Copy)]
pub(in crate::server) struct Most {
    pub(in crate::server) of_client: u64,
    pub(in crate::server) of_user: u64,
    pub(in crate::server) of_all: u64,
}

impl Ledger {
    pub(in crate::server) fn new(most: Most) -> Arc<Ledger> {
        Arc::new(Ledger { mapped: AtomicU64::new(0), of_users: Mutex::default(), most })
    }

    pub(in crate::server) fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }

    fn of_users(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.of_users.lock()
    }

    /// Adds to a user's bytes, or returns these if the sum would be too much.
    fn add_to_user(&self, uid: u32, bytes: u64) -> Result<(), u64> {
        let mut users = self.of_users();
        let has = users.get(&uid).copied().unwrap_or(0);
        let sum = has.checked_add(bytes).filter(|sum| *sum <= self.most.of_user).ok_or(has)?;
        users.insert(uid, sum);
        Ok(())
    }

    fn take_from_user(&self, uid: u32, bytes: u64) {
        let mut users = self.of_users();
        let left = users.get(&uid).copied().unwrap_or(0).saturating_sub(bytes);
        match left {
            0 => users.remove(&uid),
            left => users.insert(uid, left),
        };
    }
}

/// The facts of a session that other threads may read.
pub(in crate::server) struct SessionFacts {
    pub(in crate::server) number: u64,
    pub(in crate::server) peer: Peer,
    pub(in crate::server) name: Mutex<String>,
    pub(in crate::server) pipes: AtomicU64,
    pub(in crate::server) mapped: AtomicU64,
    /// What counts its transfers, by class; made with the first pipe of the class.
    meters: Mutex<[Option<Arc<TransferMeter>>; PriorityClass::ALL.len()]>,
}

impl SessionFacts {
    pub(in crate::server) fn new(number: u64, peer: Peer) -> SessionFacts {
        let (pipes, mapped) = (AtomicU64::new(0), AtomicU64::new(0));
        SessionFacts { number, peer, name: Mutex::default(), pipes, mapped, meters: Mutex::default() }
    }

    /// The meter of its pipes of a class.
    pub(in crate::server) fn meter(&self, class: PriorityClass) -> Arc<TransferMeter> {
        self.meters.lock()[class as usize].get_or_insert_default().clone()
    }

    /// What its meters counted, the most urgent class first.
    pub(in crate::server) fn transfers(&self) -> Vec<(PriorityClass, MeteredTransfers)> {
        let meters = self.meters.lock().clone();
        let of = |(class, meter): (PriorityClass, Option<Arc<TransferMeter>>)| Some((class, meter?.read()));
        PriorityClass::ALL.into_iter().zip(meters).filter_map(of).collect()
    }
}

/// Bytes that a client has mapped, until this is dropped.
pub(in crate::server) struct ClientQuota {
    ledger: Arc<Ledger>,
    facts: Arc<SessionFacts>,
    bytes: u64,
}

impl ClientQuota {
    /// Charges a client.
    ///
    /// # Errors
    /// `Busy` if the client, its user, or all clients together would have more than allowed.
    pub(in crate::server) fn take(
        ledger: &Arc<Ledger>,
        facts: &Arc<SessionFacts>,
        bytes: u64,
    ) -> datapipes_core::Result<ClientQuota> {
        let (most, uid) = (ledger.most, facts.peer.uid);
        add(&facts.mapped, bytes, most.of_client).map_err(|has| {
            let context = format!("{bytes} bytes of memory in addition to {has}; a client may have {}", most.of_client);
            reached(context, "close a pipe, pass a smaller memfd, or have --mapped-bytes raised")
        })?;
        if let Err(has) = ledger.add_to_user(uid, bytes) {
            facts.mapped.fetch_sub(bytes, Ordering::Relaxed);
            let context =
                format!("{bytes} bytes of memory in addition to {has}; {} are allowed for user {uid}", most.of_user);
            return Err(reached(context, "close pipes, or have --mapped-bytes-per-uid raised"));
        }
        if let Err(has) = add(&ledger.mapped, bytes, most.of_all) {
            facts.mapped.fetch_sub(bytes, Ordering::Relaxed);
            ledger.take_from_user(uid, bytes);
            let context =
                format!("{bytes} bytes of memory in addition to {has}; {} are allowed for all clients", most.of_all);
            return Err(reached(context, "try again when others have left, or have --all-mapped-bytes raised"));
        }
        Ok(ClientQuota { ledger: ledger.clone(), facts: facts.clone(), bytes })
    }
}

impl Drop for ClientQuota {
    fn drop(&mut self) {
        self.facts.mapped.fetch_sub(self.bytes, Ordering::Relaxed);
        self.ledger.take_from_user(self.facts.peer.uid, self.bytes);
        self.ledger.mapped.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Adds to a counter, or returns its value if the sum would be too much.
fn add(counter: &AtomicU64, bytes: u64, most: u64) -> Result<(), u64> {
    let sum = |has: u64| has.checked_add(bytes).filter(|sum| *sum <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).map(|_| ())
}

/// The error of a reached limit.
pub(in crate::server) fn reached(context: String, advice: &str) -> Error {
    Error::new(ErrorKind::Busy, "connect", context).with_advice(advice)
}

/// Reports the end of a pipe when it is dropped with the pipe.
pub(in crate::server) struct NotifyOnDrop {
    pub(in crate::server) flag: Arc<AtomicBool>,
    pub(in crate::server) wake_event: Arc<OwnedFd>,
}

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::SeqCst);
        ring(&self.wake_event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_to_the_limits_and_go_back() {
        let ledger = Ledger::new(Most { of_client: 60, of_user: 80, of_all: 100 });
        let facts = |number, uid| {
            let peer = Peer { pid: 1, uid };
            Arc::new(SessionFacts::new(number, peer))
        };
        let (one, same, other) = (facts(1, 7), facts(2, 7), facts(3, 8));
        let refused = |facts, bytes, why: &str| {
            ClientQuota::take(&ledger, facts, bytes)
                .is_err_and(|e| e.kind() == ErrorKind::Busy && e.to_string().contains(why))
        };
        let first = ClientQuota::take(&ledger, &one, 60).unwrap();
        assert!(refused(&one, 1, "a client may"));
        assert!(refused(&same, 21, "for user 7"));
        assert!(refused(&other, 41, "for all clients"));
        assert!(refused(&other, u64::MAX, "a client may"));
        for facts in [&same, &other] {
            assert_eq!(facts.mapped.load(Ordering::Relaxed), 0, "a refused charge leaves nothing behind");
        }
        let others = [ClientQuota::take(&ledger, &same, 20).unwrap(), ClientQuota::take(&ledger, &other, 20).unwrap()];
        assert_eq!(ledger.mapped(), 100);
        drop((first, others));
        assert_eq!((ledger.mapped(), one.mapped.load(Ordering::Relaxed), ledger.of_users().len()), (0, 0, 0));
    }
}
