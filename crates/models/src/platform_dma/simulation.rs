//! Messages between memory and a device, packet by packet, as events.
//!
//! ```text
//! transmit, descriptors   doorbell >  < fetch  descriptors >  < read  data >  < notice
//! transmit, integrated    (doorbell, descriptors, data: on the die)  data >
//! receive, descriptors    < data  < notice  doorbell >    (fetched ahead: < fetch  descriptors >)
//! receive, integrated     < data  (into memory, and a notice: on the die)
//! ```
//! A notice is a write-back, an interrupt, or none. `>` is from the host to the device.
//!
//! The device's engine chooses among its queues for each packet that it sends. The host answers
//! requests in the order in which they come, for it cannot tell priorities apart (paper, section
//! 4.2). The integrated engine chooses for each packet that it pushes.

use std::collections::VecDeque;

use serde::Serialize;

use super::link::PacketKind;
use super::parameters::{DataMover, DmaPlatform, MessageLoad, MessageStream, MessageWay, QueueArbitration};
use super::traffic::{LinkTraffic, TrafficClass};
use super::transport::{DOWN, LinkEvent, Transport, UP};
use super::wire::{Credits, Packet, Purpose};
use crate::time::{EventQueue, QueueServer, Time};

/// Descriptors that a device holds when it begins to receive; more if a fetch brings more than half
/// of them. Assumed: enough not to wait for any.
const RECEIVE_DESCRIPTORS: u64 = 64;

/// The results of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StreamResult {
    /// Messages that arrived.
    pub messages: u64,
    /// The mean time from when a message was there until it arrived whole; when received, with its
    /// notice if there is one for it.
    pub mean_latency: Time,
    /// The longest such time.
    pub max_latency: Time,
    /// Bytes of messages in a second, without the first quarter of the messages.
    #[serde(rename = "bytes_per_second")]
    pub bytes_per_s: f64,
}

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DmaResult {
    /// The results by stream.
    pub streams: Vec<StreamResult>,
    /// What went from the host to the device.
    pub down: LinkTraffic,
    /// What went from the device to the host.
    pub up: LinkTraffic,
    /// When the last message had arrived.
    pub elapsed: Time,
    /// How often a direction had packets and no credits for any.
    pub waits_for_credits: u64,
    /// The most bytes in the integrated engine's receive buffer.
    pub max_buffered_bytes: u64,
}

impl DmaResult {
    /// Returns the traffic of both directions.
    pub fn both(&self) -> LinkTraffic {
        self.down.and(&self.up)
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message is there: in memory to be sent, or in the device as it came.
    Post { stream: usize },
    /// The integrated engine has a message's data.
    Read { message: usize },
    /// Something of the link itself.
    Link(LinkEvent),
    /// The host has what a request asks for.
    Answer { request: Packet },
    /// A part of a received frame is in memory.
    Stored { frame: usize, bytes: u64, cost: Credits },
    /// A message is where it should be.
    Told { message: usize },
}

impl From<LinkEvent> for Event {
    fn from(event: LinkEvent) -> Event {
        Event::Link(event)
    }
}

#[derive(Debug)]
struct StreamState {
    /// Messages that came, and those that arrived.
    posted: u64,
    latencies: Vec<Time>,
    ends: Vec<Time>,
    /// Messages that no doorbell announced yet.
    unannounced: Vec<usize>,
    /// Frames that wait for descriptors, and descriptors that are there.
    waiting: VecDeque<usize>,
    descriptors: u64,
    /// Descriptors used since the last fetch was asked for.
    used: u64,
    /// Frames that were done, and that were written by the device.
    frames_done: u64,
    frames_written: u64,
}

#[derive(Debug)]
struct MessageState {
    stream: usize,
    begun: Time,
    frames_left: usize,
    frames: Vec<usize>,
}

#[derive(Debug)]
struct FrameState {
    message: usize,
    /// Bytes of the message.
    bytes: u64,
    /// Packets that have not arrived.
    packets_left: usize,
}

#[derive(Debug)]
struct FetchState {
    stream: usize,
    descriptors: u64,
    packets_left: usize,
}

struct Simulation<'a> {
    platform: &'a DmaPlatform,
    mover: DataMover,
    shapes: &'a [MessageStream],
    agenda: EventQueue<Event>,
    link: Transport,
    streams: Vec<StreamState>,
    messages: Vec<MessageState>,
    frames: Vec<FrameState>,
    fetches: Vec<FetchState>,
    /// The messages that each doorbell announces.
    groups: Vec<Vec<usize>>,
    memory: QueueServer,
    buffered_bytes: u64,
    max_buffered_bytes: u64,
}

