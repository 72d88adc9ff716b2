//! Locators: typed places where data is (CIDR'23, section 5.1).
//!
//! A locator acquires and releases its resource and states facts; it moves nothing. Backends see it
//! as an [`Endpoint`]: the facts and a handle.
//!
//! | file or folder | what it holds |
//! |---|---|
//! | `endpoint` | facts, handles, the trait `Locator` |
//! | `in_memory` | memory, memory of a NUMA node, a core's cache |
//! | `file` | files and block devices |
//! | `pmem` | persistent memory |
//! | `staging`, `stage_place`, `ledger` | several places used as one |
//! | `place_names`, `uri` | places by their names |
//! | `atomic_file` | files that are published as a whole |

mod atomic_file;
mod endpoint;
mod file;
mod in_memory;
mod ledger;
mod place_names;
mod pmem;
mod stage_place;
mod staging;
mod uri;

pub use crate::watch::{WriteObserver, WriteObservers};
pub use atomic_file::{
    AtomicFile, FileMode, InPlaceFile, InPlaceReason, LostAttribute, NameProtection, OutputFile, PathEnd,
    PublishOutcome, TargetKind, parent_dir, path_end, target_kind,
};
pub use endpoint::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach, Reader, StagingHandle};
pub use file::file_place::{DeviceQueue, FileAccess, FilePlace};
pub use file::kind::file_kind_words;
pub use file::ssd::Ssd;
pub use in_memory::{CoreCache, Dram, NumaMemory};
pub(crate) use ledger::Part as StagePart;
pub use pmem::{Pmem, PmemOptions};
pub use stage_place::StagePlace;
pub use staging::{PlaceUse, StageOrder, Staging, StagingExtent};
pub use uri::{Uri, parse_size};
