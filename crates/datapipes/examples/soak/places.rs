//! The places that bytes are sent through, the machines that send them, and the faults of one of
//! these machines.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes::{
    CoreCache, Dram, ErrorKind, FileAccess, Locator, NumaMemory, Pmem, PmemOptions, Result, Ssd, StageOrder,
    StagePlace, Staging,
};
use datapipes_core::Machine;
use datapipes_core::topology::Topology;
use datapipes_file::{FaultInjector, FaultVerdict, FileBackend, FileBackendOptions, Operation};

use crate::random::mix;

/// Bytes that each thread has of each place.
pub(crate) const SLOT: u64 = 4 << 20;
/// Bytes of a core's cache that each thread has.
const CACHE: usize = 64 << 10;
/// The name of the place that consists of several places.
pub(crate) const STAGING: &str = "staging";
/// The injected errors: EIO, and ENOSPC for writes.
pub(crate) const INJECTED: [i32; 2] = [5, 28];

/// Requests that are cut short, interrupted or failed, by a seed.
#[derive(Default)]
pub(crate) struct Rough {
    seed: u64,
    requests: AtomicU64,
    pub(crate) errors: AtomicU64,
}

impl FaultInjector for Rough {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        let dice = mix(self.seed ^ n);
        let error = |errno| {
            self.errors.fetch_add(1, Ordering::Relaxed);
            FaultVerdict::Errno(errno)
        };
        match dice % 512 {
            0..16 => FaultVerdict::Short(1 + (dice >> 32) as u32 % op.len),
            16..24 => FaultVerdict::Errno(4),
            24..26 => error(INJECTED[0]),
            26 if op.write => error(INJECTED[1]),
            _ => FaultVerdict::Pass,
        }
    }
}

/// A machine with every backend, with or without faults in its files.
pub(crate) fn machine(rough: Option<Arc<Rough>>) -> Machine {
    let topology = Topology::discover();
    let mut backends = datapipes_bundle::all(&topology);
    if let Some(rough) = rough {
        let config = FileBackendOptions::default().faults(rough).request_bytes(256 << 10);
        for backend in &mut backends {
            if backend.name() == "file" {
                *backend = Arc::new(FileBackend::with(config.clone()));
            }
        }
    }
    Machine::new(topology, backends)
}

pub(crate) fn rough(seed: u64) -> Arc<Rough> {
    Arc::new(Rough { seed, ..Rough::default() })
}

/// A place, and the part of it that a thread has.
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) locator: Box<dyn Locator + Send + Sync>,
    /// The offset and the length of the thread's part.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The memory whose leases must be free in the end.
    pub(crate) memory: Option<Dram>,
}

/// The memory and places of one thread: its own memory to send from and to receive in, and its
/// parts of the shared places.
pub(crate) struct Bench {
    pub(crate) source: Dram,
    pub(crate) target: Dram,
    pub(crate) places: Vec<Place>,
}

/// The places that all threads have parts of.
pub(crate) struct Shared {
    file: Ssd,
    /// The offset of the file's second half.
    half: u64,
    pmem: Pmem,
    dram: Dram,
    numa: std::result::Result<NumaMemory, String>,
    staging: Staging,
}

impl Shared {
    pub(crate) fn new(dir: &Path, machine: &Machine, threads: u64) -> Result<Shared> {
        let bytes = threads * SLOT;
        let file = Ssd::unlinked_in(dir)?;
        // Each access mode has a half of the file.
        file.preallocate(2 * bytes)?;
        file.set_len(2 * bytes)?;
        let path = dir.join(format!("soak-pmem-{}", std::process::id()));
        let pmem = Pmem::open_with(&path, PmemOptions::default().len(bytes).emulated(true))?;
        std::fs::remove_file(&path).map_err(|e| datapipes::Error::io("remove", e, path.display().to_string()))?;
        // The first is too small for all, so that extents move on to the second.
        let places = vec![StagePlace::memory(bytes / 2, None), StagePlace::folder(dir).in_tier(1)];
        Ok(Shared {
            file,
            half: bytes,
            pmem,
            dram: Dram::allocate(bytes as usize)?,
            numa: NumaMemory::allocate(0, bytes as usize).map_err(|e| e.to_string()),
            staging: machine.staging(places, StageOrder::Given)?,
        })
    }

    /// Returns the part of the `n`th thread.
    pub(crate) fn bench(&self, machine: &Machine, dir: &Path, n: u64) -> Result<Bench> {
        let mut places = Vec::new();
        let mut add = |name, locator: Box<dyn Locator + Send + Sync>, at, len, memory| {
            places.push(Place { name, locator, at, len, memory });
        };
        let at = n * SLOT;
        let shared = self.dram.range(at as usize, SLOT as usize)?;
        add("dram", Box::new(self.dram.clone()), at, SLOT, Some(shared));
        let own = Ssd::unlinked_in(dir)?;
        own.set_len(SLOT)?;
        add("own file", Box::new(own), 0, SLOT, None);
        let halves = [("file, cached", FileAccess::Cached, at), ("file, direct", FileAccess::Direct, self.half + at)];
        for (name, access, at) in halves {
            match self.file.with_access(access) {
                Ok(file) => add(name, Box::new(file), at, SLOT, None),
                Err(e) if n == 0 => println!("SKIPPED: {name}: {e}"),
                Err(_) => {}
            }
        }
        add("pmem, emulated", Box::new(self.pmem.clone()), at, SLOT, None);
        match &self.numa {
            Ok(numa) => {
                let own = numa.as_dram().range(at as usize, SLOT as usize)?;
                add("numa", Box::new(numa.clone()), at, SLOT, Some(own));
            }
            Err(why) if n == 0 => println!("SKIPPED: numa: {why}"),
            Err(_) => {}
        }
        let extent = self.staging.extent(SLOT)?;
        add(STAGING, Box::new(self.staging.clone()), extent.offset, SLOT, None);
        let cores: Vec<_> = machine.topology().usable_cores().collect();
        let backing = Dram::allocate(CACHE)?;
        match cores.get(n as usize % cores.len().max(1)).map(|core| CoreCache::over(core, &backing)) {
            Some(Ok(cache)) => add("core's cache", Box::new(cache), 0, CACHE as u64, Some(backing)),
            Some(Err(e)) if n == 0 && e.kind() == ErrorKind::Unavailable => println!("SKIPPED: core's cache: {e}"),
            Some(Err(e)) => return Err(e),
            None => {}
        }
        Ok(Bench { source: Dram::allocate(SLOT as usize)?, target: Dram::allocate(SLOT as usize)?, places })
    }
}
