//! Setting and restoring.

use datapipes_core::ErrorKind;
use datapipes_knobs::{KnobPlan, KnobTransaction, TransactionStep, restore_left_over};

use crate::made_tree::Made;

pub(crate) fn settings(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const SOME: [(&str, &str); 7] = [
    ("ddio.ways", "0x7f8"),
    ("prefetch.l2_stream", "off"),
    ("ddio.port.0000:17:00.0", "off"),
    ("memory.thp", "never"),
    ("memory.hugepages_2M", "10"),
    ("block.nvme0n1.scheduler", "kyber"),
    ("share.l3", "0=f;1=7f0"),
];

#[test]
fn they_are_set_and_restored() {
    let made = Made::xeon();
    let before = made.snapshot();
    let mut steps = Vec::new();
    let set =
        KnobTransaction::begin(&made.tree(), &settings(&SOME), &[77], None, &mut |step| steps.push(step)).unwrap();
    assert_eq!(set.changes().len(), SOME.len());
    assert_eq!(set.changes()[0].from, "0x600");
    for core in 0..2 {
        let file = format!("dev/cpu/{core}/msr");
        assert_eq!((made.register(&file, 0xc8b), made.register(&file, 0x1a4)), (0x7f8, 1));
        assert_eq!(made.register(&file, 0x1fa), 1, "its neighbour");
    }
    assert_eq!(made.text("sys/kernel/mm/transparent_hugepage/enabled"), "always madvise [never]");
    let group = format!("sys/fs/resctrl/datapipes-{}", set.id());
    assert_eq!(made.text(&format!("{group}/schemata")), "L3:0=f;1=7f0");
    assert_eq!(made.text(&format!("{group}/tasks")), "77");
    assert!(steps.contains(&TransactionStep::Changed) && steps[0] == TransactionStep::Keep);

    let restored = set.restore(&mut |_| {}).unwrap();
    assert!(restored.left.is_empty() && restored.restored.len() == 9, "{restored:?}");
    assert!(!made.path("run/datapipes/knobs.json").exists());
    assert_eq!(made.snapshot(), before);
    assert_eq!(made.register("dev/cpu/1/msr", 0xc8b), 0x600);
    assert_eq!(made.text("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "3");
}

#[test]
fn a_work_queue_as_the_driver_makes_it_is_set_up_and_restored() {
    let made = Made::xeon();
    let file = |attribute: &str| format!("sys/bus/dsa/devices/wq0.0/{attribute}");
    let as_made = [
        ("size", "0"),
        ("group_id", "-1"),
        ("priority", "0"),
        ("threshold", "0"),
        ("type", "none"),
        ("name", ""),
        ("max_transfer_size", "2147483648"),
        ("max_batch_size", "1024"),
    ];
    as_made.iter().for_each(|(attribute, value)| made.put(&file(attribute), value));
    let before = made.snapshot();
    // The kernel takes neither a threshold of 0 nor an empty name: mode and type bring them back.
    for (named, first) in [("threshold=8", "mode"), ("name=app", "type")] {
        let (name, value) = named.split_once('=').unwrap();
        let alone = settings(&[(&format!("dsa.wq0.0.{name}"), value)]);
        let refused = KnobPlan::new(&made.tree(), &alone, &[], "x").unwrap_err();
        assert!(refused.to_string().contains(&format!("set dsa.wq0.0.{first} as well")), "{refused}");
    }
    let wanted = [
        ("mode", "shared"),
        ("size", "16"),
        ("threshold", "8"),
        ("group_id", "1"),
        ("priority", "10"),
        ("type", "user"),
        ("name", "app-1"),
        ("max_transfer_size", "65536"),
        ("max_batch_size", "32"),
    ];
    let names = wanted.map(|(attribute, _)| format!("dsa.wq0.0.{attribute}"));
    let all: Vec<_> = names.iter().zip(wanted).map(|(name, (_, value))| (&name[..], value)).collect();
    let set = KnobTransaction::begin(&made.tree(), &settings(&all), &[], None, &mut |_| {}).unwrap();
    wanted.iter().for_each(|(attribute, value)| assert_eq!(made.text(&file(attribute)), *value, "{attribute}"));
    // As the kernel does it: what it takes from nobody is there again with mode and type.
    let mut bring_back = |step| {
        let of = |knob: &str| step == TransactionStep::Restore(format!("dsa.wq0.0.{knob}"));
        if of("mode") {
            made.put(&file("threshold"), "0");
        } else if of("type") {
            made.put(&file("name"), "");
        }
    };
    assert!(set.restore(&mut bring_back).unwrap().left.is_empty());
    assert_eq!(made.snapshot(), before);
    // Where it does not, they are written all the same, if that is taken.
    let set = KnobTransaction::begin(&made.tree(), &settings(&all), &[], None, &mut |_| {}).unwrap();
    assert!(set.restore(&mut |_| {}).unwrap().left.is_empty());
    assert_eq!(made.snapshot(), before);
    // A dedicated queue loses its threshold, which comes back with the mode.
    made.put(&file("mode"), "shared");
    made.put(&file("threshold"), "8");
    let before = made.snapshot();
    let one = settings(&[("dsa.wq0.0.mode", "dedicated")]);
    // As the kernel does it.
    let mut forget = |step| {
        if step == TransactionStep::Verify {
            made.put(&file("threshold"), "0");
        }
    };
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut forget).unwrap();
    assert!(set.restore(&mut |_| {}).unwrap().left.is_empty());
    assert_eq!(made.snapshot(), before);
    for (name, value) in [
        ("group_id", "-2"),
        ("group_id", "4"),
        ("size", "129"),
        ("priority", "16"),
        ("threshold", "0"),
        ("name", ""),
        ("name", "a b"),
        ("max_transfer_size", "65535"),
    ] {
        let one = settings(&[(&format!("dsa.wq0.0.{name}"), value)]);
        let refused = KnobPlan::new(&made.tree(), &one, &[], "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name}={value}: {refused}");
    }
}

#[test]
fn dropping_restores_and_keeping_does_not() {
    let made = Made::xeon();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "4096")]);
    drop(KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap());
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "128");
    KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap().keep(&mut |_| {}).unwrap();
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "4096");
    assert_eq!(restore_left_over(&made.tree(), &mut |_| {}).unwrap(), None);
    // It has that value already: nothing to do, and nothing to restore.
    let again = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    assert!(again.changes().is_empty());
    drop(again);
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "4096");
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let made = Made::xeon();
    let before = made.snapshot();
    for (name, value, kind) in [
        ("ddio.ways", "0", ErrorKind::InvalidInput),
        ("ddio.ways", "0x505", ErrorKind::InvalidInput),
        ("ddio.ways", "0x1800", ErrorKind::InvalidInput),
        ("ddio.ways", "-1", ErrorKind::InvalidInput),
        ("ddio.ways", "+7", ErrorKind::InvalidInput),
        ("ddio.way", "0x600", ErrorKind::InvalidInput),
        ("prefetch.l2_stream", "maybe", ErrorKind::InvalidInput),
        ("memory.hugepages_2M", "100000000", ErrorKind::InvalidInput),
        ("memory.hugepages_2M", "99999999999999999999999", ErrorKind::InvalidInput),
        ("memory.hugepages_2M", "", ErrorKind::InvalidInput),
        ("memory.thp", "never\nalways", ErrorKind::InvalidInput),
        ("block.nvme0n1.max_sectors_kb", "513", ErrorKind::InvalidInput),
        ("block.nvme0n1.scheduler", "bfq", ErrorKind::InvalidInput),
        ("block.nvme0n1.write_cache", "write through", ErrorKind::InvalidInput),
        ("dsa.wq0.1.priority", "3", ErrorKind::InvalidInput),
        ("share.l3", "0=f;2=f", ErrorKind::InvalidInput),
        ("share.l3", "0=f;0=f", ErrorKind::InvalidInput),
        ("share.l3", "0=9", ErrorKind::InvalidInput),
        ("share.memory_bandwidth", "0=5", ErrorKind::InvalidInput),
        ("share.memory_bandwidth", "0=101", ErrorKind::InvalidInput),
        ("memory.numa_balancing", "1", ErrorKind::Unavailable),
    ] {
        // The right one before it is not set either.
        let both = settings(&[("block.nvme0n1.read_ahead_kb", "64"), (name, value)]);
        let error = KnobTransaction::begin(&made.tree(), &both, &[1], None, &mut |_| {}).unwrap_err();
        let fixed = matches!(name, "block.nvme0n1.write_cache" | "dsa.wq0.1.priority");
        assert_eq!(error.kind(), if fixed { ErrorKind::Unsupported } else { kind }, "{name}={value}: {error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let twice = settings(&[("memory.thp", "never"), ("memory.thp", "always")]);
    assert_eq!(KnobPlan::new(&made.tree(), &twice, &[], "x").unwrap_err().kind(), ErrorKind::InvalidInput);
    let share = settings(&[("share.l3", "0=f")]);
    assert_eq!(KnobPlan::new(&made.tree(), &share, &[], "x").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(made.snapshot(), before);
}

#[test]
fn a_refusal_in_the_middle_takes_back_what_was_before_it() {
    let made = Made::xeon();
    // A device that takes no writes: a folder stands in its place once the plan is made.
    let scheduler = made.path("sys/block/nvme0n1/queue/scheduler");
    let all =
        settings(&[("block.nvme0n1.read_ahead_kb", "64"), ("ddio.ways", "0x7"), ("block.nvme0n1.scheduler", "kyber")]);
    let mut tell = |step: TransactionStep| {
        if step == TransactionStep::Change("block.nvme0n1.scheduler".into()) {
            std::fs::remove_file(&scheduler).unwrap();
            std::fs::create_dir(&scheduler).unwrap();
        }
    };
    let error = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut tell).unwrap_err();
    assert!(error.to_string().contains("scheduler"), "{error}");
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "128");
    assert_eq!(made.register("dev/cpu/0/msr", 0xc8b), 0x600);
    // What cannot be looked at is not forgotten: the journal stays until it can.
    assert!(made.path("run/datapipes/knobs.json").exists());
    std::fs::remove_dir(&scheduler).unwrap();
    std::fs::write(&scheduler, "none").unwrap();
    assert!(restore_left_over(&made.tree(), &mut |_| {}).unwrap().is_some());
    assert!(!made.path("run/datapipes/knobs.json").exists());
}

