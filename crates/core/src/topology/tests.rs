//! Discovery on recorded trees (see `trees/`), and on the machine at hand.
//!
//! A tree is lines of `path = text`. `\n` and `\t` in the text stand for a newline and a tab, and
//! `{0,1}` in the path stands for each of the two.

use std::fs;
use std::path::Path;

use datapipes_testkit::TempFolder;

use crate::topology::tree::{Tree, chosen, meminfo_bytes, parse_list, parse_size};
use crate::topology::*;

const GIB: u64 = 1 << 30;

/// A directory that is removed when the test ends.
struct Recorded(TempFolder);

impl Recorded {
    fn new(lines: &str) -> Recorded {
        let root = TempFolder::new().unwrap();
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            let (path, text) = line.split_once('=').unwrap();
            for path in expand(path.trim()) {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text.trim().replace("\\n", "\n").replace("\\t", "\t") + "\n").unwrap();
            }
        }
        Recorded(root)
    }

    fn topology(&self) -> Topology {
        Topology::discover_under(&self.0)
    }
}

fn expand(path: &str) -> Vec<String> {
    match path.split_once('{') {
        None => vec![path.to_owned()],
        Some((before, rest)) => {
            let (choices, after) = rest.split_once('}').unwrap();
            choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
        }
    }
}

#[test]
fn two_nodes_and_cxl() {
    let tree = Recorded::new(include_str!("trees/two_nodes_cxl.tree"));
    let t = tree.topology();
    assert_eq!(t.cores.len(), 8);
    let usable: Vec<usize> = t.usable_cores().map(|core| core.index).collect();
    assert_eq!(usable, [0, 1, 2, 4, 5, 6], "3 is outside the affinity, 7 is offline");
    assert!(!t.core(7).unwrap().online);
    let core = t.core(5).unwrap();
    assert_eq!((core.package, core.node, core.siblings.as_slice()), (Some(0), Some(0), &[1, 5][..]));
    assert_eq!(t.l1_size(0), Some(48 << 10), "the data cache, not the instructions");
    assert_eq!(t.l2_size(0), Some(2 << 20), "from ways, line and sets");
    assert_eq!(t.l3_share(0), Some(107_520 * 1024 / 4));
    assert_eq!(t.l3_share(2), Some(107_520 * 1024 / 3));
    assert_eq!(t.l3_share(7), None);
    assert_eq!(t.line_bytes(), 64);

    assert_eq!(t.nodes.len(), 3);
    let cxl = t.node(2).unwrap();
    assert!(cxl.cpu_less && !t.node(0).unwrap().cpu_less);
    assert_eq!((cxl.total_bytes, cxl.memory_tier), (Some(128 * GIB), Some(22)));
    assert_eq!(t.node(1).unwrap().distance_to(2), Some(24));
    let access = cxl.access.as_ref().unwrap();
    assert_eq!((access.read_latency_ns, access.write_latency_ns), (Some(250), None));
    assert_eq!((access.read_bytes_per_second, access.write_bytes_per_second), (Some(30_000_000_000), None));
    assert_eq!(access.initiators, [0]);
    assert_eq!(t.node(1).unwrap().access, None);
    assert!(!t.unknown.iter().any(|reason| reason.contains("HMAT")));

    assert_eq!(t.cpu.source, "cpuinfo");
    assert!(t.cpu.enqcmd && t.cpu.movdir64b && t.cpu.cldemote && !t.cpu.clzero);
    assert_eq!(t.memory.memlock, Memlock::Bytes(65536));
    assert_eq!(t.memory.thp.as_deref(), Some("madvise"));
    assert_eq!(t.memory.thp_defrag.as_deref(), Some("defer+madvise"));
    let small = HugePages { page_bytes: 2 << 20, total: 512, free: 500, reserved: 3 };
    assert_eq!(t.memory.hugepages[0], small);
}

#[test]
fn limits_of_version_2_bind_from_above() {
    let tree = Recorded::new(include_str!("trees/two_nodes_cxl.tree"));
    let memory = tree.topology().memory;
    assert_eq!(memory.limit_bytes, Some(8 * GIB));
    assert_eq!(memory.limits.len(), 2);
    // The pod has 8 - (6 - 4) = 6 GiB left, but the group above it has only one.
    assert_eq!(memory.limits[0].headroom_bytes(), 6 * GIB);
    assert_eq!(memory.usable_bytes(), Some(GIB));
}

