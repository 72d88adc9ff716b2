//! Both directions of a link: who may send when, tags of requests, acknowledgements and credits.
//!
//! ```text
//! a packet is sent             its credits and, for a request, a tag are taken
//! a packet arrives             an acknowledgement goes back soon, for all that came until then
//! the receiver has room again  credits go back soon; at once, if the sender lacks them
//! the last answer arrives      the tag is free
//! ```

use super::link::{PacketKind, PcieLink};
use super::parameters::{DmaPlatform, QueueArbitration};
use super::traffic::{LinkTraffic, TrafficClass};
use super::wire::{Choice, Credits, Packet, Purpose, Wire};
use crate::time::{EventQueue, Time};

/// The direction from the host to the device, as a place in lists.
pub(super) const DOWN: usize = 0;
/// The direction from the device to the host.
pub(super) const UP: usize = 1;

/// What happens on the link.
#[derive(Clone, Copy, Debug)]
pub(super) enum LinkEvent {
    /// A direction may send its next packet.
    Sent {
        direction: usize,
    },
    Arrived {
        direction: usize,
        packet: Packet,
    },
    AcknowledgementDue {
        direction: usize,
    },
    CreditsDue {
        direction: usize,
    },
    CreditsArrived {
        direction: usize,
        credits: Credits,
    },
}

pub(super) struct Transport {
    link: PcieLink,
    one_way: Time,
    wires: [Wire; 2],
    tags: u32,
    /// For each direction: whether an acknowledgement is due, credits that are to be given back,
    /// and whether that is due.
    acknowledges: [bool; 2],
    owed: [Credits; 2],
    returns: [bool; 2],
    /// How often a direction had packets and no credits for them.
    pub(super) waits_for_credits: u64,
}

impl Transport {
    /// Makes a link whose directions choose by rules, among queues with priorities.
    pub(super) fn new(platform: &DmaPlatform, rules: [QueueArbitration; 2], priorities: &[u8]) -> Transport {
        let wire = |direction: usize, buffer| Wire::new(platform.link, rules[direction], priorities.to_vec(), buffer);
        Transport {
            wires: [wire(DOWN, platform.device_buffer_bytes), wire(UP, platform.host_buffer_bytes)],
            link: platform.link,
            one_way: platform.costs.one_way,
            tags: platform.link.outstanding_reads.max(1),
            acknowledges: [false; 2],
            owed: [Credits::default(); 2],
            returns: [false; 2],
            waits_for_credits: 0,
        }
    }

    /// Returns all that a direction carried.
    pub(super) fn traffic(&self, direction: usize) -> LinkTraffic {
        self.wires[direction].traffic()
    }

    /// Sends a packet when its turn comes.
    pub(super) fn enqueue<E: From<LinkEvent>>(&mut self, agenda: &mut EventQueue<E>, direction: usize, packet: Packet) {
        self.wires[direction].push(packet);
        self.pump(agenda, direction);
    }

    /// Handles an event. Returns a packet that arrived for the host or the device, with its
    /// direction; its credits are then to be given back.
    pub(super) fn act<E: From<LinkEvent>>(
        &mut self,
        agenda: &mut EventQueue<E>,
        event: LinkEvent,
    ) -> Option<(usize, Packet)> {
        match event {
            LinkEvent::Sent { direction } => {
                self.wires[direction].is_busy = false;
                self.pump(agenda, direction);
            }
            LinkEvent::Arrived { direction, packet } => return self.arrived(agenda, direction, packet),
            LinkEvent::AcknowledgementDue { direction } => {
                self.acknowledges[direction] = false;
                self.send_back(agenda, direction, Purpose::Notice);
            }
            LinkEvent::CreditsDue { direction } => {
                self.returns[direction] = false;
                self.send_credits(agenda, direction);
            }
            LinkEvent::CreditsArrived { direction, credits } => {
                self.wires[direction].credits.add(credits);
                self.pump(agenda, direction);
            }
        }
        None
    }

    fn arrived<E: From<LinkEvent>>(
        &mut self,
        agenda: &mut EventQueue<E>,
        direction: usize,
        packet: Packet,
    ) -> Option<(usize, Packet)> {
        if let Purpose::Credits(credits) = packet.purpose {
            self.wires[1 - direction].credits.add(credits);
            self.pump(agenda, 1 - direction);
        }
        if packet.kind == PacketKind::LinkLayer {
            return None;
        }
        if let Some(delay) = self.answers_after()
            && !self.acknowledges[direction]
        {
            self.acknowledges[direction] = true;
            agenda.schedule_in(delay, LinkEvent::AcknowledgementDue { direction }.into());
        }
        if packet.frees_tag {
            self.tags += 1;
            self.pump(agenda, UP);
        }
        Some((direction, packet))
    }

    /// Returns the delay of the link layer's own packets; `None` if there are none.
    fn answers_after(&self) -> Option<Time> {
        self.link.acknowledge_after.filter(|_| self.link.has_link_layer_packets())
    }

    /// Sends the next packet of a direction, if it may.
    fn pump<E: From<LinkEvent>>(&mut self, agenda: &mut EventQueue<E>, direction: usize) {
        if self.wires[direction].is_busy {
            return;
        }
        let packet = match self.wires[direction].choose(self.tags > 0) {
            Choice::Packet(packet) => packet,
            Choice::NoCredits => {
                self.waits_for_credits += 1;
                // The receiver does not wait to tell of room while the sender stands still.
                return self.send_credits(agenda, direction);
            }
            Choice::Nothing => return,
        };
        if packet.kind == PacketKind::MemoryRead {
            self.tags -= 1;
        }
        let times = self.wires[direction].send(agenda.now(), &packet);
        self.wires[direction].is_busy = true;
        agenda.schedule_at(times.free, LinkEvent::Sent { direction }.into());
        agenda.schedule_at(times.end + self.one_way, LinkEvent::Arrived { direction, packet }.into());
    }

    /// Frees room in the receiver's buffer of a direction.
    pub(super) fn give_back<E: From<LinkEvent>>(
        &mut self,
        agenda: &mut EventQueue<E>,
        direction: usize,
        credits: Credits,
    ) {
        if credits.is_none() {
            return;
        }
        let Some(delay) = self.answers_after() else {
            return agenda.schedule_in(self.one_way, LinkEvent::CreditsArrived { direction, credits }.into());
        };
        self.owed[direction].add(credits);
        if !self.returns[direction] {
            self.returns[direction] = true;
            agenda.schedule_in(delay, LinkEvent::CreditsDue { direction }.into());
        }
        // If the sender stands still for lack of credits, this tells it at once.
        self.pump(agenda, direction);
    }

    /// Tells the sender of a direction of the room that its receiver has again.
    fn send_credits<E: From<LinkEvent>>(&mut self, agenda: &mut EventQueue<E>, direction: usize) {
        let credits = std::mem::take(&mut self.owed[direction]);
        if !credits.is_none() {
            self.send_back(agenda, direction, Purpose::Credits(credits));
        }
    }

    /// Sends a packet of the link layer against a direction.
    fn send_back<E: From<LinkEvent>>(&mut self, agenda: &mut EventQueue<E>, direction: usize, purpose: Purpose) {
        let (kind, class) = (PacketKind::LinkLayer, TrafficClass::LinkLayer);
        let packet = Packet { kind, class, payload: 0, stream: 0, purpose, frees_tag: false };
        self.enqueue(agenda, 1 - direction, packet);
    }
}
