//! The ends of pipes: what a place states of itself, and the handle by which a backend reaches it.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::file::file_place::FilePlace;
use crate::error::Result;
use crate::memory::{MemoryRange, Sharing};
use crate::watch::WriteObservers;

/// A path as a part of the name of a place.
pub(super) fn path_words(path: &Path) -> String {
    path.display().to_string().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// How the bytes of a place are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reach {
    /// By loads and stores of the processor.
    Memory,
    /// Through a file descriptor, at offsets.
    File,
    /// By commands of a device that a backend knows.
    Device,
    /// By requests to a server, which a backend makes.
    Server,
    /// By calls of the place, which reads its bytes itself.
    Reader,
    /// In different ways: the place consists of several places.
    Several,
}

/// What a place guarantees when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing survives.
    Volatile,
    /// Bytes that were moved survive once `sync` has returned.
    AfterSync,
    /// Bytes that were moved survive once the transfer has returned.
    OnCompletion,
}

/// The facts that a place states about itself.
#[derive(Clone, Debug, Serialize)]
pub struct PlaceFacts {
    /// The kind of place, in the papers' words: "dram", "core-cache", "ssd", "pmem", "numa",
    /// or in the words of its field: "object".
    pub kind: &'static str,
    /// Its address as a URI, for people and for the command line. Control characters of a path
    /// are U+FFFD here: a name must not end a line of a report, or command a terminal.
    pub name: String,
    /// How its bytes are accessed.
    pub reach: Reach,
    /// The smallest piece, in bytes, that the place moves without reading or writing more than was
    /// asked for.
    pub granularity: u64,
    /// The alignment of offsets at which the place is fastest, in bytes.
    pub alignment: u64,
    /// Which bytes survive a power failure.
    pub persistence: Persistence,
    /// The length in bytes, if it is fixed.
    pub len: Option<u64>,
    /// The NUMA node that it is bound to.
    pub node: Option<u32>,
    /// The core whose cache it is.
    pub core: Option<usize>,
}

/// The handle of a place, which a backend works with.
#[derive(Clone)]
#[non_exhaustive]
pub enum EndpointHandle {
    /// Memory of this process. Its region knows whether it maps a file.
    Memory(MemoryRange),
    /// An open file or block device.
    File(Arc<FilePlace>),
    /// Several places used as one ([`Endpoint::staging`]). Pipes connect each of them.
    Staging(StagingHandle),
    /// A place that returns its bytes itself, on the caller's core.
    Reader(Arc<dyn Reader>),
    /// A value that only a particular backend knows, by its type.
    Other(Arc<dyn Any + Send + Sync>),
}

/// A [`Staging`](super::Staging). Its places have endpoints themselves, so endpoints are defined
/// before it.
#[derive(Clone)]
pub struct StagingHandle(pub(super) Arc<dyn Any + Send + Sync>);

/// A place that reads its own bytes, such as a cache in front of another place.
pub trait Reader: Send + Sync {
    /// Fills `into` with the bytes at `offset`.
    ///
    /// A thread of a runtime may call it in the middle of the transfer. It may call any function of
    /// the library: another thread takes over while it sleeps there. A call that waits for this
    /// very transfer fails as `InvalidInput`.
    ///
    /// # Errors
    /// `EndOfFile` where the place ends before the range does, and the errors of the place. The
    /// contents of `into` are then undefined.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// One end of a pipe: the facts of a locator and its handle.
#[derive(Clone)]
pub struct Endpoint {
    /// The facts that the place states.
    pub facts: Arc<PlaceFacts>,
    /// The handle that a backend works with.
    pub handle: EndpointHandle,
}

impl Endpoint {
    /// The memory range, if its bytes are accessed by loads and stores.
    pub fn memory(&self) -> Option<&MemoryRange> {
        match &self.handle {
            EndpointHandle::Memory(range) => Some(range),
            _ => None,
        }
    }

    /// The observers of its file and the place's offset in the file, if it is a file or maps one.
    pub(crate) fn watched(&self) -> Option<(&Arc<WriteObservers>, u64)> {
        match &self.handle {
            EndpointHandle::File(file) => Some((file.write_observers(), 0)),
            EndpointHandle::Memory(range) => range.file().map(|file| (&file.watchers, range.at_in(file))),
            _ => None,
        }
    }

    /// As [`watched`](Self::watched), if what is moved into the place reaches the file.
    pub(crate) fn watched_target(&self) -> Option<(&Arc<WriteObservers>, u64)> {
        match self.memory() {
            Some(range) if range.stored_file().is_none() => None,
            _ => self.watched(),
        }
    }

    /// Returns the same place with at least the persistence of the file that its memory maps,
    /// whatever made the place.
    pub(crate) fn of_what_it_maps(&self) -> Endpoint {
        let Some(range) = self.memory() else { return self.clone() };
        let persistence = kept(range, self.facts.persistence);
        if persistence == self.facts.persistence {
            return self.clone();
        }
        Endpoint { facts: Arc::new(PlaceFacts { persistence, ..(*self.facts).clone() }), handle: self.handle.clone() }
    }

    /// The reader, if the place reads its bytes itself.
    pub fn reader(&self) -> Option<&Arc<dyn Reader>> {
        match &self.handle {
            EndpointHandle::Reader(reader) => Some(reader),
            _ => None,
        }
    }

    /// The file, if it is accessed through a descriptor.
    pub fn file(&self) -> Option<&Arc<FilePlace>> {
        match &self.handle {
            EndpointHandle::File(file) => Some(file),
            _ => None,
        }
    }
}

/// Returns the persistence of a place over this memory, which states `stated` itself.
pub(super) fn kept(range: &MemoryRange, stated: Persistence) -> Persistence {
    match (stated, range.file().map(|file| file.sharing)) {
        (Persistence::Volatile, Some(Sharing::Written)) => Persistence::AfterSync,
        (Persistence::Volatile, Some(Sharing::Synchronous)) => Persistence::OnCompletion,
        _ => stated,
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.facts.name)
    }
}

/// A typed place that a pipe can connect.
pub trait Locator {
    /// The facts and the handle, for connecting.
    fn endpoint(&self) -> Endpoint;
}
