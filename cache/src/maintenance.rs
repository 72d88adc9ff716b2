//! The maintenance thread (Pipette, section 3.2.3): it watches evictions, moves slabs, ends the time to live and looks for
//! changes from outside.
//!
//! The paper has a second thread that moves slabs on its behalf; here a move takes one shard's lock for some microseconds,
//! so the first thread does it itself.

use std::time::{Duration, Instant};

use datapipes_core::{Error, Result};

use crate::fine::Inner;
use crate::sync::{Arc, Condvar, Mutex, PoisonError, Weak, lock};

/// How often it looks, unless settings want it more often.
const TICK: Duration = Duration::from_millis(100);
/// Quarters of the time to live are periods.
const PERIODS_OF_TTL: u32 = 4;

#[derive(Default)]
struct Signal {
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// The thread; it ends when this is dropped.
pub(crate) struct Maintenance(Arc<Signal>);

impl Maintenance {
    pub(crate) fn start(inner: &Arc<Inner>) -> Result<Maintenance> {
        let signal = Arc::new(Signal::default());
        let (weak, theirs) = (Arc::downgrade(inner), signal.clone());
        let period = inner.config.ttl.map(|ttl| ttl / PERIODS_OF_TTL);
        let tick = [Some(TICK), period, inner.config.look_outside].into_iter().flatten().min().unwrap_or(TICK);
        let tick = tick.max(Duration::from_millis(1));
        std::thread::Builder::new()
            .name("fine-maintenance".into())
            .spawn(move || run(&weak, &theirs, tick, period))
            .map_err(|e| Error::io("start", &e, "the maintenance thread of a cache"))?;
        Ok(Maintenance(signal))
    }
}

fn run(inner: &Weak<Inner>, signal: &Signal, tick: Duration, period: Option<Duration>) {
    let mut turned = Instant::now();
    let mut stop = lock(&signal.stop);
    while !*stop {
        stop = signal.stopped.wait_timeout(stop, tick).unwrap_or_else(PoisonError::into_inner).0;
        if *stop {
            return;
        }
        // Only for the time of the look: who drops the last handle ends the cache, and this thread with it.
        let Some(inner) = inner.upgrade() else { return };
        drop(stop);
        if let Some(period) = period {
            while turned.elapsed() >= period {
                inner.next_period();
                turned += period;
            }
        }
        inner.maintain();
        drop(inner);
        stop = lock(&signal.stop);
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *lock(&self.0.stop) = true;
        self.0.stopped.notify_all();
    }
}
