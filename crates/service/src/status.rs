//! The status that a service reports.

use datapipes_core::runtime::RuntimeReport;
use datapipes_metrics::{Label, Sample, vocabulary};
use serde::{Deserialize, Serialize};

use crate::server::ServiceLimits;

/// The present state of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceStatus {
    /// The process id.
    pub pid: u32,
    /// Seconds since it was started.
    pub up_s: u64,
    /// Descriptors that it has open.
    pub descriptors: u64,
    /// Bytes of clients' memory that are mapped now.
    pub mapped_bytes: u64,
    /// Clients that were refused or cut off since it was started.
    pub turned_away: u64,
    /// Clients connected now, with those of other users.
    pub connected: u64,
    /// The clients of the asking user; all clients if that is root or the service's own user.
    pub clients: Vec<ClientStatus>,
    /// The limits of each client.
    pub limits: ServiceLimits,
    /// The runtime's report, without the single pipes if the asking user may not see all.
    pub runtime: RuntimeReport,
}

/// A client of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Its number in the log.
    pub number: u64,
    /// The name that it gave.
    pub name: String,
    /// Its user id.
    pub uid: u32,
    /// Its process id, as the service sees it; 0 if it is in another namespace.
    pub pid: i32,
    /// The number of its pipes.
    pub pipes: u64,
    /// Bytes of its memory that are mapped.
    pub mapped_bytes: u64,
}

impl ServiceStatus {
    /// Returns it as samples, with those of its runtime. Names that clients gave, their users and
    /// processes are not among them.
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = vec![
            Sample::new(&vocabulary::SERVICE_UP, self.up_s as f64),
            Sample::new(&vocabulary::SERVICE_DESCRIPTORS, self.descriptors),
            Sample::new(&vocabulary::SERVICE_MAPPED, self.mapped_bytes),
            Sample::new(&vocabulary::SERVICE_MAPPED_LIMIT, self.limits.all_mapped_bytes),
            Sample::new(&vocabulary::SERVICE_TURNED_AWAY, self.turned_away),
            Sample::new(&vocabulary::SERVICE_CLIENTS, self.connected),
            Sample::new(&vocabulary::SERVICE_CLIENT_LIMIT, self.limits.clients),
        ];
        for client in &self.clients {
            let of = |measurement, n: u64| Sample::new(measurement, n).label(Label::Client, client.number.to_string());
            samples.push(of(&vocabulary::CLIENT_PIPES, client.pipes));
            samples.push(of(&vocabulary::CLIENT_MAPPED, client.mapped_bytes));
        }
        samples.extend(self.runtime.samples());
        samples
    }
}
