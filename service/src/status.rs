//! What a service tells of itself.

use serde::{Deserialize, Serialize};

use crate::server::ServiceLimits;

/// What a service is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The process.
    pub pid: u32,
    /// Seconds since it began.
    pub up_s: u64,
    /// Descriptors that it has open.
    pub descriptors: u64,
    /// Bytes of clients' memory that are mapped now.
    pub mapped_bytes: u64,
    /// Clients that were refused, or cut off, since it began.
    pub turned_away: u64,
    /// Clients connected now, others' included.
    pub connected: u64,
    /// Those of the asker's user; all, where the asker is root or the service's own user.
    pub clients: Vec<ClientStatus>,
    /// What each may have.
    pub limits: ServiceLimits,
    /// The runtime's report: [`datapipes_core::runtime::RuntimeReport`]; without the single pipes
    /// where the asker does not see all.
    pub runtime: serde_json::Value,
}

/// A client of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its number in the log.
    pub number: u64,
    /// What it calls itself.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// Its process, as the service sees it; 0 where it is in another namespace.
    pub pid: i32,
    /// Its pipes.
    pub pipes: u64,
    /// Bytes of its memory that are mapped.
    pub mapped_bytes: u64,
}
