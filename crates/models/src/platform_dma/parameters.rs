//! The parameters: measured delays, what drivers and devices do for each frame, buffers, loads.

use serde::Serialize;

use super::link::{PacketKind, PcieGeneration, PcieLink};
use crate::time::Time;

/// Who moves the data between memory and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataMover {
    /// An engine in the device, which fetches descriptors (paper, section 2.1).
    Descriptors,
    /// An engine beside the cores, which pushes data to the device (paper, section 3).
    Integrated,
}

impl DataMover {
    /// Both, that of today first.
    pub const ALL: [DataMover; 2] = [DataMover::Descriptors, DataMover::Integrated];

    /// Returns a name for a table.
    pub fn name(self) -> &'static str {
        match self {
            DataMover::Descriptors => "descriptors",
            DataMover::Integrated => "integrated",
        }
    }
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageWay {
    /// From memory to the device.
    Transmit,
    /// From the device to memory.
    Receive,
}

/// How an engine chooses among its queues, before each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueArbitration {
    /// The packet that was ready first.
    Fifo,
    /// A packet of each queue in turn.
    RoundRobin,
    /// The queue with the highest priority.
    Priority,
}

impl QueueArbitration {
    /// All rules.
    pub const ALL: [QueueArbitration; 3] =
        [QueueArbitration::Fifo, QueueArbitration::RoundRobin, QueueArbitration::Priority];

    /// Returns a name for a table.
    pub fn name(self) -> &'static str {
        match self {
            QueueArbitration::Fifo => "first come",
            QueueArbitration::RoundRobin => "round robin",
            QueueArbitration::Priority => "priority",
        }
    }
}

/// The delays that the paper measured or assumed. None of them can be derived: they are inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredDelays {
    /// A doorbell, from a core to the device (section 4.1: 230 ns).
    pub doorbell: Time,
    /// The fetch of a descriptor by the device (section 4.1: 759 ns).
    pub descriptor_fetch: Time,
    /// The read of 64 bytes of payload by the device (section 4.1: 781 ns).
    pub payload_read: Time,
    /// A doorbell from a core to an engine on the same die (section 4.1, step 1: 20 ns).
    pub on_die_doorbell: Time,
    /// A read of memory by an engine beside the cores (section 4.1, steps 2 and 3: 50 ns).
    pub memory_fetch: Time,
    /// A TCP message of 64 bytes from application to application (table 1: 8.8 us).
    pub application: Time,
}

impl MeasuredDelays {
    /// Returns the paper's.
    pub fn paper() -> MeasuredDelays {
        MeasuredDelays {
            doorbell: Time::ns(230),
            descriptor_fetch: Time::ns(759),
            payload_read: Time::ns(781),
            on_die_doorbell: Time::ns(20),
            memory_fetch: Time::ns(50),
            application: Time::ns(8800),
        }
    }

    /// Returns the costs with which the model has these delays on a link: what is left of each when
    /// the time of its bytes on that link is taken away.
    ///
    /// A descriptor fetch reads a line of 64 bytes, and the payload has 64 bytes.
    pub fn on(&self, link: &PcieLink) -> PathCosts {
        let time = |kind, payload| link.time_of(link.packet_bytes(kind, payload));
        let one_way = self.doorbell - time(PacketKind::RegisterWrite, 4);
        let read = one_way * 2 + time(PacketKind::MemoryRead, 0) + time(PacketKind::Completion, 64);
        PathCosts {
            one_way,
            descriptor_turnaround: self.descriptor_fetch - read,
            payload_turnaround: self.payload_read - read,
            on_die_doorbell: self.on_die_doorbell,
            memory_fetch: self.memory_fetch,
        }
    }
}

