//! The guests: their hardware, what is set up in them, and what runs there.

use super::archive::Archive;
use super::modules;
use super::parts::Parts;
use crate::TaskResult;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guest {
    /// Two NVDIMMs.
    Pmem,
    /// A node of memory alone, with the firmware's figures of its latency and bandwidth (HMAT).
    Numa,
    /// An NVMe disk with four namespaces, two of them with blocks of 4 KiB.
    Nvme,
    /// Memory behind CXL (a device of type 3), which becomes a node of memory alone.
    Cxl,
    /// The NVMe disk behind a virtio-IOMMU: what it reads and writes is translated.
    Iommu,
    /// A device of RDMA in software (soft-RoCE) over an interface that leads nowhere.
    Rdma,
}

/// A test program, with what it is given.
pub(crate) struct Run {
    pub(crate) name: String,
    program: PathBuf,
    arguments: &'static str,
    environment: &'static str,
}

/// Where a guest may write: memory, mounted over a folder that every system has.
const SCRATCH: &str = "/mnt";
const DISK_BYTES: u64 = 256 << 20;
/// What remote memory by RDMA takes of this system or the extracted packages.
const RDMA_FILES: [(&str, &str); 4] = [
    ("libucp.so.0", "libucx0"),
    ("libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
];
const NAMESPACES: u32 = 4;
const NAMESPACE_BYTES: u64 = 1 << 20;

/// The test programs that guests run, by package and target.
const TESTS: [&str; 10] = [
    "datapipes-dax/real",
    "datapipes-dax/bad_block",
    "datapipes-dax/sigbus",
    "datapipes-dax/transfers",
    "datapipes/conformance",
    "datapipes-file/nvme",
    "datapipes-net/rdma",
    "datapipes-fabric/rdma_links",
    "datapipes-counters/counters",
    "datapipes-knobs/all",
];

/// The test programs, but those of libraries.
pub(crate) fn tests() -> impl Iterator<Item = &'static str> {
    TESTS.into_iter()
}

/// The targets of these test programs.
pub(crate) fn test_targets() -> impl Iterator<Item = &'static str> {
    tests().filter_map(|test| test.split_once('/')).map(|(_, target)| target)
}

/// What the console says when a program of the guest has ended: its name and its exit status.
pub(crate) fn ended(line: &str) -> Option<(&str, i32)> {
    let (name, code) = line.strip_prefix("guest: ended: ")?.split_once(' ')?;
    Some((name, code.parse().ok()?))
}

