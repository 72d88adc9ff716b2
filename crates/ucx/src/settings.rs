//! What a worker of UCX is opened with, and which names are refused.

use std::net::IpAddr;

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::interface::interface_of;

/// What a worker of UCX is opened with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UcxSettings {
    /// UCX's names of transports.
    pub transports: String,
    /// UCX's names of devices.
    pub devices: Option<String>,
    /// Whether these transports find out that a peer has died. Those of shared memory do not, so
    /// something beside them must.
    pub tells_failure: bool,
}

impl UcxSettings {
    /// Returns the settings for shared memory between two processes of one user. No port is opened.
    pub fn shared_memory() -> UcxSettings {
        UcxSettings { transports: "sysv".into(), devices: None, tells_failure: false }
    }

    /// Returns the settings for a network, for a connection whose local end has this address.
    /// Without names, the transport is TCP, and the device the interface with the address.
    ///
    /// # Errors
    /// `InvalidInput` for names that are none of a network, and where nothing tells the device.
    /// `NotFound` for an address that no interface has.
    pub fn network(
        transports: Option<&str>,
        devices: Option<&str>,
        local: Option<IpAddr>,
        operation: &'static str,
    ) -> Result<UcxSettings> {
        let transports = transports.unwrap_or("tcp").to_owned();
        check_names("transports", &transports, operation)?;
        let devices = match (devices, local) {
            (Some(devices), _) => devices.to_owned(),
            (None, Some(address)) => interface_of(address)?,
            (None, None) => {
                let why = "a Unix socket does not tell which network is used";
                return Err(Error::new(ErrorKind::InvalidInput, operation, why)
                    .with_advice("name the devices (`devices`), such as the interface of the network"));
            }
        };
        check_names("devices", &devices, operation)?;
        Ok(UcxSettings { transports, devices: Some(devices), tells_failure: true })
    }
}

/// Checks names that become settings of UCX. `^`, which means all others, is left out on purpose.
fn check_names(what: &str, names: &str, operation: &'static str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:,".contains(c);
    let of_one_machine = ["shm", "sm", "mm", "posix", "sysv", "xpmem", "cma", "knem", "self"];
    let is_open = |name: &str| name.is_empty() || name == "all" || of_one_machine.contains(&name);
    if names.len() <= 256 && names.chars().all(is_plain) && !names.split(',').any(is_open) {
        return Ok(());
    }
    let why = format!("{what}: {names:?} are no names of a network's {what}");
    Err(Error::new(ErrorKind::InvalidInput, operation, why)
        .with_advice("give names as `ucx_info -d` shows them, such as tcp or eth0, with commas between them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_open_more_than_they_say_are_refused() {
        let of = |transports: &str| UcxSettings::network(Some(transports), Some("lo"), None, "connect");
        assert_eq!(of("rc,tcp").unwrap().transports, "rc,tcp");
        for wrong in ["", "all", "^tcp", "tcp,", "tcp,shm", "tcp;x", "tcp\n", "cma,tcp", "mm", "self"] {
            assert_eq!(of(wrong).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong:?}");
        }
    }

    #[test]
    fn the_interface_of_the_local_address_is_used() {
        let of = |address: &str| UcxSettings::network(None, None, Some(address.parse().unwrap()), "connect");
        let found = of("127.0.0.1").unwrap();
        assert_eq!((found.transports.as_str(), found.devices.as_deref()), ("tcp", Some("lo")));
        assert_eq!(of("192.0.2.1").unwrap_err().kind(), ErrorKind::NotFound);
        let e = UcxSettings::network(None, None, None, "connect").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
    }
}
