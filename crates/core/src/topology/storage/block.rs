//! A block device: its geometry and the limits of its queue, from `/sys/dev/block`.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::topology::tree::{Tree, chosen};

/// One block device. The queue belongs to the whole disk, even if `name` is a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockDevice {
    /// The kernel's name (`nvme0n1p2`, `vda`, `dm-0`).
    pub name: String,
    /// The whole disk; equal to `name` unless that is a partition.
    pub disk: String,
    /// The vendor's model name of the disk.
    pub model: Option<String>,
    /// The capacity in bytes, of the partition if it is one.
    pub size_bytes: Option<u64>,
    /// Whether it reports a spinning disk. Virtual disks often do without spinning.
    pub rotational: Option<bool>,
    /// The smallest unit that the device addresses.
    pub logical_block_bytes: Option<u32>,
    /// The smallest unit that it writes without reading first.
    pub physical_block_bytes: Option<u32>,
    /// The smallest I/O size that it prefers.
    pub minimum_io_bytes: Option<u32>,
    /// The I/O size that it prefers; `None` where it states no preference.
    pub optimal_io_bytes: Option<u32>,
    /// The largest request that the kernel sends now, in KiB.
    pub max_sectors_kb: Option<u32>,
    /// The largest request that the hardware accepts, in KiB.
    pub max_hw_sectors_kb: Option<u32>,
    /// The most scattered pieces in one request.
    pub max_segments: Option<u32>,
    /// The number of requests that the kernel queues.
    pub nr_requests: Option<u32>,
    /// The number of hardware queues.
    pub hw_queues: Option<u32>,
    /// Address alignment in memory for DMA (a mask: 511 is 512 bytes).
    pub dma_alignment: Option<u32>,
    /// The scheduler in use.
    pub scheduler: Option<String>,
    /// `write back` (a sync must flush) or `write through`.
    pub write_cache: Option<String>,
    /// Whether it is byte-addressable through DAX.
    pub dax: Option<bool>,
    /// Whether it accepts discards (TRIM).
    pub discard: Option<bool>,
    /// Whether completions can be polled for.
    pub io_poll: Option<bool>,
    /// Devices under this one (RAID, device mapper).
    pub stacked_on: Vec<String>,
    /// The file behind a loop device.
    pub backing_file: Option<String>,
}

/// A device number. A struct, so that the two numbers are never swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// The number of the driver; 0 is a file system without a device of its own.
    pub major: u32,
    /// The unit of the driver.
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Returns the device with a number, or the reason why it is not visible.
pub(in crate::topology) fn device(tree: &Tree, number: DeviceNumber) -> Result<BlockDevice, String> {
    let link = format!("sys/dev/block/{number}");
    let real = fs::canonicalize(tree.path(&link)).map_err(|error| format!("/{link}: {error}"))?;
    let name_of = |path: &std::path::Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name_of(&real).ok_or_else(|| format!("/{link} points nowhere"))?;
    let is_partition = real.join("partition").exists();
    let disk = if is_partition { real.parent().unwrap_or(&real) } else { &real };

    let here = Tree::at(&real);
    let whole = Tree::at(disk);
    let queue = |file: &str| format!("queue/{file}");
    let flag = |file: &str| whole.number::<u32>(&queue(file)).map(|value| value != 0);
    Ok(BlockDevice {
        disk: name_of(disk).unwrap_or_else(|| name.clone()),
        name,
        model: whole.text("device/model").filter(|model| !model.is_empty()),
        // `size` counts 512-byte sectors whatever the logical block is.
        size_bytes: here.number::<u64>("size").and_then(|sectors| sectors.checked_mul(512)),
        rotational: flag("rotational"),
        logical_block_bytes: whole.number(&queue("logical_block_size")),
        physical_block_bytes: whole.number(&queue("physical_block_size")),
        minimum_io_bytes: whole.number(&queue("minimum_io_size")),
        optimal_io_bytes: whole.number(&queue("optimal_io_size")).filter(|size| *size > 0),
        max_sectors_kb: whole.number(&queue("max_sectors_kb")),
        max_hw_sectors_kb: whole.number(&queue("max_hw_sectors_kb")),
        max_segments: whole.number(&queue("max_segments")),
        nr_requests: whole.number(&queue("nr_requests")),
        hw_queues: u32::try_from(whole.names("mq").len()).ok().filter(|count| *count > 0),
        dma_alignment: whole.number(&queue("dma_alignment")),
        scheduler: whole.text(&queue("scheduler")).map(|text| chosen(&text)),
        write_cache: whole.text(&queue("write_cache")),
        dax: flag("dax"),
        discard: whole.number::<u64>(&queue("discard_max_bytes")).map(|bytes| bytes > 0),
        io_poll: flag("io_poll"),
        stacked_on: whole.names("slaves"),
        backing_file: whole.text("loop/backing_file"),
    })
}
