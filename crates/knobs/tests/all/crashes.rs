//! `kill -9` at every step: the next one restores.

use std::process::Command;

use datapipes_knobs::{KnobTransaction, TransactionStep, restore_left_over, restore_when_closed};

use crate::made_tree::Made;
use crate::transactions::settings;

/// In the environment of this program when it is to die: the root, and at which step.
const ROOT: &str = "DATAPIPES_KNOBS_TEST_ROOT";
const STEP: &str = "DATAPIPES_KNOBS_TEST_STEP";
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
    let set = KnobTransaction::begin(&tree, &settings(&ALL), &[1], None, &mut tell).unwrap();
    set.restore(&mut tell).unwrap();
}

/// Returns whether the program was killed, and not over.
fn die_at(step: usize, made: &Made) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["crashes::sets_until_it_is_killed", "--exact", "--test-threads", "1"]);
    command.env(ROOT, made.root()).env(STEP, step.to_string());
    let output = command.output().unwrap();
    let died = !output.status.success();
    assert!(!died || std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9), "{output:?}");
    died
}

fn values(made: &Made) -> Vec<String> {
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
        if !die_at(step, &made) {
            assert_eq!(values(&made), before, "nothing killed it");
            break;
        }
        changed += usize::from(values(&made) != before);
        restore_left_over(&made.tree(), &mut |_| {}).unwrap();
        assert_eq!(values(&made), before, "killed at step {step}");
        assert!(!made.path("run/datapipes/knobs.json").exists(), "killed at step {step}");
        step += 1;
    }
    // Journal, 2 x 2 registers, 3 texts, a group, changed, as many back, forget, over.
    assert_eq!((step, changed), (20, 16), "steps, and those at which something was to be restored");
}

#[test]
fn the_next_transaction_restores_before_it_begins() {
    let made = Made::xeon();
    let before = values(&made);
    assert!(die_at(5, &made));
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
    assert!(die_at(6, &made));
    let journal = made.text("run/datapipes/knobs.json");
    let id = journal.split("\"id\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    // Another transaction's guard leaves it alone, and so does one that hears of the end.
    assert_eq!(restore_when_closed(&made.tree(), "another", &b""[..]).unwrap(), None);
    assert_eq!(restore_when_closed(&made.tree(), &id, &b"."[..]).unwrap(), None);
    assert_ne!(values(&made), before);
    assert!(restore_when_closed(&made.tree(), &id, &b""[..]).unwrap().is_some());
    assert_eq!(values(&made), before);
}
