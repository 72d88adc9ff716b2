//! What a device is told to be, and what it reports.

use datapipes_core::Error;
use datapipes_metrics::{Label, Sample, vocabulary};
use serde::{Deserialize, Serialize};

use super::arguments::DeviceArguments;
use crate::channel::BlockOutcome;
use crate::error_text::text_of;

/// The role of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DeviceRole {
    /// Reads a place to its end and sends it as a stream.
    Source {
        /// The place to read.
        place: DevicePlace,
        /// Whether the report has the CRC-32 of the bytes, as a sink's report has.
        #[serde(default)]
        sum: bool,
    },
    /// Applies a function to each block.
    Transform {
        /// Its name among the program's [`Functions`](super::Functions).
        function: String,
        /// The arguments of the function.
        #[serde(default)]
        arguments: DeviceArguments,
        /// How blocks are distributed among several outlets.
        #[serde(default)]
        spread: Spread,
    },
    /// Writes received blocks to a place, and makes them durable at the end of the stream.
    Sink {
        /// The place to write.
        place: DevicePlace,
    },
    /// Serves files block by block: see [`file`](crate::file). Its n-th inlet and its n-th outlet
    /// belong to its n-th client.
    Files,
    /// The resource-side CPU: it relays blocks from its n-th inlet to its n-th outlet.
    Hub,
    /// A body of the program.
    Custom {
        /// Its name among the program's [`Functions`](super::Functions).
        name: String,
        /// The arguments of the body.
        #[serde(default)]
        arguments: DeviceArguments,
    },
}

/// A place that a device works on. Descriptors are indexes into the given ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DevicePlace {
    /// A file, from an offset on.
    File {
        /// The descriptor for access through the page cache.
        descriptor: usize,
        /// The descriptor of the same file that bypasses the page cache (`O_DIRECT`), for whole
        /// blocks. Blocks define the alignment.
        #[serde(default)]
        direct: Option<usize>,
        /// The offset where it begins.
        #[serde(default)]
        offset: u64,
        /// The number of bytes, or up to the end of the file. For sources only.
        #[serde(default)]
        len: Option<u64>,
    },
    /// A connected stream socket: data from the network, until the other side ends it.
    Socket {
        /// The descriptor.
        descriptor: usize,
        /// Whether each block but the last is filled before it is sent, so that blocks do not
        /// depend on the network. Otherwise available bytes are sent at once. For sources only.
        #[serde(default)]
        whole_blocks: bool,
    },
    /// A sequential stream: a pipe, a FIFO, a terminal, or a file from its present position. A
    /// source reads to its end. A sink closes its descriptor at the end of the stream, so that the
    /// reader of a pipe sees the end.
    Stream {
        /// The descriptor.
        descriptor: usize,
        /// As for a socket.
        #[serde(default)]
        whole_blocks: bool,
    },
    /// No place: a sink that only counts, or a source of zeros.
    Nothing {
        /// The number of bytes of a source.
        #[serde(default)]
        len: u64,
    },
}

/// How blocks are distributed among several outlets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Each block goes to one outlet, in turn.
    #[default]
    Turns,
    /// Each block goes to all outlets.
    All,
}

/// The report on a stream through a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamReport {
    /// The number of blocks received or read.
    pub blocks_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// The number of blocks sent. Empty blocks are not counted here and in `blocks_in`.
    pub blocks_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// CRC-32 of all bytes, from devices that compute it.
    pub crc: Option<u32>,
    /// The failure, if there was one.
    pub error: Option<Failure>,
}

datapipes_core::setters! {
    StreamReport {
        blocks_in: u64,
        bytes_in: u64,
        blocks_out: u64,
        bytes_out: u64,
        crc: into Option<u32>,
        error: into Option<Failure>,
    }
}

/// A failure, as it is reported across processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The outcome that the other side was told.
    pub outcome: BlockOutcome,
    /// The name of the error's kind.
    pub kind: String,
    /// The full text of the error.
    pub text: String,
}

impl StreamReport {
    /// Returns it as samples; `pipe` is what the caller calls the stream.
    pub fn samples(&self, pipe: &str) -> Vec<Sample> {
        let of = |measurement, n: u64, direction| {
            Sample::new(measurement, n).label(Label::Pipe, pipe).label(Label::Direction, direction)
        };
        vec![
            of(&vocabulary::CHANNEL_BLOCKS, self.blocks_in, "in"),
            of(&vocabulary::CHANNEL_BLOCKS, self.blocks_out, "out"),
            of(&vocabulary::CHANNEL_BYTES, self.bytes_in, "in"),
            of(&vocabulary::CHANNEL_BYTES, self.bytes_out, "out"),
        ]
    }

    pub(crate) fn failed(error: &Error) -> StreamReport {
        let (kind, text) = (format!("{:?}", error.kind()), text_of(error));
        let failure = Failure { outcome: BlockOutcome::of_error(error), kind, text };
        StreamReport { error: Some(failure), ..StreamReport::default() }
    }
}
