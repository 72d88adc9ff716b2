//! What the tests share: a seed, a temporary folder, a machine.
// Each test program uses its own part of this.
#![allow(dead_code)]
#![allow(clippy::expect_used, clippy::unwrap_used)]

pub(crate) mod model;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use datapipes_core::Machine;
use datapipes_core::topology::Topology;
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::{FileBackend, FileBackendOptions};
use datapipes_testkit::TempFolder;
#[allow(unused_imports)]
pub(crate) use datapipes_testkit::{Random, seed};

/// The content of record `number` of a test: its number, and bytes that follow from it.
pub(crate) fn record(number: u64, most: usize) -> Vec<u8> {
    let mut random = Random(number.wrapping_mul(77));
    let len = random.below(most + 1);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(random.bytes(len));
    bytes
}

/// A folder that is removed with the test. It is in the target folder, because /tmp may be memory.
pub(crate) struct Scratch(pub(crate) TempFolder);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in a subfolder, with hidden ones.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(dir)).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn machine() -> Machine {
    machine_with(FileBackendOptions::default())
}

pub(crate) fn machine_with(config: FileBackendOptions) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(FileBackend::with(config)), Arc::new(cpu)])
}

/// A process that runs an ignored test of this program and is killed.
pub(crate) struct Killed(Child);

impl Killed {
    /// Starts the process on this folder.
    pub(crate) fn child(test: &str, dir: &Path) -> Killed {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", test, "--nocapture"]).env("DURABLE_CHILD", dir).stdout(Stdio::piped());
        Killed(command.spawn().unwrap())
    }

    /// Kills it some microseconds after it wrote this many lines of its own. Returns all lines that
    /// it wrote.
    pub(crate) fn after(mut self, lines: usize, us: u64) -> Vec<String> {
        let (sender, receiver) = mpsc::channel();
        let reader = BufReader::new(self.0.stdout.take().unwrap());
        let thread = std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                sender.send(line).unwrap();
            }
        });
        // The harness writes two lines first.
        let mut all: Vec<String> = receiver.iter().take(if lines > 0 { lines + 2 } else { 0 }).collect();
        std::thread::sleep(Duration::from_micros(us));
        self.0.kill().unwrap();
        let status = datapipes_testkit::ended(&mut self.0);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "it ended: {status}");
        all.extend(receiver);
        datapipes_testkit::joined(thread);
        all
    }
}
