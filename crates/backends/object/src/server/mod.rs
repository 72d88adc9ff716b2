//! Servers that have objects, as this process sees them.
//!
//! | file | what it holds |
//! |---|---|
//! | `settings` | what the environment and profiles say: credentials, endpoints |
//! | `profiles` | profile files of AWS |
//! | `tool_names` | what the tools of Google and Azure call their settings |
//! | `connect` | a store for a bucket, by the settings |
//! | `transport` | HTTP: bounds of answers, time limits |
//! | `connection` | TCP and TLS: how long they may take, whose certificates are believed |
//! | `connections` | what each connection carried |
//! | `byte_sum` | checksums as servers state them |
//! | `exchange` | what was asked of a store, and what of its answers is noted |
//! | `xml` | documents of servers: their root, the text of an element |
//! | `list_page` | what a page of a list says of itself |
//! | `secrets` | words that no message contains |
//! | `failure` | what a server or a connection refused, in words without secrets |
//! | `retry` | which requests are made again, and when |
//! | `leftovers` | unfinished uploads that ended processes left |

pub(crate) mod byte_sum;
pub(crate) mod connect;
mod connection;
pub(crate) mod connections;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod leftovers;
mod list_page;
mod profiles;
pub(crate) mod retry;
mod secrets;
pub(crate) mod settings;
mod tool_names;
mod transport;
mod xml;

pub(crate) use connect::Store;
pub use connections::ConnectionReport;
pub(crate) use transport::Transport;
