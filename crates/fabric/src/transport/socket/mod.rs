//! The contract of transports over a connected stream socket: TCP across machines, a Unix socket
//! within one.
//!
//! ```text
//! sender -> receiver   hello: 64 bytes; then for each block 64 bytes of header, and its bytes
//! receiver -> sender   for each block 32 bytes of reply
//! sender -> receiver   goodbye: 64 bytes; without it the connection was broken
//! ```
//! Between machines each of these is sealed (see `seal.rs`) and 16 bytes longer, unless both sides
//! have chosen otherwise.
//!
//! The kernel copies a block into the receiver's own buffer, so the sender cannot access it again:
//! a socket needs no trust. A credit is a buffer of the receiver. A sender that sends without a
//! credit is cut off.
//!
//! No call waits longer than its patience. A block that was begun when the patience ends counts as
//! sent, and the sender's next call of any kind sends the rest. Of a block that was not begun, no
//! byte is sent. Replies never block.
//!
//! Blocks are sent by plain `send`, because a ring would bypass the filter of a device (see
//! [`crate::device`]).

mod inlet;
mod outlet;
mod wire;

pub use inlet::SocketInlet;
pub use outlet::SocketOutlet;

/// A secret that a sender proves with its first bytes.
pub type Token = [u8; 16];