impl Guest {
    pub(crate) const ALL: [Guest; 6] = [Guest::Pmem, Guest::Numa, Guest::Nvme, Guest::Cxl, Guest::Iommu, Guest::Rdma];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Guest::Pmem => "pmem",
            Guest::Numa => "numa",
            Guest::Nvme => "nvme",
            Guest::Cxl => "cxl",
            Guest::Iommu => "iommu",
            Guest::Rdma => "rdma",
        }
    }

    /// What is missing for this guest alone.
    pub(crate) fn lacks(self, parts: &Parts) -> Option<String> {
        match self {
            Guest::Pmem | Guest::Numa | Guest::Nvme => return None,
            // Not every distribution builds its driver.
            Guest::Iommu => {
                return modules::with_dependencies(&parts.modules, &["virtio_iommu"]).err().map(|why| why.to_string());
            }
            Guest::Rdma => {
                let missing = RDMA_FILES.iter().find(|(file, _)| !parts.have(file));
                let missing = missing.map(|(file, package)| format!("{file} is absent (Debian: {package})"));
                let driver = modules::with_dependencies(&parts.modules, &["rdma_rxe"]).err();
                return missing.or_else(|| driver.map(|why| why.to_string()));
            }
            Guest::Cxl => {}
        }
        // Memory that is lost at a restart came with QEMU 8.1, and its driver with Linux 6.3.
        let help = parts.emulator().args(["-device", "cxl-type3,help"]).output().ok()?;
        if !String::from_utf8_lossy(&help.stdout).contains("volatile-memdev") {
            return Some("this QEMU has no volatile memory behind CXL (8.1 has)".into());
        }
        modules::with_dependencies(&parts.modules, &["dax_cxl"]).err().map(|why| format!("{why} (Linux 6.3 has)"))
    }

    /// The programs of this guest; an error where one was not built.
    pub(crate) fn runs(self, programs: &BTreeMap<String, PathBuf>) -> TaskResult<Vec<Run>> {
        const PMEM: &str = "DATAPIPES_DAX_DIR=/mnt/pmem DATAPIPES_DAX_DEVICE=/dev/dax1.0 DATAPIPES_POISON_DIR=/mnt";
        // Software emulation is slow. What is left has a pair for every primitive.
        const PMEM_KINDS: &str = "DATAPIPES_DAX_DIR=/mnt/pmem DATAPIPES_CONFORMANCE_WITHOUT=dram-huge,dram-pool,cache-l2,\
            cache-l3,disk-direct,disk-cached,tmpfs-auto,tmpfs-direct,tmpfs-cached,pmem-modelled,block-direct,block-cached";
        const NUMA_KINDS: &str = "DATAPIPES_CONFORMANCE_WITHOUT=dram-huge,dram-pool,cache-l2,cache-l3,disk-direct,\
            disk-cached,tmpfs-auto,tmpfs-direct,tmpfs-cached,pmem-emulated,block-direct,block-cached";
        // QEMU carries out each access to memory behind CXL by itself, some 20 MB/s; its disks
        // cannot write there ("bogus descriptor"), so files are those of a tmpfs.
        const CXL_KINDS: &str = "DATAPIPES_CONFORMANCE_WITHOUT=dram-huge,dram-pool,cache-l2,cache-l3,disk-auto,\
            disk-direct,disk-cached,pmem-emulated,block-direct,block-cached";
        const NVME_KINDS: &str = "DATAPIPES_BLOCK_DEVICES=/dev/nvme0n1:/dev/nvme0n2:/dev/nvme0n3:/dev/nvme0n4 \
            DATAPIPES_CONFORMANCE_WITHOUT=dram-huge,dram-pool,cache-l2,cache-l3,disk-direct,disk-cached,tmpfs-auto,\
            tmpfs-direct,tmpfs-cached,pmem-emulated";
        const NVME: &str = "DATAPIPES_NVME=/dev/nvme0n1:/dev/nvme0n2";
        // UCX before 1.19 takes datagrams of soft-RoCE, by which queues are connected, for those of
        // another; and soft-RoCE tells more than once that a queue is empty, at which UCX aborts.
        const RDMA: &str = "DATAPIPES_RDMA_DEVICE=rxe0:1 UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_IB_ASYNC_EVENTS=n";
        const HMAT: &str = "DATAPIPES_HMAT=10:20000,70:4000";
        let list: &[(&str, &str, &str)] = match self {
            Guest::Pmem => &[
                ("datapipes-core", "locator::pmem", ""),
                ("datapipes-dax/real", "", PMEM),
                ("datapipes-dax/bad_block", "", PMEM),
                ("datapipes-dax/sigbus", "", ""),
                ("datapipes-dax/transfers", "", ""),
                ("datapipes/conformance", "", PMEM_KINDS),
            ],
            // No guest has engines, resctrl or counters of a processor: what is absent is told so.
            Guest::Numa => &[
                ("datapipes-core", "numa", HMAT),
                ("datapipes/conformance", "", NUMA_KINDS),
                ("datapipes-counters/counters", "every_counter_has_a_value_or_a_reason", ""),
                ("datapipes-knobs/all", "strange_trees_are_no_reason_to_fail", ""),
            ],
            Guest::Nvme => &[
                ("datapipes-file", "a_command_that_the_device_refuses", NVME),
                ("datapipes-file/nvme", "", NVME),
                ("datapipes/conformance", "", NVME_KINDS),
            ],
            Guest::Cxl => &[("datapipes-core", "numa", ""), ("datapipes/conformance", "", CXL_KINDS)],
            Guest::Iommu => {
                &[("datapipes-file", "a_command_that_the_device_refuses", NVME), ("datapipes-file/nvme", "", NVME)]
            }
            Guest::Rdma => &[("datapipes-net/rdma", "", RDMA), ("datapipes-fabric/rdma_links", "", RDMA)],
        };
        let run = |(name, arguments, environment): &(&str, &'static str, &'static str)| -> TaskResult<Run> {
            let program = programs.get(*name).ok_or_else(|| format!("the test program {name} was not built"))?;
            let name = name.replace('/', "-");
            Ok(Run { name, program: program.clone(), arguments, environment })
        };
        list.iter().map(run).collect()
    }

    fn hardware(self, work: &Path) -> Vec<String> {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        match self {
            Guest::Pmem => {
                let mut all = words("-machine q35,nvdimm=on,nvdimm-persistence=cpu -m 1536M,slots=4,maxmem=8G -smp 2");
                for (number, mib) in [(0, 256), (1, 128)] {
                    let file = work.join(format!("nvdimm{number}.img"));
                    // What a run before left there is no part of this one.
                    let _ = std::fs::remove_file(&file);
                    all.push("-object".into());
                    let file = file.display();
                    all.push(format!(
                        "memory-backend-file,id=pm{number},share=on,mem-path={file},size={mib}M,align=2M"
                    ));
                    all.extend(["-device".into(), format!("nvdimm,memdev=pm{number}")]);
                }
                all
            }
            Guest::Numa => words(
                "-machine q35,hmat=on -m 1536M -smp 2 \
                 -object memory-backend-ram,id=near,size=1024M -object memory-backend-ram,id=far,size=512M \
                 -numa node,nodeid=0,cpus=0-1,memdev=near -numa node,nodeid=1,initiator=0,memdev=far \
                 -numa dist,src=0,dst=1,val=30 \
                 -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=10 \
                 -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=20000M \
                 -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=70 \
                 -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=4000M",
            ),
            Guest::Cxl => words(
                "-machine q35,cxl=on -m 1536M,slots=4,maxmem=4G -smp 2 \
                 -object memory-backend-ram,id=behind,size=256M -device pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1 \
                 -device cxl-rp,port=0,bus=cxl.1,id=root,chassis=0,slot=2 \
                 -device cxl-type3,bus=root,volatile-memdev=behind,id=memory \
                 -M cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=1G",
            ),
            Guest::Rdma => words("-machine q35 -m 1536M -smp 2"),
            Guest::Nvme | Guest::Iommu => {
                let iommu = if self == Guest::Iommu { "-device virtio-iommu-pci " } else { "" };
                let disk = "-device nvme,id=disk,serial=datapipes";
                let mut all = words(&format!("-machine q35 -m 1536M -smp 2 {iommu}{disk}"));
                for number in 1..=NAMESPACES {
                    let file = work.join(format!("nvme{number}.img"));
                    let made = File::create(&file).and_then(|file| file.set_len(NAMESPACE_BYTES));
                    if let Err(why) = made {
                        println!("  {}: {why}", file.display());
                    }
                    all.extend(["-drive".into(), format!("if=none,id=n{number},format=raw,file={}", file.display())]);
                    let block = if number % 2 == 0 { 4096 } else { 512 };
                    let namespace = format!(
                        "nvme-ns,drive=n{number},bus=disk,nsid={number},logical_block_size={block},physical_block_size={block}"
                    );
                    all.extend(["-device".into(), namespace]);
                }
                all
            }
        }
    }

    fn modules(self) -> Vec<&'static str> {
        // The file system asks for its checksum by an alias, which nobody in the guest could
        // resolve.
        let mut all = vec!["9pnet_virtio", "9p", "virtio_pci", "virtio_blk", "crc32c_generic?", "ext4"];
        match self {
            Guest::Pmem => all.extend(["nfit", "nd_pmem", "dax_pmem", "device_dax"]),
            Guest::Nvme => all.push("nvme"),
            // The IOMMU comes first: a driver that has its device is not moved behind one.
            Guest::Iommu => all = ["virtio_pci", "virtio_iommu"].into_iter().chain(all).chain(["nvme"]).collect(),
            Guest::Cxl => all.extend(["cxl_acpi", "cxl_pci", "cxl_mem", "dax_cxl", "device_dax", "kmem"]),
            Guest::Rdma => all.extend(["overlay", "dummy", "ib_uverbs", "crc32_generic?", "rdma_rxe"]),
            Guest::Numa => {}
        }
        all
    }

    /// Shell that makes the hardware usable, with what this system has.
    fn set_up(self, parts: &Parts) -> String {
        match self {
            Guest::Numa => "cat /sys/devices/system/node/online".to_owned(),
            // What was extracted is laid over this system, so that it is where it would be if it
            // were installed: a holder of remote memory reads nothing elsewhere.
            Guest::Rdma => format!(
                r"{}
ip link set lo up
ip link add roce type dummy
ip address add 10.9.0.1/24 dev roce
ip link set roce up
rdma link add rxe0 type rxe netdev roce
rdma link",
                parts.overlays()
            ),
            // A region over the whole device, as `cxl create-region` makes it; its memory is taken
            // by the kernel as a node.
            Guest::Cxl => r#"
cxl=/sys/bus/cxl/devices
for i in 1 2 3 4 5 6 7 8 9 10; do [ -e $cxl/mem0 ] && [ -e $cxl/decoder2.0 ] && break; sleep 1; done
ls $cxl
echo online_movable > /sys/devices/system/memory/auto_online_blocks
region=$(cat $cxl/decoder0.0/create_ram_region)
echo $region > $cxl/decoder0.0/create_ram_region
echo 256 > $cxl/$region/interleave_granularity
echo 1 > $cxl/$region/interleave_ways
echo ram > $cxl/decoder2.0/mode
echo 0x10000000 > $cxl/decoder2.0/dpa_size
echo 0x10000000 > $cxl/$region/size
echo decoder2.0 > $cxl/$region/target0
echo 1 > $cxl/$region/commit
echo $region > /sys/bus/cxl/drivers/cxl_region/bind
sleep 1
ls /sys/bus/dax/devices
echo "guest: nodes: $(cat /sys/devices/system/node/has_memory), with processors: $(cat /sys/devices/system/node/has_cpu)"
grep -h MemTotal /sys/devices/system/node/node*/meminfo"#
                .to_owned(),
            Guest::Iommu => format!(
                "{}\nls /sys/class/iommu\necho \"guest: the disk is in group $(basename $(readlink /sys/class/nvme/nvme0/device/iommu_group))\"",
                Guest::Nvme.set_up(parts)
            ),
            // The driver looks for namespaces after it was loaded.
            Guest::Nvme => format!(
                "for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/nvme0n{NAMESPACES} ] && break; sleep 1; done\nls -l /dev/nvme0n{NAMESPACES}"
            ),
            Guest::Pmem => format!(
                r#"
nd=/sys/bus/nd
# A namespace in the raw mode that it comes in is taken from its driver and given to one that has a mode: what ndctl does.
claim() {{ # REGION SEED DRIVER
    seed=$(cat $nd/devices/region$1/$2_seed)
    echo namespace$1.0 > $nd/drivers/nd_pmem/unbind
    cat /proc/sys/kernel/random/uuid > $nd/devices/$seed/uuid
    echo ram > $nd/devices/$seed/mode
    echo 2097152 > $nd/devices/$seed/align
    echo namespace$1.0 > $nd/devices/$seed/namespace
    echo $seed > $nd/drivers/$3/bind
}}
claim 0 pfn nd_pmem
claim 1 dax dax_pmem
ls -l /dev/pmem0 /dev/dax1.0
{} -q -b 4096 /dev/pmem0
mkdir -p {SCRATCH}/pmem
mount -t ext4 -o dax=always /dev/pmem0 {SCRATCH}/pmem
grep pmem0 /proc/mounts"#,
                parts.mkfs.display()
            ),
        }
    }

    /// QEMU with this guest in it, and an empty disk, for tests that need one with direct I/O.
    pub(crate) fn command(self, parts: &Parts, work: &Path, initial: &Path) -> TaskResult<Command> {
        let disk = work.join("disk.img");
        File::create(&disk)?.set_len(DISK_BYTES)?;
        let mut qemu = parts.emulator();
        // Emulation outright: that /dev/kvm exists does not mean that a guest starts on it.
        // Linux leaves CXL alone where a processor says that it is a virtual one.
        let processor = if self == Guest::Cxl { "max,hypervisor=off" } else { "max" };
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", processor]).args(self.hardware(work));
        qemu.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-net", "none"]);
        // On the root bus by name: with CXL, QEMU would choose a bus that takes bridges alone.
        qemu.args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
        qemu.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=hostroot,bus=pcie.0"]);
        qemu.arg("-drive").arg(format!("if=none,id=scratch,format=raw,cache=unsafe,file={}", disk.display()));
        qemu.args(["-device", "virtio-blk-pci,drive=scratch,bus=pcie.0"]);
        qemu.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(initial);
        // A kernel that does not know that it is a guest tests its timer, and a busy host fails it.
        let timer = if self == Guest::Cxl { " no_timer_check" } else { "" };
        qemu.args(["-append", &format!("console=ttyS0 oops=panic panic=-1 quiet loglevel=2{timer}")]);
        Ok(qemu)
    }
}

