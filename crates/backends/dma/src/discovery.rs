//! The work queues that the kernel's driver `idxd` shows in sysfs, and what keeps each from use.
//!
//! The attributes are those of Linux's `Documentation/ABI/stable/sysfs-driver-dma-idxd`. Nothing is
//! opened here: opening a dedicated queue would keep it from others.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// How descriptors reach a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMode {
    /// One process submits (MOVDIR64B) and itself takes care that the queue never overflows.
    Dedicated,
    /// Several processes submit (ENQCMD), and a full queue says so.
    Shared,
}

impl QueueMode {
    /// Its name in sysfs.
    pub fn name(self) -> &'static str {
        match self {
            QueueMode::Dedicated => "dedicated",
            QueueMode::Shared => "shared",
        }
    }
}

/// What sysfs says of a work queue that a process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueueFacts {
    /// Its name, such as `wq0.1`.
    pub name: String,
    /// The device's name, such as `dsa0`.
    pub device: String,
    /// Its character device, such as `/dev/dsa/wq0.1`.
    pub path: PathBuf,
    /// The folders of the device and the queue in sysfs, where their state is read.
    pub sysfs: [PathBuf; 2],
    /// How descriptors reach it.
    pub mode: QueueMode,
    /// Descriptors that it holds.
    pub size: u32,
    /// Its priority among the queues of its group, 1 to 15; higher goes first.
    pub priority: u32,
    /// The group of queues and engines that it belongs to.
    pub group: Option<u32>,
    /// The most bytes of one descriptor.
    pub max_transfer_bytes: u64,
    /// The most descriptors of a batch; 0 where it takes none.
    pub max_batch: u32,
    /// Whether an engine may wait for a missing page.
    pub block_on_fault: bool,
    /// The NUMA node of the device.
    pub node: Option<u32>,
}

impl WorkQueueFacts {
    /// What a person wants to know of it, in one line.
    pub fn summary(&self) -> String {
        // The queues of DPDK's devices have neither priority nor group.
        let rank = match (self.priority, self.group) {
            (0, None) => String::new(),
            (priority, None) => format!("priority {priority}, no group, "),
            (priority, Some(group)) => format!("priority {priority}, group {group}, "),
        };
        let batch = if self.max_batch > 0 { format!(", {} a batch", self.max_batch) } else { String::new() };
        format!(
            "{} of {}: {}, {} entries, {rank}up to {} bytes a descriptor{batch}{}",
            self.name,
            self.device,
            self.mode.name(),
            self.size,
            self.max_transfer_bytes,
            if self.block_on_fault { ", waits for missing pages" } else { "" },
        )
    }

    /// What sysfs says of what the device can do, by attribute; those that this kernel or device
    /// does not show are left out.
    pub fn capabilities(&self) -> Vec<(&'static str, String)> {
        let [device, _] = &self.sysfs;
        let one =
            |name: &'static str| text(&device.join(name)).filter(|text| !text.is_empty()).map(|text| (name, text));
        CAPABILITIES.into_iter().filter_map(one).collect()
    }

    /// Whether device and queue are still enabled.
    ///
    /// # Errors
    /// What is not, as a sentence.
    pub fn check_enabled(&self) -> Result<(), String> {
        for (folder, name) in self.sysfs.iter().zip([&self.device, &self.name]) {
            match text(&folder.join("state")).as_deref() {
                Some("enabled") => {}
                Some(state) => return Err(format!("{name} is {state}")),
                None => return Err(format!("{name} is gone")),
            }
        }
        Ok(())
    }
}

/// Devices of the driver `idxd` that have one kind of descriptors.
struct DeviceKind {
    /// What the names of devices begin with; also the folder of the queues in /dev.
    prefix: &'static str,
    what: &'static str,
}

const COPIES: DeviceKind = DeviceKind { prefix: "dsa", what: "DSA device" };
const ANALYTICS: DeviceKind = DeviceKind { prefix: "iax", what: "analytics accelerator (IAA)" };
/// What sysfs says of what a device can do.
const CAPABILITIES: [&str; 4] = ["version", "gen_cap", "op_cap", "iaa_cap"];

/// The work queues of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueDiscovery {
    /// The queues that this process may use.
    pub usable: Vec<WorkQueueFacts>,
    /// What is not there or cannot be used, each with its reason.
    pub absent: Vec<String>,
}

impl QueueDiscovery {
    /// Looks for the queues of DSA below `root`, which is `/` for this machine.
    pub fn under(root: &Path) -> QueueDiscovery {
        QueueDiscovery::of(root, &COPIES)
    }

    /// Looks for the queues of analytics accelerators (IAA) below `root`.
    pub fn analytics_under(root: &Path) -> QueueDiscovery {
        QueueDiscovery::of(root, &ANALYTICS)
    }

