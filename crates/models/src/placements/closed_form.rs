//! The latency of one block in flight, as a sum. The event model must give the same if nothing
//! waits for anything else.
//!
//! There are N packets in a block and k devices in one pool; X and L are the round trips across and
//! within, and s is the software of a device:
//!
//! ```text
//! application  (2kN + k + 1) X + k s
//! distributed  (2N + 2) X + (k-1)(N + 1/2) L + k s
//! central      (2N + 2) X + (2k-1)(N + 1/2) L + (k-1) s + max(X + L/2, s + (N + 1/2) L)
//! ```
//! The last X of each is the application's own reply. The maximum stands for this: while the first
//! device works, the CPU replies to the application, which takes it X. All other replies are hidden
//! behind a device's work or a write.

use super::parameters::{Parameters, Scenario, SimulatedPlacement};
use crate::time::Time;

/// Returns the latency of one block by the closed form.
///
/// It holds for one pool, one credit, links with latency only, `across >= within`, and software in
/// devices only (`receive`).
pub fn latency(placement: SimulatedPlacement, parameters: &Parameters, shape: &Scenario) -> Time {
    let packets = shape.block_bytes.div_ceil(parameters.packet_bytes.max(1)).max(1);
    let devices = shape.devices.max(1) as u64;
    let (across, within) = (parameters.across.round_trip, parameters.within.round_trip);
    let software = parameters.device_software() + shape.compute;
    // A hop has halves of a round trip: two for each packet's write, one for the notification.
    let hop = |round_trip: Time| round_trip * (2 * packets + 1) / 2;
    match placement {
        SimulatedPlacement::ApplicationSide => hop(across) * (2 * devices) + across + software * devices,
        SimulatedPlacement::DistributedResourceSide => {
            hop(across) * 2 + across + hop(within) * (devices - 1) + software * devices
        }
        SimulatedPlacement::CentralResourceSide => {
            let first = (across + within / 2).max(software + hop(within));
            hop(across) * 2 + across + hop(within) * (2 * devices - 1) + software * (devices - 1) + first
        }
    }
}