#[test]
fn one_at_a_time_and_what_others_set_stays() {
    let made = Made::xeon();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64"), ("prefetch.l2_stream", "off")]);
    let first = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    let second = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Busy);
    assert_eq!(restore_left_over(&made.tree(), &mut |_| {}).unwrap_err().kind(), ErrorKind::Busy);
    made.put("sys/block/nvme0n1/queue/read_ahead_kb", "32");
    let done = first.restore(&mut |_| {}).unwrap();
    assert!(done.left.len() == 1 && done.left[0].contains("32"), "{done:?}");
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "32");
    assert_eq!(made.register("dev/cpu/0/msr", 0x1a4), 0);
}

#[test]
fn a_damaged_journal_is_an_error_and_stays() {
    let made = Made::xeon();
    made.put_journal("{\"version\": 9, \"id\": \"x\", \"is_settled\": true, \"writes\": []}");
    let error = restore_left_over(&made.tree(), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let one = settings(&[("memory.thp", "never")]);
    assert_eq!(
        KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    assert!(made.path("run/datapipes/knobs.json").exists());
}

#[test]
fn a_child_restores_nothing() {
    let made = Made::xeon();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64")]);
    let held = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    let held = std::cell::RefCell::new(Some(held));
    datapipes_testkit::child::in_child(&|| {
        let held = held.borrow_mut().take().unwrap();
        datapipes_testkit::child::assert_forked_error(held.restore(&mut |_| {}));
        assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "64");
    });
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "64");
    let outer = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {});
    assert_eq!(outer.unwrap_err().kind(), ErrorKind::Busy, "the parent has it still");
    drop(held);
    assert_eq!(made.text("sys/block/nvme0n1/queue/read_ahead_kb"), "128");
}

