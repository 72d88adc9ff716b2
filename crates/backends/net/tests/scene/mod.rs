//! An exporter and a machine for tests. Skipped where UCX is not installed.
#![allow(clippy::unwrap_used, dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, Locator, Machine, Pipe, Result};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::FileBackend;
use datapipes_net::{
    Export, ExportAddress, ExportableMemory, Exporter, ExporterOptions, HolderProgram, NetworkOptions, Remote,
    RemoteOptions, RemoteRights, RemoteTicket, RemoteTransport, UcxBackend,
};
use datapipes_testkit::bounded;
use datapipes_testkit::conformance::{CaseVerdict, PlaceKind, TestPlace, run};

pub(crate) const HOLDER: &str = env!("CARGO_BIN_EXE_memory-holder");

/// The ways that bytes go here. A loopback interface is trusted by the tests.
pub(crate) fn networks() -> [(&'static str, NetworkOptions); 3] {
    let tcp = NetworkOptions::default().transport(RemoteTransport::Network).trusted_network(true);
    [("vm", NetworkOptions::default()), ("shm", NetworkOptions::default()), ("tcp", tcp)]
}

/// Connects two places by the way of a name in [`networks`]: within a machine the kernel copies,
/// unless UCX is asked for.
pub(crate) fn connect(name: &str, source: &dyn Locator, target: &dyn Locator) -> Result<Pipe> {
    machine().connect_with(source, target, &constraints(name))
}

/// What leaves one way of a name in [`networks`].
pub(crate) fn constraints(name: &str) -> Constraints {
    let denied: &[&str] = if name == "vm" { &["ucx-put", "ucx-get"] } else { &["vm-put", "vm-get"] };
    Constraints::default().deny(denied.iter().map(|name| (*name).to_owned()).collect())
}

/// Whether UCX is there; says so where it is not.
pub(crate) fn has_ucx(test: &str) -> bool {
    match datapipes_core::backend::Backend::primitives(&UcxBackend::new()).pop().unwrap().available {
        Ok(_) => true,
        Err(why) => {
            println!("SKIPPED: {test}: {why}");
            false
        }
    }
}

pub(crate) fn machine() -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu), Arc::new(FileBackend::probe()), Arc::new(UcxBackend::new())])
}

/// An address of its own for each exporter: a Unix socket, or a port where a network is used.
fn address(network: &NetworkOptions) -> ExportAddress {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if network.transport == RemoteTransport::Network {
        return "127.0.0.1:0".parse().unwrap();
    }
    let name = format!("datapipes-net-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    ExportAddress::Unix(std::env::temp_dir().join(name))
}

pub(crate) fn exporter(network: &NetworkOptions) -> Exporter {
    let options = ExporterOptions::default().network(network.clone()).program(HolderProgram::At(HOLDER.into()));
    Exporter::listen(&address(network), options).unwrap()
}

pub(crate) fn options(network: &NetworkOptions) -> RemoteOptions {
    RemoteOptions::default().network(network.clone())
}

/// Memory that is exported as a whole.
pub(crate) struct Scene {
    pub(crate) memory: ExportableMemory,
    pub(crate) export: Option<Export>,
    pub(crate) exporter: Exporter,
    pub(crate) network: NetworkOptions,
}

impl Scene {
    pub(crate) fn new(network: &NetworkOptions, len: usize, rights: RemoteRights) -> Scene {
        let memory = ExportableMemory::allocate(len).unwrap();
        let exporter = exporter(network);
        let export = exporter.export(&memory, (0, len), rights).unwrap();
        Scene { memory, export: Some(export), exporter, network: network.clone() }
    }

    pub(crate) fn ticket(&self) -> RemoteTicket {
        self.export.as_ref().unwrap().ticket().clone()
    }

    pub(crate) fn remote(&self) -> Result<Remote> {
        Remote::connect(&self.ticket(), options(&self.network))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.dram().memory().to_vec().unwrap()
    }
}

/// Memory of this process with a pattern.
pub(crate) fn pattern(len: usize, seed: u64) -> Dram {
    let dram = Dram::allocate(len).unwrap();
    let mut random = datapipes_testkit::Random(seed);
    dram.lease_mut().unwrap().iter_mut().for_each(|byte| *byte = random.next() as u8);
    dram
}

/// What the suite must have found for UCX.
pub(crate) const BY_UCX: &[&[&str]] = &[&["ucx-put"], &["ucx-get"], &["ucx-get", "ucx-put"]];

/// Neither blocks, pages nor cache lines, as the suite's own places.
const LEN: usize = (96 << 10) + 37;

fn remote_place(network: NetworkOptions) -> datapipes_core::Result<TestPlace> {
    let memory = ExportableMemory::allocate(LEN)?;
    let exporter = exporter(&network);
    let export = exporter.export(&memory, (0, LEN), RemoteRights::ReadWrite)?;
    let remote = Remote::connect(export.ticket(), options(&network))?;
    Ok(TestPlace::in_front_of(remote, memory.dram().clone()).with_keeper((export, exporter)))
}

/// Runs the suite over remote memory, and fails unless all of it that applies passed.
pub(crate) fn certify(name: &'static str, network: NetworkOptions, ways: &[&[&str]], seed: u64) {
    let outcomes = bounded(name, move || {
        let machine = machine();
        let mut kinds = PlaceKind::of_memory(machine.topology());
        kinds.retain(|kind| ["dram", "cache-l2"].contains(&kind.name.as_str()));
        kinds.push(PlaceKind::new("remote", move || remote_place(network.clone())));
        run(&machine, &kinds, seed)
    });
    let mine: Vec<_> = outcomes.iter().filter(|o| o.source == "remote" || o.target == "remote").collect();
    let failed: Vec<_> =
        mine.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for way in ways {
        let passed = mine.iter().filter(|o| o.way == *way && o.verdict == CaseVerdict::Passed).count();
        assert!(passed >= 1, "{way:?}: {mine:#?}");
    }
}

/// The holders that run for this process.
pub(crate) fn holders() -> Vec<i32> {
    holders_of(std::process::id())
}

/// The holders that run for a process.
pub(crate) fn holders_of(parent: u32) -> Vec<i32> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (of == parent && is_holder(pid)).then_some(pid)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(of).collect()
}

/// Whether a process runs as a holder.
pub(crate) fn is_holder(pid: i32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains("--datapipes-memory-holder")
}
