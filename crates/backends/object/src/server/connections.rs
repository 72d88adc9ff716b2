//! What each connection to a server carried for an object.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use http::Extensions;
use hyper_util::client::legacy::connect::HttpInfo;

/// The most connections that are told apart; what further ones carry is counted together.
const MAX_CONNECTIONS: usize = 256;

/// What one connection to a server carried for an object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// Its addresses: this machine's and the server's. `None` for all connections together that
    /// came after the first 256, and for requests that got no answer.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Requests.
    pub requests: u64,
    /// Bytes of answers that came.
    pub received_bytes: u64,
    /// Bytes of requests that went.
    pub sent_bytes: u64,
    /// The time in which a request or its answer was under way.
    pub busy: Duration,
}

impl ConnectionReport {
    /// Bytes in both directions by the time in which it was busy; 0 if it never was.
    pub fn bytes_per_second(&self) -> f64 {
        match self.busy.as_secs_f64() {
            0.0 => 0.0,
            busy => (self.received_bytes as f64 + self.sent_bytes as f64) / busy,
        }
    }
}

type Addresses = Option<(SocketAddr, SocketAddr)>;

/// All connections that carried something.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    by_addresses: Mutex<BTreeMap<Addresses, ConnectionReport>>,
    /// Bytes of all answers so far, those included that are on their way.
    pub(crate) received: AtomicU64,
}

impl Connections {
    fn note(&self, carried: ConnectionReport) {
        let mut all = self.by_addresses.lock();
        let is_known = all.contains_key(&carried.addresses);
        let told_apart = all.len() - usize::from(all.contains_key(&None));
        let addresses = carried.addresses.filter(|_| is_known || told_apart < MAX_CONNECTIONS);
        let sum = all.entry(addresses).or_insert(ConnectionReport {
            addresses,
            requests: 0,
            received_bytes: 0,
            sent_bytes: 0,
            busy: Duration::ZERO,
        });
        sum.requests = sum.requests.saturating_add(carried.requests);
        sum.received_bytes = sum.received_bytes.saturating_add(carried.received_bytes);
        sum.sent_bytes = sum.sent_bytes.saturating_add(carried.sent_bytes);
        sum.busy = sum.busy.saturating_add(carried.busy);
    }
}

/// What each of them carried so far, by address, whichever of several stores it was for.
pub(crate) fn reports<'a>(of: impl IntoIterator<Item = &'a Connections>) -> Vec<ConnectionReport> {
    let all = Connections::default();
    for one in of {
        let carried: Vec<_> = one.by_addresses.lock().values().cloned().collect();
        carried.into_iter().for_each(|one| all.note(one));
    }
    all.by_addresses.lock().values().cloned().collect()
}

/// One request on a connection, which is noted when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionUse {
    connections: Arc<Connections>,
    addresses: Addresses,
    began: Instant,
    sent: Arc<AtomicU64>,
    received: u64,
}

impl ConnectionUse {
    /// Begins with a request, whose bytes are counted in `sent` as they go.
    pub(crate) fn begin(of: &Arc<Connections>, sent: Arc<AtomicU64>) -> ConnectionUse {
        ConnectionUse { connections: of.clone(), addresses: None, began: Instant::now(), sent, received: 0 }
    }

    /// Notes that the answer came, and by which connection.
    pub(crate) fn answered(&mut self, answer: &Extensions) {
        self.addresses = answer.get::<HttpInfo>().map(|info| (info.local_addr(), info.remote_addr()));
    }

    /// Notes bytes of the answer.
    pub(crate) fn came(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        self.connections.received.fetch_add(bytes, Relaxed);
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        self.connections.note(ConnectionReport {
            addresses: self.addresses,
            requests: 1,
            received_bytes: self.received,
            sent_bytes: self.sent.load(Relaxed),
            busy: self.began.elapsed(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_told_apart_up_to_a_bound() {
        let connections = Connections::default();
        let carried = |port| ConnectionReport {
            addresses: Some((SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], 9)))),
            requests: 1,
            received_bytes: 1000,
            sent_bytes: u64::MAX,
            busy: Duration::from_millis(1),
        };
        for port in 1..=1000 {
            connections.note(carried(port));
        }
        connections.note(carried(1));
        let all = reports([&connections]);
        assert_eq!(all.len(), MAX_CONNECTIONS + 1);
        assert_eq!(all.iter().map(|one| one.requests).sum::<u64>(), 1001);
        assert!(all[0].addresses.is_none() && all[0].requests == 1000 - MAX_CONNECTIONS as u64);
        assert!(all[1].requests == 2 && all[1].sent_bytes == u64::MAX && all[1].received_bytes == 2000);
    }

    #[test]
    fn a_rate_is_of_the_time_in_which_it_was_busy() {
        let mut one = ConnectionReport {
            addresses: None,
            requests: 1,
            received_bytes: 300,
            sent_bytes: 100,
            busy: Duration::from_secs(2),
        };
        assert_eq!(one.bytes_per_second(), 200.0);
        one.busy = Duration::ZERO;
        assert_eq!(one.bytes_per_second(), 0.0);
    }
}
