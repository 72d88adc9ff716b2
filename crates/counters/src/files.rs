//! What the kernel counts in files: shares of cache and memory bandwidth (resctrl), NUMA, disks.

use std::path::Path;

use crate::tree;

/// The values of one name of all caches, nodes or disks, each with its name; or why there are none.
pub(crate) type Values = Result<Vec<(String, u64)>, String>;

/// Their sum.
pub(crate) fn sum(values: &[(String, u64)]) -> u64 {
    values.iter().fold(0, |sum, (_, value)| sum.wrapping_add(*value))
}

/// What was counted since `before`. What came meanwhile counts from zero.
pub(crate) fn since(before: &[(String, u64)], now: &[(String, u64)]) -> Result<u64, String> {
    if let Some((gone, _)) = before.iter().find(|(name, _)| !now.iter().any(|(other, _)| other == name)) {
        return Err(format!("{gone} is gone"));
    }
    now.iter().try_fold(0_u64, |sum, (name, value)| {
        let before = before.iter().find(|(other, _)| other == name).map_or(0, |(_, value)| *value);
        let counted = value.checked_sub(before).ok_or_else(|| format!("{name} counts less than at the beginning"))?;
        Ok(sum.wrapping_add(counted))
    })
}

const RESCTRL: &str = "sys/fs/resctrl";

/// The values of a monitor of all groups of threads, of each last-level cache. A group's monitors
/// count the groups of monitors below it, too (Linux, Documentation/filesystems/resctrl.rst).
pub(crate) fn resctrl(root: &Path, monitor: &str) -> Values {
    let all = root.join(RESCTRL);
    if tree::names(&all.join("mon_data")).is_empty() {
        return Err(match all.exists() {
            true => "resctrl is not mounted (`mount -t resctrl resctrl /sys/fs/resctrl`), or has no monitors".into(),
            false => "the kernel or the processor has no resctrl".into(),
        });
    }
    let mut values = Vec::new();
    let groups = tree::names(&all).into_iter().map(|group| format!("{group}/mon_data"));
    for group in std::iter::once("mon_data".to_owned()).chain(groups) {
        for cache in tree::names(&all.join(&group)) {
            if cache.starts_with("mon_L3_") {
                let name = format!("/{RESCTRL}/{group}/{cache}/{monitor}");
                // The kernel writes `Unavailable` where a monitor gave no value.
                let value = tree::number(&all.join(&group).join(&cache).join(monitor));
                values.push((name.clone(), value.ok_or_else(|| format!("{name} has no value"))?));
            }
        }
    }
    match values.is_empty() {
        true => Err(format!("/{RESCTRL}/mon_data has no monitors of last-level caches")),
        false => Ok(values),
    }
}

const NODES: &str = "sys/devices/system/node";

/// The values of a line of `numastat` of all nodes, in pages.
pub(crate) fn numa(root: &Path, key: &str) -> Values {
    let folder = root.join(NODES);
    let nodes = tree::names(&folder).into_iter().filter(|name| is_numbered(name, "node"));
    let values = nodes.map(|node| {
        let name = format!("/{NODES}/{node}");
        let text = tree::text(&folder.join(&node).join("numastat")).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        let value = value.ok_or_else(|| format!("{name}/numastat has no `{key}`"))?;
        Ok((name, value))
    });
    match values.collect::<Values>()? {
        none if none.is_empty() => Err(format!("/{NODES} has no node")),
        values => Ok(values),
    }
}

/// The unit of /sys/block/DEVICE/stat, whatever the device's blocks are.
const SECTOR: u64 = 512;

/// The values of a column of the disks' statistics, in bytes. Devices that pass requests on to
/// others (LVM, RAID, and loop devices, whose file is on another one) are left out, for the others
/// count them; so are the single paths to a disk that has several (`hidden`), which counts itself.
pub(crate) fn disks(root: &Path, column: usize) -> Values {
    let folder = root.join("sys/block");
    let is_counted_elsewhere = |name: &String| {
        let device = folder.join(name);
        device.join("loop").exists()
            || !tree::names(&device.join("slaves")).is_empty()
            || tree::number(&device.join("hidden")) == Some(1)
    };
    let devices = tree::names(&folder).into_iter().filter(|name| !is_counted_elsewhere(name));
    let values = devices.map(|device| {
        let name = format!("/sys/block/{device}");
        let text = tree::text(&folder.join(&device).join("stat"));
        let value = text.and_then(|text| text.split_whitespace().nth(column)?.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{name}/stat cannot be read"))?;
        Ok((name, value.wrapping_mul(SECTOR)))
    });
    match values.collect::<Values>()? {
        none if none.is_empty() => Err("no block device in /sys/block has statistics".into()),
        values => Ok(values),
    }
}

fn is_numbered(name: &str, begin: &str) -> bool {
    name.strip_prefix(begin).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}
