//! Persistent memory to certify: real where there is some, emulated on a plain file, and a model of
//! real on such a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::locator::{Endpoint, PlaceFacts};
use datapipes_core::{Locator, Persistence, Pmem, PmemOptions, Result};

use super::place::{LEN, PlaceKind, TestPlace};

/// Names a directory on a file system that is mounted with DAX on persistent memory.
pub const DAX_DIRECTORY: &str = "DATAPIPES_DAX_DIR";

/// The file of a place, removed when the place is dropped.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A plain file that states what persistent memory states, so that the ways into persistent memory
/// (flushed by the primitive, or by a second hop) are certified where there is none. It is a model,
/// and its name says so.
struct Modelled(Pmem);

impl Locator for Modelled {
    fn endpoint(&self) -> Endpoint {
        let plain = self.0.endpoint();
        let facts = PlaceFacts {
            kind: "pmem-modelled",
            persistence: Persistence::OnCompletion,
            name: format!("{} (a model of persistent memory)", plain.facts.name),
            ..(*plain.facts).clone()
        };
        Endpoint { facts: Arc::new(facts), handle: plain.handle }
    }
}

fn fresh(dir: &Path, emulated: bool) -> Result<(Pmem, Remove)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("conformance-pmem-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let file = Remove(dir.join(name));
    let pmem = Pmem::open_with(&file.0, PmemOptions::default().len(LEN as u64).emulated(emulated))?;
    Ok((pmem, file))
}

impl PlaceKind {
    /// Persistent memory on files of `disk`, emulated and modelled; and real where the environment
    /// names a directory ([`DAX_DIRECTORY`]) for it.
    pub fn of_persistent_memory(disk: &Path) -> Vec<PlaceKind> {
        let (emulated, modelled) = (disk.to_path_buf(), disk.to_path_buf());
        let real = match std::env::var_os(DAX_DIRECTORY) {
            None => PlaceKind::absent("pmem", format!("{DAX_DIRECTORY} names no directory on persistent memory")),
            Some(dir) => PlaceKind::new("pmem", move || {
                let (pmem, file) = fresh(Path::new(&dir), false)?;
                Ok(TestPlace::kept_by(pmem, file))
            }),
        };
        vec![
            PlaceKind::new("pmem-emulated", move || {
                let (pmem, file) = fresh(&emulated, true)?;
                Ok(TestPlace::kept_by(pmem, file))
            }),
            PlaceKind::new("pmem-modelled", move || {
                let (pmem, file) = fresh(&modelled, true)?;
                Ok(TestPlace::kept_by(Modelled(pmem), file))
            }),
            real,
        ]
    }
}
