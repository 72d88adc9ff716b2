//! Work queues of Intel's DSA and IAA (Linux, Documentation/ABI/stable/sysfs-driver-dma-idxd).

use crate::knob::{About, AllowedValues, MADE_TREES, MAX_OF_KERNEL, MachineKnob};
use crate::tree::MachineTree;

const DEVICES: &str = "sys/bus/dsa/devices";
const ABOUT: About = About {
    affects: "pipes that a DMA engine carries out",
    needs: "root, and a work queue that is disabled (`accel-config disable-wq`); for its size, the device too",
    verified: MADE_TREES,
};
/// The most descriptors of a queue and of a device.
const MAX_ENTRIES: u64 = 128;
const MAX_PRIORITY: u64 = 15;
/// The most bytes of a name (the kernel's WQ_NAME_SIZE, without the zero).
const MAX_NAME: usize = 1023;
/// The kernel rounds the longest transfer up to a power of two: 4 KiB to 2 GiB here.
const TRANSFER_SIZES: std::ops::RangeInclusive<u32> = 12..=31;

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let mut all = Vec::new();
    for queue in tree.names(DEVICES).into_iter().filter(|name| name.starts_with("wq")) {
        all.extend(work_queue(tree, &queue));
    }
    if all.is_empty() {
        let why = match tree.exists("sys/bus/dsa") {
            true => "no device is bound to the driver idxd",
            false => "the kernel has no driver idxd (CONFIG_INTEL_IDXD), or it is not loaded",
        };
        all.push(MachineKnob::absent("dsa.QUEUE.mode", "How programs reach a work queue", ABOUT, why.into()));
    }
    all
}

fn work_queue(tree: &MachineTree, queue: &str) -> Vec<MachineKnob> {
    let file = |attribute: &str| format!("{DEVICES}/{queue}/{attribute}");
    let knob = |attribute: &str, what: &str, allowed: Option<AllowedValues>| {
        let name = format!("dsa.{queue}.{attribute}");
        let knob = MachineKnob::text(tree, name, what, ABOUT, file(attribute));
        match allowed {
            Some(allowed) => knob.allowing(allowed),
            None => knob.fixed("it says what the queue does now"),
        }
    };
    let words = |words: &[&str]| Some(AllowedValues::OneOf(words.iter().map(|&word| word.into()).collect()));
    let range = |min, max| Some(AllowedValues::Number { min, max });
    let state = tree.text(&file("state")).unwrap_or_default();
    let mut all = vec![
        knob("state", "Whether the queue takes descriptors", None),
        knob("type", "Who may use the queue: the kernel, or programs (user)", words(&["none", "kernel", "user"]))
            // A queue of another type loses its name, and the kernel takes no empty one.
            .changing(format!("dsa.{queue}.name"), file("name")),
        knob("name", "What the queue is for, in a word", Some(AllowedValues::Name { max: MAX_NAME })),
        knob("driver_name", "The driver that has the queue: that of programs is `user`", words(&["dmaengine", "user"])),
        knob(
            "mode",
            "Whether one process has the queue (dedicated, MOVDIR64B) or several (shared, ENQCMD)",
            words(&["dedicated", "shared"]),
        )
        // A dedicated queue has no threshold, and the kernel takes no 0 for one.
        .changing(format!("dsa.{queue}.threshold"), file("threshold")),
        // A queue as the driver makes it holds nothing and is in no group.
        knob("size", "How many descriptors it holds, 0 for a queue that is not set up", range(0, MAX_ENTRIES)),
        knob(
            "group_id",
            "The group of queues and engines it belongs to, -1 for none",
            words(&["-1", "0", "1", "2", "3"]),
        ),
        knob("priority", "Its weight within the group, 0 for a queue that is not set up", range(0, MAX_PRIORITY)),
        knob(
            "block_on_fault",
            "Whether the device waits for a page that is not there, or ends the descriptor",
            range(0, 1),
        ),
        knob("threshold", "How many descriptors a shared queue takes before it refuses", range(1, MAX_ENTRIES)),
        knob(
            "max_transfer_size",
            "The longest transfer of a descriptor, in bytes",
            Some(AllowedValues::OneOf(TRANSFER_SIZES.map(|bits| (1_u64 << bits).to_string()).collect())),
        ),
        knob("max_batch_size", "The most descriptors of a batch", range(1, MAX_OF_KERNEL)),
    ];
    all.retain(|knob| knob.value.is_some());
    if state != "disabled" {
        for knob in all.iter_mut().filter(|knob| knob.fixed.is_none()) {
            *knob = knob.clone().fixed("the queue is enabled: `accel-config disable-wq` first");
        }
    }
    all
}
