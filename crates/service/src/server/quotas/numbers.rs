//! Checks of every number of a request, made before anything else is done.
//!
//! | number | where it is checked |
//! |---|---|
//! | rates, depth, requests and their length | here, and in [`Constraints::check`] |
//! | positions of descriptors | `places`: each must be passed, and each passed one be named |
//! | offset and length of a memory | `places`, against the mapping |
//! | spans of transfers | the runtime, when a transfer is submitted |
//!
//! [`Constraints::check`]: datapipes_core::Constraints::check

use datapipes_core::{Error, ErrorKind, PriorityClass, Result};

use crate::protocol::PipeSpec;

/// The largest values that a client may ask of the device; more would take kernel memory.
const QUEUE_DEPTH: u32 = 1024;
const DEVICE_REQUEST: u32 = 64 << 20;

/// Refuses numbers that make no sense, or that would cost kernel memory.
///
/// # Errors
/// `InvalidInput`, with the name of the number.
pub(in crate::server) fn check(ask: &PipeSpec, depth: usize) -> Result<()> {
    let bad_rate = |rate: Option<f64>| rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0);
    let (service, constraints) = (&ask.service, &ask.constraints);
    if [service.at_least, service.at_most, constraints.at_least].into_iter().any(bad_rate) {
        return Err(bad("a rate is a number of bytes per second above 0"));
    }
    if depth == 0 {
        return Err(bad("a depth of 0 takes no transfers"));
    }
    if constraints.urgent && service.class != PriorityClass::Latency {
        return Err(bad("an urgent pipe must have the class latency"));
    }
    if constraints.queue_depth.is_some_and(|n| n > QUEUE_DEPTH) {
        return Err(bad(&format!("queue_depth is at most {QUEUE_DEPTH}")));
    }
    if constraints.request_bytes.is_some_and(|n| n > DEVICE_REQUEST) {
        return Err(bad(&format!("request_bytes is at most {DEVICE_REQUEST}")));
    }
    constraints.check()
}

/// The error for a request that makes no sense.
pub(in crate::server) fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "ask", what)
}