#[test]
fn limits_of_version_1_include_hidden_ancestors() {
    let tree = Recorded::new(include_str!("trees/hybrid_v1.tree"));
    let memory = tree.topology().memory;
    let limits: Vec<(u64, u64)> = memory.limits.iter().map(|l| (l.limit_bytes, l.headroom_bytes())).collect();
    assert_eq!(limits, [(2 * GIB, 2 * GIB - 1_000_000), (4 * GIB, 3 * GIB)]);
    assert_eq!(memory.limit_bytes, Some(2 * GIB));
    assert_eq!(memory.usable_bytes(), Some(GIB), "MemAvailable is the smaller");
    assert_eq!(memory.memlock, Memlock::Unlimited);
}

#[test]
fn hybrid_cores() {
    let t = Recorded::new(include_str!("trees/hybrid_v1.tree")).topology();
    let kinds: Vec<&str> = t.cores.iter().filter_map(|core| core.kind.as_deref()).collect();
    assert_eq!(kinds, ["performance", "performance", "performance", "performance", "efficiency", "efficiency"]);
    assert_eq!(t.core(4).unwrap().capacity, Some(640));
    assert_eq!((t.l2_size(0), t.l2_size(5), t.l3_share(0)), (Some(1280 << 10), Some(2 << 20), None));
    assert!(t.nodes.is_empty());
    assert_eq!(t.cpu, CpuFeatures { source: "none".into(), ..CpuFeatures::default() });
    assert!(t.to_string().contains("efficiency    4-5"));
}

#[test]
fn an_empty_tree_gives_reasons() {
    let t = Recorded::new("").topology();
    assert_eq!(t.usable_cores().count(), 1);
    assert_eq!((t.line_bytes(), t.memory.usable_bytes()), (64, None));
    for what in ["kernel release", "cores", "caches", "affinity", "NUMA", "memory", "container limits"] {
        assert!(t.unknown.iter().any(|reason| reason.starts_with(what)), "{what} in {:?}", t.unknown);
    }
    assert!(t.to_string().contains("not known"));
}

#[test]
fn damaged_files_are_survived() {
    let t = Recorded::new(
        "sys/devices/system/cpu/present = 0-99999999999\nsys/devices/system/node/node0/distance = 10 x\n\
         sys/devices/system/cpu/cpu0/cache/index0/type = Data\nsys/devices/system/cpu/cpu0/cache/index0/level = 1\n\
         sys/devices/system/cpu/cpu0/cache/index0/size = 99999999999999999999K\n\
         proc/self/cgroup = nonsense\\n0::/../..\nproc/self/mountinfo = 1 1 0:1 / /c rw - cgroup2 c rw\n\
         c/memory.max = 7\nc/memory.current = 9\nproc/meminfo = MemTotal: 99999999999999999999 kB",
    )
    .topology();
    assert_eq!(t.cores.len(), 1);
    assert_eq!(t.l1_size(0), None);
    assert_eq!((t.memory.limit_bytes, t.memory.usable_bytes()), (Some(7), Some(0)));
}

#[test]
fn this_machine() {
    let t = Topology::discover();
    assert!(t.usable_cores().count() >= 1);
    assert!(t.memory.usable_bytes().unwrap() > 0);
    assert_eq!(t.memory.page_bytes, Some(crate::process::page_size() as u64));
    let json = serde_json::to_string(&t).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), t);
    assert_eq!(t.fingerprint(), Topology::discover().fingerprint());
    assert_eq!(t.fingerprint().len(), 16);
}

