//! Helpers of the tests: places on a real disk and in memory, seeded numbers, machines with and
//! without io_uring.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)] // Each test uses a part; helpers of tests may unwrap.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, FileAccess, Machine, MapOptions, Pages, Ssd};
use datapipes_file::{FileBackend, FileBackendOptions};

/// xorshift64*: the same numbers for a seed on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns an offset or a length: often aligned, often nearly so.
    pub fn awkward(&mut self, most: u64) -> u64 {
        let n = self.below(most + 1);
        let n = match self.below(4) {
            0 => n / 4096 * 4096,
            1 => n / 512 * 512,
            2 => (n / 512 * 512 + self.below(3)).saturating_sub(1),
            _ => n,
        };
        n.min(most)
    }
}

/// Returns the seed of the environment (`DATAPIPES_SEED`), else a fixed one. Tests print it when
/// they fail.
pub fn seed() -> u64 {
    datapipes_testkit::seed(17) | 1
}

/// Directories: one on the disk of the checkout, one in memory, and those in `TEST_DIRS` (separated
/// by colons), such as other file systems or devices with blocks of 4 KiB.
pub fn dirs() -> Vec<PathBuf> {
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&disk).unwrap();
    let mut dirs = vec![disk];
    if Path::new("/dev/shm").is_dir() {
        dirs.push("/dev/shm".into());
    } else {
        println!("SKIPPED: tmpfs: there is no /dev/shm");
    }
    dirs.extend(std::env::var_os("TEST_DIRS").iter().flat_map(std::env::split_paths));
    dirs
}

pub fn disk() -> PathBuf {
    dirs().swap_remove(0)
}

pub fn machine(config: FileBackendOptions) -> Machine {
    Machine::new(Topology::discover(), vec![Arc::new(FileBackend::with(config))])
}

pub fn only(primitive: &str) -> Constraints {
    Constraints::default().only(vec![primitive.into()])
}

/// Makes a file with these bytes, without a name. Prints a line and returns `None` where the access
/// is not available.
pub fn file(dir: &Path, bytes: &[u8], access: FileAccess) -> Option<Ssd> {
    let ssd = Ssd::unlinked_in(dir).unwrap();
    rustix::io::pwrite(ssd.file().cached_fd(), bytes, 0).unwrap();
    match ssd.with_access(access) {
        Ok(ssd) => Some(ssd),
        Err(e) => {
            println!("SKIPPED: {access:?} in {}: {e}", dir.display());
            None
        }
    }
}

pub fn contents(ssd: &Ssd) -> Vec<u8> {
    let mut bytes = vec![0; ssd.len().unwrap() as usize];
    let mut at = 0;
    while at < bytes.len() {
        let n = rustix::io::pread(ssd.file().cached_fd(), &mut bytes[at..], at as u64).unwrap();
        assert_ne!(n, 0);
        at += n;
    }
    bytes
}

pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

pub fn memory(len: usize) -> Dram {
    Dram::allocate_with(len, MapOptions::default().pages(Pages::Small).prefault(false)).unwrap()
}

pub fn memory_of(bytes: &[u8]) -> Dram {
    let dram = memory(bytes.len());
    dram.lease_mut().unwrap().copy_from_slice(bytes);
    dram
}
