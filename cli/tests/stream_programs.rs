//! Stages of `dpipe stream` that are programs of the user's: what they read and write, how they
//! fail, and what is left of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use scene::folder;
use scene::streams::{bad, bytes, ended, from_file, good, signal, stream, until, with_mark};

fn marked(command: &mut Command, name: &str) -> String {
    let mark = format!("DPIPE_TEST_MARK={name}-{}", std::process::id());
    let (key, value) = mark.split_once('=').unwrap();
    command.env(key, value);
    mark
}

#[test]
fn the_stream_goes_through_a_program_under_every_placement() {
    let folder = folder();
    let (input, out) = (folder.path("in"), folder.path("out"));
    let text: String = (0..200_000).map(|n| format!("{},{n}\n", n * 7919 % 200_000)).collect();
    fs::write(&input, &text).unwrap();
    let mut expected: Vec<&str> = text.lines().map(|line| line.split_once(',').unwrap().0).collect();
    expected.sort_unstable();
    let expected: String = expected.into_iter().map(|line| format!("{line}\n")).collect();
    for placement in ["application", "central", "distributed", "auto"] {
        let mut command = stream(&from_file(&input), "crc32,exec:cut -d, -f1 | LC_ALL=C sort", &out);
        let report = good(command.args(["--through", "lz4,unlz4", "--through", "exec:cat", "--placement", placement]));
        assert!(fs::read_to_string(&out).unwrap() == expected, "{placement}");
        // Nobody can say whether a program was right.
        let run = &report["runs"][0];
        assert_eq!((&run["due_from"], &run["verified"]), (&"program".into(), &serde_json::Value::Null), "{report}");
        let edges: Vec<_> = run["edges"].as_array().unwrap().iter().map(|e| e["to"].as_str().unwrap()).collect();
        assert_eq!(edges, ["crc32", "into cut", "lz4", "unlz4", "into cat", "sink"], "{report}");
    }
    // One that reads all and writes nothing; one that writes and was given nothing.
    good(&mut stream(&from_file(&input), "exec:cat >/dev/null", &out));
    assert_eq!(fs::read(&out).unwrap(), b"");
    good(&mut stream("generate:0", "exec:echo hello", &out));
    assert_eq!(fs::read(&out).unwrap(), b"hello\n");
}

#[test]
fn a_program_that_fails_is_told_with_what_it_said() {
    let folder = folder();
    let (input, out) = (folder.path("in"), folder.path("out"));
    fs::write(&input, bytes(4, 5_000_000)).unwrap();
    fs::write(&out, "before").unwrap();
    for (program, whys) in [
        // All was read and written: only its exit code says that it was wrong.
        ("cat; echo no good >&2; exit 3", &["cat: no good", "exit code 3", "said last: no good"][..]),
        ("kill -SEGV $$", &["signal 11", "program kill"]),
        ("exit 9", &["exit code 9"]),
        ("/does/not/exist -x", &["exit code 127", "not found"]),
        // Content, but without having read.
        ("true", &["before it had read all"]),
        ("head -c 10", &["before it had read all"]),
        ("exec <&-; cat /dev/null; sleep 0.5", &["before it had read all"]),
        // What a terminal would obey is not sent to it.
        ("cat; printf '\\033[31mred\\n' >&2; exit 1", &["u{1b}", "exit code 1"]),
    ] {
        for placement in ["application", "distributed"] {
            let error =
                bad(stream(&from_file(&input), &format!("exec:{program}"), &out).args(["--placement", placement]));
            for why in whys {
                assert!(error.contains(why), "{program}: {error}");
            }
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
    }
    // So little that it fits into a pipe: nobody but the pipe knows that it was not read.
    let error = bad(&mut stream("generate:1000", "exec:dd bs=10 count=1 >/dev/null 2>&1", &out));
    assert!(error.contains("990 bytes are left"), "{error}");
    assert_eq!(
        (folder.names().unwrap(), fs::read(&out).unwrap()),
        (vec!["in".into(), "out".into()], b"before".to_vec())
    );
}

/// Orphans, those in sessions of their own, those that ignore signals.
const FAMILY: &str =
    "exec:trap '' INT TERM HUP; (setsid sleep 1000 &); (sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 &); ";

#[test]
fn nothing_of_a_program_outlives_the_stream() {
    let folder = folder();
    let out = folder.path("out");
    // It ends well, and so does what it left.
    let mut command = stream("generate:100K", &format!("{FAMILY} cat"), &out);
    let mark = marked(&mut command, "well");
    good(&mut command);
    until("the end of all", || with_mark(&mark).is_empty());
    assert_eq!(fs::metadata(&out).unwrap().len(), 100 << 10);
    // Out of patience: with one that reads nothing, one that never writes, one that never ends.
    for (at, blocks) in
        ["sleep 1000", "cat >/dev/null; sleep 1000", "cat; exec >&-; sleep 1000"].into_iter().enumerate()
    {
        let mut command = stream("generate:3M", &format!("{FAMILY} {blocks}"), &out);
        let mark = marked(&mut command, &format!("blocks-{at}"));
        let error = bad(command.args(["--timeout", "1"]));
        assert!(error.contains("a block to move"), "{blocks}: {error}");
        until("the end of all", || with_mark(&mark).is_empty());
    }
    assert_eq!(fs::metadata(&out).unwrap().len(), 100 << 10);
}

#[test]
fn signals_to_the_command_end_a_program_that_blocks() {
    for how in [Signal::INT, Signal::TERM, Signal::KILL] {
        let folder = folder();
        let mut command = stream("generate:3M", &format!("{FAMILY} echo ready >&2; sleep 1000"), &folder.path("out"));
        let mark = marked(&mut command, &format!("signal-{}", how.as_raw()));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // The line is read to its end, and what follows is read by nobody.
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("trap: ready")));
        signal(&child, how);
        assert_eq!(ended(&mut child).signal(), Some(how.as_raw()));
        until("the end of all", || with_mark(&mark).is_empty());
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }
}

