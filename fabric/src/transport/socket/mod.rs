//! The contract over a connected stream socket: TCP across machines, a Unix socket within one.
//!
//! ```text
//! sender -> receiver   hello: 64 bytes; then for each block 64 bytes of header, and its bytes
//! receiver -> sender   for each block 32 bytes of reply
//! sender -> receiver   goodbye: 64 bytes. A connection that ends without it was broken, and no stream ended.
//! ```
//! Between machines each of these is sealed (see `seal.rs`) and 16 bytes longer, unless both sides
//! have said otherwise.
//!
//! The kernel copies a block into the receiver's own buffer, so the sender cannot touch it again: a
//! socket needs no trust. A credit is a buffer of the receiver; a sender that sends without one is
//! cut off.
//!
//! Nothing waits for longer than it was told. A block that was begun when patience ends counts as
//! sent, and its rest goes with the sender's next call, whichever that is; of one that was not
//! begun, not a byte is sent. Replies are never waited for.
//!
//! Sends are plain `send` of whole blocks: a ring would go around the filter of a device (see
//! [`crate::device`]).

mod inlet;
mod outlet;
mod wire;

pub use inlet::SocketInlet;
pub use outlet::SocketOutlet;

/// What a sender proves with its first bytes.
pub type Token = [u8; 16];
