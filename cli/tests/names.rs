//! Hidden names of files that are not complete: programs that die with one, in containers in which
//! all of them have the process number 1, and programs that live and must keep theirs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use datapipes_testkit::{Mounted, until};
use scene::{folder, is_root, on_path};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");
/// The arguments of the program that `becomes_the_program` becomes, one a line.
const ARGUMENTS: &str = "NAMES_ARGUMENTS";

/// Not a test of its own: the process becomes `dpipe`, and the kernel ends it when it is about to
/// rename a file.
#[test]
#[ignore = "run by the tests that need it"]
fn becomes_the_program() {
    let arguments = std::env::var(ARGUMENTS).expect("its parent says what to run");
    let calls = [
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_renameat2,
    ]
    .map(|call| (call, Vec::new()));
    let filter = SeccompFilter::new(
        BTreeMap::from(calls),
        SeccompAction::Allow,
        SeccompAction::KillProcess,
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    panic!("{}", Command::new(DPIPE).args(arguments.lines()).exec());
}

/// A command in a process namespace of its own, in which it has the number 1.
fn as_number_one(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", program]).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Whether process namespaces can be had; a line says why not.
fn namespaces(test: &str) -> bool {
    let good = is_root() && on_path("unshare") && as_number_one("true").status().is_ok_and(|s| s.success());
    if !good {
        println!("SKIPPED: {test}: there are no process namespaces for this user");
    }
    good
}

fn hidden(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    names.filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(".dpipe-")).collect()
}

#[test]
fn killed_with_a_hidden_name_as_number_one() {
    if !namespaces("killed_with_a_hidden_name_as_number_one") {
        return;
    }
    let folder = folder();
    let (input, output) = (folder.path("in"), folder.path("out"));
    fs::write(&input, "2\n1\n").unwrap();
    fs::write(&output, "old\n").unwrap();
    let arguments = format!("sort\n{}\n-o\n{}", input.display(), output.display());
    let mut left = Vec::new();
    for turn in 0..3 {
        let mut launcher = as_number_one(std::env::current_exe().unwrap().to_str().unwrap());
        launcher.args(["--ignored", "--exact", "becomes_the_program", "--nocapture"]).env(ARGUMENTS, &arguments);
        let ended = launcher.output().unwrap();
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        // unshare tells of its child's signal as a shell does, or dies of it itself.
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        let killed = by_signal == Some(libc::SIGSYS) || ended.status.code() == Some(128 + libc::SIGSYS);
        assert!(killed, "turn {turn}: it was not killed at the rename: {:?} {error}", ended.status);
        assert_eq!(fs::read_to_string(&output).unwrap(), "old\n", "turn {turn}");
        // The one before was removed, and the new one has another name.
        let now = hidden(folder.at());
        assert_eq!(now.len(), 1, "turn {turn}: {now:?}");
        assert!(!left.contains(&now[0]), "turn {turn}: {now:?} again");
        left.extend(now);
    }
    let good = as_number_one(DPIPE).arg("sort").arg(&input).arg("-o").arg(&output).output().unwrap();
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    assert_eq!(fs::read_to_string(&output).unwrap(), "1\n2\n");
    assert_eq!(hidden(folder.at()), Vec::<PathBuf>::new());
}

/// A file system that has no files without names; a line says why not.
fn mounted(test: &str) -> Option<Mounted> {
    Mounted::bindfs(env!("CARGO_TARGET_TMPDIR")).map_err(|why| println!("SKIPPED: {test}: {why}")).ok()
}

/// Waits for something that comes, or panics after a long time.
#[test]
fn the_living_keep_their_names_and_the_dead_do_not() {
    const TEST: &str = "the_living_keep_their_names_and_the_dead_do_not";
    if !namespaces(TEST) {
        return;
    }
    let Some(bind) = mounted(TEST) else { return };
    let (folder, view, below) = (folder(), bind.at(), bind.behind(""));
    fs::write(folder.path("in"), "2\n1\n").unwrap();
    let waiting = |output: &str| {
        let mut command = Command::new(DPIPE);
        command.args(["sort", "-o"]).arg(view.join(output)).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let elsewhere = || {
        let mut command = as_number_one(DPIPE);
        let done = command.arg("sort").arg(folder.path("in")).arg("-o").arg(view.join("other")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(fs::read_to_string(view.join("other")).unwrap(), "1\n2\n");
    };

    // Two wait for their input. In another namespace neither is to be seen.
    let (mut living, mut dying) = (waiting("living"), waiting("dying"));
    until("a file under way", || hidden(&below).len() == 2);
    elsewhere();
    assert_eq!(hidden(&below).len(), 2, "one that is at work has lost its file");

    dying.kill().unwrap();
    dying.wait().unwrap();
    // The kernel tells the process that serves the file system a little later.
    until("the end of what the dead left", || {
        elsewhere();
        hidden(&below).len() == 1
    });

    living.stdin.take().unwrap().write_all(b"2\n1\n").unwrap();
    let done = living.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read_to_string(view.join("living")).unwrap(), "1\n2\n");
    let mut names: Vec<_> = fs::read_dir(&below).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["living", "other"]);
}

#[test]
fn sorting_where_files_need_names() {
    const TEST: &str = "sorting_where_files_need_names";
    let Some(bind) = mounted(TEST) else { return };
    let view = bind.at();
    let made = Command::new(DPIPE).args(["gen", "lines", "--size", "40M"]).arg(view.join("in")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let sum = || {
        let checked = Command::new(DPIPE).args(["check", "lines", "--json"]).arg(view.join("in")).output().unwrap();
        scene::json(std::str::from_utf8(&checked.stdout).unwrap())
    };
    let before = sum();
    // Runs are spilled there, too.
    let mut command = Command::new(DPIPE);
    command.args(["sort", "-S16M", "--json", "-T"]).arg(view).arg(view.join("in")).arg("-o").arg(view.join("in"));
    let done = command.env("LC_ALL", "C").output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{error}");
    let report = scene::json(std::str::from_utf8(&done.stdout).unwrap());
    assert!(report["runs"].as_u64().unwrap() > 1, "{report}");
    assert_eq!(report["output"]["way"], "replaced");
    let after = sum();
    assert_eq!(after["sorted"], true, "{after}");
    assert_eq!((&after["records"], &after["checksum"]), (&before["records"], &before["checksum"]));
    // Scratch files are the file system's own to remove, when it hears that they are closed.
    until("the end of the scratch files", || fs::read_dir(bind.behind("")).unwrap().count() == 1);
}
