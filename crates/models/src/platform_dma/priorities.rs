//! Small urgent messages beside a bulk transfer, under each rule of arbitration.

use serde::Serialize;

use super::parameters::{DataMover, DmaPlatform, MessageLoad, MessageStream, MessageWay, QueueArbitration};
use super::simulation::simulate;
use crate::time::Time;

/// The results under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PriorityRow {
    /// Who moves the data.
    pub mover: DataMover,
    /// The rule of the engine.
    pub arbitration: QueueArbitration,
    /// The mean latency of the small messages alone.
    pub alone: Time,
    /// The mean beside the bulk transfer.
    pub mean: Time,
    /// The longest beside the bulk transfer.
    pub max: Time,
    /// Bytes of the bulk transfer in a second, beside the small messages.
    #[serde(rename = "bulk_bytes_per_second")]
    pub bulk_bytes_per_s: f64,
    /// The same without them.
    #[serde(rename = "bulk_alone_bytes_per_second")]
    pub bulk_alone_bytes_per_s: f64,
}

/// How long the small messages come for, and the time between two.
const SPAN: Time = Time::ns(500_000);
const GAP: Time = Time::ns(5_000);
/// Bytes of a bulk message.
const BULK_BYTES: u64 = 64 << 10;

/// Transmits a small message every 5 us with a high priority, and messages of 64 KiB of which four
/// are always under way: alone, and both at a time, for each mover and each rule.
pub fn priorities(platform: &DmaPlatform, small_bytes: u64) -> Vec<PriorityRow> {
    let small = MessageStream {
        way: MessageWay::Transmit,
        priority: 1,
        message_bytes: small_bytes,
        count: SPAN.as_ps() / GAP.as_ps(),
        load: MessageLoad::Every(GAP),
    };
    // Enough to last as long as the small ones come.
    let rate = if platform.link.serializes { platform.link.bytes_per_s() } else { 0.0 };
    let bulk = MessageStream {
        way: MessageWay::Transmit,
        priority: 0,
        message_bytes: BULK_BYTES,
        count: (SPAN.as_s() * rate / BULK_BYTES as f64) as u64 + 8,
        load: MessageLoad::InFlight(4),
    };
    let mut rows = Vec::new();
    for mover in DataMover::ALL {
        let alone = simulate(platform, mover, QueueArbitration::Fifo, &[small]);
        let bulk_alone = simulate(platform, mover, QueueArbitration::Fifo, &[bulk]);
        for arbitration in QueueArbitration::ALL {
            let both = simulate(platform, mover, arbitration, &[small, bulk]);
            rows.push(PriorityRow {
                mover,
                arbitration,
                alone: alone.streams[0].mean_latency,
                mean: both.streams[0].mean_latency,
                max: both.streams[0].max_latency,
                bulk_bytes_per_s: both.streams[1].bytes_per_s,
                bulk_alone_bytes_per_s: bulk_alone.streams[0].bytes_per_s,
            });
        }
    }
    rows
}
