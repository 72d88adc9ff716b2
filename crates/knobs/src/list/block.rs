//! Queues of block devices (Linux, Documentation/block/queue-sysfs.rst).

use crate::knob::{About, AllowedValues, MachineKnob, THIS_KIND};
use crate::tree::MachineTree;

const ABOUT: About = About { affects: "pipes with an end on this device", needs: "root", verified: THIS_KIND };
/// The longest read-ahead that makes sense, in KiB: a GiB.
const MAX_READ_AHEAD: u64 = 1 << 20;
/// The most requests that a queue is asked to hold; a driver may refuse as many.
const MAX_REQUESTS: u64 = 1 << 16;
/// A second.
const MAX_LATENCY_US: u64 = 1_000_000;

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let mut all = Vec::new();
    for device in tree.names("sys/block") {
        // A loop device without a file, say.
        let is_empty = tree.text(&format!("sys/block/{device}/size")).is_ok_and(|size| size == "0");
        if !is_empty {
            all.extend(queue(tree, &device));
        }
    }
    if all.is_empty() {
        let why = match tree.names("sys/block").is_empty() {
            true => "no block device is in /sys/block".to_owned(),
            false => "no attribute of the block devices in /sys/block can be read".to_owned(),
        };
        all.push(MachineKnob::absent("block.DEVICE.scheduler", "The order of requests", ABOUT, why));
    }
    all
}

fn queue(tree: &MachineTree, device: &str) -> Vec<MachineKnob> {
    let file = |attribute: &str| format!("sys/block/{device}/queue/{attribute}");
    let knob = |attribute: &str, what: &str| {
        let name = format!("block.{device}.{attribute}");
        MachineKnob::text(tree, name, what, ABOUT, file(attribute))
    };
    let number = |attribute: &str| tree.text(&file(attribute)).ok().and_then(|text| text.parse::<u64>().ok());
    let range = |min, max| AllowedValues::Number { min, max };
    let hardware_kb = number("max_hw_sectors_kb").unwrap_or(1280);
    let mut all = vec![
        knob("scheduler", "The order in which the kernel gives requests to the device; a change resets nr_requests")
            .changing(format!("block.{device}.nr_requests"), file("nr_requests")),
        knob("read_ahead_kb", "How much is read ahead of a sequential reader through the page cache, in KiB")
            .allowing(range(0, MAX_READ_AHEAD)),
        knob("max_sectors_kb", "The longest request of the file systems, in KiB")
            .allowing(range(4, hardware_kb.max(4))),
        knob("nr_requests", "How many requests the queue holds").allowing(range(4, MAX_REQUESTS)),
        knob("nomerges", "Merging of neighbouring requests: 0 all, 1 the cheap ones, 2 none").allowing(range(0, 2)),
        knob("rq_affinity", "Where completions run: 0 anywhere, 1 near the core that asked, 2 on it")
            .allowing(range(0, 2)),
        knob("wbt_lat_usec", "The read latency at which writing back is slowed down, in microseconds; 0 never")
            .allowing(range(0, MAX_LATENCY_US)),
        knob("write_cache", "Whether the kernel believes that the device has a volatile cache")
            .fixed("a cache that is there and declared absent loses data at a power failure"),
        knob("io_poll", "Whether completions can be polled for")
            .fixed("the driver decides it when it is loaded (nvme: poll_queues)"),
    ];
    // A driver may lack one; there are dozens of devices, so only what is there is told.
    all.retain(|knob| knob.value.is_some());
    all
}
