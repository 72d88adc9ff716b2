//! `dpipe knobs` as a user runs it, on a made tree.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use datapipes_testkit::until;
use rustix::process::{Signal, kill_process, kill_process_group};
use scene::{TempFolder, folder};
use serde_json::Value;

const AHEAD: &str = "sys/block/sda/queue/read_ahead_kb";

/// A machine with one disk.
fn machine() -> TempFolder {
    let made = folder();
    for (name, text) in [
        (AHEAD, "128"),
        ("sys/block/sda/size", "9"),
        ("sys/block/sda/queue/scheduler", "[none] kyber"),
        ("proc/cpuinfo", "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 23\nmodel : 1\n"),
    ] {
        fs::create_dir_all(made.path(name).parent().unwrap()).unwrap();
        fs::write(made.path(name), text).unwrap();
    }
    made
}

fn knobs(made: &TempFolder, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    let (before, after) = words.split_at(words.iter().position(|word| *word == "--").unwrap_or(words.len()));
    command.arg("knobs").args(before).arg("--root").arg(made.at()).args(after);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn run(made: &TempFolder, words: &[&str]) -> Output {
    knobs(made, words).output().unwrap()
}

fn ahead(made: &TempFolder) -> String {
    fs::read_to_string(made.path(AHEAD)).unwrap().trim().to_owned()
}

#[test]
fn the_list_says_what_is_there_and_what_is_not() {
    let made = machine();
    let output = run(&made, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in
        ["block.sda.read_ahead_kb = 128", "needs root", "absent here", "AuthenticAMD, family 23", "of the library"]
    {
        assert!(output.status.success() && text.contains(words), "{words}: {text}");
    }
    let json: Value = serde_json::from_slice(&run(&made, &["--only", "block.sda", "--json"]).stdout).unwrap();
    assert_eq!(json["knobs"].as_array().unwrap().len(), 2);
    assert_eq!(json["knobs"][0]["verified"], "this project's test machines");
    assert_eq!(json["journal"], Value::Null);
    assert_eq!(json["knobs"][1]["allowed"]["number"]["max"], 1 << 20);
    let nothing = run(&made, &["--only", "block.sdz"]);
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn a_command_runs_under_the_settings() {
    let made = machine();
    let file = made.path(AHEAD);
    let words = ["set", "block.sda.read_ahead_kb=4096", "--", "cat", file.to_str().unwrap()];
    let output = run(&made, &words);
    assert!(output.status.success() && output.stdout.trim_ascii() == b"4096", "{output:?}");
    assert_eq!(ahead(&made), "128");
    // Its end is ours.
    assert_eq!(run(&made, &["set", "block.sda.read_ahead_kb=4096", "--", "false"]).status.code(), Some(1));
    let absent = run(&made, &["set", "block.sda.read_ahead_kb=4096", "--", "./no-such-program"]);
    assert_eq!((absent.status.code(), ahead(&made).as_str()), (Some(2), "128"), "{absent:?}");
    // A dry run tells, and sets nothing.
    let output = run(&made, &["set", "block.sda.scheduler=kyber", "--dry-run", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["changes"][0]["from"], &json["changes"][0]["to"]), (&"none".into(), &"kyber".into()));
    assert_eq!(fs::read_to_string(made.path("sys/block/sda/queue/scheduler")).unwrap(), "[none] kyber");
    let wrong = run(&made, &["set", "block.sda.scheduler=deadline"]);
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && error.contains("none, kyber"), "{error}");
    assert!(run(&made, &["set", "block.sda.read_ahead_kb=64", "--stay"]).status.success());
    assert_eq!(ahead(&made), "64");
}

/// Starts a command that says a word under the settings and then stays.
fn held(made: &TempFolder) -> Child {
    let words = ["set", "block.sda.read_ahead_kb=4096", "--", "sh", "-c", "echo there; exec sleep 1000"];
    let mut child = knobs(made, &words).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), ahead(made).as_str()), ("there\n", "4096"));
    child
}

