//! What if: the same measures with one parameter changed at a time.

use serde::Serialize;

use super::figures::{alone, saturated};
use super::link::{LinkFraming, PcieGeneration, PcieLink};
use super::parameters::{DataMover, DmaPlatform, DriverPractice, MessageWay, QueueHabits};
use crate::time::Time;

/// The measures for one choice. Pairs are by descriptors, and by the integrated engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DmaAnswer {
    /// The choice.
    pub choice: String,
    /// The part of control in the packets of received messages.
    pub receive_control: f64,
    /// The part of control in the packets of transmitted messages.
    pub transmit_control: f64,
    /// The latency of a transmitted message with nothing else on the link.
    pub latency: [Time; 2],
    /// Bytes of transmitted messages of 64 KiB in a second.
    #[serde(rename = "bulk_bytes_per_second")]
    pub bulk_bytes_per_s: [f64; 2],
}

/// A parameter, and the measures for each choice of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DmaQuestion {
    /// The question.
    pub question: &'static str,
    /// The answers.
    pub answers: Vec<DmaAnswer>,
}

/// Bytes of a bulk message.
const BULK_BYTES: u64 = 64 << 10;

fn answer(choice: String, platform: &DmaPlatform, message_bytes: u64) -> DmaAnswer {
    let control = |way| saturated(platform, DataMover::Descriptors, way, message_bytes).0.both().control_share();
    DmaAnswer {
        choice,
        receive_control: control(MessageWay::Receive),
        transmit_control: control(MessageWay::Transmit),
        latency: DataMover::ALL.map(|mover| alone(platform, mover, MessageWay::Transmit, message_bytes)),
        bulk_bytes_per_s: DataMover::ALL.map(|mover| saturated(platform, mover, MessageWay::Transmit, BULK_BYTES).1),
    }
}

/// Changes one parameter at a time: the size of messages, generation and framing of the link,
/// payload, read requests, descriptors and their batches, doorbells, and the device's buffer.
pub fn questions(platform: &DmaPlatform, message_bytes: u64) -> Vec<DmaQuestion> {
    let with = |choices: &[(String, DmaPlatform)]| -> Vec<DmaAnswer> {
        choices.iter().map(|(choice, changed)| answer(choice.clone(), changed, message_bytes)).collect()
    };
    let link = |change: &dyn Fn(&mut PcieLink)| {
        let mut changed = *platform;
        change(&mut changed.link);
        changed
    };
    let practice = |change: &dyn Fn(&mut DriverPractice)| {
        let mut changed = *platform;
        change(&mut changed.practice);
        changed
    };
    let numbers = |choices: &[u64], change: &dyn Fn(u64) -> DmaPlatform| -> Vec<DmaAnswer> {
        with(&choices.iter().map(|&n| (n.to_string(), change(n))).collect::<Vec<_>>())
    };
    let sizes = [64, 256, 1024, 4096, 16 << 10, 64 << 10u64];
    let question = |question, answers| DmaQuestion { question, answers };
    vec![
        question("bytes of a message", sizes.iter().map(|&bytes| answer(bytes.to_string(), platform, bytes)).collect()),
        question("generation, and what carries packets", with(&generations(platform))),
        question("lanes", numbers(&[1, 4, 8, 16], &|n| link(&|l| l.lanes = n as u32))),
        question(
            "largest payload of a packet, bytes",
            numbers(&[128, 256, 512, 1024, 4096], &|n| link(&|l| l.max_payload_bytes = n)),
        ),
        question("largest read request, bytes", numbers(&[128, 512, 1024, 4096], &|n| link(&|l| l.max_read_bytes = n))),
        question("bytes of a descriptor", numbers(&[8, 16, 32, 64, 128], &|n| practice(&|p| p.descriptor_bytes = n))),
        question(
            "descriptors a fetch brings, and messages a doorbell announces",
            numbers(&[1, 4, 16, 64], &|n| {
                practice(&|p| {
                    p.descriptors_per_fetch = n;
                    p.transmit = QueueHabits { per_doorbell: n, frames_per_interrupt: n, ..p.transmit };
                })
            }),
        ),
        question(
            "messages a doorbell announces",
            numbers(&[1, 2, 8, 32], &|n| practice(&|p| p.transmit.per_doorbell = n)),
        ),
        question(
            "bytes of the device's buffer",
            numbers(&[1500, 3000, 8192, 32 << 10, 128 << 10], &|n| DmaPlatform { device_buffer_bytes: n, ..*platform }),
        ),
    ]
}

/// The generations, and CXL.io's flits on those that have them.
fn generations(platform: &DmaPlatform) -> Vec<(String, DmaPlatform)> {
    let mut choices = Vec::new();
    for generation in PcieGeneration::ALL {
        for is_cxl in [false, true] {
            let link = PcieLink { generation, is_cxl, ..platform.link };
            let name = match link.framing() {
                LinkFraming::CxlFlits => format!("{}, CXL.io", generation.number()),
                LinkFraming::Flits => format!("{}, flits", generation.number()),
                LinkFraming::Packets => generation.number().to_string(),
            };
            if choices.iter().all(|(other, _)| *other != name) {
                choices.push((name, DmaPlatform { link, ..*platform }));
            }
        }
    }
    choices
}
