//! Checkpoints: several large regions of memory, in parallel, to stable storage (CIDR'23, section
//! 2).
//!
//! ```
//! use datapipes_core::{Dram, Machine, topology::Topology};
//! use datapipes_durable::checkpoint::{Checkpoints, SaveOptions, ignore_progress};
//! # use std::sync::Arc;
//! # let topology = Topology::discover();
//! # let cpu = datapipes_cpu::CpuBackend::new(&topology, datapipes_cpu::Calibration::assumed(&topology));
//! # let machine = Machine::new(topology, vec![Arc::new(datapipes_file::FileBackend::probe()), Arc::new(cpu)]);
//! # let dir = std::env::temp_dir().join(format!("checkpoint-doc-{}", std::process::id()));
//! let (table, index) = (Dram::allocate(3 << 20)?, Dram::allocate(1 << 20)?);
//! table.lease_mut()?.fill(7);
//! let store = Checkpoints::at(&machine, &dir);
//! let options = SaveOptions { keep: Some(3), ..SaveOptions::default() };
//! let saved = store.save(&[("table", &table), ("index", &index)], &options, &mut ignore_progress)?;
//! table.lease_mut()?.fill(0); // it happened
//! store.open(saved.number)?.restore_into(&[("table", &table)], &mut ignore_progress)?;
//! assert_eq!(table.lease()?[12345], 7);
//! # std::fs::remove_dir_all(&dir).unwrap();
//! # Ok::<(), datapipes_core::Error>(())
//! ```
//!
//! A checkpoint is one file, `checkpoint-00000000000000000001`, in a folder of them:
//!
//! ```text
//! region 0 | region 1 | ... | manifest (JSON: names, places, a checksum for each MiB) | trailer (where the manifest is)
//! ```
//! One file, because one rename then publishes it: it has no name until all of it is synced, and
//! after `kill -9` or a power failure it is there as a whole or not at all. (Rejected: a folder of
//! one file a region. It needs a manifest that says when all are complete, a sync of each, and
//! somebody who clears up after a crash.) The manifest is last, because the checksums are known
//! only when the bytes are on their way: they are computed while the device works.
//!
//! It does not copy regions before it saves them, compress, or save only what changed: while a save
//! runs, its regions are leased for reading, and writers are told `Busy`.

mod manifest;
mod pieces;
mod restore;
mod save;
mod store;

pub use manifest::{CheckpointRegion, Manifest};
pub use pieces::{CheckpointProgress, ProgressCallback, ignore_progress};
pub use restore::Checkpoint;
pub use save::{SaveOptions, SavedCheckpoint};
pub use store::{CheckpointEntry, Checkpoints, Fallback, RestoredCheckpoint};
