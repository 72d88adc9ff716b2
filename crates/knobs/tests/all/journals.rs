//! What becomes of settings and of their journal when somebody interferes.

use datapipes_core::ErrorKind;
use datapipes_knobs::{KnobTransaction, TransactionStep, forget_left_over, journaled, restore_left_over};

use crate::crashes::{RESTORE_STEP, die_at, values};
use crate::made_tree::{JOURNAL, Made};
use crate::transactions::settings;

const AHEAD: &str = "sys/block/nvme0n1/queue/read_ahead_kb";
const REQUESTS: &str = "sys/block/nvme0n1/queue/nr_requests";

fn change_of(name: &str) -> TransactionStep {
    TransactionStep::Change(format!("block.nvme0n1.{name}"))
}

#[test]
fn a_refusal_restores_whatever_the_settings_are() {
    let made = Made::xeon();
    let all = settings(&[("block.nvme0n1.read_ahead_kb", "64"), ("block.nvme0n1.max_sectors_kb", "128")]);
    let mut tell = |step| {
        if step == change_of("max_sectors_kb") {
            // Half of the way to a value, and a device that refuses the next one.
            made.put(AHEAD, "96");
            std::fs::remove_file(made.path("sys/block/nvme0n1/queue/max_sectors_kb")).unwrap();
        }
    };
    let error = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut tell).unwrap_err();
    assert!(error.to_string().contains("max_sectors_kb"), "{error}");
    assert_eq!((made.text(AHEAD).as_str(), made.has_journal()), ("128", false));
}

#[test]
fn a_setting_that_changes_with_another_is_refused() {
    let made = Made::xeon();
    let before = made.snapshot();
    let all = settings(&[("block.nvme0n1.nr_requests", "64"), ("block.nvme0n1.scheduler", "kyber")]);
    // As Linux does with a new scheduler.
    let mut tell = |step| {
        if step == change_of("scheduler") {
            made.put(REQUESTS, "512");
        }
    };
    let error = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut tell).unwrap_err();
    assert!(error.to_string().contains("nr_requests"), "{error}");
    assert!(error.to_string().contains("512 is read"), "{error}");
    assert_eq!((made.snapshot(), made.has_journal()), (before, false));
}

#[test]
fn what_the_kernel_changes_along_is_restored() {
    let min_free = "proc/sys/vm/min_free_kbytes";
    let all = settings(&[("block.nvme0n1.scheduler", "kyber"), ("memory.thp", "never")]);
    for others in ["512", "300"] {
        let made = Made::xeon();
        made.put(min_free, "67584");
        let before = made.snapshot();
        let mut steps = Vec::new();
        let mut tell = |step: TransactionStep| {
            if step == TransactionStep::Verify {
                made.put(REQUESTS, "512");
                made.put(min_free, "11000");
            }
            steps.push(step);
        };
        let set = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut tell).unwrap();
        assert_eq!(set.changes().len(), 2, "what is asked for");
        assert!(!steps.contains(&change_of("nr_requests")), "{steps:?}");
        // As somebody sets it meanwhile, or does not.
        made.put(REQUESTS, others);
        let done = set.restore(&mut |_| {}).unwrap();
        assert_eq!(made.text(min_free), "67584", "{done:?}");
        if others == "300" {
            assert!(done.left.len() == 1 && done.left[0].contains("nr_requests") && made.text(REQUESTS) == "300");
            made.put(REQUESTS, "256");
        }
        assert_eq!((made.snapshot(), made.has_journal()), (before, false), "{done:?}");
    }
}

#[test]
fn what_changes_while_others_are_restored_is_restored_again() {
    let made = Made::xeon();
    let before = made.snapshot();
    let all = settings(&[("block.nvme0n1.scheduler", "kyber"), ("block.nvme0n1.nr_requests", "64")]);
    let set = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut |_| {}).unwrap();
    // The requests are restored first; then the scheduler resets them.
    let mut tell = |step| {
        if step == TransactionStep::Restore("block.nvme0n1.scheduler".into()) {
            assert_eq!(made.text(REQUESTS), "256");
            made.put(REQUESTS, "512");
        }
    };
    let done = set.restore(&mut tell).unwrap();
    assert_eq!((made.snapshot(), made.has_journal()), (before, false), "{done:?}");
}