/// Moves the messages of all streams. Equal arguments give equal results.
///
/// `arbitration` is the rule of the engine: of the device's for what it sends, or of the integrated
/// one for what it pushes.
pub fn simulate(
    platform: &DmaPlatform,
    mover: DataMover,
    arbitration: QueueArbitration,
    streams: &[MessageStream],
) -> DmaResult {
    let priorities: Vec<u8> = streams.iter().map(|s| s.priority).collect();
    let rules = match mover {
        DataMover::Descriptors => [QueueArbitration::Fifo, arbitration],
        DataMover::Integrated => [arbitration, QueueArbitration::Fifo],
    };
    let ahead = RECEIVE_DESCRIPTORS.max(2 * platform.practice.descriptors_per_fetch);
    let mut simulation = Simulation {
        link: Transport::new(platform, rules, &priorities),
        streams: streams.iter().map(|s| StreamState::new(s, ahead)).collect(),
        platform,
        mover,
        shapes: streams,
        agenda: EventQueue::default(),
        messages: Vec::new(),
        frames: Vec::new(),
        fetches: Vec::new(),
        groups: Vec::new(),
        memory: QueueServer::default(),
        buffered_bytes: 0,
        max_buffered_bytes: 0,
    };
    simulation.schedule_loads();
    while let Some(event) = simulation.agenda.next() {
        simulation.act(event);
    }
    simulation.outcome()
}

impl StreamState {
    fn new(shape: &MessageStream, ahead: u64) -> StreamState {
        StreamState {
            posted: 0,
            latencies: Vec::new(),
            ends: Vec::new(),
            unannounced: Vec::new(),
            waiting: VecDeque::new(),
            descriptors: if shape.way == MessageWay::Receive { ahead } else { 0 },
            used: 0,
            frames_done: 0,
            frames_written: 0,
        }
    }

    fn outcome(&self, shape: &MessageStream) -> StreamResult {
        let count = self.latencies.len() as u64;
        let sum = self.latencies.iter().fold(Time::ZERO, |sum, t| sum + *t);
        // Messages of one stream may arrive in another order than they came.
        let first = self.ends.len() / 4;
        let rest = self.ends.len().saturating_sub(first + 1) as u64;
        let span = match (self.ends.get(first), self.ends.last()) {
            (Some(first), Some(last)) => (*last - *first).as_s(),
            _ => 0.0,
        };
        StreamResult {
            messages: count,
            mean_latency: sum / count,
            max_latency: self.latencies.iter().copied().max().unwrap_or_default(),
            bytes_per_s: if span > 0.0 { (rest * shape.message_bytes) as f64 / span } else { 0.0 },
        }
    }
}

/// Whether the `nth` of something (from 1) is one of those that come once in `every`.
fn is_due(nth: u64, every: u64) -> bool {
    every > 0 && nth.is_multiple_of(every)
}

