//! What the tests share: a seed, a folder that goes away, a machine.
// Each test program uses its own part of this.
#![allow(dead_code)]
#![allow(clippy::expect_used, clippy::unwrap_used)]

pub(crate) mod model;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use datapipes_core::Machine;
use datapipes_core::topology::Topology;
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::{FileBackend, FileConfig};

/// The seed of a test: `DURABLE_SEED` replays one that failed.
pub(crate) fn seed(default: u64) -> u64 {
    std::env::var("DURABLE_SEED").ok().map_or(default, |s| s.parse().expect("DURABLE_SEED is a number"))
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

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// What record `number` of a test holds: its number and bytes that follow from it.
pub(crate) fn record(number: u64, most: usize) -> Vec<u8> {
    let mut random = Random(number.wrapping_mul(77));
    let len = random.below(most + 1);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(random.bytes(len));
    bytes
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A folder that vanishes with the test. Under the target folder, for /tmp may be memory.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let name = format!("durable-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in a folder of it, hidden ones too.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(dir)).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn machine() -> Machine {
    machine_with(FileConfig::default())
}

pub(crate) fn machine_with(config: FileConfig) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(FileBackend::with(config)), Arc::new(cpu)])
}

/// A process that runs an ignored test of this program, to be killed.
pub(crate) struct Killed(Child);

impl Killed {
    /// Starts it; it works in this folder.
    pub(crate) fn child(test: &str, dir: &Path) -> Killed {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", test, "--nocapture"]).env("DURABLE_CHILD", dir).stdout(Stdio::piped());
        Killed(command.spawn().unwrap())
    }

    /// Kills it so long after it wrote so many lines of its own, and returns all lines that it
    /// wrote.
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
        let status = self.0.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "it ended: {status}");
        all.extend(receiver);
        thread.join().unwrap();
        all
    }
}
