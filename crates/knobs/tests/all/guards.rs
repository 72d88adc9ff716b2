//! Guards: those that start, those that do not, and those that do not end.

use std::fs::File;
use std::process::Command;

use datapipes_knobs::{KnobTransaction, MachineTree, restore_when_closed};
use datapipes_testkit::bounded;

use crate::made_tree::Made;
use crate::transactions::settings;

/// In the environment of this program when it is a guard: the root, and the transaction.
const ROOT: &str = "DATAPIPES_KNOBS_GUARD_ROOT";
const ID: &str = "DATAPIPES_KNOBS_GUARD_ID";
const AHEAD: &str = "sys/block/nvme0n1/queue/read_ahead_kb";

/// Makes the command of a guard. The harness of tests speaks on the standard output, so the guard
/// has it as descriptor 3.
pub(crate) fn guard_of(tree: &MachineTree) -> impl Fn(&str) -> Command {
    let root = tree.root().to_owned();
    move |id| {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3>&1 >&2", "sh"]).arg(std::env::current_exe().unwrap());
        command.args(["guards::guards_until_it_is_closed", "--exact", "--test-threads", "1", "--nocapture"]);
        command.env(ROOT, &root).env(ID, id);
        command
    }
}

/// Not a test by itself: [`guard_of`] starts it.
#[test]
fn guards_until_it_is_closed() {
    let (Ok(root), Ok(id)) = (std::env::var(ROOT), std::env::var(ID)) else { return };
    let ready = File::options().write(true).open("/proc/self/fd/3").unwrap();
    restore_when_closed(&MachineTree::under(root), &id, std::io::stdin(), ready).unwrap();
}

fn sh(line: &'static str) -> impl Fn(&str) -> Command {
    move |_| {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }
}

#[test]
fn without_a_guard_that_says_so_nothing_is_changed() {
    let made = Made::xeon();
    let before = made.snapshot();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64")]);
    // It ends, it says something else, it closes its output, it is not there.
    for line in ["true", "echo hello; exec sleep 1000", "exec >&-; exec sleep 1000"] {
        let (tree, one) = (made.tree(), one.clone());
        let mut steps = Vec::new();
        let (error, steps) = bounded("a guard that does not start", move || {
            let begun = KnobTransaction::begin(&tree, &one, &[], Some(&sh(line)), &mut |step| steps.push(step));
            (begun.unwrap_err(), steps)
        });
        assert!(error.to_string().contains("the guard did not start"), "{line}: {error}");
        assert!(!format!("{steps:?}").contains("Keep"), "{line}: {steps:?}");
        assert_eq!((made.snapshot(), made.has_journal()), (before.clone(), false), "{line}");
    }
    let absent = |_: &str| Command::new("./no-such-program");
    let error = KnobTransaction::begin(&made.tree(), &one, &[], Some(&absent), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("start the guard"), "{error}");
    assert_eq!(made.snapshot(), before);
}

#[test]
fn a_guard_that_does_not_end_is_not_waited_for() {
    let made = Made::xeon();
    let tree = made.tree();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64")]);
    let deaf = sh("echo $$ > \"$0\"; printf +; exec sleep 1000");
    let pid_file = made.path("run/guard");
    std::fs::create_dir_all(made.path("run")).unwrap();
    let deaf = move |id: &str| {
        let mut command = deaf(id);
        command.arg(&pid_file);
        command
    };
    bounded("the end of a transaction", move || {
        let set = KnobTransaction::begin(&tree, &one, &[], Some(&deaf), &mut |_| {}).unwrap();
        set.restore(&mut |_| {}).unwrap();
    });
    assert_eq!((made.text(AHEAD).as_str(), made.has_journal()), ("128", false));
    let pid = made.text("run/guard");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "guard {pid} is left");
}
