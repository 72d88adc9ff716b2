//! Links whose bytes go by UCX. A device stays as it is, with a connected socket: a process beside
//! it, the bridge, has the other end of that socket and moves the bytes to the peer's bridge.
//!
//! ```text
//! device -- socket pair -- bridge == UCX == bridge -- socket pair -- device
//!                            |                 |
//!                         controller        controller (the same one, or another machine's)
//! ```
//!
//! Why a process: over shared memory and TCP a peer of UCX can write any memory of the process that
//! runs UCX. So what UCX runs in has the bytes of one link and nothing else, and is confined.
//!
//! A bridge sleeps until the socket, UCX or the controller has something. It takes from the socket
//! only what the peer has room for, so a slow receiver holds its sender back as over a socket, and
//! its memory is bounded. The end of either direction, and a side that takes no more, are passed on
//! as they are over a socket. A bridge ends well only when both sides have everything; whatever
//! else ends it closes its socket, and the device learns that the other side has gone.
//!
//! | file | what it holds |
//! |---|---|
//! | `spec` | what controller and bridge tell each other |
//! | `words` | what two bridges tell each other |
//! | `pump` | moves the bytes |
//! | `idle` | when a bridge sleeps, and for how long |
//! | `life` | what runs in a bridge |
//! | `process` | starts a bridge, hears it, ends it |

mod idle;
pub(crate) mod life;
pub(crate) mod process;
mod pump;
pub(crate) mod spec;
#[cfg(all(test, not(shuttle)))]
pub(crate) mod tests;
mod words;
