//! Who comes in, and how a connection ends.

pub(super) mod accept;
pub(super) mod hang_up;
pub(super) mod lingering_close;
pub(super) mod listen;
pub(super) mod peer;
