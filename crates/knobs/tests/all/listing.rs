//! Tests of what is listed, and of the reasons for what is absent.

use datapipes_knobs::{KnobPlan, KnobTransaction, MachineTree, list};
use datapipes_testkit::TempFolder;

use crate::made_tree::Made;
use crate::transactions::settings;

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
fn registers_are_shown_of_processors_that_are_known_to_have_them() {
    let made = Made::xeon();
    let is_there = |family: u64, model: u64, vendor: &str, name: &str| {
        let facts = format!("processor : 0\nvendor_id : {vendor}\ncpu family : {family}\nmodel : {model}\n");
        made.put("proc/cpuinfo", &facts);
        made.knob(name).value.is_some()
    };
    made.set_register("dev/cpu/0/msr", 0xc000_0108, 0);
    for (model, is_known) in [(0x55, true), (0x6a, false), (0x8f, false), (0xcf, false), (0x4f, false)] {
        assert_eq!(is_there(6, model, "GenuineIntel", "ddio.ways"), is_known, "{model:#x}");
        assert!(is_there(6, model, "GenuineIntel", "prefetch.l2_stream"), "{model:#x}");
    }
    for (family, model, is_known) in [
        (25, 0x0f, false),
        (25, 0x10, true),
        (25, 0x1f, true),
        (25, 0x20, false),
        (25, 0x50, false),
        (25, 0x60, true),
        (25, 0x7f, true),
        (25, 0x80, false),
        (25, 0xa0, true),
        (25, 0xaf, true),
        (25, 0xb0, false),
        (23, 0x11, false),
        (26, 0x02, true),
        (27, 0x10, false),
    ] {
        assert_eq!(is_there(family, model, "AuthenticAMD", "prefetch.l1_stride"), is_known, "{family} {model:#x}");
    }
    assert!(made.knob("ddio.port.0000:17:00.0").what.contains("NoSnoopOpWrEn and TPHDIS"));
}

#[test]
fn sizes_of_huge_pages_are_named_by_their_own_unit() {
    let made = Made::xeon();
    for (kib, name) in [(64, "64K"), (512, "512K"), (1024, "1M"), (32768, "32M"), (1 << 20, "1G"), (16 << 20, "16G")] {
        made.put(&format!("sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"), "0");
        assert_eq!(made.knob(&format!("memory.hugepages_{name}")).value.as_deref(), Some("0"));
    }
}

