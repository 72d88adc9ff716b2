//! What the events must add up to: bytes on the link, the latency of one message, and the rate of
//! many.

use super::link::{PacketKind, PcieLink};
use super::parameters::{DataMover, DmaPlatform, MessageStream, MessageWay};
use super::traffic::{LinkTraffic, TrafficClass};
use crate::time::Time;

/// Bytes from the host to the device, and from the device to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwoWayTraffic {
    /// From the host to the device.
    pub down: LinkTraffic,
    /// From the device to the host.
    pub up: LinkTraffic,
}

/// Returns the bytes of packets of the transaction layer that a stream has on the link.
///
/// It holds for any load of one stream whose messages come one by one or are announced one by one.
/// Packets of the link layer and flits depend on times, and are left out.
pub fn traffic(platform: &DmaPlatform, mover: DataMover, stream: &MessageStream) -> TwoWayTraffic {
    let mut sum = TwoWayTraffic::default();
    let (link, practice) = (&platform.link, &platform.practice);
    let frames: Vec<u64> = practice.frames(stream.message_bytes).collect();
    let all = frames.len() as u64 * stream.count;
    let habits = practice.of(stream.way);
    for &bytes in &frames {
        let whole = bytes + practice.frame_header_bytes;
        match (stream.way, mover) {
            (MessageWay::Transmit, DataMover::Descriptors) => {
                for part in [practice.frame_header_bytes, bytes] {
                    add_read(&mut sum, link, (TrafficClass::PayloadPackets, TrafficClass::Payload), part, stream.count);
                }
            }
            (MessageWay::Transmit, DataMover::Integrated) => {
                add_writes(&mut sum.down, link, TrafficClass::Payload, whole, stream.count)
            }
            (MessageWay::Receive, _) => add_writes(&mut sum.up, link, TrafficClass::Payload, whole, stream.count),
        }
    }
    if mover == DataMover::Integrated {
        return sum;
    }
    let fetch = |sum: &mut TwoWayTraffic, descriptors, times| {
        let bytes = practice.fetch_bytes(descriptors);
        add_read(sum, link, (TrafficClass::Descriptors, TrafficClass::Descriptors), bytes, times);
    };
    let (announced, noticed) = match stream.way {
        MessageWay::Transmit => {
            let group = habits.per_doorbell.max(1);
            let (groups, rest) = (stream.count / group, stream.count % group);
            let per_message = frames.len() as u64 * habits.descriptors_per_frame;
            practice.fetches(group * per_message).for_each(|count| fetch(&mut sum, count, groups));
            practice.fetches(rest * per_message).for_each(|count| fetch(&mut sum, count, 1));
            (groups + u64::from(rest > 0), 1)
        }
        MessageWay::Receive => {
            let each = practice.descriptors_per_fetch.max(1);
            fetch(&mut sum, each, all * habits.descriptors_per_frame / each);
            (all.checked_div(habits.per_doorbell).unwrap_or(0), habits.descriptors_per_frame)
        }
    };
    add_register(&mut sum.down, link, TrafficClass::Doorbells, announced);
    let interrupts = all.checked_div(habits.frames_per_interrupt).unwrap_or(0);
    add_register(&mut sum.up, link, TrafficClass::Interrupts, interrupts);
    let write_back = habits.frames_per_write_back * noticed * practice.descriptor_bytes;
    let write_backs = all.checked_div(habits.frames_per_write_back).unwrap_or(0);
    add_writes(&mut sum.up, link, TrafficClass::WriteBacks, write_back, write_backs);
    sum
}

fn add(to: &mut LinkTraffic, link: &PcieLink, (kind, class): (PacketKind, TrafficClass), payload: u64, times: u64) {
    to.add_packet(class, payload * times, link.packet_bytes(kind, payload) * times);
}

fn add_register(to: &mut LinkTraffic, link: &PcieLink, class: TrafficClass, times: u64) {
    add(to, link, (PacketKind::RegisterWrite, class), 4, times);
}

fn add_writes(to: &mut LinkTraffic, link: &PcieLink, class: TrafficClass, bytes: u64, times: u64) {
    link.payloads(bytes).for_each(|payload| add(to, link, (PacketKind::MemoryWrite, class), payload, times));
}

/// Requests up, of one class, and answers down, of another.
fn add_read(
    to: &mut TwoWayTraffic,
    link: &PcieLink,
    (asked, answered): (TrafficClass, TrafficClass),
    bytes: u64,
    times: u64,
) {
    for part in link.requests(bytes) {
        add(&mut to.up, link, (PacketKind::MemoryRead, asked), 0, times);
        link.payloads(part)
            .for_each(|payload| add(&mut to.down, link, (PacketKind::Completion, answered), payload, times));
    }
}

/// Returns the latency of one message to the device, with nothing else on the link.
///
/// ```text
/// descriptors  doorbell + fetch + read;  each of the last two is a request, the way there, the
///              turnaround, the answers one after the other, and the way back
/// integrated   doorbell on the die + two reads of memory + the writes in turn + the way
/// ```
/// It holds for a message of one frame without protocol headers whose descriptors and payload are
/// read by one request each and whose writes fit the device's buffer, on links without flits and
/// packets of the link layer.
pub fn transmit_latency(platform: &DmaPlatform, mover: DataMover, message_bytes: u64) -> Time {
    let (link, costs, practice) = (&platform.link, &platform.costs, &platform.practice);
    let time = |kind, payload| link.time_of(link.packet_bytes(kind, payload));
    let all = |kind, bytes| link.payloads(bytes).fold(Time::ZERO, |sum, payload| sum + time(kind, payload));
    let read = |bytes, turnaround| {
        costs.one_way * 2 + turnaround + time(PacketKind::MemoryRead, 0) + all(PacketKind::Completion, bytes)
    };
    match mover {
        DataMover::Descriptors => {
            time(PacketKind::RegisterWrite, 4)
                + costs.one_way
                + read(practice.fetch_bytes(practice.transmit.descriptors_per_frame), costs.descriptor_turnaround)
                + read(message_bytes, costs.payload_turnaround)
        }
        DataMover::Integrated => {
            costs.on_die_doorbell + costs.memory_fetch * 2 + all(PacketKind::MemoryWrite, message_bytes) + costs.one_way
        }
    }
}

/// Returns the bytes of messages that the link can carry in a second one way, if the busier
/// direction never rests: an upper bound for every load, with packets of the link layer left out.
pub fn max_rate(platform: &DmaPlatform, mover: DataMover, stream: &MessageStream) -> f64 {
    let traffic = traffic(platform, mover, stream);
    let busier = traffic.down.total().max(traffic.up.total());
    let (bytes, part) = match platform.link.flit() {
        Some(flit) => (busier, flit.room as f64 / flit.bytes as f64),
        None => (busier, 1.0),
    };
    platform.link.bytes_per_s() * part * (stream.message_bytes * stream.count) as f64 / bytes.max(1) as f64
}
