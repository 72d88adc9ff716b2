//! Limits of clients.

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Limits of each client (each connection), of each user, and of all clients together.
///
/// Disk space is not limited here. A client writes to files that it could write itself, and the
/// kernel charges the space to their owner (quota), unless the service has privileges that exempt
/// it. Transfers end with their client, however long they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ServiceLimits {
    /// Clients at a time.
    pub clients: usize,
    /// Clients of one user at a time. Root and the service's own user have no exemption.
    pub clients_per_uid: usize,
    /// Pipes of a client at a time.
    pub pipes: usize,
    /// Transfers that a client's pipes together can have in flight: the sum of their depths.
    pub transfers: usize,
    /// Descriptors that the service keeps open for a client: those that it passed, and those of its
    /// pipes.
    pub descriptors: usize,
    /// Bytes of a client's memory that the service has mapped at a time, with the service's own
    /// memory for pipes between files (8 MiB each). Pages that a client removes from its memory and
    /// adds again while pipes use it are its own, and not counted here.
    pub mapped_bytes: u64,
    /// The same bytes, for all clients of one user together.
    pub mapped_bytes_per_uid: u64,
    /// The same bytes, for all clients together.
    pub all_mapped_bytes: u64,
    /// Bytes per second that a client's pipes may be promised together (`at_least`); without a
    /// value, only the devices limit them.
    pub promised_bytes_per_s: Option<u64>,
    /// The time for a client to say hello, to read a status, and for checking and closing the files
    /// that it passes, in milliseconds.
    pub hello_ms: u64,
    /// Requests (to connect, for a status) of a client in a second; after a pause as many at once.
    /// A client that asks for more waits.
    pub requests_per_s: u32,
}

datapipes_core::setters! {
    ServiceLimits {
        clients: usize,
        clients_per_uid: usize,
        pipes: usize,
        transfers: usize,
        descriptors: usize,
        mapped_bytes: u64,
        mapped_bytes_per_uid: u64,
        all_mapped_bytes: u64,
        promised_bytes_per_s: into Option<u64>,
        hello_ms: u64,
        requests_per_s: u32,
    }
}

impl ServiceLimits {
    /// Returns limits that suit a machine with this much memory, in bytes.
    pub const fn new(memory_bytes: u64) -> ServiceLimits {
        ServiceLimits {
            clients: 256,
            clients_per_uid: 64,
            pipes: 64,
            transfers: 4096,
            descriptors: 512,
            mapped_bytes: memory_bytes / 4,
            mapped_bytes_per_uid: memory_bytes / 8 * 3,
            all_mapped_bytes: memory_bytes / 2,
            promised_bytes_per_s: None,
            hello_ms: 5000,
            requests_per_s: 1000,
        }
    }

    /// Checks that a service with these limits could serve a client.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of 0 that every client needs.
    pub fn check(&self) -> Result<()> {
        let needed = [
            ("clients", self.clients as u64),
            ("clients_per_uid", self.clients_per_uid as u64),
            ("pipes", self.pipes as u64),
            ("transfers", self.transfers as u64),
            ("descriptors", self.descriptors as u64),
            ("hello_ms", self.hello_ms),
            ("requests_per_s", self.requests_per_s.into()),
        ];
        match needed.into_iter().find(|(_, most)| *most == 0) {
            Some((name, _)) => Err(Error::new(ErrorKind::InvalidInput, "start the service", format!("{name}: 0"))
                .with_advice("give at least 1, or leave it out")),
            None => Ok(()),
        }
    }
}

impl Default for ServiceLimits {
    /// Returns the limits for a machine with 4 GiB.
    fn default() -> ServiceLimits {
        ServiceLimits::new(4 << 30)
    }
}