#[test]
fn shares_of_code_data_and_the_l2_cache() {
    let made = Made::xeon();
    assert!(made.knob("share.l3_code").absent.unwrap().contains("without the option cdp"));
    assert!(made.knob("share.l2").absent.unwrap().contains("lacks"));
    made.put("sys/fs/resctrl/schemata", "L3DATA:0=7ff;1=7ff\nL3CODE:0=7ff;1=7ff\n    L2:0=ff;2=ff\n    MB:0=100;1=100");
    made.put("sys/fs/resctrl/info/L3CODE/cbm_mask", "7ff");
    made.put("sys/fs/resctrl/info/L3DATA/cbm_mask", "7ff");
    made.put("sys/fs/resctrl/info/L2/cbm_mask", "ff");
    assert!(made.knob("share.l3").absent.unwrap().contains("share.l3_code"));
    let all = settings(&[("share.l3_code", "0=3"), ("share.l3_data", "0=7fc;1=7f0"), ("share.l2", "2=f")]);
    let set = KnobTransaction::begin(&made.tree(), &all, &[7], None, &mut |_| {}).unwrap();
    let schemata = made.text(&format!("sys/fs/resctrl/datapipes-{}/schemata", set.id()));
    assert_eq!(schemata, "L3CODE:0=3\nL3DATA:0=7fc;1=7f0\nL2:2=f");
    for (name, value) in [("share.l2", "1=f"), ("share.l2", "0=1ff"), ("share.l3_data", "0=800")] {
        let error = KnobPlan::new(&made.tree(), &settings(&[(name, value)]), &[7], "x").unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn what_io_uring_depends_on() {
    let made = Made::xeon();
    assert!(made.knob("io_uring.disabled").absent.is_some() && made.knob("io_uring.memlock").absent.is_some());
    made.put("proc/sys/kernel/io_uring_disabled", "0");
    made.put("proc/sys/kernel/io_uring_group", "-1");
    let limits = "Limit    Soft Limit   Hard Limit   Units\nMax locked memory    8388608    9388608    bytes";
    made.put("proc/self/limits", limits);
    let memlock = made.knob("io_uring.memlock");
    assert_eq!(memlock.value.as_deref(), Some("8388608"));
    assert!(memlock.fixed.is_some() && memlock.absent.is_none());
    for (value, is_right) in [("100", true), ("0", true), ("-2", false), ("2147483648", false), ("none", false)] {
        let all = settings(&[("io_uring.disabled", "1"), ("io_uring.group", value)]);
        let begun = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut |_| {});
        assert_eq!(begun.is_ok(), is_right, "{value}: {begun:?}");
        if is_right {
            assert_eq!(made.text("proc/sys/kernel/io_uring_group"), value);
        }
        drop(begun);
        assert_eq!(made.text("proc/sys/kernel/io_uring_group"), "-1");
        assert_eq!(made.text("proc/sys/kernel/io_uring_disabled"), "0");
    }
    made.put("proc/sys/kernel/io_uring_group", "100");
    assert!(KnobPlan::new(&made.tree(), &settings(&[("io_uring.group", "-1")]), &[], "x").is_ok());
}

#[test]
fn each_says_what_it_was_tried_on() {
    for knob in list(&Made::xeon().tree()) {
        let kind = knob.name.split('.').next().unwrap();
        let expected = match kind {
            "memory" | "block" => "this project's test machines",
            "io_uring" if knob.name != "io_uring.poll_queues" => "this project's test machines",
            _ => "made trees only",
        };
        assert_eq!(knob.verified, expected, "{}", knob.name);
    }
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

#[test]
fn shares_may_be_what_the_processor_takes_and_not_only_what_all_have_now() {
    let made = Made::xeon();
    let takes = |name: &str, value: &str| {
        KnobPlan::new(&made.tree(), &settings(&[(name, value)]), &[1], "g").map_err(|e| e.to_string())
    };
    let bandwidth = |value: &str| takes("share.memory_bandwidth", value).is_ok();
    // Somebody throttled what all others have.
    made.put("sys/fs/resctrl/schemata", "L3:0=7ff;1=7ff\nMB:0=20;1=50\n");
    assert!(bandwidth("0=100;1=60") && bandwidth("0=10") && !bandwidth("0=101") && !bandwidth("0=5"));
    // The kernel would round what is between two steps, and the share would not be the one asked.
    made.put("sys/fs/resctrl/info/MB/bandwidth_gran", "10\n");
    assert!(bandwidth("0=100;1=60") && bandwidth("0=10") && !bandwidth("0=110") && !bandwidth("0=0"));
    let e = takes("share.memory_bandwidth", "0=25").unwrap_err();
    assert!(e.contains("10 to 100, multiples of 10"), "{e}");
    // Mounted with mba_MBps.
    made.put("sys/fs/resctrl/schemata", "L3:0=7ff;1=7ff\nMB:0=4294967295;1=4294967295\n");
    assert!(bandwidth("0=5;1=20000") && !bandwidth("0=0"));
    let e = takes("share.memory_bandwidth", "0=0").unwrap_err();
    assert!(e.contains("1 or more"), "{e}");
    // Masks: how few ways, and whether they may have gaps.
    assert!(takes("share.l3", "0=1").is_ok() && takes("share.l3", "0=5").is_err());
    made.put("sys/fs/resctrl/info/L3/min_cbm_bits", "2\n");
    let e = takes("share.l3", "0=1").unwrap_err();
    assert!(e.contains("at least 2 neighbouring bits within 0x7ff"), "{e}");
    assert!(takes("share.l3", "0=3").is_ok());
    made.put("sys/fs/resctrl/info/L3/sparse_masks", "1\n");
    assert!(takes("share.l3", "0=5").is_ok() && takes("share.l3", "0=4").is_err() && takes("share.l3", "0=0").is_err());
    // Units of another processor.
    let amd = "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nmodel : 17\n";
    made.put("proc/cpuinfo", amd);
    made.put("sys/fs/resctrl/info/MB/min_bandwidth", "1\n");
    made.put("sys/fs/resctrl/schemata", "L3:0=7ff;1=7ff\nMB:0=64;1=64\n");
    assert!(bandwidth("0=2048") && !bandwidth("0=0"));
}
