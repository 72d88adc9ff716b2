//! Whether the service really serves, for who watches over it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use datapipes_core::{Dram, Error, ErrorKind, Result, Span};

use super::shared::Shared;
use super::wake::ring;

/// The bytes that a probe copies: more than a runtime copies on its caller.
const PROBE_BYTES: usize = 1 << 20;

/// Finds out whether a service serves, by using it.
pub struct ServiceProbe {
    shared: Arc<Shared>,
    source: Dram,
    target: Dram,
    rounds: u8,
}

/// What a probe found besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProbeOutcome {
    /// Clients that are connected.
    pub clients: usize,
    /// Transfers under way.
    pub under_way: u64,
}

impl ServiceProbe {
    pub(super) fn new(shared: Arc<Shared>) -> Result<ServiceProbe> {
        let (source, target) = (Dram::allocate(PROBE_BYTES)?, Dram::allocate(PROBE_BYTES)?);
        Ok(ServiceProbe { shared, source, target, rounds: 0 })
    }

    /// Asks the thread that accepts clients for an answer, the runtime for its report, and has the
    /// runtime copy a megabyte on its own threads, which is compared. It waits for at most
    /// `patience`, except where a lock of the service is held for ever: then it does not return,
    /// and whoever waits for it knows.
    ///
    /// # Errors
    /// `Unavailable` for a thread that does not answer in time, and when the service stops;
    /// `Corrupt` for a copy that is wrong; the error of the copy.
    pub fn check(&mut self, patience: Duration) -> Result<ProbeOutcome> {
        let until = Instant::now() + patience;
        let late = |what: &str| {
            let context = format!("{what} for {:.1} s", patience.as_secs_f64());
            Error::new(ErrorKind::Unavailable, "probe", context)
        };
        let before = self.shared.pulse.count();
        ring(&self.shared.asked);
        if !self.shared.pulse.wait(before, patience) {
            return Err(late("the thread that accepts clients did not answer"));
        }
        self.rounds = self.rounds.wrapping_add(1);
        self.source.lease_mut()?.fill(self.rounds);
        let (done, result) = channel();
        let under_way = self.shared.with_runtime(|runtime| {
            // Without the copy below.
            let under_way = runtime.report().under_way;
            let pipe = runtime.connect(&self.source, &self.target)?;
            let span = Span { source: 0, target: 0, len: PROBE_BYTES as u64 };
            pipe.transfer(span)?.on_done(move |copied| {
                // If the probe has given up, nobody needs the result.
                let _ = done.send(copied);
            });
            Ok(under_way)
        })?;
        match result.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(copied) => copied?,
            Err(_) => return Err(late("the runtime did not finish a copy")),
        }
        let target = self.target.lease()?;
        if target.iter().any(|byte| *byte != self.rounds) {
            return Err(Error::new(ErrorKind::Corrupt, "probe", "a copy is not what was copied"));
        }
        Ok(ProbeOutcome { clients: self.shared.sessions().len(), under_way })
    }
}
