//! Trees that stand for machines.
#![allow(clippy::unwrap_used, dead_code)]

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use datapipes_knobs::{MachineKnob, MachineTree, list};
use datapipes_testkit::TempFolder;

/// A Xeon Scalable of the first generation with two packages of one core, resctrl, a root port, a
/// disk, huge pages and a DSA.
pub(crate) struct Made {
    folder: TempFolder,
}

pub(crate) const JOURNAL: &str = "run/datapipes/knobs.json";

pub(crate) const XEON: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nphysical id\t: ";

impl Made {
    pub(crate) fn xeon() -> Made {
        let made = Made { folder: TempFolder::new().unwrap() };
        let cpu = |n: u32| format!("processor\t: {n}\n{XEON}{n}\nflags\t\t: cat_l3 mba\n\n");
        made.put("proc/cpuinfo", &(cpu(0) + &cpu(1)));
        made.put("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:   8000000 kB\n");
        made.put("sys/devices/system/cpu/cpu0/cache/index3/level", "3");
        made.put("sys/devices/system/cpu/cpu0/cache/index3/ways_of_associativity", "11");
        for core in 0..2 {
            let name = format!("dev/cpu/{core}/msr");
            made.put(&name, "");
            made.set_register(&name, 0xc8b, 0x600);
            made.set_register(&name, 0x1a4, 0);
            made.set_register(&name, 0x1fa, 0x1);
        }
        made.put("sys/fs/resctrl/schemata", "    L3:0=7ff;1=7ff\n    MB:0=100;1=100\n");
        made.put("sys/fs/resctrl/info/L3/cbm_mask", "7ff");
        made.put("sys/fs/resctrl/info/MB/min_bandwidth", "10");
        let port = "sys/bus/pci/devices/0000:17:00.0";
        made.put(&format!("{port}/vendor"), "0x8086");
        made.put(&format!("{port}/device"), "0x2030");
        made.put(&format!("{port}/config"), "");
        made.set_register(&format!("{port}/config"), 0x180, 0x80);
        made.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
        made.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3");
        made.put("sys/block/nvme0n1/size", "1000");
        made.put("sys/block/nvme0n1/queue/scheduler", "[none] mq-deadline kyber");
        made.put("sys/block/nvme0n1/queue/read_ahead_kb", "128");
        made.put("sys/block/nvme0n1/queue/max_hw_sectors_kb", "512");
        made.put("sys/block/nvme0n1/queue/max_sectors_kb", "256");
        made.put("sys/block/nvme0n1/queue/nr_requests", "256");
        made.put("sys/block/nvme0n1/queue/write_cache", "write back");
        made.put("sys/block/loop0/size", "0");
        made.put("sys/bus/dsa/devices/wq0.0/state", "disabled");
        made.put("sys/bus/dsa/devices/wq0.0/mode", "dedicated");
        made.put("sys/bus/dsa/devices/wq0.1/state", "enabled");
        made.put("sys/bus/dsa/devices/wq0.1/priority", "5");
        made
    }

    pub(crate) fn tree(&self) -> MachineTree {
        MachineTree::under(self.root())
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.at()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Puts a journal there, in a folder that only its owner may write.
    pub(crate) fn put_journal(&self, text: &str) {
        self.put(JOURNAL, text);
        let folder = self.path("run/datapipes");
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn has_journal(&self) -> bool {
        self.path(JOURNAL).exists()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap().trim().to_owned()
    }

    pub(crate) fn set_register(&self, name: &str, at: u64, value: u64) {
        let file = File::options().write(true).open(self.path(name)).unwrap();
        file.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    pub(crate) fn register(&self, name: &str, at: u64) -> u64 {
        let mut bytes = [0; 8];
        File::open(self.path(name)).unwrap().read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    pub(crate) fn knob(&self, name: &str) -> MachineKnob {
        list(&self.tree()).into_iter().find(|knob| knob.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
    }

    /// Every file and its bytes, but those of `run`.
    pub(crate) fn snapshot(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut all = Vec::new();
        collect(self.root(), &mut all);
        // The journal's folder, and registers, whose file has gaps.
        all.retain(|(path, _)| !path.starts_with(self.path("run")));
        all.sort();
        all
    }
}

fn collect(folder: &Path, into: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            into.push((entry.clone(), Vec::new()));
            collect(&entry, into);
        } else {
            // What ends a text does not count.
            let bytes = std::fs::read(&entry).unwrap();
            let bytes =
                if entry.ends_with("msr") || entry.ends_with("config") { bytes } else { bytes.trim_ascii().to_vec() };
            into.push((entry, bytes));
        }
    }
}
