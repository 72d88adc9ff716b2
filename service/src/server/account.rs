//! Who has how much.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use datapipes::{Error, ErrorKind, Result};

use super::peer::Peer;
use super::ring;

/// What all clients have together.
pub(super) struct Ledger {
    mapped: AtomicU64,
    most: u64,
}

impl Ledger {
    pub(super) fn new(most: u64) -> Arc<Ledger> {
        Arc::new(Ledger { mapped: AtomicU64::new(0), most })
    }

    pub(super) fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
    }
}

/// What others may know of a session.
pub(super) struct SessionFacts {
    pub(super) number: u64,
    pub(super) peer: Peer,
    pub(super) name: Mutex<String>,
    pub(super) pipes: AtomicU64,
    pub(super) mapped: AtomicU64,
}

/// Bytes that a client has mapped, until this is dropped.
pub(super) struct Charge {
    ledger: Arc<Ledger>,
    facts: Arc<SessionFacts>,
    bytes: u64,
}

impl Charge {
    /// Charges a client.
    ///
    /// # Errors
    /// `Busy` where it would have more than it may, or all together would.
    pub(super) fn take(ledger: &Arc<Ledger>, facts: &Arc<SessionFacts>, most: u64, bytes: u64) -> Result<Charge> {
        add(&facts.mapped, bytes, most).map_err(|has| {
            let context = format!("{bytes} bytes of memory beside {has}, of {most} that a client may have mapped");
            reached(context, "close a pipe, pass a smaller memfd, or have --mapped-bytes raised")
        })?;
        if let Err(has) = add(&ledger.mapped, bytes, ledger.most) {
            facts.mapped.fetch_sub(bytes, Ordering::Relaxed);
            let context = format!("{bytes} bytes of memory beside {has}, of {} for all clients", ledger.most);
            return Err(reached(context, "try again when others have left, or have --all-mapped-bytes raised"));
        }
        Ok(Charge { ledger: ledger.clone(), facts: facts.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.facts.mapped.fetch_sub(self.bytes, Ordering::Relaxed);
        self.ledger.mapped.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Adds, or says what there is where it would be too much.
fn add(counter: &AtomicU64, bytes: u64, most: u64) -> Result<(), u64> {
    let sum = |has: u64| has.checked_add(bytes).filter(|sum| *sum <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).map(|_| ())
}

/// The error of a limit.
pub(super) fn reached(context: String, advice: &str) -> Error {
    Error::new(ErrorKind::Busy, "connect", context).advice(advice)
}

/// Says that a pipe has ended, when it is dropped with it.
pub(super) struct Over {
    pub(super) flag: Arc<AtomicBool>,
    pub(super) bell: Arc<OwnedFd>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::SeqCst);
        ring(&self.bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_to_the_limits_and_go_back() {
        let ledger = Ledger::new(100);
        let facts = |number| {
            let peer = Peer { pid: 1, uid: 0 };
            let (pipes, mapped) = (AtomicU64::new(0), AtomicU64::new(0));
            Arc::new(SessionFacts { number, peer, name: Mutex::default(), pipes, mapped })
        };
        let (one, two) = (facts(1), facts(2));
        let first = Charge::take(&ledger, &one, 60, 60).unwrap();
        assert!(Charge::take(&ledger, &one, 60, 1).is_err_and(|e| e.to_string().contains("a client may")));
        assert!(Charge::take(&ledger, &two, 60, 41).is_err_and(|e| e.to_string().contains("for all clients")));
        assert!(Charge::take(&ledger, &two, u64::MAX, u64::MAX).is_err());
        assert_eq!(two.mapped.load(Ordering::Relaxed), 0, "a refused charge leaves nothing behind");
        let second = Charge::take(&ledger, &two, 60, 40).unwrap();
        assert_eq!(ledger.mapped(), 100);
        drop((first, second));
        assert_eq!((ledger.mapped(), one.mapped.load(Ordering::Relaxed)), (0, 0));
    }
}
