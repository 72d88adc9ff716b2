//! Metrics for monitoring, over HTTP: `GET /metrics` in Prometheus' text format.
//!
//! ```text
//! address      where they can be fetched, as it is written on the command line
//! listener     the socket
//! request      what a client asked for: a pure function of bytes
//! connection   one client, from its first byte to the end of the connection
//! endpoint     one thread for all of them, and the text that they get
//! ```
//!
//! This is written on sockets and not on an HTTP library, because what is needed of HTTP is one
//! page for one method, and what matters is what a hostile client can hold: one thread, 16
//! connections of 8 KiB each, two seconds. Libraries of HTTP either start a thread for each
//! connection and read heads of any length (tiny_http), or bring a runtime of their own (hyper).

mod address;
mod connection;
pub(super) mod endpoint;
mod listener;
mod request;

pub use address::MetricsAddress;
pub use listener::MetricsListener;
