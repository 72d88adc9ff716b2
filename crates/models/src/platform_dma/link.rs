//! The link: its rate, and the bytes that each packet has on it.
//!
//! ```text
//! 8b/10b, 128b/130b   framing 4, sequence and LCRC 4 | header 12 or 16 | payload     packet (TLP)
//!                     framing 2, content 6                                           DLLP
//! FLIT mode (6.0)     236 bytes of TLPs | 6 DLLP | 8 CRC | 6 FEC                     256 bytes
//! CXL.io              2 protocol id | 64 bytes of TLPs and DLLPs | 2                 68 bytes
//! ```
//! Sources: PCI Express Base Specification 2.0, 3.0 and 6.0. The sizes of packets are also in
//! Neugebauer and others, *Understanding PCIe performance for end host networking* (SIGCOMM 2018),
//! section 3; the flits of CXL are in Das Sharma, Blankenship, Berger, *An Introduction to the
//! Compute Express Link (CXL) Interconnect* (ACM Computing Surveys 56, 2024).
//!
//! Not modelled: ordered sets between packets (4 of 1538 symbols), retries, ECRC, and the optional
//! header words of FLIT mode.

use serde::Serialize;

use crate::time::Time;

/// A generation of PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PcieGeneration {
    /// 2.5 GT/s, 8b/10b.
    Gen1,
    /// 5 GT/s, 8b/10b.
    Gen2,
    /// 8 GT/s, 128b/130b.
    Gen3,
    /// 16 GT/s, 128b/130b.
    Gen4,
    /// 32 GT/s, 128b/130b.
    Gen5,
    /// 64 GT/s, flits of 256 bytes.
    Gen6,
}

impl PcieGeneration {
    /// All generations, the oldest first.
    pub const ALL: [PcieGeneration; 6] = [
        PcieGeneration::Gen1,
        PcieGeneration::Gen2,
        PcieGeneration::Gen3,
        PcieGeneration::Gen4,
        PcieGeneration::Gen5,
        PcieGeneration::Gen6,
    ];

    /// Returns the generation with this number, from 1 to 6.
    pub fn of(number: u8) -> Option<PcieGeneration> {
        PcieGeneration::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns its number.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the bits that a lane carries in a second, with those of the encoding.
    pub fn transfers_per_s(self) -> f64 {
        [2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9][self as usize]
    }

    /// Returns the part of the bits that the encoding leaves.
    pub fn encoding(self) -> f64 {
        match self {
            PcieGeneration::Gen1 | PcieGeneration::Gen2 => 8.0 / 10.0,
            PcieGeneration::Gen3 | PcieGeneration::Gen4 | PcieGeneration::Gen5 => 128.0 / 130.0,
            PcieGeneration::Gen6 => 1.0,
        }
    }
}

/// The form in which packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkFraming {
    /// Each packet has a frame of its own: PCI Express 1 to 5.
    Packets,
    /// Flits of 256 bytes: the FLIT mode of PCI Express 6.0. CXL 3 uses the same for CXL.io.
    Flits,
    /// CXL.io of CXL 1.1 and 2.0: packets as in [`LinkFraming::Packets`], cut into flits.
    CxlFlits,
}

/// The bytes of a flit on the link, and how many of them packets can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flit {
    pub(super) bytes: u64,
    pub(super) room: u64,
}

/// The kind of a packet, which gives the size of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    /// A posted write to memory, with an address of 64 bits.
    MemoryWrite,
    /// A request to read memory, with an address of 64 bits. It has no payload.
    MemoryRead,
    /// The answer to a request, with data.
    Completion,
    /// A posted write of 4 bytes to a register or to the interrupt controller: both lie below 4
    /// GiB, so the address has 32 bits.
    RegisterWrite,
    /// A packet of the link layer: an acknowledgement, or an update of credits.
    LinkLayer,
}

/// A link between the host and one device. Both directions are alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PcieLink {
    /// The generation.
    pub generation: PcieGeneration,
    /// The lanes.
    pub lanes: u32,
    /// Whether packets travel as CXL.io in flits of 68 bytes, on generations 3 to 5.
    pub is_cxl: bool,
    /// The largest payload of a packet (paper, section 3: usually 256 bytes).
    pub max_payload_bytes: u64,
    /// The most that one request reads. Assumed: 512 bytes, the default of the specification.
    pub max_read_bytes: u64,
    /// Requests that wait for their answers at a time. Assumed: 32, a tag of 5 bits, the default of
    /// the specification.
    pub outstanding_reads: u32,
    /// Whether bytes take time on the link. It is false where measured delays include that time.
    pub serializes: bool,
    /// The time after which a received packet is acknowledged, together with those that came since;
    /// `None` leaves the packets of the link layer out.
    ///
    /// Assumed: 300 ns, a little less than the limit of the specification for 8 lanes of
    /// generation 2 with 256 bytes (158 symbols of 2 ns).
    pub acknowledge_after: Option<Time>,
}

