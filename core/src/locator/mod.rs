//! Where data is: typed places (CIDR'23, section 5.1).
//!
//! A locator acquires and releases its resource and states facts; it moves nothing. What backends
//! see of it is its
//! [`Endpoint`]: the facts and a handle.

mod atomic_file;
mod cache;
mod dram;
mod extend;
mod numa;
mod pmem;
mod space;
mod ssd;
mod staging;
mod uri;

pub use atomic_file::{
    AtomicFile, FileMode, InPlaceFile, InPlaceReason, LostAttribute, NameProtection, OutputFile, PublishOutcome,
    TargetKind, parent_dir, target_kind,
};
pub use cache::CoreCache;
pub use dram::Dram;
pub use numa::NumaMemory;
pub use pmem::{Pmem, PmemOptions};
pub use ssd::{FileAccess, FilePlace, Ssd};
pub(crate) use staging::Part as StagePart;
pub use staging::{PlaceUse, StageOrder, StagePlace, Staging, StagingExtent};
pub use uri::{Uri, parse_size};

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::error::Result;
use crate::memory::{MemoryRange, Sharing};
pub use crate::watch::{WriteObserver, WriteObservers};

/// How bytes of a place are reached.
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
    /// By asking it: it reads its bytes itself.
    Reader,
    /// By different ways: it is made of several places.
    Several,
}

/// What a place guarantees when the power fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing survives.
    Volatile,
    /// What was moved survives once `sync` has returned.
    AfterSync,
    /// What was moved survives when the transfer returns.
    OnCompletion,
}

/// What a place states about itself.
#[derive(Clone, Debug, Serialize)]
pub struct PlaceFacts {
    /// The kind of place, in the papers' words: "dram", "core-cache", "ssd", "pmem", "numa".
    pub kind: &'static str,
    /// Its address for people and for the command line, as a URI.
    pub name: String,
    /// How its bytes are reached.
    pub reach: Reach,
    /// The smallest piece the place moves without reading or writing more than was asked, in bytes.
    pub granularity: u64,
    /// The alignment of offsets at which the place is fastest, in bytes.
    pub alignment: u64,
    /// What survives a power failure.
    pub persistence: Persistence,
    /// The length in bytes, where it is fixed.
    pub len: Option<u64>,
    /// The NUMA node it was bound to.
    pub node: Option<u32>,
    /// The core whose cache it is.
    pub core: Option<usize>,
}

/// What a backend works with.
#[derive(Clone)]
#[non_exhaustive]
pub enum EndpointHandle {
    /// Memory of this process. Its region knows whether it maps a file.
    Memory(MemoryRange),
    /// An open file or block device.
    File(Arc<FilePlace>),
    /// Several places as one: pipes connect each of them.
    Staging(Staging),
    /// A place that gives out its bytes itself, on the caller's core.
    Reader(Arc<dyn Reader>),
    /// Something that only a particular backend knows; it asks for the type.
    Other(Arc<dyn Any + Send + Sync>),
}

/// A place that knows best how its bytes are read: a cache in front of another place.
pub trait Reader: Send + Sync {
    /// Fills `into` with the bytes at `offset`.
    ///
    /// A thread of a runtime may call it, in the middle of the transfer. It may call everything:
    /// another thread has its place while it sleeps in the library. What waits for this very
    /// transfer fails as `InvalidInput`.
    ///
    /// # Errors
    /// `EndOfFile` where it ends before that, and what the place can meet; then nothing is certain
    /// of what is in `into`.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// One end of a pipe: the facts of a locator and its handle.
#[derive(Clone)]
pub struct Endpoint {
    /// What the place states.
    pub facts: Arc<PlaceFacts>,
    /// What a backend works with.
    pub handle: EndpointHandle,
}

impl Endpoint {
    /// The memory range, if its bytes are reached by loads and stores.
    pub fn memory(&self) -> Option<&MemoryRange> {
        match &self.handle {
            EndpointHandle::Memory(range) => Some(range),
            _ => None,
        }
    }

    /// Who must know when bytes of it change, where it is a file or maps one; and where in the file
    /// it begins.
    pub(crate) fn watched(&self) -> Option<(&Arc<WriteObservers>, u64)> {
        match &self.handle {
            EndpointHandle::File(file) => Some((file.write_observers(), 0)),
            EndpointHandle::Memory(range) => range.file().map(|file| (&file.watchers, range.at() as u64)),
            _ => None,
        }
    }

    /// The same place, stating at least what the file that its memory maps keeps: whoever made it,
    /// and whatever it is called, bytes of a file are moved as such.
    pub(crate) fn of_what_it_maps(&self) -> Endpoint {
        let Some(range) = self.memory() else { return self.clone() };
        let persistence = kept(range, self.facts.persistence);
        if persistence == self.facts.persistence {
            return self.clone();
        }
        Endpoint { facts: Arc::new(PlaceFacts { persistence, ..(*self.facts).clone() }), handle: self.handle.clone() }
    }

    /// The staging, if it is one.
    pub fn staging(&self) -> Option<&Staging> {
        match &self.handle {
            EndpointHandle::Staging(staging) => Some(staging),
            _ => None,
        }
    }

    /// What reads its bytes, if the place does that itself.
    pub fn reader(&self) -> Option<&Arc<dyn Reader>> {
        match &self.handle {
            EndpointHandle::Reader(reader) => Some(reader),
            _ => None,
        }
    }

    /// The file, if it is reached through a descriptor.
    pub fn file(&self) -> Option<&Arc<FilePlace>> {
        match &self.handle {
            EndpointHandle::File(file) => Some(file),
            _ => None,
        }
    }
}

/// What a place over this memory keeps when the power fails, which states so much itself.
fn kept(range: &MemoryRange, stated: Persistence) -> Persistence {
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
