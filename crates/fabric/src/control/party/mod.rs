//! A party's side of the controller: the application's session, what happened, and the endpoints
//! that were configured here (for devices, too).

pub(crate) mod client;
mod events;
pub(crate) mod ports;
pub(super) mod session;
