//! The side that has the memory: what is exported, to whom, and until when.
//!
//! ```text
//! program:  memory (a memfd) -- mapped as a place of this process
//!           exporter -- a thread that accepts; a thread for each client
//! holder:   a process for each client that uses an export. It maps the export's pages and nothing
//!           else of the program, and is the peer of the client's UCX. It is killed when the export
//!           is revoked, and when the client goes.
//! ```
//!
//! Why a process: a key of UCX limits nothing where UCX copies in software. Over TCP and shared
//! memory a peer names an address, and UCX copies there: any address of the process, for reading
//! and writing, also after the memory was deregistered. So what a client may not touch must not be
//! in the process that UCX runs in. The kernel then enforces what a key promises:
//!
//! | promise | what enforces it |
//! |---|---|
//! | the range | only its pages are mapped in the holder (so ranges are of whole pages) |
//! | the right to read only | the pages are mapped from a descriptor that cannot be written |
//! | revocation | the holder is killed, and waited for |
//! | no client harms another | each has a holder of its own |
//! | a holder that a client takes over gains nothing else | it is confined (`confinement` of datapipes-ucx) |
//!
//! Rejected: deregistering on revocation (it ends nothing, see above); memory of UCX's own shared
//! memory segments, which a peer maps itself (14 GB/s for 1 MiB, against 3 to 6), because a peer
//! keeps that mapping, writable, whatever is revoked.
//!
//! | module | what it does |
//! |---|---|
//! | `exportable` | memory that other processes can map |
//! | `exports` | what the threads share: options, exports, and who uses them |
//! | `exporter` | the exporter, exports, revocation |
//! | `socket_path` | the path of a Unix socket, and the right to serve it |
//! | `strangers` | connections that have not proved a key |
//! | `client` | the conversation with one client |
//! | `holder_process` | starts and ends a holder |
//! | `holder` | what runs in it |

mod client;
mod exportable;
mod exporter;
mod exports;
pub(crate) mod holder;
mod holder_process;
mod socket_path;
mod strangers;
#[cfg(test)]
mod tests;

pub use exportable::ExportableMemory;
pub use exporter::{Export, Exporter};
pub use exports::ExporterOptions;
pub use holder_process::HolderProgram;
