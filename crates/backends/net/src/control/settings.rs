//! Rights, transports, and which addresses are refused unless the network is trusted.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use datapipes_core::{Error, ErrorKind, Result};
#[cfg(feature = "tls")]
use datapipes_tls::TlsIdentity;
use datapipes_ucx::UcxSettings;
use serde::{Deserialize, Serialize};

/// What a client may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteRights {
    /// Read its bytes.
    Read,
    /// Read and write them. A right to write alone could not be enforced.
    ReadWrite,
}

/// How the bytes of an export travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteTransport {
    /// By shared memory, between processes of one user on one machine. No port is opened.
    SharedMemory,
    /// By a network, unencrypted. While a pipe is open, its two processes have ports of UCX, and
    /// whoever reaches one can read and write the memory of the process behind it. So it is used
    /// only where both sides say that the network is trusted.
    Network,
}

/// Where an exporter listens for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl ExportAddress {
    /// Whether packets to it stay on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            ExportAddress::Unix(_) => true,
            ExportAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }

    /// Refuses what leaves the machine, or has ports, where the network is not trusted.
    pub(crate) fn check(&self, options: &NetworkOptions, operation: &'static str) -> Result<()> {
        if options.trusted_network || (self.is_local() && options.transport == RemoteTransport::SharedMemory) {
            return Ok(());
        }
        let what = match options.transport {
            RemoteTransport::Network => "bytes would travel by a network transport, unencrypted, and open ports",
            RemoteTransport::SharedMemory => "an address that is not of this machine",
        };
        Err(Error::new(ErrorKind::PermissionDenied, operation, format!("{self}: {what}"))
            .with_advice("use a Unix socket and shared memory; or say that the network is trusted (`trusted_network`)"))
    }
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ExportAddress::Tcp(address) => address.fmt(f),
        }
    }
}

impl FromStr for ExportAddress {
    type Err = Error;

    /// Reads `unix:PATH` or `HOST:PORT`.
    fn from_str(text: &str) -> Result<ExportAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(ExportAddress::Unix(path.into()));
        }
        let mut found = text.to_socket_addrs().map_err(|e| Error::io("resolve", e, text))?;
        let none = || Error::new(ErrorKind::NotFound, "resolve", format!("{text}: no address"));
        found.next().map(ExportAddress::Tcp).ok_or_else(none)
    }
}

/// How an exporter or a client uses networks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// How bytes travel: by shared memory, unless this says otherwise.
    pub transport: RemoteTransport,
    /// The caller's word that nobody but the two parties can reach the interface that is used, or
    /// that all who can are trusted with the memory of both processes.
    pub trusted_network: bool,
    /// UCX's names of network transports; `tcp` by default. `rc,tcp` prefers RDMA.
    pub transports: Option<String>,
    /// UCX's names of devices; by default the interface that has the local address of the
    /// connection. RDMA needs its own (`mlx5_0:1`).
    pub devices: Option<String>,
    /// The certificates of a conversation over TLS. With them, client and exporter show each other
    /// who they are before the key is proved; a side without TLS is refused. What UCX moves is not
    /// encrypted by this.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsIdentity>,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        NetworkOptions {
            transport: RemoteTransport::SharedMemory,
            trusted_network: false,
            transports: None,
            devices: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

#[cfg(feature = "tls")]
impl NetworkOptions {
    /// Sets `tls`.
    #[must_use]
    pub fn tls(self, tls: impl Into<Option<TlsIdentity>>) -> NetworkOptions {
        NetworkOptions { tls: tls.into(), ..self }
    }
}

datapipes_core::setters! {
    NetworkOptions {
        transport: RemoteTransport,
        trusted_network: bool,
        transports: into Option<String>,
        devices: into Option<String>,
    }
}

/// What a worker of UCX is opened with, for a connection whose local end has this address.
///
/// # Errors
/// Those of [`UcxSettings::network`].
pub(crate) fn ucx_settings(
    options: &NetworkOptions,
    local: Option<IpAddr>,
    operation: &'static str,
) -> Result<UcxSettings> {
    if options.transport == RemoteTransport::SharedMemory {
        return Ok(UcxSettings::shared_memory());
    }
    UcxSettings::network(options.transports.as_deref(), options.devices.as_deref(), local, operation)
}

/// Refuses what no client of an exporter at this address could use: it is known before a client
/// comes.
pub(crate) fn check_served(options: &NetworkOptions, address: &ExportAddress) -> Result<()> {
    let local = match address {
        ExportAddress::Unix(_) => None,
        // At the address of all interfaces, each connection tells its own.
        ExportAddress::Tcp(address) if address.ip().is_unspecified() => {
            let named = options.devices.clone().unwrap_or_else(|| "lo".into());
            return ucx_settings(&options.clone().devices(named), None, "export").map(drop);
        }
        ExportAddress::Tcp(address) => Some(address.ip()),
    };
    ucx_settings(options, local, "export").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_memory_on_this_machine_needs_no_trust() {
        let address = |text: &str| text.parse::<ExportAddress>().unwrap();
        let (plain, network) =
            (NetworkOptions::default(), NetworkOptions::default().transport(RemoteTransport::Network));
        for (text, options, is_allowed) in [
            ("unix:/run/x", &plain, true),
            ("127.0.0.1:7", &plain, true),
            ("[::1]:7", &plain, true),
            ("[::ffff:127.0.0.1]:7", &plain, true),
            ("192.0.2.1:7", &plain, false),
            ("0.0.0.0:7", &plain, false),
            ("unix:/run/x", &network, false),
            ("127.0.0.1:7", &network, false),
        ] {
            let outcome = address(text).check(options, "export");
            assert_eq!(outcome.is_ok(), is_allowed, "{text}");
            if let Err(e) = outcome {
                assert_eq!(e.kind(), ErrorKind::PermissionDenied);
            }
            address(text).check(&options.clone().trusted_network(true), "export").unwrap();
        }
    }
}
