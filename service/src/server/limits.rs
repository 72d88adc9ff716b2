//! What clients may have.

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// What each client (each connection) may have, and all together.
///
/// What is not limited here: disk space. A client writes to files that it could write itself, and
/// the kernel charges it to their owner (quota), provided the service has no privileges by which it
/// would not. Transfers end with their client, however long they were to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceLimits {
    /// Clients at a time.
    pub clients: usize,
    /// Clients of one user at a time. Root and the service's own user are users like others.
    pub clients_per_uid: usize,
    /// Pipes of a client at a time.
    pub pipes: usize,
    /// Transfers that a client's pipes together can have under way: the sum of their depths.
    pub transfers: usize,
    /// Descriptors that the service keeps open for a client: what it passed, and those of its
    /// pipes.
    pub descriptors: usize,
    /// Bytes of a client's memory that the service has mapped at a time, and of the service's own
    /// memory for its pipes between files (8 MiB each). Pages that a client takes out of its memory
    /// and adds again while pipes use it are its own, and not counted here.
    pub mapped_bytes: u64,
    /// The same, of all clients of one user together.
    pub mapped_bytes_per_uid: u64,
    /// The same, of all clients together.
    pub all_mapped_bytes: u64,
    /// Bytes/s that a client's pipes may be promised together (`at_least`); none to speak of if not
    /// given.
    pub promised_bytes_per_s: Option<u64>,
    /// How long a client may take to say hello, to read a status, and to let the service have and
    /// drop what it passes, in milliseconds.
    pub hello_ms: u64,
    /// Requests (connecting, a status) of a client in a second, and at once after it asked for
    /// nothing. Who asks for more waits.
    pub requests_per_s: u32,
}

impl ServiceLimits {
    /// What suits a machine with so many bytes of memory.
    pub const fn of(memory_bytes: u64) -> ServiceLimits {
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

    /// Whether a service with these limits could serve anybody.
    ///
    /// # Errors
    /// `InvalidInput` for none of what every client needs.
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
                .advice("give at least 1, or leave it out")),
            None => Ok(()),
        }
    }
}

impl Default for ServiceLimits {
    /// Those of a machine with 4 GiB.
    fn default() -> ServiceLimits {
        ServiceLimits::of(4 << 30)
    }
}
