//! What several tests begin with: files and memory with known bytes, an executor for one future, a
//! bound on time.
#![allow(dead_code)] // Each test uses some of it.

use std::sync::Arc;

use datapipes::runtime::{ConnectOptions, RuntimeOptions};
use datapipes::{Constraints, Dram, Locator, Machine, Runtime, RuntimePipe, Span, Ssd};

#[allow(unused_imports)] // Some tests do not wait.
pub(crate) use datapipes_testkit::bounded;
#[allow(unused_imports)] // Some tests do not wait.
pub(crate) use pollster::block_on;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) fn memory_of(bytes: &[u8]) -> Dram {
    let dram = Dram::allocate(bytes.len()).unwrap();
    dram.lease_mut().unwrap().copy_from_slice(bytes);
    dram
}

/// A file without a name, with nothing in it.
pub(crate) fn empty_file() -> Ssd {
    std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
    Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn file_of(bytes: &[u8]) -> Ssd {
    use std::os::unix::fs::FileExt;
    let ssd = empty_file();
    let file = std::fs::File::from(ssd.file().cached_fd().try_clone_to_owned().unwrap());
    file.write_all_at(bytes, 0).unwrap();
    ssd
}

/// Places with the same bytes, a target to move them to, and a runtime.
pub(crate) struct Scene {
    pub(crate) machine: Machine,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) file: Ssd,
    pub(crate) memory: Dram,
    pub(crate) target: Dram,
}

/// The kinds of route, by where they are carried out.
pub(crate) const ROUTES: [&str; 4] = ["a ring", "at once", "copiers", "a mover that blocks"];

impl Scene {
    pub(crate) fn new(len: u64) -> Scene {
        Scene::with(len, |_| {})
    }

    pub(crate) fn with(len: u64, change: impl FnOnce(&mut RuntimeOptions)) -> Scene {
        let machine = datapipes::discover();
        let bytes = pattern(len);
        let mut config = RuntimeOptions::new(&machine);
        change(&mut config);
        let runtime = Arc::new(Runtime::start_with(&machine, config).unwrap());
        let (file, memory, target) = (file_of(&bytes), memory_of(&bytes), Dram::allocate(bytes.len()).unwrap());
        Scene { machine, runtime, bytes, file, memory, target }
    }

    /// Returns a pipe to the target by one of the [`ROUTES`]. Short copies between memories run on
    /// the caller.
    pub(crate) fn pipe(&self, route: &str) -> RuntimePipe {
        self.pipe_with(route, ConnectOptions::default())
    }

    pub(crate) fn pipe_with(&self, route: &str, mut connect: ConnectOptions) -> RuntimePipe {
        let mut only = |primitive: &str| connect.constraints.only = vec![primitive.into()];
        let source: &dyn Locator = match route {
            "a ring" => {
                only("uring-cached");
                &self.file
            }
            "a mover that blocks" => {
                only("pread-cached");
                &self.file
            }
            _ => &self.memory,
        };
        match self.runtime.connect_with(source, &self.target, &connect) {
            Err(e) if route == "a ring" => {
                println!("SKIPPED: {route}: {e}");
                connect.constraints = Constraints::default();
                self.runtime.connect_with(source, &self.target, &connect).unwrap()
            }
            pipe => pipe.unwrap(),
        }
    }

    /// Returns the `i`th piece, with a length that the route carries out where its name says.
    pub(crate) fn span(&self, route: &str, i: u64) -> Span {
        let len = if route == "copiers" { 128 * KIB } else { 4 * KIB };
        Span { source: i * len, target: i * len, len }
    }

    /// Returns whether the first `n` pieces have arrived.
    pub(crate) fn has_arrived(&self, route: &str, n: u64) -> bool {
        let end = self.span(route, n).target as usize;
        self.target.lease().unwrap()[..end] == self.bytes[..end]
    }
}
