//! Connections between machines over TLS 1.3, on which both sides show a certificate. It is used
//! below the conversations of remote memory and of links between controllers, which prove a key of
//! their own.
//!
//! ```no_run
//! use datapipes_tls::{TlsIdentity, TlsSession};
//! # fn main() -> datapipes_core::Result<()> {
//! # let socket = std::net::TcpStream::connect("192.0.2.1:7").unwrap();
//! let here = TlsIdentity::load("here.pem".as_ref(), "here.key".as_ref(), "trusted.pem".as_ref())?;
//! let mut session = TlsSession::client(&here, "example/1", None)?;
//! session.greet(&socket)?; // again, whenever the socket is ready, until it is done
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `identity` | a certificate with its key, and the certificates that are believed |
//! | `session` | a connection that never waits, and never reads beyond a record |
//!
//! A certificate is believed if what signed it is among the trusted ones (itself, where it signed
//! itself and says that it is no authority), if it is valid now, and (for the side that connects)
//! if it has the expected name. No certificate of the system is believed. Lists of revoked
//! certificates are not looked at: take a certificate out of the trusted ones, or give certificates
//! a short life.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

mod identity;
mod session;

pub use identity::TlsIdentity;
pub use session::{TlsProgress, TlsSession};
