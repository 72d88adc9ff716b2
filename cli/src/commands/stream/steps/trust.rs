//! How far receivers trust senders.
//!
//! Unsafe: whoever processes blocks in place vouches for the sender. Here all senders are processes
//! of this program with the bodies of `bodies` and the fabric's own, none of which writes a block
//! again before its reply.
#![allow(unsafe_code)]

use clap::ValueEnum;
use datapipes_fabric::channel::Trust;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands::stream) enum TrustLevel {
    /// Not at all: they process a copy
    Copy,
    /// They process in place
    InPlace,
    /// They process in place, and check a CRC-32 afterwards
    InPlaceChecked,
}

impl TrustLevel {
    pub(in crate::commands::stream) fn trust(self) -> Trust {
        // SAFETY: see the module: all senders keep to the protocol.
        let (in_place, checked) = unsafe { (Trust::in_place(), Trust::in_place_checked()) };
        match self {
            TrustLevel::Copy => Trust::Copy,
            TrustLevel::InPlace => in_place,
            TrustLevel::InPlaceChecked => checked,
        }
    }
}
