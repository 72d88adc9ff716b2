//! Checkpoints: several large regions of memory, saved in parallel to stable storage (CIDR'23,
//! section 2).
//!
//! ```
//! use datapipes::Dram;
//! use datapipes::durable::checkpoint::{Checkpoints, SaveOptions, ignore_progress};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let dir = std::env::temp_dir().join(format!("datapipes-checkpoint-{}", std::process::id()));
//!     let machine = datapipes::discover();
//!     let (table, index) = (Dram::allocate(3 << 20)?, Dram::allocate(1 << 20)?);
//!     table.lease_mut()?.fill(7);
//!
//!     let store = Checkpoints::at(&machine, &dir);
//!     let options = SaveOptions::default().keep(3);
//!     let saved = store.save(&[("table", &table), ("index", &index)], &options, &mut ignore_progress)?;
//!     table.lease_mut()?.fill(0); // the data is lost
//!     store.open(saved.number)?.restore_into(&[("table", &table)], &mut ignore_progress)?;
//!     assert_eq!(table.lease()?[12_345], 7);
//!     std::fs::remove_dir_all(&dir)?;
//!     Ok(())
//! }
//! ```
//!
//! A checkpoint is one file, `checkpoint-00000000000000000001`, in a folder of them:
//!
//! ```text
//! region 0 | region 1 | ... | manifest | trailer
//!     manifest: JSON with names, offsets, and a checksum for each MiB
//!     trailer:  the offset of the manifest
//! ```
//! A checkpoint is one file, so one rename publishes it: it has no name until all of it is synced,
//! and after `kill -9` or a power failure it is there as a whole or not at all. (Rejected: a folder
//! with one file for each region. It needs a manifest that says when all are complete, a sync of
//! each file, and a cleanup after a crash.) The manifest comes last, because the checksums are
//! computed while the device writes the bytes.
//!
//! [`Checkpoints::over`] keeps them in other places, such as objects of a bucket, which appear as a
//! whole, too.
//!
//! A save neither copies the regions first, nor compresses them, nor saves only what changed. While
//! it runs, its regions are leased for reading, and writers get `Busy`.

mod manifest;
mod pieces;
mod places;
mod restore;
mod save;
mod store;

pub use manifest::{CheckpointRegion, Manifest};
pub use pieces::{CheckpointProgress, ProgressCallback, ignore_progress};
pub use places::{CheckpointPlaces, CheckpointSource, CheckpointTarget};
pub use restore::Checkpoint;
pub use save::{SaveOptions, SavedCheckpoint};
pub use store::{CheckpointEntry, Checkpoints, Fallback, RestoredCheckpoint, checkpoint_name, checkpoint_number};
