//! The control plane: it turns capabilities into kernel objects at their holders, and takes them
//! away again.
//!
//! ```text
//! application --asks-->  controller  --descriptors over SCM_RIGHTS-->  holders of capabilities
//!                        (a process)  <--"mapped"--
//! ```
//!
//! An endpoint comes to its holder in these steps, so that no party can ever write memory of
//! another:
//!
//! 1. The controller gives each page and the payload, writable, only to the one party that may
//!    write them, and that party maps them.
//! 2. When all writers have mapped, the controller seals the memory (`F_SEAL_FUTURE_WRITE`): no
//!    party can make a new writable mapping or write to it, with any descriptor, reopened or not.
//! 3. Only then the other parties get descriptors of the sealed memory, for reading.
//!
//! The controller also makes channels over sockets: it makes the connection, gives each end to one
//! party, and keeps a copy of each end on its machine. Two controllers on different machines
//! connect their halves by [`Session::offer`] and [`Session::join`], and each must know the
//! [`Key`]. With `Session::secure_links` (feature `tls`) they talk over TLS, and each must have a
//! certificate that the other believes. Each creates, delegates and revokes only its own end.
//!
//! A link by UCX has a process beside each end (see `bridge`), which the controller starts, and
//! kills when the link is revoked or has lost its other half. Two controllers exchange the
//! addresses of their bridges in their conversation, sealed.
//!
//! An endpoint is taken away as follows. The controller changes the channel's state word, which
//! wakes and stops both ends. It shuts sockets down, which applies to every copy of them. It tells
//! both holders to release. A device's claim that it has released a memory is checked: the device
//! is stopped and inspected (see `audit`). A device that has kept anything, or does not answer
//! within a second, is killed. A memory that others continue to use is out of reach when
//! [`Session::revoke`] returns. The memory of a channel is never used again. Writes of the
//! application after a revocation, through an older borrow, go into private memory. (The seal of
//! step 2 rules out removing pages by punching holes.)
//!
//! The resources of a party in the controller are limited: capabilities, endpoints, waiting
//! packets, reports. [`DeviceLimits`] limits what a device can take of the machine. An end is
//! configured at a party only by that party or by the application, under an unused name. So nobody
//! else can pretend that a requested end has come.

mod controller;
mod devices;
mod key;
pub(crate) mod limits;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
#[cfg(feature = "tls")]
use datapipes_tls as tls;
mod noise;
pub(crate) mod packet;
pub(crate) mod party;
pub(crate) mod protocol;
mod ucx_links;

pub(crate) use controller::serving::serve;
#[cfg(feature = "tls")]
pub use datapipes_tls::TlsIdentity;
pub use key::{Encryption, Key, LinkCarrier, LinkSpec};
pub use limits::{Charge, DeviceLimits};
pub use party::session::{Device, Program, Session};
pub use protocol::{Confined, ControllerStatus, DeviceEvent};
pub use ucx_links::UcxLinkOptions;