/// The first file system of a guest: busybox, modules, and two scripts.
pub(crate) fn initial(parts: &Parts, guest: Guest, runs: &[Run]) -> TaskResult<Vec<u8>> {
    let modules = modules::with_dependencies(&parts.modules, &guest.modules())?;
    let mut archive = Archive::default();
    for folder in ["bin", "modules", "proc", "sys", "dev", "root"] {
        archive.folder(folder);
    }
    archive.file("bin/busybox", 0o755, &std::fs::read(&parts.busybox)?);
    let mut load = String::new();
    for module in &modules {
        archive.file(&format!("modules/{}.ko", module.name), 0o644, &module.bytes);
        load += &format!("insmod /modules/{0}.ko || echo 'guest: module {0} is refused'\n", module.name);
    }
    archive.file("init", 0o755, init(&load).as_bytes());
    archive.file("run.sh", 0o755, script(parts, guest, runs).as_bytes());
    Ok(archive.finish())
}

/// Mounts the root of the system that we run on, read-only, goes there and runs the script.
fn init(load: &str) -> String {
    format!(
        r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
{load}
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 hostroot /root || echo "guest: no 9p"
mount -t proc proc /root/proc
mount -t sysfs sysfs /root/sys
mount -t devtmpfs devtmpfs /root/dev
mkdir -p /root/dev/shm && mount -t tmpfs tmpfs /root/dev/shm
mount -t tmpfs tmpfs /root{SCRATCH}
cp /run.sh /root{SCRATCH}/run.sh
chroot /root /bin/sh {SCRATCH}/run.sh
echo "guest: off"
poweroff -f
"#
    )
}

/// Sets the hardware up and runs the programs, saying how each ended.
fn script(parts: &Parts, guest: Guest, runs: &[Run]) -> String {
    let mut text = format!(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME={SCRATCH} TMPDIR={SCRATCH} RUST_BACKTRACE=0\n\
         export DATAPIPES_CALIBRATION={SCRATCH}/calibration.json\nset -e\nuname -r\n{}\nset +e\n",
        guest.set_up(parts)
    );
    // The folder of the build in which tests make files is read-only here.
    if let Some(target) = runs.first().and_then(|run| run.program.ancestors().nth(3)) {
        text += &format!(
            "{} -q /dev/vda && mount -t ext4 /dev/vda '{}'\n",
            parts.mkfs.display(),
            target.join("tmp").display()
        );
    }
    for Run { name, program, arguments, environment } in runs {
        let program = program.display();
        // A copy, for tests make files beside themselves.
        text += &format!(
            "cp '{program}' {SCRATCH}/{name} && cd {SCRATCH} && {environment} {SCRATCH}/{name} {arguments} --show-output\n\
             echo \"guest: ended: {name} $?\"\nrm -f {SCRATCH}/{name}\n"
        );
    }
    text
}
