//! Data channels between isolated devices, in three placements (Asmussen, Roitzsch: *Towards
//! Disaggregation-Native Data Streaming between Devices*).
//!
//! Devices are processes that wrap a place (storage, network) or a function (checksum,
//! decompression, sorting) and are locked down: they open nothing and reach nobody. A controller,
//! and it alone, connects them by data channels. The application declares a graph; where the
//! protocol between the devices runs is a parameter:
//!
//! ```standalone_crate
//! use datapipes_fabric::channel::{Head, ChannelShape, Trust};
//! use datapipes_fabric::control::{Program, Session};
//! use datapipes_fabric::device::{Functions, DeviceRole};
//! use datapipes_fabric::placement::{DeviceGraph, Placement};
//!
//! fn main() -> datapipes_fabric::Result<()> {
//!     // This program is also the controller and the devices: they are started from it.
//!     if let Some(code) = datapipes_fabric::process::enter(&Functions::default()) {
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
//! | module | what it holds |
//! |---|---|
//! | [`channel`] | a data channel in shared memory: pages, ring, credits; how far a receiver trusts |
//! | [`transport`] | the contract of all transports, the two ends; shared memory, Unix sockets and TCP |
//! | [`memory`] | memory endpoints |
//! | [`capability`] | who may use what, and from whom they have it |
//! | [`control`] | the controller as a process, the application's [`Session`](control::Session) with it; links of two controllers |
//! | [`process`] | programs that are controllers and devices; the lock-down |
//! | [`device`] | what devices are: sources, transforms, sinks, file servers, the resource-side CPU, bodies of one's own |
//! | [`placement`] | graphs, the three placements, the choice among them |
//! | [`mod@file`] | files block by block: open, next-in, next-out, commit |
//!
//! # What is guaranteed, by what
//!
//! * No channel exists by default. Only the controller creates one, and gives each end to one
//!   party.
//! * Nobody can write a page, a counter or a payload that is not theirs: the kernel refuses it,
//!   with whatever descriptor, for the memory is sealed before others get to see it (see
//!   [`control`]).
//! * Counters, descriptors and replies of the other side are copied once and checked; a side that
//!   breaks the protocol loses the channel, and nothing else happens (see [`channel`]).
//! * Every wait of the application is bounded by a [`Patience`](channel::Patience); devices and
//!   relays wait until their channel ends, so a placement changes times and never outcomes. A
//!   peer's death, a revocation and the controller's end wake who waits. Nobody spins, unless it
//!   says that it owns its core.
//! * A device cannot open, fork, exec, trace, signal, connect or pass a descriptor on (see
//!   [`process`]).
//! * What was revoked is out of reach of the devices that had it, whatever they do, when
//!   [`Session::revoke`](control::Session::revoke) returns; between two devices that both cheat,
//!   after a second at most.
//! * A device's memory and threads are charged to it and bounded
//!   ([`DelegationLimits`](control::DeviceLimits)), as far as the system has a way to:
//!   [`Status::charges`](control::ControllerStatus) says which. What it says on standard error is
//!   shown labelled and bounded.
//!
//! # What is not
//!
//! * Devices here are processes: the kernel's page tables stand between them. Hardware with DMA
//!   would need an IOMMU, and an interface to it, to be held to the same.
//! * In place means trust, and to say so is `unsafe`: see [`TrustToken`](channel::TrustToken).
//! * Links between machines are encrypted unless both sides say otherwise
//!   ([`Encryption`](control::Encryption)), and their [`Key`](control::Key) is never shown. Who
//!   sits on the wire can still end them, delay them, and see how much they carry. Channels within
//!   a machine, over the loopback interface too, are not encrypted: who may read others' packets
//!   there is root.
//! * Of a link that another machine revoked, this one is told that the other side has gone, not
//!   why.
//! * A device that receives from several channels receives from all of them over sockets, or from
//!   all over shared memory.
//! * Without a control group a device that sets out to can have more memory than its limit, by a
//!   GiB and a half, and page tables are among that: see
//!   [`DelegationLimits`](control::DeviceLimits).
//! * Timing is not hidden: who shares a machine can measure others.
#![deny(unsafe_code)]

pub mod capability;
pub mod channel;
pub mod control;
pub mod device;
pub mod file;
pub mod memory;
pub mod placement;
pub mod process;
mod sync;
pub mod transport;

pub use datapipes_core::{Error, ErrorKind, Result};