#[test]
fn lists_and_sizes() {
    assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
    assert_eq!(parse_list("0-7:2/4"), Some(vec![0, 1, 4, 5]));
    assert_eq!(parse_list(""), Some(vec![]));
    for bad in ["x", "3-1", "1-", "0-7:1/0", "0-7:1", "0-18446744073709551615"] {
        assert_eq!(parse_list(bad), None, "{bad}");
    }
    assert_eq!((parse_size("48K"), parse_size("2M"), parse_size("7")), (Some(48 << 10), Some(2 << 20), Some(7)));
    assert_eq!((parse_size(""), parse_size("K"), parse_size("é")), (None, None, None));
    assert_eq!(meminfo_bytes("Node 0 MemFree: 2 kB\nX: 3", "MemFree"), Some(2048));
    assert_eq!(meminfo_bytes("Node 0 MemFree: 2 kB\nX: 3", "X"), Some(3));
    assert_eq!((chosen("a [b] c"), chosen("none")), ("b".into(), "none".into()));
    assert_eq!(text::list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    let sizes = [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (48 << 10, "48 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (u64::MAX, "16 EiB"),
    ];
    for (bytes, text) in sizes {
        assert_eq!(Size(bytes).to_string(), text);
    }
}

#[test]
fn a_partition_has_the_queue_of_its_disk() {
    let tree = Recorded::new(
        "sys/devices/pci/nvme0n1/nvme0n1p2/partition = 2\nsys/devices/pci/nvme0n1/nvme0n1p2/size = 2048\n\
         sys/devices/pci/nvme0n1/size = 4096\nsys/devices/pci/nvme0n1/device/model = Fast One\n\
         sys/devices/pci/nvme0n1/queue/rotational = 0\nsys/devices/pci/nvme0n1/queue/logical_block_size = 4096\n\
         sys/devices/pci/nvme0n1/queue/optimal_io_size = 0\nsys/devices/pci/nvme0n1/queue/max_segments = 127\n\
         sys/devices/pci/nvme0n1/queue/scheduler = [none] mq-deadline\nsys/dev/block/keep = 1",
    );
    std::os::unix::fs::symlink("../../devices/pci/nvme0n1/nvme0n1p2", tree.0.join("sys/dev/block/259:2")).unwrap();
    let at = Tree::at(&tree.0);
    let device = super::storage::block::device(&at, DeviceNumber { major: 259, minor: 2 }).unwrap();
    assert_eq!((device.name.as_str(), device.disk.as_str()), ("nvme0n1p2", "nvme0n1"));
    assert_eq!((device.size_bytes, device.model.as_deref()), (Some(1 << 20), Some("Fast One")));
    assert_eq!((device.rotational, device.logical_block_bytes), (Some(false), Some(4096)));
    assert_eq!((device.optimal_io_bytes, device.max_segments, device.nr_requests), (None, Some(127), None));
    assert_eq!(device.scheduler.as_deref(), Some("none"));
    let absent = super::storage::block::device(&at, DeviceNumber { major: 8, minor: 0 });
    assert!(absent.unwrap_err().contains("8:0"));
}

/// Attributes are read in one call, longer files to their end.
#[test]
fn files_of_any_length_are_read_whole() {
    let recorded = Recorded::new("");
    let root = recorded.0.to_path_buf();
    for len in [0, 1, 4095, 4096, 4097, 10_000] {
        for dir in ["sys", "proc"] {
            fs::create_dir_all(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("file"), "x".repeat(len)).unwrap();
            let text = Tree::at(&root).text(&format!("{dir}/file"));
            assert_eq!(text.map(|text| text.len()), Some(len), "{dir}");
        }
    }
}

#[test]
fn storage_behind_real_paths() {
    let directory = BlockDevice::behind(&std::env::temp_dir()).unwrap();
    assert!(directory.total_bytes >= directory.available_bytes);
    assert_eq!(BlockDevice::available_at(&std::env::temp_dir()).is_some(), directory.available_bytes.is_some());
    assert_eq!(BlockDevice::available_at(Path::new("/proc")), None, "it counts no blocks, which is not full");
    assert_eq!(BlockDevice::available_at(Path::new("/no/such")), None);
    assert!(directory.offset_align_bytes().is_power_of_two() && directory.memory_align_bytes().is_power_of_two());
    assert!(directory.to_string().contains("direct I/O"));
    let missing = BlockDevice::behind(Path::new("/no/such/file")).unwrap_err();
    assert_eq!(missing.kind(), crate::ErrorKind::NotFound);
    let proc = BlockDevice::behind(Path::new("/proc/self/status")).unwrap();
    assert_eq!((proc.fs_type.as_deref(), proc.device), (Some("proc"), None));
    assert!(proc.device_absent.is_some());
    if Path::new("/dev/shm").is_dir() {
        let shm = BlockDevice::behind(Path::new("/dev/shm")).unwrap();
        if shm.fs_type.as_deref() == Some("tmpfs") {
            assert_eq!(shm.device_absent.as_deref(), Some("tmpfs lives in memory"));
            assert_eq!(shm.offset_align_bytes(), 4096);
        }
    }
}
