//! A transfer that was started: what it holds, what its pipe counts, and who hears of its end.
//!
//! | file | what it holds |
//! |---|---|
//! | `transfer_counts` | how many transfers the runtime has under way |
//! | `slots` | the length of a pipe's queue, and waiting for a slot of it |
//! | `parts` | the parts of one transfer: out, back, failed |
//! | `in_flight` | one transfer, with its leases and its waiters; its pipe |

pub(crate) mod in_flight;
mod parts;
mod slots;
pub(crate) mod transfer_counts;
