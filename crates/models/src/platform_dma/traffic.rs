//! What the bytes on the link are for.

use serde::Serialize;

/// What bytes on the link are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficClass {
    /// The bytes of frames: messages and their protocol headers.
    Payload,
    /// Headers and frames of the packets that carry payload, and requests to read it.
    PayloadPackets,
    /// Fetching descriptors: requests and answers.
    Descriptors,
    /// Doorbells.
    Doorbells,
    /// Descriptors that the device writes back.
    WriteBacks,
    /// Interrupts.
    Interrupts,
    /// Acknowledgements and credits.
    LinkLayer,
    /// Flits: their own bytes, and room that no packet used.
    Flits,
}

impl TrafficClass {
    /// All classes.
    pub const ALL: [TrafficClass; 8] = [
        TrafficClass::Payload,
        TrafficClass::PayloadPackets,
        TrafficClass::Descriptors,
        TrafficClass::Doorbells,
        TrafficClass::WriteBacks,
        TrafficClass::Interrupts,
        TrafficClass::LinkLayer,
        TrafficClass::Flits,
    ];

    /// Returns a name for a table.
    pub fn name(self) -> &'static str {
        match self {
            TrafficClass::Payload => "payload",
            TrafficClass::PayloadPackets => "its packets",
            TrafficClass::Descriptors => "descriptors",
            TrafficClass::Doorbells => "doorbells",
            TrafficClass::WriteBacks => "write-backs",
            TrafficClass::Interrupts => "interrupts",
            TrafficClass::LinkLayer => "link layer",
            TrafficClass::Flits => "flits",
        }
    }

    /// Whether integrated DMA needs no such traffic on the link.
    pub fn is_control(self) -> bool {
        use TrafficClass::{Descriptors, Doorbells, Interrupts, WriteBacks};
        matches!(self, Descriptors | Doorbells | WriteBacks | Interrupts)
    }
}

/// Bytes on one direction of the link, or on both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkTraffic {
    /// Bytes of frames.
    pub payload: u64,
    /// Bytes around payload, and requests to read it.
    pub payload_packets: u64,
    /// Bytes of descriptor fetches.
    pub descriptors: u64,
    /// Bytes of doorbells.
    pub doorbells: u64,
    /// Bytes of write-backs.
    pub write_backs: u64,
    /// Bytes of interrupts.
    pub interrupts: u64,
    /// Bytes of acknowledgements and credits.
    pub link_layer: u64,
    /// Bytes of flits that carry no packet.
    pub flits: u64,
}

impl LinkTraffic {
    /// Returns the bytes of a class.
    pub fn of(&self, class: TrafficClass) -> u64 {
        match class {
            TrafficClass::Payload => self.payload,
            TrafficClass::PayloadPackets => self.payload_packets,
            TrafficClass::Descriptors => self.descriptors,
            TrafficClass::Doorbells => self.doorbells,
            TrafficClass::WriteBacks => self.write_backs,
            TrafficClass::Interrupts => self.interrupts,
            TrafficClass::LinkLayer => self.link_layer,
            TrafficClass::Flits => self.flits,
        }
    }

    pub(super) fn add(&mut self, class: TrafficClass, bytes: u64) {
        let place = match class {
            TrafficClass::Payload => &mut self.payload,
            TrafficClass::PayloadPackets => &mut self.payload_packets,
            TrafficClass::Descriptors => &mut self.descriptors,
            TrafficClass::Doorbells => &mut self.doorbells,
            TrafficClass::WriteBacks => &mut self.write_backs,
            TrafficClass::Interrupts => &mut self.interrupts,
            TrafficClass::LinkLayer => &mut self.link_layer,
            TrafficClass::Flits => &mut self.flits,
        };
        *place += bytes;
    }

    /// Adds a packet of a class: its payload, if that is the class, and the rest.
    pub(super) fn add_packet(&mut self, class: TrafficClass, payload: u64, bytes: u64) {
        match class {
            TrafficClass::Payload => {
                self.add(TrafficClass::Payload, payload);
                self.add(TrafficClass::PayloadPackets, bytes - payload);
            }
            other => self.add(other, bytes),
        }
    }

    /// Returns the traffic of this and another direction.
    #[must_use]
    pub fn and(&self, other: &LinkTraffic) -> LinkTraffic {
        let mut sum = *self;
        TrafficClass::ALL.into_iter().for_each(|class| sum.add(class, other.of(class)));
        sum
    }

    fn sum(&self, is_in: impl Fn(TrafficClass) -> bool) -> u64 {
        TrafficClass::ALL.into_iter().filter(|class| is_in(*class)).map(|class| self.of(class)).sum()
    }

    /// Returns all bytes.
    pub fn total(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Returns the bytes that integrated DMA needs not.
    pub fn control(&self) -> u64 {
        self.sum(TrafficClass::is_control)
    }

    /// Returns the bytes of packets of the transaction layer.
    pub fn packets(&self) -> u64 {
        self.sum(|class| !matches!(class, TrafficClass::LinkLayer | TrafficClass::Flits))
    }

    /// Returns the part of the packets' bytes that is control; 0 if there are none.
    pub fn control_share(&self) -> f64 {
        share(self.control(), self.packets())
    }

    /// Returns the part of all bytes that is control; 0 if there are none.
    pub fn control_share_of_all(&self) -> f64 {
        share(self.control(), self.total())
    }

    /// Returns the part of all bytes that is payload; 0 if there are none.
    pub fn efficiency(&self) -> f64 {
        share(self.payload, self.total())
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
