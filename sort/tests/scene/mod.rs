//! What the tests of the engine share: a seed, a folder that goes away, a machine, and jobs.
// Each test program uses its own part of this.
#![allow(dead_code)]
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_core::topology::Topology;
use datapipes_core::{Machine, Result, StageOrder, StagePlace};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::{FileBackend, FileConfig};
use datapipes_sort::{Control, Input, Output, RecordFormat, SortJob, SortReport};

/// The seed of a test: `SORT_SEED` replays one that failed.
pub(crate) fn seed(default: u64) -> u64 {
    std::env::var("SORT_SEED").ok().map_or(default, |s| s.parse().expect("SORT_SEED is a number"))
}

/// A small generator (SplitMix64): the seed is all there is to know about a case.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A folder that vanishes with the test. Under the target folder, for /tmp may be memory.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        let name = format!("sort-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for dir in ["", "in", "out", "spill"] {
            fs::create_dir_all(path.join(dir)).unwrap();
        }
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Every file in it and below, hidden ones too.
    pub(crate) fn files(&self) -> Vec<String> {
        fn walk(dir: &Path, root: &Path, names: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, names);
                } else {
                    names.push(path.strip_prefix(root).unwrap().display().to_string());
                }
            }
        }
        let mut names = Vec::new();
        walk(&self.0, &self.0, &mut names);
        names.sort();
        names
    }

    /// A sort of these files of the folder to its `out/sorted`, by two threads in the least memory.
    pub(crate) fn job(&self, format: RecordFormat, inputs: &[PathBuf]) -> SortJob {
        SortJob {
            format,
            inputs: inputs.iter().map(|path| Input::open(path).unwrap()).collect(),
            output: Output::to(&self.path("out/sorted")).unwrap(),
            memory_bytes: datapipes_sort::MIN_MEMORY,
            spill: vec![StagePlace::folder(self.path("spill"))],
            spill_order: StageOrder::Given,
            threads: 2,
            unique: false,
            compress_program: None,
            fan_in: 0,
            control: Control::default(),
        }
    }

    pub(crate) fn sorted(&self) -> Vec<u8> {
        fs::read(self.path("out/sorted")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // SORT_KEEP keeps what a failed test worked on.
        if std::thread::panicking() && std::env::var_os("SORT_KEEP").is_some() {
            println!("kept: {}", self.0.display());
            return;
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn machine(config: FileConfig) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(FileBackend::with(config)), Arc::new(cpu)])
}

pub(crate) fn sort(job: SortJob) -> Result<SortReport> {
    datapipes_sort::sort(&machine(FileConfig::default()), job)
}

/// The naive twin for records.
pub(crate) fn sort_records(bytes: &[u8], format: &RecordFormat, unique: bool) -> Vec<u8> {
    let &RecordFormat::Records { len, key_at, key_len, reverse } = format else { panic!("records only") };
    let key = |r: &&[u8]| r[key_at..key_at + key_len].to_vec();
    let mut records: Vec<&[u8]> = bytes.chunks_exact(len).collect();
    records.sort_by(|a, b| if reverse { key(b).cmp(&key(a)) } else { key(a).cmp(&key(b)) });
    if unique {
        records.dedup_by(|next, kept| key(next) == key(kept));
    }
    records.concat()
}

/// Fails with the seed and the first difference, not with megabytes.
pub(crate) fn assert_same(got: &[u8], expected: &[u8], case: &str) {
    if got != expected {
        let at = got.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(got.len().min(expected.len()));
        let near = |bytes: &[u8]| bytes[at.min(bytes.len())..bytes.len().min(at + 60)].escape_ascii().to_string();
        panic!(
            "{case}: {} bytes, expected {}; they differ at {at}: {:?}, expected {:?}",
            got.len(),
            expected.len(),
            near(got),
            near(expected)
        );
    }
}