    fn of(root: &Path, kind: &DeviceKind) -> QueueDiscovery {
        let mut found = QueueDiscovery::default();
        let bus = root.join("sys/bus/dsa");
        if !bus.exists() {
            found.absent.push("no driver: /sys/bus/dsa does not exist (kernel module idxd)".into());
            return found;
        }
        let folder = bus.join("devices");
        let mut names: Vec<String> = fs::read_dir(&folder)
            .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
            .unwrap_or_default();
        names.sort();
        let devices: Vec<&String> = names.iter().filter(|name| number_of(name, kind.prefix).is_some()).collect();
        if devices.is_empty() {
            found.absent.push(format!("the driver idxd has no {}", kind.what));
        }
        for device in devices {
            match usable_device(&folder.join(device)) {
                Err(why) => found.absent.push(format!("{device}: {why}")),
                Ok(()) => queues_of(root, kind, device, &names, &mut found),
            }
        }
        found
    }

    /// Why there is no queue to use.
    pub fn reason(&self) -> String {
        self.absent.join("; ")
    }
}

fn queues_of(root: &Path, kind: &DeviceKind, device: &str, names: &[String], found: &mut QueueDiscovery) {
    let prefix = format!("wq{}.", device.trim_start_matches(kind.prefix));
    let mut any = false;
    for name in names.iter().filter(|name| number_of(name, &prefix).is_some()) {
        any = true;
        match queue(root, kind, device, name) {
            Ok(facts) => found.usable.push(facts),
            Err(why) => found.absent.push(format!("{name}: {why}")),
        }
    }
    if !any {
        found.absent.push(format!("{device}: it has no work queue"));
    }
}

/// The number after a prefix, if nothing else follows it.
fn number_of(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

fn usable_device(folder: &Path) -> Result<(), String> {
    match text(&folder.join("state")).as_deref() {
        Some("enabled") => {}
        Some(state) => return Err(format!("it is {state}")),
        None => return Err("its state cannot be read".into()),
    }
    // Without it, the engine knows no addresses of processes, and the kernel enables no queue of
    // type `user`.
    match text(&folder.join("pasid_enabled")).as_deref() {
        Some("1") => Ok(()),
        Some(_) => Err("no shared virtual memory: pasid_enabled is 0 (boot with intel_iommu=on,sm_on)".into()),
        None => Err("no shared virtual memory: pasid_enabled cannot be read (kernel before 5.11)".into()),
    }
}

fn queue(root: &Path, kind: &DeviceKind, device: &str, name: &str) -> Result<WorkQueueFacts, String> {
    let folder = root.join("sys/bus/dsa/devices");
    let (of_device, of_queue) = (folder.join(device), folder.join(name));
    let attribute = |attribute: &str| text(&of_queue.join(attribute)).unwrap_or_default();
    match attribute("type").as_str() {
        "user" => {}
        "none" | "" => return Err("it is not configured (no type)".into()),
        other => return Err(format!("it is of type {other}, not user")),
    }
    match attribute("state").as_str() {
        "enabled" => {}
        "" => return Err("its state cannot be read".into()),
        state => return Err(format!("it is {state}")),
    }
    let mode = match attribute("mode").as_str() {
        "dedicated" => QueueMode::Dedicated,
        "shared" => QueueMode::Shared,
        other => return Err(format!("its mode is {other:?}")),
    };
    let in_queue = |attribute: &str| of_queue.join(attribute);
    let limit = |attribute: &str| number(&in_queue(attribute)).or_else(|| number(&of_device.join(attribute)));
    let max_transfer_bytes: u64 = limit("max_transfer_size").filter(|most| *most > 0).unwrap_or(0);
    let size = number(&in_queue("size")).unwrap_or(0);
    if size == 0 || max_transfer_bytes == 0 {
        return Err(format!("its size is {size}, and a descriptor moves up to {max_transfer_bytes} bytes"));
    }
    let shown = format!("dev/{}/{name}", kind.prefix);
    let path = root.join(&shown);
    rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK).map_err(|e| match e {
        rustix::io::Errno::NOENT => format!("/{shown} does not exist"),
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => format!("no permission for /{shown}"),
        other => format!("/{shown}: {other}"),
    })?;
    Ok(WorkQueueFacts {
        name: name.to_owned(),
        device: device.to_owned(),
        path,
        mode,
        size,
        priority: number(&in_queue("priority")).unwrap_or(0),
        group: number(&in_queue("group_id")),
        max_transfer_bytes,
        max_batch: limit("max_batch_size").and_then(|most: u64| u32::try_from(most).ok()).unwrap_or(0),
        block_on_fault: attribute("block_on_fault") == "1",
        node: number(&of_device.join("numa_node")),
        sysfs: [of_device, of_queue],
    })
}
