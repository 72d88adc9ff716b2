//! The backend for remote memory: memory that another process exports is read and written
//! one-sidedly by UCX, which is loaded at run time (`libucx0` of Debian) and never linked.
//!
//! ```no_run
//! use datapipes_core::{Dram, Machine, Span};
//! use datapipes_net::*;
//! # fn machine() -> Machine { unimplemented!() }
//! # fn main() -> datapipes_core::Result<()> {
//! // The exporting program. Its `main` begins with `enter_holder`.
//! let memory = ExportableMemory::allocate(1 << 30)?;
//! let exporter = Exporter::listen(&"unix:/run/user/1000/memory".parse()?, ExporterOptions::default())?;
//! let export = exporter.export(&memory, (0, 1 << 20), RemoteRights::ReadWrite)?;
//! export.ticket().save("/home/me/ticket".as_ref())?; // the key: bring it to the client in a secure way
//!
//! // The client.
//! let ticket = RemoteTicket::load("/home/me/ticket".as_ref())?;
//! let remote = Remote::connect(&ticket, RemoteOptions::default())?;
//! let here = Dram::allocate(1 << 20)?;
//! machine().connect(&here, &remote)?.transfer(Span { source: 0, target: 0, len: 1 << 20 })?;
//!
//! export.revoke(); // the client reaches nothing any more when this returns
//! # Ok(())
//! # }
//! ```
//!
//! | primitive | what it does |
//! |---|---|
//! | `vm-put`, `vm-get` | write, read memory of a process on this machine, by the kernel |
//! | `ucx-put` | writes remote memory; done once the bytes are there |
//! | `ucx-get` | reads remote memory |
//!
//! | module | what it does |
//! |---|---|
//! | `control` | addresses, keys, the conversation between client and exporter |
//! | `export` | the side that has the memory |
//! | `remote` | the locator [`Remote`] |
//! | `mover` | jobs, cut into pieces; the loss of the other side |
//! | `direct` | copies by the kernel, within a machine |
//! | `pause` | spins for a moment, or sleeps |
//! | `backend` | offers |
//!
//! `docs/remote-memory.md` says what is enforced, by what, and what is not. RDMA was never run.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod backend;
mod control;
mod direct;
mod export;
mod mover;
mod pause;
mod remote;

pub use backend::UcxBackend;
pub use control::key::RemoteTicket;
pub use control::settings::{ExportAddress, NetworkOptions, RemoteRights, RemoteTransport};
#[cfg(feature = "tls")]
pub use datapipes_tls::TlsIdentity;
pub use export::holder::enter_holder;
pub use export::{Export, ExportableMemory, Exporter, ExporterOptions, HolderProgram};
pub use remote::{Remote, RemoteOptions};
