//! One direction of the link: queues of packets, the choice among them, credits and flits.
//!
//! ```text
//! a packet of the link layer, if there is one
//! else the packet that the arbitration chooses among the heads of the queues that may be sent:
//!     a write needs credits for its header and its data, a request for its header and a free tag;
//!     an answer needs neither (its room was kept when the request was sent)
//! ```

use std::collections::VecDeque;

use super::link::{PacketKind, PcieLink};
use super::parameters::QueueArbitration;
use super::traffic::{LinkTraffic, TrafficClass};
use crate::time::Time;

/// What the arrival of a packet causes. The numbers are places in the simulation's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The device learns of messages.
    Doorbell { group: usize },
    /// The host asks for descriptors.
    FetchRequest { fetch: usize, bytes: u64 },
    /// Descriptors come.
    FetchAnswer { fetch: usize },
    /// The host reads a part of a frame.
    ReadRequest { frame: usize, bytes: u64 },
    /// A part of a frame is there, or the notice that belongs to it.
    FramePart { frame: usize },
    /// Nothing else waits for it.
    Notice,
    /// The other direction may send more.
    Credits(Credits),
}

/// Room in a receiver's buffer: packets, and units of 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Credits {
    pub(super) headers: u64,
    pub(super) data: u64,
}

impl Credits {
    /// A buffer has a header for each line of 64 bytes (an assumption), and room for at least one
    /// packet: with less, nothing would ever be sent.
    pub(super) fn of_buffer(bytes: u64, link: &PcieLink) -> Credits {
        let bytes = bytes.max(link.max_payload_bytes);
        Credits { headers: (bytes / 64).max(1), data: bytes.div_ceil(16) }
    }

    pub(super) fn add(&mut self, other: Credits) {
        self.headers += other.headers;
        self.data += other.data;
    }

    pub(super) fn is_none(self) -> bool {
        self == Credits::default()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) kind: PacketKind,
    pub(super) class: TrafficClass,
    pub(super) payload: u64,
    /// The queue.
    pub(super) stream: usize,
    pub(super) purpose: Purpose,
    /// Whether it is the last answer to a request, whose tag is then free.
    pub(super) frees_tag: bool,
}

impl Packet {
    /// Returns the credits that it takes.
    pub(super) fn cost(&self) -> Credits {
        match self.kind {
            PacketKind::MemoryWrite | PacketKind::RegisterWrite => {
                Credits { headers: 1, data: self.payload.div_ceil(16) }
            }
            PacketKind::MemoryRead => Credits { headers: 1, data: 0 },
            PacketKind::Completion | PacketKind::LinkLayer => Credits::default(),
        }
    }
}

/// What can be sent next.
pub(super) enum Choice {
    Packet(Packet),
    /// Nothing, for lack of credits.
    NoCredits,
    /// Nothing: no packet is there, or no tag.
    Nothing,
}

/// When a packet has been sent, and when the next can be.
pub(super) struct SentTimes {
    pub(super) end: Time,
    pub(super) free: Time,
}

#[derive(Debug)]
pub(super) struct Wire {
    link: PcieLink,
    arbitration: QueueArbitration,
    priorities: Vec<u8>,
    /// For each queue the packets, with the turn in which they came.
    queues: Vec<VecDeque<(u64, Packet)>>,
    link_layer: VecDeque<Packet>,
    turns: u64,
    last: usize,
    pub(super) is_busy: bool,
    pub(super) credits: Credits,
    free_at: Time,
    /// The end of the flit that is being sent, and the room that is left in it.
    open_until: Time,
    open_room: u64,
    traffic: LinkTraffic,
    flits: u64,
}

impl Wire {
    pub(super) fn new(link: PcieLink, arbitration: QueueArbitration, priorities: Vec<u8>, buffer_bytes: u64) -> Wire {
        Wire {
            arbitration,
            queues: vec![VecDeque::new(); priorities.len()],
            priorities,
            link_layer: VecDeque::new(),
            turns: 0,
            last: 0,
            is_busy: false,
            credits: Credits::of_buffer(buffer_bytes, &link),
            free_at: Time::ZERO,
            open_until: Time::ZERO,
            open_room: 0,
            traffic: LinkTraffic::default(),
            flits: 0,
            link,
        }
    }