#[test]
fn a_journal_that_somebody_removed_is_remembered() {
    for is_settled in [true, false] {
        let made = Made::xeon();
        let before = values(&made);
        let all = settings(&[("block.nvme0n1.read_ahead_kb", "64"), ("ddio.ways", "0x7"), ("memory.thp", "never")]);
        let mut tell = |step| {
            if !is_settled && step == TransactionStep::Change("memory.thp".into()) {
                std::fs::remove_dir_all(made.path("run/datapipes")).unwrap();
                std::fs::remove_dir_all(made.path("sys/kernel/mm/transparent_hugepage")).unwrap();
            }
        };
        let begun = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut tell);
        match begun {
            Ok(set) => {
                assert!(is_settled);
                std::fs::remove_file(made.path(JOURNAL)).unwrap();
                set.restore(&mut |_| {}).unwrap();
                assert_eq!(values(&made), before);
            }
            Err(error) => assert!(!is_settled && error.to_string().contains("memory.thp"), "{error}"),
        }
        assert_eq!((made.text(AHEAD).as_str(), made.register("dev/cpu/1/msr", 0xc8b)), ("128", 0x600));
        assert!(!made.has_journal());
    }
}

#[test]
fn a_disk_that_was_removed_is_told_and_the_others_are_restored() {
    let made = Made::xeon();
    let all =
        settings(&[("memory.thp", "never"), ("block.nvme0n1.read_ahead_kb", "64"), ("block.nvme0n1.nomerges", "2")]);
    made.put("sys/block/nvme0n1/queue/nomerges", "0");
    let set = KnobTransaction::begin(&made.tree(), &all, &[], None, &mut |_| {}).unwrap();
    std::fs::remove_dir_all(made.path("sys/block/nvme0n1")).unwrap();
    let done = set.restore(&mut |_| {}).unwrap();
    assert_eq!(done.restored, ["memory.thp"]);
    assert!(done.gone.len() == 2 && done.gone[0].contains("block.nvme0n1.nomerges"), "{done:?}");
    assert!(!made.has_journal());
}

#[test]
fn a_core_that_was_removed_is_gone_and_one_that_runs_is_not() {
    let made = Made::xeon();
    let one = settings(&[("prefetch.l2_stream", "off")]);
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    // Without the module, the register has its value still.
    let parked = made.path("run/msr");
    std::fs::rename(made.path("dev/cpu/1/msr"), &parked).unwrap();
    let error = set.restore(&mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("dev/cpu/1/msr"), "{error}");
    assert_eq!(made.register("dev/cpu/0/msr", 0x1a4), 0, "the other one is restored");
    assert_eq!(journaled(&made.tree()).unwrap(), Some(vec!["prefetch.l2_stream".to_owned()]));
    std::fs::rename(&parked, made.path("dev/cpu/1/msr")).unwrap();
    // What was restored left the journal: what others set since stays.
    made.set_register("dev/cpu/0/msr", 0x1a4, 1);
    assert_eq!(restore_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap().restored.len(), 1);
    assert_eq!((made.register("dev/cpu/0/msr", 0x1a4), made.register("dev/cpu/1/msr", 0x1a4)), (1, 0));

    made.set_register("dev/cpu/0/msr", 0x1a4, 0);
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    std::fs::remove_dir_all(made.path("dev/cpu/1")).unwrap();
    let first = made.text("proc/cpuinfo").split("\n\n").next().unwrap().to_owned();
    made.put("proc/cpuinfo", &first);
    let done = set.restore(&mut |_| {}).unwrap();
    assert!(done.restored.len() == 1 && done.gone.len() == 1 && !made.has_journal(), "{done:?}");
}

