//! `kill -9` at every step: the next one restores.

use std::process::Command;

use datapipes_knobs::{KnobTransaction, TransactionStep, restore_left_over, restore_when_closed};

use crate::guards::guard_of;
use crate::made_tree::Made;
use crate::transactions::settings;

/// In the environment of this program when it is to die: the root, and at which step.
const ROOT: &str = "DATAPIPES_KNOBS_TEST_ROOT";
const STEP: &str = "DATAPIPES_KNOBS_TEST_STEP";
/// Set where it is to have a guard.
const WITH_GUARD: &str = "DATAPIPES_KNOBS_TEST_GUARD";
/// The first step of restoring, without a guard.
pub(crate) const RESTORE_STEP: usize = 13;
const ALL: [(&str, &str); 6] = [
    ("ddio.ways", "0x7f8"),
    ("prefetch.l1_stride", "off"),
    ("memory.thp", "never"),
    ("memory.hugepages_2M", "12"),
    ("block.nvme0n1.read_ahead_kb", "4096"),
    ("share.l3", "0=f;1=f"),
];

/// Not a test by itself: [`killed_at_every_step`] starts it.
#[test]
fn sets_until_it_is_killed() {
    let (Ok(root), Ok(step)) = (std::env::var(ROOT), std::env::var(STEP)) else { return };
    let (step, mut at) = (step.parse::<usize>().unwrap(), 0);
    let mut tell = |_: TransactionStep| {
        if at == step {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        at += 1;
    };
    let tree = datapipes_knobs::MachineTree::under(root);
    let guard = std::env::var_os(WITH_GUARD).map(|_| guard_of(&tree));
    let guard = guard.as_ref().map(|guard| guard as &dyn Fn(&str) -> Command);
    let set = KnobTransaction::begin(&tree, &settings(&ALL), &[1], guard, &mut tell).unwrap();
    set.restore(&mut tell).unwrap();
}

/// Returns whether the program was killed, and not over. A guard is waited for.
pub(crate) fn die_at(step: usize, made: &Made, with_guard: bool) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["crashes::sets_until_it_is_killed", "--exact", "--test-threads", "1"]);
    command.env(ROOT, made.root()).env(STEP, step.to_string());
    if with_guard {
        command.env(WITH_GUARD, "");
    }
    // The guard has the standard error until its end.
    let output = datapipes_testkit::output_of(&mut command).unwrap();
    let died = !output.status.success();
    assert!(!died || std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9), "{output:?}");
    died
}

pub(crate) fn values(made: &Made) -> Vec<String> {
    let mut all: Vec<String> =
        [0, 1].map(|core| format!("{:x}", made.register(&format!("dev/cpu/{core}/msr"), 0xc8b))).into();
    all.extend([0, 1].map(|core| format!("{:x}", made.register(&format!("dev/cpu/{core}/msr"), 0x1a4))));
    let value = |name: &str| made.knob(name).value.unwrap();
    all.extend(["memory.thp", "memory.hugepages_2M", "block.nvme0n1.read_ahead_kb"].map(value));
    let groups = std::fs::read_dir(made.path("sys/fs/resctrl")).unwrap().flatten();
    all.extend(
        groups.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name.starts_with("datapipes")),
    );
    all
}

#[test]
fn killed_at_every_step() {
    let (mut step, mut changed) = (0, 0);
    loop {
        let made = Made::xeon();
        let before = values(&made);
        if !die_at(step, &made, false) {
            assert_eq!(values(&made), before, "nothing killed it");
            break;
        }
        changed += usize::from(values(&made) != before);
        restore_left_over(&made.tree(), &mut |_| {}).unwrap();
        assert_eq!(values(&made), before, "killed at step {step}");
        assert!(!made.has_journal(), "killed at step {step}");
        step += 1;
    }
    // Journal, 2 x 2 registers, 3 texts, a group, verify, settle, changed, reopen, as many back,
    // forget, over.
    assert_eq!((step, changed), (23, 19), "steps, and those at which something was to be restored");
}

#[test]
fn killed_at_every_step_with_a_guard() {
    let mut step = 0;
    loop {
        let made = Made::xeon();
        let before = values(&made);
        let died = die_at(step, &made, true);
        assert_eq!(values(&made), before, "killed at step {step}");
        assert!(!made.has_journal(), "killed at step {step}");
        if !died {
            break;
        }
        step += 1;
    }
    assert_eq!(step, 24, "those without a guard, and its start");
}

#[test]
fn a_crash_in_the_middle_leaves_no_value() {
    let ahead = "sys/block/nvme0n1/queue/read_ahead_kb";
    // The first change, a later one, and the first setting that is restored.
    for step in [2, 9, RESTORE_STEP] {
        let made = Made::xeon();
        let before = values(&made);
        assert!(die_at(step, &made, false));
        // As the kernel may have changed it with another setting, or come half of the way.
        made.put(ahead, "77");
        let done = restore_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap();
        assert!(done.left.is_empty(), "killed at step {step}: {done:?}");
        assert_eq!(values(&made), before, "killed at step {step}");
    }
    // While all are set, what is neither old nor new is somebody's.
    let made = Made::xeon();
    assert!(die_at(RESTORE_STEP - 1, &made, false));
    made.put(ahead, "77");
    let done = restore_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap();
    assert!(done.left.len() == 1 && done.left[0].contains("read_ahead_kb: somebody set it to 77"), "{done:?}");
    assert_eq!((made.text(ahead).as_str(), made.has_journal()), ("77", false));
    assert_eq!(made.register("dev/cpu/1/msr", 0xc8b), 0x600);
}

#[test]
fn the_next_transaction_restores_before_it_begins() {
    let made = Made::xeon();
    let before = values(&made);
    assert!(die_at(5, &made, false));
    assert_ne!(values(&made), before);
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64")]);
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    assert_eq!(set.changes()[0].from, "128", "the old value, not that of the dead");
    drop(set);
    assert_eq!(values(&made), before);
}

#[test]
fn a_guard_restores_what_is_its_own() {
    let made = Made::xeon();
    let before = values(&made);
    assert!(die_at(6, &made, false));
    let journal = made.text("run/datapipes/knobs.json");
    let id = journal.split("\"id\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    // Another transaction's guard leaves it alone, and so does one that hears of the end.
    assert_eq!(restore_when_closed(&made.tree(), "another", &b""[..], std::io::sink()).unwrap(), None);
    assert_eq!(restore_when_closed(&made.tree(), &id, &b"."[..], std::io::sink()).unwrap(), None);
    assert_ne!(values(&made), before);
    let mut said = Vec::new();
    assert!(restore_when_closed(&made.tree(), &id, &b""[..], &mut said).unwrap().is_some());
    assert_eq!(said, b"+");
    assert_eq!(values(&made), before);
}
