//! The control plane: capabilities become kernel objects at the party that holds them, and go away again.
//!
//! ```text
//! application --asks-->  controller  --descriptors over SCM_RIGHTS-->  holders of capabilities
//!                        (a process)  <--"mapped"--
//! ```
//!
//! How an endpoint comes to its holder, so that nobody can ever write what is not theirs:
//!
//! 1. Each page and the payload go, writable, to the one party that may write them, and to nobody else; it maps them.
//! 2. When all writers have mapped, the controller seals the memory (`F_SEAL_FUTURE_WRITE`): no new mapping or write by
//!    anybody, by whatever descriptor, reopened or not.
//! 3. Only then the others get descriptors for reading, of the sealed memory.
//!
//! A channel over a socket is made by the controller, too: it makes the connection, gives each end to one party, and keeps a
//! copy of what is on its machine. Two controllers, one a machine, connect theirs by [`Session::offer`] and [`Session::join`],
//! where each has to know the [`Key`]; each creates, delegates and revokes its own end and no other.
//!
//! How it goes away: the controller changes the channel's state word, which wakes and stops both ends, and tells both to unmap.
//! A device confirms, and the controller looks into its memory map; one that lies or is late is killed, because no software
//! stands between a process and what it has mapped. Memory of a revoked channel is never used for another. A socket is shut down, which holds for
//! every copy of it; so a revoked socket is dead before its holder confirms. (The seal of step 2
//! rules out taking pages away by punching holes; a process that is alive and lies would get fresh pages anyway.)

mod controller;
mod joining;
mod link;
mod objects;
pub(crate) mod packet;
pub(crate) mod ports;
pub(crate) mod protocol;
mod serving;
mod session;

pub use joining::Key;
pub use protocol::{Confined, Event, Status};
pub(crate) use serving::serve;
pub use session::{Device, Program, Session};
