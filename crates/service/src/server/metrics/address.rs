//! Where metrics can be fetched.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use datapipes_core::{Error, ErrorKind, Result};

/// Where the metrics of a service can be fetched. A port without an address is one of this machine
/// only: others cannot connect to it.
///
/// ```
/// use datapipes_service::server::MetricsAddress;
///
/// let local: MetricsAddress = "9465".parse()?;
/// assert_eq!(local, "127.0.0.1:9465".parse()?);
/// assert_eq!(local.to_string(), "127.0.0.1:9465");
/// let socket: MetricsAddress = "/run/dpiped/metrics.sock".parse()?;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricsAddress {
    /// A TCP port; 0 takes any that is free.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = Error;

    /// `PORT`, `:PORT`, `localhost:PORT`, `ADDRESS:PORT`, `[ADDRESS]:PORT`, or a path with a `/`.
    fn from_str(text: &str) -> Result<MetricsAddress> {
        if text.contains('/') {
            return Ok(MetricsAddress::Unix(text.into()));
        }
        let local = |port: &str| {
            // `parse` would take `+80`.
            let port = port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse::<u16>().ok()).flatten()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
        };
        let short = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
        let address = local(short).or_else(|| text.parse().ok());
        address.map(MetricsAddress::Tcp).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "listen", format!("`{text}` is no address"))
                .with_advice("write PORT, ADDRESS:PORT, [ADDRESS]:PORT, or a path with a slash")
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Tcp(address) => address.fmt(f),
            MetricsAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_named_address_is_reachable_from_elsewhere() {
        let tcp = |text: &str| match text.parse() {
            Ok(MetricsAddress::Tcp(address)) => Some(address),
            _ => None,
        };
        for text in ["9465", ":9465", "localhost:9465", "127.0.0.1:9465"] {
            assert_eq!(tcp(text).map(|a| (a.ip().is_loopback(), a.port())), Some((true, 9465)), "{text}");
        }
        assert_eq!(tcp("0.0.0.0:1").map(|a| a.ip().is_loopback()), Some(false));
        assert_eq!(tcp("[::1]:1").map(|a| a.ip().is_loopback()), Some(true));
        for text in ["", ":", "65536", "-1", "+80", "localhost", "localhost:", "example.org:80", "::1:80x", "1.2.3.4"] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
        assert_eq!("./a".parse::<MetricsAddress>().ok(), Some(MetricsAddress::Unix("./a".into())));
    }
}
