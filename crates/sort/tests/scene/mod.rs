//! What the tests of the engine share: a seed, a temporary folder, a machine, and jobs.
// Each test program uses its own part of this.
#![allow(dead_code)]
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use datapipes_core::topology::Topology;
use datapipes_core::{Machine, Result, StageOrder, StagePlace};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::{FileBackend, FileBackendOptions};
use datapipes_sort::{Input, Output, RecordFormat, SortJob, SortReport};
use datapipes_testkit::TempFolder;
#[allow(unused_imports)]
pub(crate) use datapipes_testkit::{Random, seed};

/// A folder that is removed with the test. It is in the target folder, because /tmp may be memory.
pub(crate) struct Folder(pub(crate) TempFolder);

impl Folder {
    pub(crate) fn new() -> Folder {
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for dir in ["in", "out", "spill"] {
            fs::create_dir(folder.path(dir)).unwrap();
        }
        Folder(folder)
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

    /// Returns every file in it and below, hidden ones too.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = self.0.names().unwrap();
        names.retain(|name| !self.path(name).is_dir());
        names
    }

    /// Describes a sort of these files into the folder's `out/sorted`, with two threads in the
    /// least memory.
    pub(crate) fn job(&self, format: RecordFormat, inputs: &[PathBuf]) -> SortJob {
        let inputs = inputs.iter().map(|path| Input::open(path).unwrap()).collect();
        SortJob::between(usual_machine(), format, inputs, Output::to(&self.path("out/sorted")).unwrap())
            .memory_bytes(datapipes_sort::MIN_MEMORY)
            .spill(vec![StagePlace::folder(self.path("spill"))])
            .spill_order(StageOrder::Given)
            .threads(2)
    }

    pub(crate) fn sorted(&self) -> Vec<u8> {
        fs::read(self.path("out/sorted")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // SORT_KEEP keeps the files of a failed test.
        if std::thread::panicking() && std::env::var_os("SORT_KEEP").is_some() {
            println!("kept: {}", self.0.display());
            self.0.keep();
        }
    }
}

pub(crate) fn machine(config: FileBackendOptions) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(FileBackend::with(config)), Arc::new(cpu)])
}

/// The machine of tests that ask for nothing odd; found once, for there are many jobs.
pub(crate) fn usual_machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| machine(FileBackendOptions::default()))
}

pub(crate) fn sort(job: SortJob) -> Result<SortReport> {
    datapipes_sort::sort(&machine(FileBackendOptions::default()), job)
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

/// Fails with the case and the first difference, instead of printing megabytes.
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
