//! How a service works.

use datapipes_core::runtime::RuntimeOptions;

use super::log::ServiceLog;
use super::quotas::limits::ServiceLimits;

/// The configuration of a service.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The limits of each client, and of all together.
    pub limits: ServiceLimits,
    /// The users that may connect; all that can open the socket, if empty.
    pub allow_uids: Vec<u32>,
    /// Whether to take files of file systems that are not known to be served by the kernel alone.
    pub any_filesystem: bool,
    /// The target of its log lines.
    pub log: ServiceLog,
    /// The configuration of the runtime; derived from the machine if not given.
    pub runtime: Option<RuntimeOptions>,
}

datapipes_core::setters! {
    ServerOptions {
        limits: ServiceLimits,
        allow_uids: Vec<u32>,
        any_filesystem: bool,
        log: ServiceLog,
        runtime: into Option<RuntimeOptions>,
    }
}
