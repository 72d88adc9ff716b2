//! How the controller connects links between machines by UCX.

use std::net::IpAddr;

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::UcxSettings;
use serde::{Deserialize, Serialize};

/// How links between machines go by UCX ([`LinkCarrier::Ucx`](super::LinkCarrier::Ucx)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UcxLinkOptions {
    /// The caller's word that nobody but the two machines can reach the interface that is used, or
    /// that all who can are trusted with the bridges' memory. UCX encrypts nothing, and whoever
    /// reaches a bridge's port can read and write that process. What the ends of a link seal
    /// ([`Encryption`](super::Encryption)) stays sealed there.
    pub trusted_network: bool,
    /// UCX's names of network transports; `tcp` by default. `rc,tcp` prefers RDMA.
    pub transports: Option<String>,
    /// UCX's names of devices; by default the interface that has the local address of the
    /// controllers' connection. RDMA needs its own (`mlx5_0:1`).
    pub devices: Option<String>,
}

datapipes_core::setters! {
    UcxLinkOptions {
        trusted_network: bool,
        transports: into Option<String>,
        devices: into Option<String>,
    }
}

impl UcxLinkOptions {
    /// Refuses a link whose bytes nobody has allowed to go by UCX.
    ///
    /// # Errors
    /// `PermissionDenied` without the caller's word.
    pub(super) fn check(options: Option<&UcxLinkOptions>, operation: &'static str) -> Result<()> {
        if options.is_some_and(|options| options.trusted_network) {
            return Ok(());
        }
        let what = "bytes would travel by UCX, which opens ports and trusts whoever reaches them";
        Err(Error::new(ErrorKind::PermissionDenied, operation, what)
            .with_advice("say that the network is trusted (`Session::ucx_links`), or let the link go over TCP"))
    }

    /// What a bridge is opened with, where the controllers' connection has this local address.
    ///
    /// # Errors
    /// Those of [`UcxSettings::network`].
    pub(super) fn settings(&self, local: IpAddr) -> Result<UcxSettings> {
        UcxSettings::network(self.transports.as_deref(), self.devices.as_deref(), Some(local), "join")
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn only_a_trusted_network_is_used() {
        let check = |options: Option<&UcxLinkOptions>| UcxLinkOptions::check(options, "offer").map_err(|e| e.kind());
        let plain = UcxLinkOptions::default();
        assert_eq!(check(None), Err(ErrorKind::PermissionDenied));
        assert_eq!(check(Some(&plain)), Err(ErrorKind::PermissionDenied));
        assert_eq!(check(Some(&plain.clone().trusted_network(true))), Ok(()));
        let settings = plain.settings("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!((settings.transports.as_str(), settings.devices.as_deref()), ("tcp", Some("lo")));
        let wrong = plain.transports("all".to_owned()).settings("127.0.0.1".parse().unwrap());
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
