//! What clients may have.

use serde::{Deserialize, Serialize};

/// What each client (each connection) may have, and all together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Clients at a time.
    pub clients: usize,
    /// Clients of one user at a time. Root and the service's own user are users like others.
    pub clients_per_uid: usize,
    /// Pipes of a client at a time.
    pub pipes: usize,
    /// Transfers that a client's pipes together can have under way: the sum of their depths.
    pub transfers: usize,
    /// Descriptors that the service keeps open for a client: what it passed, and those of its pipes.
    pub descriptors: usize,
    /// Bytes of a client's memory that the service has mapped at a time.
    pub mapped_bytes: u64,
    /// The same, of all clients together. Pages that the service touches first are counted as its own by the kernel.
    pub all_mapped_bytes: u64,
    /// Bytes/s that a client's pipes may be promised together (`at_least`); none to speak of if not given.
    pub promised_bytes_per_s: Option<u64>,
    /// How long a client may take to say hello, in milliseconds.
    pub hello_ms: u64,
}

impl Limits {
    /// What suits a machine with so many bytes of memory.
    pub const fn of(memory_bytes: u64) -> Limits {
        Limits {
            clients: 256,
            clients_per_uid: 64,
            pipes: 64,
            transfers: 4096,
            descriptors: 512,
            mapped_bytes: memory_bytes / 4,
            all_mapped_bytes: memory_bytes / 2,
            promised_bytes_per_s: None,
            hello_ms: 5000,
        }
    }
}

impl Default for Limits {
    /// Those of a machine with 4 GiB.
    fn default() -> Limits {
        Limits::of(4 << 30)
    }
}
