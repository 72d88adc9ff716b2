//! The names of `datapipes_tls` that the controller uses, without the feature `tls`: there is no
//! identity, so there is no session.

use std::net::IpAddr;
use std::os::fd::AsFd;

use datapipes_core::Result;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum TlsIdentity {}

pub(crate) enum TlsSession {}

#[allow(dead_code)] // No session makes any of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TlsProgress {
    Done,
    AwaitsBytes,
    AwaitsRoom,
}

impl TlsSession {
    pub(crate) fn client(identity: &TlsIdentity, _: &str, _: Option<IpAddr>) -> Result<TlsSession> {
        match *identity {}
    }

    pub(crate) fn server(identity: &TlsIdentity, _: &str) -> Result<TlsSession> {
        match *identity {}
    }

    pub(crate) fn greet(&mut self, _: impl AsFd) -> Result<TlsProgress> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: impl AsFd, _: &mut [u8]) -> Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _: impl AsFd) -> Result<bool> {
        match *self {}
    }

    pub(crate) fn binding(&self) -> Result<[u8; 32]> {
        match *self {}
    }
}
