//! What io_uring depends on (Linux, Documentation/admin-guide/sysctl/kernel.rst; nvme).

use crate::knob::{About, AllowedValues, MADE_TREES, MachineKnob, THIS_KIND};
use crate::tree::MachineTree;

const ABOUT: About = About { affects: "pipes between files or disks and memory", needs: "root", verified: THIS_KIND };
/// Polled queues: no machine of this project has an NVMe disk.
const POLLED: About = About { verified: MADE_TREES, ..ABOUT };
/// The largest number of a group.
const MAX_GROUP: u64 = i32::MAX as u64;

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let knob = |name: &str, what: &str, about: About, file: &str| {
        MachineKnob::text(tree, name.to_owned(), what, about, file.to_owned())
    };
    vec![
        knob(
            "io_uring.disabled",
            "Who may make queues of io_uring: 0 everybody, 1 root and a group, 2 nobody",
            ABOUT,
            "proc/sys/kernel/io_uring_disabled",
        )
        .allowing(AllowedValues::Number { min: 0, max: 2 }),
        knob(
            "io_uring.group",
            "The group that may make queues where `io_uring.disabled` is 1; -1 for none",
            ABOUT,
            "proc/sys/kernel/io_uring_group",
        )
        .allowing(AllowedValues::NumberOr { none: "-1", max: MAX_GROUP }),
        memlock(tree),
        knob(
            "io_uring.poll_queues",
            "How many queues of NVMe disks are polled, which IOPOLL needs",
            POLLED,
            "sys/module/nvme/parameters/poll_queues",
        )
        .fixed("the driver reads it when it is loaded (nvme.poll_queues=N)"),
    ]
}

/// How much memory this process may lock: buffers that are registered count.
fn memlock(tree: &MachineTree) -> MachineKnob {
    let what = "How much memory this process may lock, in bytes (RLIMIT_MEMLOCK): registered buffers count";
    let file = "proc/self/limits";
    let mut knob = MachineKnob::absent("io_uring.memlock", what, ABOUT, String::new());
    knob.lives_at = format!("/{file}");
    match tree.text(file) {
        Err(error) => knob.absent = Some(format!("/{file}: {error}")),
        Ok(limits) => {
            let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
            knob.value = line.and_then(|line| line.split_whitespace().next()).map(str::to_owned);
            knob.absent = knob.value.is_none().then(|| format!("/{file} has no line `Max locked memory`"));
        }
    }
    knob.fixed("a limit of each process: `ulimit -l`, or LimitMEMLOCK= of a service")
}