/// Delays without the time of bytes on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PathCosts {
    /// From one end of the path to the other.
    pub one_way: Time,
    /// From a request for descriptors to its answer, at the host; with the device's own steps.
    pub descriptor_turnaround: Time,
    /// The same for payload.
    pub payload_turnaround: Time,
    /// From a core to an engine on the same die, and back.
    pub on_die_doorbell: Time,
    /// A read or write of memory by the engine beside the cores.
    pub memory_fetch: Time,
}

/// What a driver and a device do for the frames of one way. 0 means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueHabits {
    /// Descriptors of a frame.
    pub descriptors_per_frame: u64,
    /// What one doorbell announces: messages to transmit, or frames that may be received again.
    pub per_doorbell: u64,
    /// Frames that one interrupt tells of.
    pub frames_per_interrupt: u64,
    /// Frames whose descriptors are written back together.
    pub frames_per_write_back: u64,
}

/// What drivers and devices do with descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DriverPractice {
    /// Its name on the command line.
    pub name: &'static str,
    /// Bytes of a descriptor (section 2.1: 16).
    pub descriptor_bytes: u64,
    /// Fetches read whole lines of this size (section 2.1: 64 bytes).
    pub line_bytes: u64,
    /// Descriptors that one fetch brings at most (section 2.1: 4, a line). A fetch does not reach
    /// over what one doorbell announced: the paper says that many connections over many queues do
    /// not allow for it.
    pub descriptors_per_fetch: u64,
    /// Bytes of protocol headers of a frame. Assumed: 54 (Ethernet 14, IP 20, TCP 20).
    pub frame_header_bytes: u64,
    /// Bytes of a message that a frame carries (section 2.1: 1460).
    pub frame_payload_bytes: u64,
    /// Transmitting.
    pub transmit: QueueHabits,
    /// Receiving.
    pub receive: QueueHabits,
}

impl DriverPractice {
    /// Returns the practice with which figure 10's shares are met. It is calibrated: the text gives
    /// the sizes and names descriptors, doorbells and interrupts; how often the last two happen is
    /// chosen here.
    ///
    /// To transmit, each message has its doorbell, its own fetch of one line, and one interrupt a
    /// frame that says its memory is free. To receive, a line of four descriptors is fetched ahead,
    /// and a driver takes 64 frames for each interrupt and doorbell (as many as Linux polls at a
    /// time; an assumption). No descriptor is written back.
    pub fn text() -> DriverPractice {
        DriverPractice {
            name: "text",
            descriptor_bytes: 16,
            line_bytes: 64,
            descriptors_per_fetch: 4,
            frame_header_bytes: 54,
            frame_payload_bytes: 1460,
            transmit: QueueHabits {
                descriptors_per_frame: 2,
                per_doorbell: 1,
                frames_per_interrupt: 1,
                frames_per_write_back: 0,
            },
            receive: QueueHabits {
                descriptors_per_frame: 1,
                per_doorbell: 64,
                frames_per_interrupt: 64,
                frames_per_write_back: 0,
            },
        }
    }

    /// Returns the same with descriptors written back, as real adapters do: one for each frame that
    /// was transmitted (then interrupts, too, come for 64 frames), and a line of four for frames
    /// that were received.
    pub fn with_write_backs() -> DriverPractice {
        let text = DriverPractice::text();
        DriverPractice {
            name: "write-backs",
            transmit: QueueHabits { frames_per_interrupt: 64, frames_per_write_back: 1, ..text.transmit },
            receive: QueueHabits { frames_per_write_back: 4, ..text.receive },
            ..text
        }
    }

    /// Returns the practices that can be chosen by name.
    pub fn all() -> [DriverPractice; 2] {
        [DriverPractice::text(), DriverPractice::with_write_backs()]
    }

    /// Returns the practice of one way.
    pub fn of(&self, way: MessageWay) -> QueueHabits {
        match way {
            MessageWay::Transmit => self.transmit,
            MessageWay::Receive => self.receive,
        }
    }

