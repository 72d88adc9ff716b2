//! Devices: each its own locked-down process, which wraps a place and a function (the paper's
//! activities on accelerator tiles).
//!
//! A device is launched with a [`DeviceRole`] and the descriptors that it works on, and can open
//! nothing by itself. It gets channels from the controller, and works from its inlets to its
//! outlets without knowing what is at the other ends: that is why the same device serves under
//! every [`Placement`](crate::placement::Placement).
//!
//! Bytes of files are moved by `pread` and `pwrite` on the descriptors given: a ring (io_uring)
//! would carry requests past the device's filter of system calls.

mod files;
mod functions;
mod meter;
mod relay;
mod sink;
mod source;
mod stage;
mod transform;

pub use files::Mode;
pub(crate) use files::{COMMIT, OPEN, READ, READ_AT, WRITE, WRITE_AT};
pub use functions::{Function, Functions, MakeFunction};
pub use meter::{ProgressSink, StreamProgress, metered};
pub use relay::relay;
pub use stage::DeviceChannels;

use std::os::fd::OwnedFd;

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::channel::BlockOutcome;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DeviceRole {
    /// Reads a place to its end, and sends it as a stream.
    Source {
        /// What is read.
        place: DevicePlace,
        /// Whether the report has the CRC-32 of what was read, as a sink's has.
        #[serde(default)]
        sum: bool,
    },
    /// Applies a function to each block.
    Transform {
        /// Its name among the program's [`Functions`].
        function: String,
        /// For the function.
        #[serde(default)]
        arguments: Value,
        /// Which outlet gets which block, where there are several.
        #[serde(default)]
        spread: Spread,
    },
    /// Writes what it receives to a place, and makes it durable at the end of the stream.
    Sink {
        /// What is written.
        place: DevicePlace,
    },
    /// Serves files block by block: see [`file`](crate::file). Its n-th inlet and its n-th outlet
    /// are its n-th client's.
    Files,
    /// The resource-side CPU: carries blocks from its n-th inlet to its n-th outlet.
    Hub,
    /// A body of the program's own.
    Custom {
        /// Its name among the program's [`Functions`].
        name: String,
        /// For the body.
        #[serde(default)]
        arguments: Value,
    },
}

/// A place that a device works on, by the position of its descriptor among those given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DevicePlace {
    /// A file, from an offset on.
    File {
        /// Which descriptor: one that goes through the page cache.
        descriptor: usize,
        /// Which descriptor of the same file goes past it (`O_DIRECT`), for whole blocks; alignment
        /// is that of blocks.
        #[serde(default)]
        direct: Option<usize>,
        /// Where to begin.
        #[serde(default)]
        offset: u64,
        /// How much of it; to the end, if not given. Sources only.
        #[serde(default)]
        len: Option<u64>,
    },
    /// A connected stream socket: network ingest, until the other side ends it.
    Socket {
        /// Which descriptor.
        descriptor: usize,
        /// Whether each block but the last is filled before it is sent, so that blocks are the same
        /// however the network cuts them; otherwise what is there is sent at once. Sources only.
        #[serde(default)]
        whole_blocks: bool,
    },
    /// What is read or written in order and only once: a pipe, a FIFO, a terminal, or a file where
    /// it stands. A source reads until its end; a sink closes its descriptor at the end of the
    /// stream, so that who reads a pipe sees the end.
    Stream {
        /// Which descriptor.
        descriptor: usize,
        /// As of a socket.
        #[serde(default)]
        whole_blocks: bool,
    },
    /// Nowhere: a sink that counts, a source of zeros.
    Nothing {
        /// Bytes of a source.
        #[serde(default)]
        len: u64,
    },
}

/// Which outlet gets which block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// One after the other: blocks are divided among them.
    #[default]
    Turns,
    /// Each gets every block.
    All,
}

/// How a stream through a device went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamReport {
    /// Blocks received, or read.
    pub blocks_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Blocks sent; as among those received, empty ones are not counted.
    pub blocks_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// CRC-32 of all bytes, from devices that compute it.
    pub crc: Option<u32>,
    /// What went wrong.
    pub error: Option<Failure>,
}

/// A failure, as it is told across processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the other side was told.
    pub outcome: BlockOutcome,
    /// The name of the error's kind.
    pub kind: String,
    /// All of it.
    pub text: String,
}

impl StreamReport {
    pub(crate) fn failed(error: &Error) -> StreamReport {
        let (kind, text) = (format!("{:?}", error.kind()), crate::control::protocol::text_of(error));
        let failure = Failure { outcome: BlockOutcome::of_error(error), kind, text };
        StreamReport { error: Some(failure), ..StreamReport::default() }
    }
}

/// What runs in a device.
pub trait Body {
    /// Works until its channels end. What it returns is told to the application, unless it is a
    /// channel's orderly end.
    ///
    /// # Errors
    /// What ended the work.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()>;
}

/// What makes a body of arguments and of the descriptors given.
///
/// It runs before the lock-down, with the rights of the controller. A thread or a process that it
/// starts must have ended when it returns: the device is ended otherwise, with an error that says
/// so. Threads are started in [`Body::run`].
pub type MakeBody = fn(&Value, Vec<OwnedFd>) -> Result<Box<dyn Body>>;

/// The body of a role, from the descriptors given: also for bodies of a program's own that do
/// something beside it.
///
/// Devices make theirs before the lock-down; nothing of anybody else has been seen yet.
///
/// # Errors
/// `NotFound` for a function or a body that `functions` has not; what its arguments, or the
/// descriptors given, lack.
pub fn body(role: DeviceRole, given: Vec<OwnedFd>, functions: &Functions) -> Result<Box<dyn Body>> {
    let mut given: Vec<Option<OwnedFd>> = given.into_iter().map(Some).collect();
    Ok(match role {
        DeviceRole::Source { place, sum } => Box::new(source::Source::new(place, sum, &mut given)?),
        DeviceRole::Transform { function, arguments, spread } => {
            Box::new(transform::Transform::new(functions.function(&function, &arguments)?, spread))
        }
        DeviceRole::Sink { place } => Box::new(sink::Sink::new(place, &mut given)?),
        DeviceRole::Files => Box::new(files::Files::new(given.into_iter().flatten().collect())),
        DeviceRole::Hub => Box::new(relay::Hub),
        DeviceRole::Custom { name, arguments } => {
            functions.body(&name)?(&arguments, given.into_iter().flatten().collect())?
        }
    })
}

fn descriptor(given: &mut [Option<OwnedFd>], at: usize) -> Result<OwnedFd> {
    let fd = given.get_mut(at).and_then(Option::take);
    fd.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "launch", format!("descriptor {at} was not given")))
}