impl Simulation<'_> {
    fn schedule_loads(&mut self) {
        for (stream, shape) in self.shapes.iter().enumerate() {
            let (now, gap) = match shape.load {
                MessageLoad::InFlight(count) => (shape.count.min(count.max(1)), Time::ZERO),
                MessageLoad::Every(gap) => (shape.count, gap),
            };
            (0..now).for_each(|nth| self.agenda.schedule_at(gap * nth, Event::Post { stream }));
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Post { stream } => self.post(stream),
            Event::Read { message } => self.push_message(message, DOWN),
            Event::Link(event) => {
                if let Some((direction, packet)) = self.link.act(&mut self.agenda, event) {
                    self.arrived(direction, packet);
                }
            }
            Event::Answer { request } => self.answer(request),
            Event::Stored { frame, bytes, cost } => {
                self.buffered_bytes -= bytes;
                self.link.give_back(&mut self.agenda, UP, cost);
                self.part_arrived(frame);
            }
            Event::Told { message } => self.message_done(message),
        }
    }

    /// A message is there.
    fn post(&mut self, stream: usize) {
        let shape = &self.shapes[stream];
        let message = self.messages.len();
        let frames: Vec<usize> = self
            .platform
            .practice
            .frames(shape.message_bytes)
            .map(|bytes| {
                self.frames.push(FrameState { message, bytes, packets_left: 0 });
                self.frames.len() - 1
            })
            .collect();
        self.messages.push(MessageState { stream, begun: self.agenda.now(), frames_left: frames.len(), frames });
        self.streams[stream].posted += 1;
        match (shape.way, self.mover) {
            (MessageWay::Transmit, DataMover::Descriptors) => {
                self.streams[stream].unannounced.push(message);
                self.ring(stream);
            }
            (MessageWay::Transmit, DataMover::Integrated) => {
                let costs = &self.platform.costs;
                // The doorbell, the descriptor and the data.
                self.agenda.schedule_in(costs.on_die_doorbell + costs.memory_fetch * 2, Event::Read { message });
            }
            (MessageWay::Receive, DataMover::Descriptors) => {
                let MessageState { frames, .. } = &self.messages[message];
                self.streams[stream].waiting.extend(frames);
                self.write_frames(stream);
            }
            (MessageWay::Receive, DataMover::Integrated) => self.push_message(message, UP),
        }
    }

    /// Rings for the messages that were not announced, if there are enough or no more will come.
    fn ring(&mut self, stream: usize) {
        let shape = &self.shapes[stream];
        let state = &mut self.streams[stream];
        let enough = match shape.load {
            MessageLoad::InFlight(count) => self.platform.practice.transmit.per_doorbell.min(count),
            MessageLoad::Every(_) => self.platform.practice.transmit.per_doorbell,
        };
        if (state.unannounced.len() as u64) < enough && state.posted < shape.count {
            return;
        }
        self.groups.push(std::mem::take(&mut state.unannounced));
        let purpose = Purpose::Doorbell { group: self.groups.len() - 1 };
        self.enqueue(DOWN, (PacketKind::RegisterWrite, TrafficClass::Doorbells), 4, stream, purpose);
    }

    /// The device fetches the descriptors of all messages that a doorbell announced.
    fn fetch_group(&mut self, group: usize) {
        let mut frames = Vec::new();
        let mut stream = 0;
        for &message in &self.groups[group] {
            stream = self.messages[message].stream;
            frames.extend_from_slice(&self.messages[message].frames);
        }
        let practice = self.platform.practice;
        let descriptors = frames.len() as u64 * practice.transmit.descriptors_per_frame;
        self.streams[stream].waiting.extend(frames);
        practice.fetches(descriptors).for_each(|count| self.fetch(stream, count));
        // Where frames have no descriptors, nothing has to come.
        self.read_frames(stream);
    }

    fn fetch(&mut self, stream: usize, descriptors: u64) {
        let (link, bytes) = (self.platform.link, self.platform.practice.fetch_bytes(descriptors));
        let packets_left = link.requests(bytes).map(|part| link.payloads(part).count()).sum();
        self.fetches.push(FetchState { stream, descriptors, packets_left });
        let fetch = self.fetches.len() - 1;
        for bytes in link.requests(bytes) {
            let what = (PacketKind::MemoryRead, TrafficClass::Descriptors);
            self.enqueue(UP, what, 0, stream, Purpose::FetchRequest { fetch, bytes });
        }
    }

    /// The device reads the frames for which it has descriptors.
    fn read_frames(&mut self, stream: usize) {
        let practice = self.platform.practice;
        let link = self.platform.link;
        while let Some(frame) = self.next_frame(stream, practice.transmit.descriptors_per_frame) {
            // The protocol headers and the message lie at two places.
            let requests: Vec<u64> = [practice.frame_header_bytes, self.frames[frame].bytes]
                .into_iter()
                .flat_map(|part| link.requests(part))
                .collect();
            self.frames[frame].packets_left = requests.iter().map(|&part| link.payloads(part).count()).sum();
            if requests.is_empty() {
                self.frame_done(frame);
            }
            for bytes in requests {
                let what = (PacketKind::MemoryRead, TrafficClass::PayloadPackets);
                self.enqueue(UP, what, 0, stream, Purpose::ReadRequest { frame, bytes });
            }
        }
    }

    /// Takes the descriptors of the next frame that waits, if they are there.
    fn next_frame(&mut self, stream: usize, descriptors: u64) -> Option<usize> {
        let state = &mut self.streams[stream];
        let left = state.descriptors.checked_sub(descriptors)?;
        let frame = state.waiting.pop_front()?;
        state.descriptors = left;
        Some(frame)
    }

    /// The device writes the frames for which it has descriptors, and their notices behind them.
    fn write_frames(&mut self, stream: usize) {
        let practice = self.platform.practice;
        let habits = practice.receive;
        while let Some(frame) = self.next_frame(stream, habits.descriptors_per_frame) {
            let purpose = Purpose::FramePart { frame };
            self.push_frame(frame, UP);
            let state = &mut self.streams[stream];
            state.frames_written += 1;
            state.used += habits.descriptors_per_frame;
            let nth = state.frames_written;
            let fetches = state.used / practice.descriptors_per_fetch.max(1);
            state.used -= fetches * practice.descriptors_per_fetch.max(1);
            self.frames[frame].packets_left += self.notify(stream, nth, MessageWay::Receive, purpose);
            (0..fetches).for_each(|_| self.fetch(stream, practice.descriptors_per_fetch.max(1)));
        }
    }

    /// Sends the write-back and the interrupt that are due with the `nth` frame; returns how many
    /// packets these are.
    fn notify(&mut self, stream: usize, nth: u64, way: MessageWay, purpose: Purpose) -> usize {
        let practice = self.platform.practice;
        let habits = practice.of(way);
        let mut packets = 0;
        if is_due(nth, habits.frames_per_write_back) {
            // To transmit, the last descriptor of a frame stands for all.
            let each = if way == MessageWay::Transmit { 1 } else { habits.descriptors_per_frame };
            let bytes = habits.frames_per_write_back * each * practice.descriptor_bytes;
            for payload in self.platform.link.payloads(bytes) {
                self.enqueue(UP, (PacketKind::MemoryWrite, TrafficClass::WriteBacks), payload, stream, purpose);
                packets += 1;
            }
        }
        if is_due(nth, habits.frames_per_interrupt) {
            self.enqueue(UP, (PacketKind::RegisterWrite, TrafficClass::Interrupts), 4, stream, purpose);
            packets += 1;
        }
        packets
    }

    /// Writes all frames of a message, as the integrated engine and its adapters do.
    fn push_message(&mut self, message: usize, direction: usize) {
        let frames = self.messages[message].frames.clone();
        frames.into_iter().for_each(|frame| self.push_frame(frame, direction));
    }

    fn push_frame(&mut self, frame: usize, direction: usize) {
        let bytes = self.frames[frame].bytes + self.platform.practice.frame_header_bytes;
        let stream = self.messages[self.frames[frame].message].stream;
        let payloads = self.platform.link.payloads(bytes);
        for payload in payloads {
            self.frames[frame].packets_left += 1;
            let what = (PacketKind::MemoryWrite, TrafficClass::Payload);
            self.enqueue(direction, what, payload, stream, Purpose::FramePart { frame });
        }
        if bytes == 0 {
            self.frame_done(frame);
        }
    }

    fn enqueue(
        &mut self,
        direction: usize,
        (kind, class): (PacketKind, TrafficClass),
        payload: u64,
        stream: usize,
        purpose: Purpose,
    ) {
        let packet = Packet { kind, class, payload, stream, purpose, frees_tag: false };
        self.link.enqueue(&mut self.agenda, direction, packet);
    }

    fn arrived(&mut self, direction: usize, packet: Packet) {
        // What is received into the integrated engine's buffer leaves it only when it is stored.
        let is_buffered = direction == UP
            && self.mover == DataMover::Integrated
            && matches!(packet.purpose, Purpose::FramePart { .. });
        if !is_buffered {
            self.link.give_back(&mut self.agenda, direction, packet.cost());
        }
        match packet.purpose {
            Purpose::Doorbell { group } => self.fetch_group(group),
            Purpose::FetchRequest { .. } => {
                self.agenda.schedule_in(self.platform.costs.descriptor_turnaround, Event::Answer { request: packet });
            }
            Purpose::ReadRequest { .. } => {
                self.agenda.schedule_in(self.platform.costs.payload_turnaround, Event::Answer { request: packet });
            }
            Purpose::FetchAnswer { fetch } => self.fetched(fetch),
            Purpose::FramePart { frame } if is_buffered => self.store(frame, &packet),
            Purpose::FramePart { frame } => self.part_arrived(frame),
            // The link keeps credits to itself.
            Purpose::Notice | Purpose::Credits(_) => {}
        }
    }

    /// The host answers a request, in packets of the largest payload.
    fn answer(&mut self, request: Packet) {
        let (bytes, class, purpose) = match request.purpose {
            Purpose::FetchRequest { fetch, bytes } => {
                (bytes, TrafficClass::Descriptors, Purpose::FetchAnswer { fetch })
            }
            Purpose::ReadRequest { frame, bytes } => (bytes, TrafficClass::Payload, Purpose::FramePart { frame }),
            _ => return,
        };
        let mut left = bytes;
        for payload in self.platform.link.payloads(bytes) {
            left -= payload;
            let frees_tag = left == 0;
            let (kind, stream) = (PacketKind::Completion, request.stream);
            let packet = Packet { kind, class, payload, stream, purpose, frees_tag };
            self.link.enqueue(&mut self.agenda, DOWN, packet);
        }
    }

    fn fetched(&mut self, fetch: usize) {
        let state = &mut self.fetches[fetch];
        state.packets_left -= 1;
        if state.packets_left > 0 {
            return;
        }
        let stream = state.stream;
        self.streams[stream].descriptors += state.descriptors;
        match self.shapes[stream].way {
            MessageWay::Transmit => self.read_frames(stream),
            MessageWay::Receive => self.write_frames(stream),
        }
    }

    /// Moves what is in the integrated engine's receive buffer to memory.
    fn store(&mut self, frame: usize, packet: &Packet) {
        self.buffered_bytes += packet.payload;
        self.max_buffered_bytes = self.max_buffered_bytes.max(self.buffered_bytes);
        let takes = Time::of_bytes(packet.payload, self.platform.memory_bytes_per_s);
        let end = self.memory.serve(self.agenda.now(), takes) + self.platform.costs.memory_fetch;
        self.agenda.schedule_at(end, Event::Stored { frame, bytes: packet.payload, cost: packet.cost() });
    }

    fn part_arrived(&mut self, frame: usize) {
        self.frames[frame].packets_left -= 1;
        if self.frames[frame].packets_left == 0 {
            self.frame_done(frame);
        }
    }

    fn frame_done(&mut self, frame: usize) {
        let message = self.frames[frame].message;
        let stream = self.messages[message].stream;
        let way = self.shapes[stream].way;
        self.streams[stream].frames_done += 1;
        let nth = self.streams[stream].frames_done;
        self.messages[message].frames_left -= 1;
        let is_whole = self.messages[message].frames_left == 0;
        match (self.mover, way) {
            (DataMover::Descriptors, MessageWay::Transmit) => {
                self.notify(stream, nth, way, Purpose::Notice);
            }
            (DataMover::Descriptors, MessageWay::Receive) => {
                if is_due(nth, self.platform.practice.receive.per_doorbell) {
                    let what = (PacketKind::RegisterWrite, TrafficClass::Doorbells);
                    self.enqueue(DOWN, what, 4, stream, Purpose::Notice);
                }
            }
            (DataMover::Integrated, MessageWay::Receive) if is_whole => {
                // A core is told on the die.
                self.agenda.schedule_in(self.platform.costs.on_die_doorbell, Event::Told { message });
                return;
            }
            (DataMover::Integrated, _) => {}
        }
        if is_whole {
            self.message_done(message);
        }
    }

    fn message_done(&mut self, message: usize) {
        let now = self.agenda.now();
        let MessageState { stream, begun, .. } = self.messages[message];
        let (shape, state) = (&self.shapes[stream], &mut self.streams[stream]);
        state.latencies.push(now - begun);
        state.ends.push(now);
        if let MessageLoad::InFlight(count) = shape.load
            && state.ends.len() as u64 + count.max(1) <= shape.count
        {
            self.agenda.schedule_in(Time::ZERO, Event::Post { stream });
        }
    }

    fn outcome(&self) -> DmaResult {
        let streams: Vec<StreamResult> =
            self.streams.iter().zip(self.shapes).map(|(state, shape)| state.outcome(shape)).collect();
        DmaResult {
            streams,
            down: self.link.traffic(DOWN),
            up: self.link.traffic(UP),
            elapsed: self.streams.iter().filter_map(|s| s.ends.last()).copied().max().unwrap_or_default(),
            waits_for_credits: self.link.waits_for_credits,
            max_buffered_bytes: self.max_buffered_bytes,
        }
    }
}
