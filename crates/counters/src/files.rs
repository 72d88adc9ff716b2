//! What the kernel counts in files: shares of cache and memory bandwidth (resctrl), NUMA, disks.

use std::path::Path;

use crate::tree;

/// The sum over the files of one name, of all caches, nodes or disks; or why there is none.
pub(crate) type Sum = Result<u64, String>;

const RESCTRL: &str = "sys/fs/resctrl";

/// Sums a monitor of the group to which threads belong by default, over all last-level caches.
pub(crate) fn resctrl(root: &Path, monitor: &str) -> Sum {
    let folder = root.join(RESCTRL).join("mon_data");
    let caches = tree::names(&folder);
    if caches.is_empty() {
        return Err(match root.join(RESCTRL).exists() {
            true => "resctrl is not mounted (`mount -t resctrl resctrl /sys/fs/resctrl`), or has no monitors".into(),
            false => "the kernel or the processor has no resctrl".into(),
        });
    }
    let values = caches.iter().filter(|name| name.starts_with("mon_L3_"));
    // The kernel writes `Unavailable` where a monitor gave no value.
    let values: Option<Vec<u64>> = values.map(|cache| tree::number(&folder.join(cache).join(monitor))).collect();
    match values.filter(|values| !values.is_empty()) {
        Some(values) => Ok(values.into_iter().fold(0, u64::wrapping_add)),
        None => Err(format!("/{RESCTRL}/mon_data has no value of {monitor} for every cache")),
    }
}

const NODES: &str = "sys/devices/system/node";

/// Sums a line of `numastat` over all nodes, in pages.
pub(crate) fn numa(root: &Path, key: &str) -> Sum {
    let folder = root.join(NODES);
    let nodes = tree::names(&folder).into_iter().filter(|name| is_numbered(name, "node"));
    let values: Option<Vec<u64>> = nodes
        .map(|node| {
            let text = tree::text(&folder.join(node).join("numastat"))?;
            text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        })
        .collect();
    match values.filter(|values| !values.is_empty()) {
        Some(values) => Ok(values.into_iter().fold(0, u64::wrapping_add)),
        None => Err(format!("/{NODES} has no node with `{key}` in its numastat")),
    }
}

/// The unit of /sys/block/DEVICE/stat, whatever the device's blocks are.
const SECTOR: u64 = 512;

/// Sums a column of the disks' statistics, in bytes. Devices that pass requests on to others (LVM,
/// RAID, and loop devices, whose file is on another one) are left out, for the others count them.
pub(crate) fn disks(root: &Path, column: usize) -> Sum {
    let folder = root.join("sys/block");
    let is_counted_below = |name: &String| {
        folder.join(name).join("loop").exists() || !tree::names(&folder.join(name).join("slaves")).is_empty()
    };
    let devices = tree::names(&folder).into_iter().filter(|name| !is_counted_below(name));
    let values: Result<Vec<u64>, String> = devices
        .map(|name| {
            let text = tree::text(&folder.join(&name).join("stat"));
            let value = text.and_then(|text| text.split_whitespace().nth(column)?.parse::<u64>().ok());
            value.ok_or_else(|| format!("/sys/block/{name}/stat cannot be read"))
        })
        .collect();
    match values? {
        none if none.is_empty() => Err("no block device in /sys/block has statistics".into()),
        values => Ok(values.into_iter().fold(0, u64::wrapping_add).wrapping_mul(SECTOR)),
    }
}

fn is_numbered(name: &str, begin: &str) -> bool {
    name.strip_prefix(begin).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}
