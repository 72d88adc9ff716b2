//! Memory of other processes, reached by a ticket.

use std::path::PathBuf;

use datapipes::net::{NetworkOptions, Remote, RemoteOptions, RemoteTicket, RemoteTransport};
use datapipes::{Endpoint, Error, ErrorKind, Locator, Result};

use super::SCHEME;

/// Memory that another process exports.
#[derive(Debug)]
pub(crate) struct AnyRemote(Remote);

impl AnyRemote {
    /// Reads the ticket and asks the exporter for the length.
    pub(crate) fn open(address: &str) -> Result<AnyRemote> {
        let (path, network) = parse(address)?;
        let ticket = RemoteTicket::load(&path)?;
        let remote = Remote::connect(&ticket, RemoteOptions::default().network(network));
        remote.map(AnyRemote).map_err(in_words_of_addresses)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }
}

impl Locator for AnyRemote {
    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }
}

/// An error whose advice says what to write into the address, where the library's names fields of
/// its options.
fn in_words_of_addresses(error: Error) -> Error {
    let words = [
        (
            "set `transport` of the network options to the same on both sides",
            "say what the exporter says: `?network=trusted`, or nothing",
        ),
        ("`trusted_network`", "`?network=trusted`"),
        ("`devices`", "`&devices=`"),
    ];
    match error.advice().map(|advice| words.iter().fold(advice.to_owned(), |text, (of, word)| text.replace(of, word))) {
        Some(advice) => error.with_advice(advice),
        None => error,
    }
}

/// `remote://TICKET[?network=trusted[&transports=NAMES][&devices=NAMES]]`.
fn parse(address: &str) -> Result<(PathBuf, NetworkOptions)> {
    let wrong = |what: String| {
        Error::new(ErrorKind::InvalidInput, "open", format!("{address}: {what}"))
            .with_advice("say remote://TICKET[?network=trusted[&transports=NAMES][&devices=NAMES]]")
    };
    let rest = address.strip_prefix(SCHEME).unwrap_or(address);
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(wrong("of which ticket?".to_owned()));
    }
    let mut network = NetworkOptions::default();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        network = match option.split_once('=') {
            // One word for both: a network that is not trusted is never used.
            Some(("network", "trusted")) => network.transport(RemoteTransport::Network).trusted_network(true),
            Some(("network", _)) => {
                return Err(wrong("what UCX sends is not encrypted, so say network=trusted or nothing".to_owned()));
            }
            Some(("transports", names)) => network.transports(names.to_owned()),
            Some(("devices", names)) => network.devices(names.to_owned()),
            _ => return Err(wrong(format!("`{option}` is no option of remote memory"))),
        };
    }
    if network.transport != RemoteTransport::Network && options.contains("s=") {
        return Err(wrong("transports and devices are those of a network: add network=trusted".to_owned()));
    }
    Ok((path.into(), network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_ticket_and_how_bytes_go() {
        let (path, network) = parse("remote:///run/a ticket").unwrap();
        assert_eq!((path, network), ("/run/a ticket".into(), NetworkOptions::default()));
        let (path, network) = parse("remote://t?network=trusted&transports=rc,tcp&devices=mlx5_0:1,eth0").unwrap();
        assert_eq!(path, PathBuf::from("t"));
        assert!(network.trusted_network && network.transport == RemoteTransport::Network);
        assert_eq!(
            (network.transports.as_deref(), network.devices.as_deref()),
            (Some("rc,tcp"), Some("mlx5_0:1,eth0"))
        );
        for wrong in ["remote://", "remote://?network=trusted", "remote://t?network=tcp", "remote://t?x=1"] {
            assert_eq!(parse(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
        }
        for wrong in ["remote://t?devices=eth0", "remote://t?transports=tcp", "remote://t?network"] {
            assert_eq!(parse(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
        }
    }
}