/// The numbers of a program's two keepers: `$PPID`, and `$O`, which started that.
const KEEPERS: &str = "O=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status);";

#[test]
fn a_program_ends_when_its_keepers_are_killed_or_stopped() {
    let folder = folder();
    let out = folder.path("out");
    for (at, (before, what, why)) in [
        (FAMILY, "kill -9 $PPID; exec sleep 1000", "signal 9"),
        (FAMILY, "kill -9 $PPID; exec <&- >&- 2>&-; sleep 1000", "signal 9"),
        (FAMILY, "kill -9 $O; exec sleep 1000", "signal 9"),
        (FAMILY, "kill -9 $O; exec <&- >&- 2>&-; sleep 1000", "signal 9"),
        // With both, at least the program itself ends.
        ("exec:", "kill -9 $O $PPID; exec sleep 1000", "signal 9"),
        (FAMILY, "kill -STOP $PPID; exec cat", "a block to move"),
        (FAMILY, "kill -STOP $O; exec cat", "a block to move"),
        (FAMILY, "kill -STOP $O $PPID; exec cat", "a block to move"),
        // Who is to end the stopped one is killed.
        (FAMILY, "kill -STOP $PPID; kill -9 $O; exec sleep 1000", "signal 9"),
        (FAMILY, "kill -STOP $O; kill -9 $PPID; exec sleep 1000", "closed its standard input"),
        // Again and again, as fast as it can.
        (FAMILY, "while kill -STOP $O; do :; done", "a block to move"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = stream("generate:3M", &format!("{before} {KEEPERS} {what}"), &out);
        let mark = marked(&mut command, &format!("keeper-{at}"));
        // Where something else ends it, a busy machine may need longer than a second for that.
        let patience = if why == "a block to move" { "1" } else { "60" };
        let error = bad(command.args(["--timeout", patience]));
        assert!(error.contains(why), "{what}: {error}");
        until("the end of all", || with_mark(&mark).is_empty());
        assert_eq!(folder.names().unwrap(), [""; 0], "{what}");
    }
}

#[test]
fn a_stopped_keeper_ends_when_the_command_is_killed() {
    let folder = folder();
    for (at, stopped) in ["$PPID", "$O"].into_iter().enumerate() {
        let through = format!("{FAMILY} {KEEPERS} kill -STOP {stopped}; echo ready >&2; sleep 1000");
        let mut command = stream("generate:3M", &through, &folder.path("out"));
        let mark = marked(&mut command, &format!("stopped-{at}"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("trap: ready")));
        signal(&child, Signal::KILL);
        ended(&mut child);
        until("the end of all", || with_mark(&mark).is_empty());
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }
}

#[test]
fn the_help_says_what_a_program_is_held_to() {
    let output = Command::new(env!("CARGO_BIN_EXE_dpipe")).args(["stream", "--help"]).output().unwrap();
    // Lines may end anywhere.
    let help = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for word in ["exec:COMMAND", "exit with 0", "unzstd", "gunzip", "--timeout", "standard input", "Verified means"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}
