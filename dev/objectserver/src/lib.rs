//! What the tests of objects talk to.
//!
//! - [`S3Server`]: a real S3 server (`s3s` over `s3s-fs`) in this process, whose objects are files
//!   of a folder. It checks signatures, `If-Match` and checksums, and lists unfinished uploads.
//!   It also answers by TLS.
//! - [`GatewayServer`]: another S3 server, of other authors, in a process of its own.
//! - [`AzuriteServer`]: the emulator of Azure's Blob Storage by its maker, in a process of its own.
//! - [`GoogleModel`]: a model of Google's server, made of the S3 server.
//! - [`WebServer`]: a web server over a folder, with TLS by a [`ServerCertificate`] if asked.
//! - [`FaultProxy`]: a proxy in front of it that cuts, delays, damages and refuses.
#![deny(unsafe_code)]

mod azurite;
mod certificate;
mod gateway;
mod google;
mod process;
mod proxy;
mod server;
mod store;
mod web;

pub use azurite::AzuriteServer;
pub use certificate::ServerCertificate;
pub use gateway::GatewayServer;
pub use google::GoogleModel;
pub use proxy::{FaultProxy, ProxyFault, ProxyRequest};
pub use server::S3Server;
pub use web::WebServer;