    /// Returns how many descriptors each fetch brings, for this many in all.
    pub(super) fn fetches(&self, descriptors: u64) -> impl Iterator<Item = u64> + use<> {
        let most = self.descriptors_per_fetch.max(1);
        (0..descriptors.div_ceil(most)).map(move |nth| most.min(descriptors - nth * most))
    }

    /// Returns the bytes that a fetch of descriptors reads: whole lines.
    pub(super) fn fetch_bytes(&self, descriptors: u64) -> u64 {
        (descriptors * self.descriptor_bytes).next_multiple_of(self.line_bytes.max(1))
    }

    /// Returns the bytes of a message in each of its frames. A message has at least one frame.
    pub(super) fn frames(&self, message_bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let most = self.frame_payload_bytes.max(1);
        (0..message_bytes.div_ceil(most).max(1)).map(move |nth| most.min(message_bytes - nth * most))
    }
}

/// Everything that does not depend on the load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DmaPlatform {
    /// The link to the device.
    pub link: PcieLink,
    /// The delays around it.
    pub costs: PathCosts,
    /// What drivers and devices do.
    pub practice: DriverPractice,
    /// The host's buffer for what the device writes (section 3.2: 128 lines of 64 bytes). It gives
    /// the credits for writes of the device.
    pub host_buffer_bytes: u64,
    /// The device's buffer for what the host writes (section 3: two frames of 1500 bytes).
    pub device_buffer_bytes: u64,
    /// The rate at which memory takes what is in the host's buffer. Assumed: 8.53 GB/s, one channel
    /// of DDR3 at 1066 MT/s; the paper says "1066MB/s", which cannot be meant.
    #[serde(rename = "memory_bytes_per_second")]
    pub memory_bytes_per_s: f64,
}

impl DmaPlatform {
    fn new(link: PcieLink, costs: PathCosts, practice: DriverPractice) -> DmaPlatform {
        DmaPlatform {
            link,
            costs,
            practice,
            host_buffer_bytes: 128 * 64,
            device_buffer_bytes: 2 * 1500,
            memory_bytes_per_s: 8.53e9,
        }
    }

    /// Returns the platform of figure 10: 8 lanes of generation 2. Its delays are those that were
    /// measured on generation 1, less the time of bytes on that link.
    pub fn throughput() -> DmaPlatform {
        let costs = MeasuredDelays::paper().on(&DmaPlatform::measured_link());
        DmaPlatform::new(PcieLink::x8(PcieGeneration::Gen2), costs, DriverPractice::text())
    }

    /// Returns the platform of figures 8 and 9: messages without protocol headers on 8 lanes of
    /// generation 1, whose time is part of the measured delays.
    pub fn latency() -> DmaPlatform {
        let link = PcieLink { serializes: false, ..DmaPlatform::measured_link() };
        let practice = DriverPractice { frame_header_bytes: 0, ..DriverPractice::text() };
        DmaPlatform::new(link, MeasuredDelays::paper().on(&link), practice)
    }

    /// Returns the link on which the paper measured its delays: 8 lanes of generation 1.
    pub fn measured_link() -> PcieLink {
        PcieLink::x8(PcieGeneration::Gen1)
    }
}

/// When the messages of a stream come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageLoad {
    /// So many at a time: each that is done makes room for the next.
    InFlight(u64),
    /// One after each such time.
    Every(Time),
}

/// Messages of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MessageStream {
    /// Which way they go.
    pub way: MessageWay,
    /// The priority of the queue; a larger number goes first.
    pub priority: u8,
    /// Bytes of a message, without protocol headers.
    pub message_bytes: u64,
    /// Messages in all.
    pub count: u64,
    /// When they come.
    pub load: MessageLoad,
}

impl MessageStream {
    /// Returns messages of which the next comes when one is done.
    pub fn one_by_one(way: MessageWay, message_bytes: u64, count: u64) -> MessageStream {
        MessageStream { way, priority: 0, message_bytes, count, load: MessageLoad::InFlight(1) }
    }
}