#[test]
fn what_cannot_be_restored_can_be_given_up() {
    let made = Made::xeon();
    let before = values(&made);
    assert!(die_at(RESTORE_STEP, &made, false));
    // A device that takes no writes.
    std::fs::remove_file(made.path(AHEAD)).unwrap();
    std::fs::create_dir(made.path(AHEAD)).unwrap();
    let error = restore_left_over(&made.tree(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("read_ahead_kb") && error.to_string().contains("--forget"), "{error}");
    assert_eq!(journaled(&made.tree()).unwrap().unwrap(), ["block.nvme0n1.read_ahead_kb"]);
    let done = forget_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap();
    assert!(done.forgotten.len() == 1 && done.forgotten[0].contains("read_ahead_kb"), "{done:?}");
    assert_eq!(forget_left_over(&made.tree(), &mut |_| {}).unwrap(), None);
    std::fs::remove_dir(made.path(AHEAD)).unwrap();
    made.put(AHEAD, "128");
    assert_eq!((values(&made), made.has_journal()), (before, false));
    // A journal that cannot be read.
    made.put_journal("{");
    assert_eq!(restore_left_over(&made.tree(), &mut |_| {}).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(forget_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap().forgotten.len(), 1);
    assert!(!made.has_journal());
    // While a transaction lasts, its journal is its own.
    let one = settings(&[("memory.thp", "never")]);
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    assert_eq!(forget_left_over(&made.tree(), &mut |_| {}).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(journaled(&made.tree()).unwrap().unwrap(), ["memory.thp"]);
    drop(set);
    assert_eq!(journaled(&made.tree()).unwrap(), None);
}

#[test]
fn a_journal_that_was_left_is_restored_though_the_new_values_are_refused() {
    let made = Made::xeon();
    let before = values(&made);
    for (name, value) in [("block.nvme0n1.scheduler", "no-such"), ("no.such.knob", "1"), ("share.l3", "0=f")] {
        assert!(die_at(6, &made, false));
        assert_ne!(values(&made), before);
        let one = settings(&[(name, value)]);
        let error = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!((values(&made), made.has_journal()), (before.clone(), false), "{name}={value}");
    }
}

#[test]
fn all_shares_of_a_group_are_written_together_and_read_back() {
    let made = Made::xeon();
    let before = made.snapshot();
    let both = settings(&[("share.l3", "0=f;1=7f0"), ("share.memory_bandwidth", "1=50")]);
    let set = KnobTransaction::begin(&made.tree(), &both, &[7], None, &mut |_| {}).unwrap();
    let schemata = format!("sys/fs/resctrl/datapipes-{}/schemata", set.id());
    // With a write for each line, what stands for the kernel's file has the last one.
    assert_eq!(made.text(&schemata), "L3:0=f;1=7f0\nMB:1=50");
    drop(set);
    assert_eq!(made.snapshot(), before);
    // The kernel shows all domains and resources, and zeros before masks. It may take another
    // share.
    for (shown, is_taken) in [
        ("    MB:0=100;1=50\n    L3:0=00f;1=7f0", true),
        ("    MB:0=100;1=60\n    L3:0=00f;1=7f0", false),
        ("    MB:0=100;1=50\n    L3:0=7ff;1=7f0", false),
        ("    L3:0=f;1=7f0", false),
    ] {
        let mut group = None;
        let mut tell = |step: TransactionStep| match step {
            TransactionStep::Change(folder) => group = Some(folder),
            TransactionStep::Verify => made.put(&format!("{}/schemata", group.as_deref().unwrap()), shown),
            _ => {}
        };
        let begun = KnobTransaction::begin(&made.tree(), &both, &[7], None, &mut tell);
        assert_eq!(begun.is_ok(), is_taken, "{shown}: {begun:?}");
        drop(begun);
        assert_eq!(made.snapshot(), before, "{shown}");
    }
}