#[test]
fn a_group_is_made_and_removed_under_the_lock_of_resctrl_and_the_kernels_reason_is_told() {
    let made = Made::xeon();
    let share = settings(&[("share.l3", "0=f")]);
    let lock = || {
        let folder = std::fs::File::open(made.path("sys/fs/resctrl")).unwrap();
        folder.lock().unwrap();
        folder
    };
    let held = lock();
    let e = KnobTransaction::begin(&made.tree(), &share, &[1], None, &mut |_| {}).unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && !made.has_journal(), "{e}");
    drop(held);
    // What is made is removed, also where somebody keeps the lock.
    let set = KnobTransaction::begin(&made.tree(), &share, &[1], None, &mut |_| {}).unwrap();
    let held = lock();
    assert_eq!(set.restore(&mut |_| {}).unwrap().restored.len(), 1);
    drop(held);
    // A folder that is there already stands for a group that the kernel refuses.
    made.put("sys/fs/resctrl/info/last_cmd_status", "Out of CLOSIDs\n");
    let e = KnobTransaction::begin(&made.tree(), &share, &[1], None, &mut |step| {
        if let TransactionStep::Change(folder) = step {
            std::fs::create_dir(made.path(&folder)).unwrap();
        }
    });
    let e = e.unwrap_err();
    assert!(e.to_string().contains("(the kernel says: Out of CLOSIDs)"), "{e}");
}