#[test]
fn whoever_kills_it_the_settings_are_restored() {
    let made = machine();
    for signal in [Signal::TERM, Signal::KILL] {
        let mut child = held(&made);
        let pid = rustix::process::Pid::from_child(&child);
        kill_process(pid, signal).unwrap();
        assert!(!child.wait().unwrap().success());
        // The guard has its own time.
        until("the settings are restored", || ahead(&made) == "128" && !made.path("run/datapipes/knobs.json").exists());
        // The command that ran meanwhile.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    // Ctrl-C of a terminal reaches all of the group, and not the guard.
    let mut child = held(&made);
    kill_process_group(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(ahead(&made), "128");
    let output = run(&made, &["restore"]);
    assert!(output.status.success() && output.stdout.starts_with(b"nothing"), "{output:?}");
}

/// A machine whose transaction and guard were killed.
fn left_over() -> TempFolder {
    let made = machine();
    let mut child = held(&made);
    let pid = rustix::process::Pid::from_child(&child);
    // It must not see that the command has ended.
    kill_process(pid, Signal::STOP).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let guards = fs::read_to_string(children).unwrap();
    for guard in guards.split_whitespace() {
        let guard = rustix::process::Pid::from_raw(guard.parse().unwrap()).unwrap();
        let _ = kill_process(guard, Signal::KILL);
    }
    kill_process_group(pid, Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(ahead(&made), "4096");
    made
}

#[test]
fn what_was_left_is_mentioned_and_restored_by_whoever_comes_next() {
    let made = left_over();
    let words = "keeps the old values of block.sda.read_ahead_kb";
    let list = run(&made, &[]);
    assert!(String::from_utf8(list.stdout).unwrap().contains(words));
    let json: Value = serde_json::from_slice(&run(&made, &["--json"]).stdout).unwrap();
    assert_eq!(json["journal"][0], "block.sda.read_ahead_kb");
    assert_eq!(json["knobs"][0]["verified"], "made trees only");
    let dry = run(&made, &["set", "block.sda.scheduler=kyber", "--dry-run"]);
    assert!(dry.status.success() && String::from_utf8(dry.stderr).unwrap().contains(words));
    assert_eq!(ahead(&made), "4096", "a list and a dry run change nothing");
    // It is restored though the new value is refused.
    let wrong = run(&made, &["set", "block.sda.scheduler=deadline"]);
    assert_eq!((wrong.status.code(), ahead(&made).as_str()), (Some(2), "128"), "{wrong:?}");
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("block.sda.read_ahead_kb: restored"));
    assert!(!String::from_utf8(run(&made, &[]).stdout).unwrap().contains(words));
}

#[test]
fn the_end_says_whether_all_is_restored() {
    let made = left_over();
    fs::write(made.path(AHEAD), "32").unwrap();
    let output = run(&made, &["restore"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("somebody set it to 32"), "{text}");
    let shell = format!("echo 33 > {}", made.path(AHEAD).display());
    let set = ["set", "block.sda.read_ahead_kb=64", "--", "sh", "-c", &shell];
    assert_eq!((run(&made, &set).status.code(), ahead(&made).as_str()), (Some(1), "33"));

    let made = left_over();
    fs::remove_file(made.path(AHEAD)).unwrap();
    fs::create_dir(made.path(AHEAD)).unwrap();
    let refused = run(&made, &["restore"]);
    assert!(refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("--forget"));
    let forgotten = run(&made, &["restore", "--forget"]);
    let text = String::from_utf8(forgotten.stdout).unwrap();
    assert!(forgotten.status.code() == Some(1) && text.contains("given up"), "{text}");
    assert!(run(&made, &["restore"]).status.success());

    // A disk that was removed has nothing to be restored.
    let made = left_over();
    fs::remove_dir_all(made.path("sys/block/sda")).unwrap();
    let gone = run(&made, &["restore"]);
    assert!(gone.status.success() && String::from_utf8_lossy(&gone.stdout).contains("is gone"), "{gone:?}");
}

#[test]
fn a_root_that_is_not_there_is_no_machine_without_anything() {
    for command in ["knobs", "counters"] {
        let mut dpipe = Command::new(env!("CARGO_BIN_EXE_dpipe"));
        let output = dpipe.args([command, "--root", "/nowhere/at/all"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains("/nowhere/at/all"), "{output:?}");
    }
}

#[test]
fn a_root_may_begin_with_a_dash_or_be_a_link() {
    let above = folder();
    let made = machine();
    std::os::unix::fs::symlink(made.at(), above.path("-machine")).unwrap();
    for root in ["--root=-machine", "--root=./-machine"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
        command.current_dir(above.at()).args(["knobs", "set", "block.sda.read_ahead_kb=4096", root]);
        command.args(["--", "sh", "-c", "echo there; exec sleep 1000"]).process_group(0);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!((line.as_str(), ahead(&made).as_str()), ("there\n", "4096"), "{root}");
        // The guard is in a group of its own. It knows the folder, wherever the link leads now.
        fs::rename(above.path("-machine"), above.path("parked")).unwrap();
        kill_process_group(rustix::process::Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        until("the settings are restored", || ahead(&made) == "128" && !made.path("run/datapipes/knobs.json").exists());
        fs::rename(above.path("parked"), above.path("-machine")).unwrap();
    }
}

fn with_share(made: &TempFolder, words: &[&str], share: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.args(words).args(["--share", share, "--share-root"]).arg(made.at());
    command.env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_share_of_a_transfer_is_shown_and_its_group_is_removed() {
    let made = machine();
    let words = ["explain", "dram:1M", "dram:1M"];
    let output = with_share(&made, &words, "share.l3=0=f");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("share.l3 is absent"), "{error}");
    for (name, text) in [("schemata", "L3:0=ff\n"), ("tasks", ""), ("info/L3/cbm_mask", "ff")] {
        let file = made.path("sys/fs/resctrl").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let text = String::from_utf8(with_share(&made, &words, "share.l3=0=f").stdout).unwrap();
    assert!(text.contains("threads during a transfer: L3:0=f\n"), "{text}");
    let copied = with_share(&made, &["copy", "dram:1M", "dram:1M", "--json"], "share.l3=0=f");
    let json: Value = serde_json::from_slice(&copied.stdout).unwrap();
    assert_eq!((&json["route"]["transfer_share"], &json["bytes"]), (&"L3:0=f".into(), &(1 << 20).into()));
    let thread = fs::read_to_string(made.path("sys/fs/resctrl/tasks")).unwrap();
    assert!(thread.trim().parse::<u32>().is_ok(), "its thread went back: {thread:?}");
    let left = fs::read_dir(made.path("sys/fs/resctrl")).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("datapipes-")));
}

/// The knobs of this machine as a user sees them; `None` is the one who runs the tests.
fn of_this_machine(user: Option<u32>) -> std::io::Result<Vec<Value>> {
    // A user who may not enter the folder of the program runs it by its descriptor.
    let program = fs::File::open(env!("CARGO_BIN_EXE_dpipe"))?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.args(["knobs", "--json"]).current_dir("/").env("LC_ALL", "C").stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty())?;
    let output = command.output()?;
    assert!(output.status.success(), "{user:?}: {}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout)?;
    Ok(all["knobs"].as_array().unwrap().clone())
}

#[test]
fn without_root_all_is_read_that_everybody_may_read() {
    const NOBODY: u32 = 65_534;
    let test = "without_root_all_is_read_that_everybody_may_read";
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: {test}: the tests do not run as root");
        return;
    }
    let by_root = of_this_machine(None).unwrap();
    let by_nobody = match of_this_machine(Some(NOBODY)) {
        Ok(knobs) => knobs,
        Err(why) => {
            println!("SKIPPED: {test}: as user {NOBODY}: {why}");
            return;
        }
    };
    let mut same = 0;
    for knob in by_root.iter().filter(|knob| !knob["value"].is_null()) {
        // A disk of another test may come and go.
        let Some(other) = by_nobody.iter().find(|other| other["name"] == knob["name"]) else { continue };
        let file = knob["lives_at"].as_str().unwrap();
        let is_for_all = fs::metadata(file).is_ok_and(|facts| facts.mode() & 0o004 != 0);
        if is_for_all || !file.starts_with('/') {
            assert_eq!(knob["value"], other["value"], "{knob} {other}");
            same += 1;
        } else {
            assert!(other["absent"].as_str().is_some_and(|why| why.contains("ermission denied")), "{knob} {other}");
        }
    }
    // What is a limit of the process is no file.
    assert!(same > 3, "{by_nobody:?}");
}
