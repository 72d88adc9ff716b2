//! The control plane: capabilities become kernel objects at the party that holds them, and go away
//! again.
//!
//! ```text
//! application --asks-->  controller  --descriptors over SCM_RIGHTS-->  holders of capabilities
//!                        (a process)  <--"mapped"--
//! ```
//!
//! How an endpoint comes to its holder, so that nobody can ever write what is not theirs:
//!
//! 1. Each page and the payload go, writable, to the one party that may write them, and to nobody
//!    else; it maps them.
//! 2. When all writers have mapped, the controller seals the memory (`F_SEAL_FUTURE_WRITE`): no new
//!    mapping or write by anybody, by whatever descriptor, reopened or not.
//! 3. Only then the others get descriptors for reading, of the sealed memory.
//!
//! A channel over a socket is made by the controller, too: it makes the connection, gives each end
//! to one party, and keeps a copy of what is on its machine. Two controllers, one a machine,
//! connect theirs by [`Session::offer`] and [`Session::join`], where each has to know the [`Key`];
//! each creates, delegates and revokes its own end and no other.
//!
//! How it goes away: the controller changes the channel's state word, which wakes and stops both
//! ends, shuts sockets down, which holds for every copy of them, and tells both holders to release.
//! What a device has seen of a memory cannot be taken back by asking, so its word is checked: it is
//! stopped and looked into (see `audit`), and one that has kept anything, or does not answer within
//! a second, is killed. A memory that others go on using is out of reach when [`Session::revoke`]
//! returns; memory of a channel is never used again. What the application writes after a
//! revocation, by a borrow that it had from before, goes into private memory. (The seal of step 2
//! rules out taking pages away by punching holes.)
//!
//! What a party can take of the controller is limited: capabilities, endpoints, packets that wait,
//! reports; and what a device can take of the machine: see [`DeviceLimits`]. An end is configured
//! at a party by itself or by the application, under a name that is not in use there, and nobody
//! else can make it believe that something it asked for has come.

mod audit;
mod controller;
mod events;
mod groups;
mod joining;
mod link;
mod noise;
mod objects;
pub(crate) mod packet;
mod peers;
pub(crate) mod ports;
pub(crate) mod protocol;
mod quota;
mod release;
mod serving;
mod session;
mod stderr;
mod unread;

pub use joining::{Encryption, Key, LinkSpec};
pub use protocol::{Confined, ControllerStatus, DeviceEvent};
pub(crate) use quota::STACK_BYTES;
pub use quota::{Charge, DeviceLimits};
pub(crate) use serving::serve;
pub use session::{Device, Program, Session};
