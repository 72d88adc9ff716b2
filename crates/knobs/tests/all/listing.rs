//! Tests of what is listed, and of the reasons for what is absent.

use datapipes_knobs::{MachineTree, list};
use datapipes_testkit::TempFolder;

use crate::made_tree::Made;

#[test]
fn a_xeon_has_them_all() {
    let made = Made::xeon();
    for (name, value) in [
        ("ddio.ways", "0x600"),
        ("ddio.port.0000:17:00.0", "on"),
        ("dca.blocked", "off"),
        ("prefetch.l2_stream", "on"),
        ("share.l3", "0=7ff;1=7ff"),
        ("share.memory_bandwidth", "0=100;1=100"),
        ("memory.thp", "madvise"),
        ("memory.hugepages_2M", "3"),
        ("block.nvme0n1.scheduler", "none"),
        ("block.nvme0n1.read_ahead_kb", "128"),
        ("dsa.wq0.0.mode", "dedicated"),
    ] {
        let knob = made.knob(name);
        assert_eq!(knob.value.as_deref(), Some(value), "{name}: {:?}", knob.absent);
        assert!(knob.fixed.is_none() && !knob.lives_at.is_empty() && !knob.needs.is_empty(), "{knob:?}");
    }
    // What would lose data, and what the device does not take now.
    assert!(made.knob("block.nvme0n1.write_cache").fixed.unwrap().contains("power failure"));
    assert!(made.knob("dsa.wq0.1.priority").fixed.unwrap().contains("disable"));
    // A third of the available memory at most is not asked for: 8 GB, 75%, pages of 2 MiB.
    let pages = made.knob("memory.hugepages_2M").allowed.shown();
    assert_eq!(pages, format!("0 to {}", 3 + 8_000_000 / 100 * 75 / 2048));
    assert!(!list(&made.tree()).iter().any(|knob| knob.name.starts_with("block.loop0")), "a device without a file");
}

#[test]
fn what_is_absent_says_why() {
    let nothing = TempFolder::new().unwrap();
    let knobs = list(&MachineTree::under(nothing.at()));
    for name in
        ["ddio.ways", "prefetch.l2_stream", "share.l3", "memory.thp", "block.DEVICE.scheduler", "dsa.QUEUE.mode"]
    {
        let knob = knobs.iter().find(|knob| knob.name == name).unwrap_or_else(|| panic!("{name}"));
        assert!(knob.value.is_none() && knob.absent.as_deref().is_some_and(|why| why.len() > 10), "{knob:?}");
    }
    let made = Made::xeon();
    made.put("proc/cpuinfo", "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 23\nmodel : 1\n");
    assert!(made.knob("ddio.ways").absent.unwrap().contains("AuthenticAMD, family 23"));
    assert!(made.knob("prefetch.l2_stream").absent.unwrap().contains("Zen 4"));
    made.put("proc/cpuinfo", "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n");
    made.set_register("dev/cpu/0/msr", 0xc000_0108, 1 << 3);
    assert_eq!(made.knob("prefetch.l2_stream").value.as_deref(), Some("off"));
    assert_eq!(made.knob("prefetch.l1_stream").value.as_deref(), Some("on"));
}

#[test]
fn strange_trees_are_no_reason_to_fail() {
    let made = Made::xeon();
    for text in ["", "\0\0", "[", "][", "-1", "99999999999999999999", "0=;1", "L3:", "L3:x=7ff;1=", "\u{fffd}"] {
        for name in [
            "proc/cpuinfo",
            "proc/meminfo",
            "sys/fs/resctrl/schemata",
            "sys/fs/resctrl/info/L3/cbm_mask",
            "sys/devices/system/cpu/cpu0/cache/index3/ways_of_associativity",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "sys/block/nvme0n1/queue/scheduler",
            "sys/block/nvme0n1/queue/max_hw_sectors_kb",
        ] {
            let before = made.text(name);
            made.put(name, text);
            assert!(list(&made.tree()).len() > 10, "{name}: {text:?}");
            made.put(name, &before);
        }
    }
    // This machine, whatever it has.
    assert!(list(&MachineTree::live()).len() > 10);
}
