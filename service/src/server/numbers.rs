//! Every number of a request, checked before anything is done for it.
//!
//! | number | where it is checked |
//! |---|---|
//! | rates, depth, requests and their length | here, and what the runtime says of them ([`Constraints::check`]) |
//! | positions of descriptors | `places`: one that did not come is refused, and so is one that is not named |
//! | offset and length of a memory | `places`, against what is mapped |
//! | spans of transfers | the runtime, at the door of the pipe |
//!
//! [`Constraints::check`]: datapipes_core::Constraints::check

use datapipes_core::{Error, ErrorKind, PriorityClass, Result};

use crate::protocol::PipeSpec;

/// What a client may ask of the device at most; more would be memory of the kernel.
const QUEUE_DEPTH: u32 = 1024;
const DEVICE_REQUEST: u32 = 64 << 20;

/// Numbers that make no sense, or would cost memory of the kernel.
///
/// # Errors
/// `InvalidInput`, with the number's name.
pub(super) fn check(ask: &PipeSpec, depth: usize) -> Result<()> {
    let bad_rate = |rate: Option<f64>| rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0);
    let (service, constraints) = (&ask.service, &ask.constraints);
    if [service.at_least, service.at_most, constraints.at_least].into_iter().any(bad_rate) {
        return Err(bad("a rate is a number of bytes per second above 0"));
    }
    if depth == 0 {
        return Err(bad("a depth of 0 takes no transfers"));
    }
    if constraints.urgent && service.class != PriorityClass::Latency {
        return Err(bad("what is urgent is of the class latency"));
    }
    if constraints.queue_depth.is_some_and(|n| n > QUEUE_DEPTH) {
        return Err(bad(&format!("queue_depth is {QUEUE_DEPTH} at most")));
    }
    if constraints.request_bytes.is_some_and(|n| n > DEVICE_REQUEST) {
        return Err(bad(&format!("request_bytes is {DEVICE_REQUEST} at most")));
    }
    constraints.check()
}

/// A request that makes no sense.
pub(super) fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "ask", what)
}
