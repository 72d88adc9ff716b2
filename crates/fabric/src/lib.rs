//! Data channels between isolated devices, in three placements (Asmussen, Roitzsch: *Towards
//! Disaggregation-Native Data Streaming between Devices*).
//!
//! Devices are processes that wrap a place (storage, network) or a function (checksum,
//! decompression, sorting). They are locked down: they can open nothing and contact nobody. Only a
//! controller connects them by data channels. The application declares a graph. A parameter decides
//! where the protocol between the devices runs:
//!
//! ```standalone_crate
//! use datapipes::fabric::channel::{Head, ChannelShape, Trust};
//! use datapipes::fabric::control::{Program, Session};
//! use datapipes::fabric::device::{Functions, DeviceRole};
//! use datapipes::fabric::placement::{DeviceGraph, Placement};
//!
//! fn main() -> datapipes::Result<()> {
//!     // This program is also the controller and the devices: they are started from it.
//!     if let Some(code) = datapipes::fabric::process::enter(&Functions::default()) {
//!         std::process::exit(if code == std::process::ExitCode::SUCCESS { 0 } else { 1 });
//!     }
//!     let mut session = Session::start(&Program::This)?;
//!     for placement in Placement::ALL {
//!         // application -> sort -> checksum -> application
//!         let mut graph = DeviceGraph::new(ChannelShape::new(4, 64 << 10), Trust::Copy);
//!         let function = |name: &str| DeviceRole::Transform {
//!             function: name.into(),
//!             arguments: Default::default(),
//!             spread: Default::default(),
//!         };
//!         let sort = graph.device("sort", function("sort-u64"), Vec::new());
//!         let sum = graph.device("sum", function("crc32"), Vec::new());
//!         graph.connect(DeviceGraph::APPLICATION, sort)?;
//!         graph.connect(sort, sum)?;
//!         graph.connect(sum, DeviceGraph::APPLICATION)?;
//!         let mut flow = graph.start(&mut session, placement)?;
//!
//!         let (mut sender, mut receiver) = (flow.take_sender(0).unwrap(), flow.take_receiver(0).unwrap());
//!         let numbers: Vec<u8> = [3u64, 1, 2].into_iter().flat_map(u64::to_le_bytes).collect();
//!         sender.send(&numbers, Head { words: [7, 0, 0, 0], end: false })?;
//!         let block = receiver.receive()?;
//!         assert_eq!((block[0], block[8], block[16], block.head().words[0]), (1, 2, 3, 7));
//!         block.done()?; // the reply returns the credit
//!         drop((sender, receiver));
//!         flow.end(&mut session)?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`channel`] | a data channel in shared memory: pages, ring, credits, trust |
//! | [`transport`] | the two ends of a channel over shared memory, Unix sockets, TCP or UCX |
//! | [`memory`] | memory endpoints |
//! | [`capability`] | the rights of each party, and from whom it got them |
//! | [`control`] | the controller process, the application's [`Session`](control::Session), links |
//! | [`process`] | programs that act as controllers and devices; the lock-down |
//! | [`device`] | sources, transforms, sinks, file servers, the resource-side CPU, custom bodies |
//! | [`placement`] | graphs, the three placements, and the choice among them |
//! | [`mod@file`] | files block by block: open, next-in, next-out, commit |
//!
//! # Guarantees, and how they are enforced
//!
//! * No channel exists by default. Only the controller creates one, and gives each end to one
//!   party.
//! * No party can write a page, a counter or a payload of another party. The kernel refuses it with
//!   any descriptor, because the memory is sealed before others get it (see [`control`]).
//! * Counters, descriptors and replies of the other side are copied once and checked. A side that
//!   breaks the protocol loses the channel, and there is no other effect (see [`channel`]).
//! * Every wait of the application is bounded by a [`Patience`](channel::Patience). Devices and
//!   relays wait until their channel ends, so a placement changes times but never results. The
//!   death of a peer, a revocation and the end of the controller wake all waiters. Threads spin
//!   only if the caller says that they own their core.
//! * A device cannot open, fork, exec, trace, signal, connect or pass a descriptor on (see
//!   [`process`]).
//! * A revoked object is out of reach of the devices that had it, whatever they do, when
//!   [`Session::revoke`](control::Session::revoke) returns. Between two devices that both cheat,
//!   this takes at most a second.
//! * A device's memory and threads are charged to it and limited
//!   ([`DeviceLimits`](control::DeviceLimits)), as far as the system allows it:
//!   [`ControllerStatus::charges`](control::ControllerStatus) says how. Its standard error is shown
//!   with a label, and limited.
//!
//! # Limits
//!
//! * Devices here are processes, isolated by the kernel's page tables. Hardware with DMA would need
//!   an IOMMU, and an interface to it, for the same isolation.
//! * Processing in place means trust, and `unsafe` states it: see
//!   [`TrustToken`](channel::TrustToken).
//! * Links between machines are encrypted unless both sides choose otherwise
//!   ([`Encryption`](control::Encryption)), and their [`Key`](control::Key) is never shown. An
//!   attacker on the wire can still end or delay them, and see how much they carry. Channels within
//!   a machine, also over the loopback interface, are not encrypted: only root can read packets of
//!   others there.
//! * If another machine revokes a link, this one learns that the other side has gone, but not why.
//! * A device that receives from several channels receives from all of them over sockets, or from
//!   all over shared memory.
//! * Without a control group a malicious device can have more memory than its limit, by one and a
//!   half GiB including page tables: see [`DeviceLimits`](control::DeviceLimits).
//! * Timing is not hidden: a process on the same machine can measure others.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod bridge;
pub mod capability;
pub mod channel;
pub mod control;
pub mod device;
mod error_text;
pub mod file;
pub mod memory;
pub mod placement;
pub mod process;
mod sync;
pub mod transport;

pub use datapipes_core::{Error, ErrorKind, Result};
