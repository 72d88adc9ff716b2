//! One block in flight, as a sum: what the event model must give where nothing waits for a second
//! thing.
//!
//! With N packets a block, k devices in one pool, X and L the round trips across and within, s the
//! software of a device:
//!
//! ```text
//! application  (2kN + k + 1) X + k s
//! distributed  (2N + 2) X + (k-1)(N + 1/2) L + k s
//! central      (2N + 2) X + (2k-1)(N + 1/2) L + (k-1) s + max(X + L/2, s + (N + 1/2) L)
//! ```
//! The last X of each is the application's own reply. The maximum: while the first device works,
//! the CPU replies to the application, and that takes it X. All other replies are hidden behind a
//! device's work or a write.

use super::parameters::{Parameters, Scenario, SimulatedPlacement};
use crate::time::Time;

/// The latency of one block by the closed form.
///
/// Holds for one pool, one credit, links of latency alone, `across >= within`, software in devices
/// only (`receive`).
pub fn latency(placement: SimulatedPlacement, parameters: &Parameters, shape: &Scenario) -> Time {
    let packets = shape.block_bytes.div_ceil(parameters.packet_bytes.max(1)).max(1);
    let devices = shape.devices.max(1) as u64;
    let (across, within) = (parameters.across.round_trip, parameters.within.round_trip);
    let software = parameters.device_software() + shape.compute;
    // A hop in halves of a round trip: two for each packet's write, one for the notification.
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
