//! Objects in buckets as places: S3 and what speaks its protocol, Google Cloud Storage, Azure, and
//! (for reading) HTTP.
//!
//! ```text
//! ObjectClient --open, create, list--> Object (a locator) --connect--> ObjectBackend
//!      |                                                                   |
//!      +-- one thread for all requests (`reactor`)      ranged reads, parts of an upload (`mover`)
//! ```
//!
//! | file or folder | what it holds |
//! |---|---|
//! | `address` | addresses of objects: `s3://`, `gs://`, `az://`, `http://`, `https://` |
//! | `options`, `client_state`, `client` | what a program opens objects by |
//! | `reactor` | the thread that talks to servers |
//! | `pace` | how many requests are made at once |
//! | `costs` | how long ranges and parts are, from what requests were seen to take |
//! | `server` | the servers: connections, requests, answers, what they refuse |
//! | `place` | an object that is read at one version, or written whole |
//! | `mover` | jobs of pipes, as requests |
//! | `backend` | what is offered for a pair of places |
//!
//! The protocols and their signatures are those of the crate `object_store`. This crate adds what a
//! place has to promise: an object that is read is one version of it, an object that is written
//! appears whole or not at all, and whatever a server answers is bounded and checked.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod address;
mod backend;
mod client;
mod client_state;
mod costs;
mod mover;
mod options;
mod pace;
mod place;
mod reactor;
mod server;

pub use address::{ObjectAddress, ObjectScheme, escaped_key, is_object};
pub use backend::ObjectBackend;
pub use client::{ListedObject, ObjectClient};
pub use options::{CreateOptions, ObjectOptions};
pub use place::{Leftovers, Object, ObjectReport, PublishedObject};
pub use server::ConnectionReport;