    pub(super) fn push(&mut self, packet: Packet) {
        match packet.kind {
            PacketKind::LinkLayer => self.link_layer.push_back(packet),
            _ => self.queues[packet.stream].push_back((self.turns, packet)),
        }
        self.turns += 1;
    }

    /// Chooses the next packet and takes its credits.
    pub(super) fn choose(&mut self, has_tag: bool) -> Choice {
        if let Some(packet) = self.link_layer.pop_front() {
            return Choice::Packet(packet);
        }
        // The first by rank that may be sent, and the first that lacks credits.
        let mut best: Option<(usize, (u64, u64))> = None;
        let mut waits: Option<(u64, u64)> = None;
        for (queue, packets) in self.queues.iter().enumerate() {
            let Some((turn, packet)) = packets.front() else { continue };
            let (cost, rank) = (packet.cost(), self.rank(queue, *turn));
            if cost.headers > self.credits.headers || cost.data > self.credits.data {
                waits = Some(waits.map_or(rank, |first| first.min(rank)));
            } else if packet.kind != PacketKind::MemoryRead || has_tag {
                best = best.filter(|(_, first)| *first < rank).or(Some((queue, rank)));
            }
        }
        // First come, first served: a smaller packet does not go ahead of one that lacks credits.
        if self.arbitration == QueueArbitration::Fifo
            && waits.is_some_and(|first| best.is_none_or(|(_, rank)| first < rank))
        {
            return Choice::NoCredits;
        }
        let Some((_, packet)) = best.and_then(|(queue, _)| self.queues[queue].pop_front()) else {
            return if waits.is_some() { Choice::NoCredits } else { Choice::Nothing };
        };
        self.last = packet.stream;
        self.credits.headers -= packet.cost().headers;
        self.credits.data -= packet.cost().data;
        Choice::Packet(packet)
    }

    /// The least rank goes first.
    fn rank(&self, queue: usize, turn: u64) -> (u64, u64) {
        let count = self.queues.len();
        match self.arbitration {
            QueueArbitration::Fifo => (0, turn),
            QueueArbitration::RoundRobin => (((queue + count - self.last - 1) % count) as u64, turn),
            QueueArbitration::Priority => (u64::from(u8::MAX - self.priorities[queue]), turn),
        }
    }

    /// Puts a packet on the link.
    pub(super) fn send(&mut self, now: Time, packet: &Packet) -> SentTimes {
        let bytes = self.link.packet_bytes(packet.kind, packet.payload);
        self.traffic.add_packet(packet.class, packet.payload, bytes);
        let Some(flit) = self.link.flit() else {
            self.free_at = self.free_at.max(now) + self.link.time_of(bytes);
            return SentTimes { end: self.free_at, free: self.free_at };
        };
        let each = self.link.time_of(flit.bytes);
        if now >= self.open_until {
            (self.open_until, self.open_room) = (now, 0);
        }
        let more = bytes.saturating_sub(self.open_room).div_ceil(flit.room);
        self.open_room = self.open_room + more * flit.room - bytes;
        self.open_until += each * more;
        self.flits += more;
        // The next packet may use the rest of the last flit, once that flit is on its way.
        let free = if self.open_room > 0 { (self.open_until - each).max(now) } else { self.open_until };
        SentTimes { end: self.open_until, free }
    }

    /// Returns all that was sent, with what flits needed beside packets.
    pub(super) fn traffic(&self) -> LinkTraffic {
        let mut traffic = self.traffic;
        if let Some(flit) = self.link.flit() {
            traffic.add(TrafficClass::Flits, self.flits * flit.bytes - self.traffic.total());
        }
        traffic
    }
}
