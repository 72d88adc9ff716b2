//! Files to map, a machine with every backend, and a place that claims to be persistent memory.
#![allow(dead_code)] // Each test program uses a part.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use datapipes_core::locator::PlaceFacts;
use datapipes_core::topology::Topology;
use datapipes_core::{Endpoint, Locator, Machine, Persistence, Pmem, PmemOptions};

/// A file on the disk of the checkout, removed on drop.
pub(crate) struct Scene {
    pub(crate) path: PathBuf,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Scene {
        Scene { path: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dax-{name}-{}", std::process::id())) }
    }

    pub(crate) fn pmem(&self, len: u64) -> Pmem {
        Pmem::open_with(&self.path, PmemOptions::default().len(len).emulated(true)).unwrap()
    }

    pub(crate) fn set_len(&self, len: u64) {
        File::options().write(true).open(&self.path).unwrap().set_len(len).unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn machine() -> Machine {
    let topology = Topology::discover();
    let backends = datapipes_bundle::all(&topology);
    Machine::new(topology, backends)
}

/// A plain file with the facts of persistent memory, so that its routes can be tested without any.
pub(crate) struct AsIfPersistent(pub(crate) Pmem);

impl Locator for AsIfPersistent {
    fn endpoint(&self) -> Endpoint {
        let plain = self.0.endpoint();
        let facts = PlaceFacts { persistence: Persistence::OnCompletion, ..(*plain.facts).clone() };
        Endpoint { facts: Arc::new(facts), handle: plain.handle }
    }
}