impl PcieLink {
    /// Returns 8 lanes of a generation, with a payload of 256 bytes.
    pub fn x8(generation: PcieGeneration) -> PcieLink {
        PcieLink {
            generation,
            lanes: 8,
            is_cxl: false,
            max_payload_bytes: 256,
            max_read_bytes: 512,
            outstanding_reads: 32,
            serializes: true,
            acknowledge_after: Some(Time::ns(300)),
        }
    }

    /// Returns what carries packets.
    pub fn framing(&self) -> LinkFraming {
        match (self.generation, self.is_cxl) {
            (PcieGeneration::Gen6, _) => LinkFraming::Flits,
            (PcieGeneration::Gen1 | PcieGeneration::Gen2, _) | (_, false) => LinkFraming::Packets,
            (_, true) => LinkFraming::CxlFlits,
        }
    }

    /// Returns the bytes that one direction carries in a second, after the encoding.
    pub fn bytes_per_s(&self) -> f64 {
        match self.serializes {
            true => self.generation.transfers_per_s() * self.generation.encoding() * f64::from(self.lanes) / 8.0,
            false => f64::INFINITY,
        }
    }

    /// Returns the time that bytes take on the link.
    pub(super) fn time_of(&self, bytes: u64) -> Time {
        Time::of_bytes(bytes, self.bytes_per_s())
    }

    pub(super) fn flit(&self) -> Option<Flit> {
        match self.framing() {
            LinkFraming::Packets => None,
            LinkFraming::Flits => Some(Flit { bytes: 256, room: 236 }),
            LinkFraming::CxlFlits => Some(Flit { bytes: 68, room: 64 }),
        }
    }

    /// Whether acknowledgements and credits are packets; in FLIT mode each flit has a place for
    /// them.
    pub(super) fn has_link_layer_packets(&self) -> bool {
        self.framing() != LinkFraming::Flits
    }

    /// Returns the bytes of a packet, without those of flits. A payload has whole words of 4 bytes.
    pub(super) fn packet_bytes(&self, kind: PacketKind, payload: u64) -> u64 {
        let header = match kind {
            PacketKind::MemoryWrite | PacketKind::MemoryRead => 16,
            PacketKind::Completion | PacketKind::RegisterWrite => 12,
            PacketKind::LinkLayer => return if self.has_link_layer_packets() { 8 } else { 0 },
        };
        let frame = if self.framing() == LinkFraming::Flits { 0 } else { 8 };
        frame + header + payload.next_multiple_of(4)
    }

    /// Returns the payloads of the packets that carry some bytes.
    pub(super) fn payloads(&self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        pieces(bytes, self.max_payload_bytes)
    }

    /// Returns the bytes that each request of a read asks for.
    pub(super) fn requests(&self, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        pieces(bytes, self.max_read_bytes)
    }
}

/// Cuts bytes into pieces of at most a size; all but the last have that size.
fn pieces(bytes: u64, most: u64) -> impl Iterator<Item = u64> {
    let most = most.max(1);
    (0..bytes.div_ceil(most)).map(move |nth| most.min(bytes - nth * most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_packets_are_those_of_the_specifications() {
        let rates = PcieGeneration::ALL.map(|g| PcieLink::x8(g).bytes_per_s() / 1e9);
        let published = [2.0, 4.0, 7.877, 15.754, 31.508, 64.0];
        assert!(rates.iter().zip(published).all(|(ours, theirs)| (ours - theirs).abs() < 0.001), "{rates:?}");
        let second = PcieLink::x8(PcieGeneration::Gen2);
        let sizes = |link: &PcieLink| {
            [
                link.packet_bytes(PacketKind::MemoryWrite, 256),
                link.packet_bytes(PacketKind::MemoryRead, 0),
                link.packet_bytes(PacketKind::Completion, 54),
                link.packet_bytes(PacketKind::RegisterWrite, 4),
                link.packet_bytes(PacketKind::LinkLayer, 0),
            ]
        };
        assert_eq!(sizes(&second), [280, 24, 76, 24, 8]);
        assert_eq!(sizes(&PcieLink::x8(PcieGeneration::Gen6)), [272, 16, 68, 16, 0]);
        let cxl = PcieLink { is_cxl: true, ..PcieLink::x8(PcieGeneration::Gen5) };
        assert_eq!((sizes(&cxl), cxl.framing()), (sizes(&second), LinkFraming::CxlFlits));
        // CXL begins at 8 GT/s.
        assert_eq!(PcieLink { is_cxl: true, ..second }.framing(), LinkFraming::Packets);
        assert_eq!(
            [0, 1, 6, 7].map(PcieGeneration::of).map(|g| g.map(PcieGeneration::number)),
            [None, Some(1), Some(6), None]
        );
    }

    #[test]
    fn pieces_add_up() {
        for (bytes, most, count) in [(0, 256, 0), (1, 256, 1), (256, 256, 1), (257, 256, 2), (1460, 512, 3), (5, 0, 5)]
        {
            let all: Vec<u64> = pieces(bytes, most).collect();
            assert_eq!((all.len(), all.iter().sum::<u64>()), (count, bytes), "{all:?}");
        }
    }
}
