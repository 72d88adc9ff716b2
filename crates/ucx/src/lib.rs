//! UCX, loaded at run time (`libucx0` of Debian) and never linked: a worker, memory of a peer that
//! it reads and writes, and messages that two peers exchange. Remote memory uses the first, links
//! between devices the second.
//!
//! ```no_run
//! use datapipes_ucx::{PeerMessages, UcxSettings, UcxUse, UcxWorker};
//! # fn exchange(address: Vec<u8>) -> datapipes_core::Result<Vec<u8>> { Ok(address) }
//! # fn main() -> datapipes_core::Result<()> {
//! let settings = UcxSettings::shared_memory();
//! let mut worker = UcxWorker::open(&settings, UcxUse::Messages)?;
//! let theirs = exchange(worker.address()?)?; // by another way, which proves who they are
//! let mut peer = PeerMessages::connect(worker, &settings, &theirs)?;
//! peer.send([1, 0], b"hello".to_vec())?;
//! while peer.settle()? > 0 {
//!     peer.progress();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `abi` | the structures and numbers of UCX's C interface |
//! | `library` | loads UCX, finds its functions, refuses other versions, keeps it quiet |
//! | `settings` | transports and devices, and which names are refused |
//! | `interface` | the network interface of an address |
//! | `worker` | a context with a worker: progress, its event, its address |
//! | `endpoint` | a worker that is connected to a peer's: its failure, its requests, its end |
//! | `connection` | a peer's memory: put, get, flush |
//! | `messages` | messages in order, with bounds on what a peer may send |
//! | `segments` | who may attach the shared memory that UCX makes |
//! | `confinement` | what a process that a peer could take over may do |
//!
//! UCX encrypts nothing and believes what a peer says of itself. Whoever uses it for more than
//! shared memory within a machine asks first whether the network is trusted.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod abi;
mod confinement;
mod connection;
mod endpoint;
mod interface;
mod library;
mod messages;
mod segments;
mod settings;
mod worker;

pub use abi::Status as UcxStatus;
#[doc(hidden)] // For the comparison with UCX's header.
pub use abi::layout as ucx_layout;
pub use confinement::{ConfinedUse, confine_calls, confine_paths, confine_paths_if_possible};
pub use connection::{PeerConnection, PeerMemory};
pub use endpoint::{Outcome, PeerRequest};
pub use library::Ucx;
pub use messages::{MAX_MESSAGE_BYTES, PeerMessages, UcxMessage};
pub use segments::take_segments_from_group;
pub use settings::UcxSettings;
pub use worker::{Armed, MAX_BLOB_BYTES, UcxUse, UcxWorker};
