//! The status that a service reports.

use datapipes_core::runtime::{MeteredTransfers, PriorityClass, RuntimeReport};
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
    /// Memory that it exports.
    #[serde(default)]
    pub exports: ExportTotals,
    /// The limits of each client.
    pub limits: ServiceLimits,
    /// The runtime's report, without the single pipes if the asking user may not see all.
    pub runtime: RuntimeReport,
}

/// Memory that a service exports to other processes and machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportTotals {
    /// Bytes of all exports.
    pub bytes: u64,
    /// Pipes of others that have them open.
    pub pipes: u64,
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
    /// Its transfers since it connected, by the classes that it used.
    #[serde(default)]
    pub transfers: Vec<ClientTransfers>,
}

/// The transfers of a client's pipes of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClientTransfers {
    /// The class.
    pub class: PriorityClass,
    /// What was counted of them.
    #[serde(flatten)]
    pub of: MeteredTransfers,
}

impl ClientStatus {
    fn samples(&self) -> Vec<Sample> {
        let number = self.number.to_string();
        let mut samples = vec![
            Sample::new(&vocabulary::CLIENT_PIPES, self.pipes),
            Sample::new(&vocabulary::CLIENT_MAPPED, self.mapped_bytes),
        ];
        for ClientTransfers { class, of } in &self.transfers {
            let ended = |n: u64, outcome| Sample::new(&vocabulary::CLIENT_TRANSFERS, n).label(Label::Outcome, outcome);
            let all = [
                Sample::new(&vocabulary::CLIENT_BYTES, of.bytes),
                ended(of.completed, "completed"),
                ended(of.failed, "failed"),
                Sample::new(&vocabulary::CLIENT_UNDER_WAY, of.under_way),
                Sample::new(&vocabulary::CLIENT_TRANSFER_TIME, of.times.clone()),
            ];
            samples.extend(all.map(|sample| sample.label(Label::Class, class.name())));
        }
        samples.into_iter().map(|sample| sample.label(Label::Client, number.clone())).collect()
    }
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
        if self.exports.bytes > 0 {
            samples.push(Sample::new(&vocabulary::SERVICE_EXPORTED, self.exports.bytes));
            samples.push(Sample::new(&vocabulary::SERVICE_EXPORT_PIPES, self.exports.pipes));
        }
        samples.extend(self.clients.iter().flat_map(ClientStatus::samples));
        samples.extend(self.runtime.samples());
        samples
    }
}
