//! The standard streams as shells and programs hand them over: closed, consumed before, named
//! twice, full, abandoned.
//!
//! Every case is one command line of a shell, in which `$D` is the program.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::process::{Command, Stdio};

use scene::{TempFolder, folder};

/// What a shell's command line came to.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn shell(folder: &TempFolder, line: &str) -> Ended {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120", "bash", "-c", line]).current_dir(folder.at());
    let command = command.env("LC_ALL", "C").env("D", env!("CARGO_BIN_EXE_dpipe")).stdin(Stdio::null());
    let output = command.output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// `f` is out of order, `s` in order, `empty` empty, `log` a log of one record, `u64` numbers in
/// order.
fn scene() -> TempFolder {
    let folder = folder();
    fs::write(folder.path("f"), "b\nc\na\n").unwrap();
    fs::write(folder.path("s"), "a\nb\nc\n").unwrap();
    fs::write(folder.path("empty"), "").unwrap();
    fs::write(folder.path("u64"), [0; 4096]).unwrap();
    let made = shell(&folder, "echo one | $D log append --dir log >/dev/null || echo one | $D log append log");
    assert_eq!(made.code, Some(0), "{}", made.err);
    folder
}

#[test]
fn a_closed_standard_output_is_an_error_wherever_something_is_written() {
    let folder = scene();
    for line in [
        "$D sort f",
        "$D sort empty f",
        "$D sort -m s s",
        "$D sort -u -n f",
        "$D sort --u64 u64",
        "$D sort --help",
        "$D sort --version",
        "$D sort -o sorted --json f",
        "$D gen lines --size 1K -",
        "$D gen lines --size 1K made",
        "$D check u64 u64",
        "$D check u64 u64 --json",
        "$D copy f copied",
        "$D copy f copied --json",
        "$D log read log",
        "$D log stat log",
        "$D machine --json",
        "$D explain f dram:1M",
        "$D explain f dram:1M --json",
        "$D calibrate --show",
        "echo two | $D log append log",
        "$D model --help",
        "$D --help",
        "$D --version",
    ] {
        for (to, why) in [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")] {
            let ended = shell(&folder, &format!("{line} {to}"));
            assert_eq!(ended.code, Some(2), "{line} {to}: {}", ended.err);
            assert!(ended.err.contains(why) && ended.err.contains("standard output"), "{line} {to}: {}", ended.err);
        }
    }
    // Nobody writes: nobody misses it.
    for line in ["$D sort -o sorted f", "$D sort -c s", "$D sort -C s", "$D sort -m -o merged s s"] {
        let ended = shell(&folder, &format!("{line} >&-"));
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
    }
    assert_eq!(fs::read_to_string(folder.path("sorted")).unwrap(), "a\nb\nc\n");
}

#[test]
fn a_closed_standard_input_is_an_error_wherever_something_is_read() {
    let folder = scene();
    for line in [
        "$D sort",
        "$D sort -",
        "$D sort f -",
        "$D sort -m s -",
        "$D sort -m -",
        "$D sort -c",
        "$D sort -C -",
        "$D sort --u64",
        "$D sort --files0-from=-",
        "$D sort -o sorted",
        "$D check lines -",
        "$D check u64 -",
        "$D log append log",
        "$D sort /dev/stdin",
        "$D sort /dev/fd/0",
        "$D sort /proc/self/fd/0",
    ] {
        let ended = shell(&folder, &format!("{line} <&-"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{line}: {}", ended.err);
        assert!(ended.err.starts_with("dpipe "), "{line}: {}", ended.err);
        // Opened for writing only: the same.
        let ended = shell(&folder, &format!("{line} 0>other"));
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (if line.contains("/") { Some(0) } else { Some(2) }, ""),
            "{line}"
        );
        let ended = shell(&folder, &format!("{line} <&- >&- 2>&-"));
        assert_eq!(ended.code, Some(2), "{line}");
    }
    assert!(!folder.path("sorted").exists());
    let ended = shell(&folder, "$D sort f <&-");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a\nb\nc\n"));
}

#[test]
fn what_cannot_be_told_is_an_error() {
    let folder = scene();
    for to in ["2>&-", "2>/dev/full"] {
        for line in ["$D sort -c f", "$D sort absent", "$D sort -o sorted --json=f", "$D sort -x"] {
            assert_eq!(shell(&folder, &format!("{line} {to}")).code, Some(2), "{line} {to}");
        }
        assert_eq!(shell(&folder, &format!("$D sort -C f {to}")).code, Some(1), "{to}");
        let ended = shell(&folder, &format!("LC_ALL=de_DE $D sort f {to}"));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a\nb\nc\n"), "a note is not missed: {to}");
    }
}

/// A file that a command opens must never become a standard stream: a message would land in it.
#[test]
fn files_do_not_become_standard_streams() {
    let folder = scene();
    let ended = shell(&folder, "$D sort -o sorted f <&- >&- 2>&-; cat sorted");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a\nb\nc\n"));
    let ended = shell(&folder, "$D sort -o sorted f absent <&- >&- 2>&-; echo $?; cat sorted f s");
    assert_eq!(ended.out, "2\na\nb\nc\nb\nc\na\na\nb\nc\n");
    let ended = shell(&folder, "$D check lines f <&- >&- 2>&-; echo $?; cat f");
    assert_eq!(ended.out, "2\nb\nc\na\n");
}

#[test]
fn a_file_as_standard_input_is_consumed_once() {
    let folder = scene();
    for (line, out) in [
        ("$D sort - -", "a\nb\nc\n"),
        ("$D sort - - -", "a\nb\nc\n"),
        ("$D sort - s -", "a\na\nb\nb\nc\nc\n"),
        ("$D sort", "a\nb\nc\n"),
        ("$D sort; $D sort", "a\nb\nc\n"),
        ("$D sort -u", "a\nb\nc\n"),
        ("$D sort -S16M -o o -; cat o", "a\nb\nc\n"),
        ("head -c2 >/dev/null; $D sort", "a\nc\n"),
        ("head -c2 >/dev/null; $D sort - f -", "a\na\nb\nc\nc\n"),
        ("cat >/dev/null; $D sort", ""),
        ("$D sort -m - -", "b\nc\na\n"),
        ("$D sort -m -", "b\nc\na\n"),
        ("$D sort -c", ""),
        ("$D sort -C -", ""),
        ("$D sort --records=2:0:1", "a\nb\nc\n"),
        ("$D check lines - >/dev/null", ""),
        ("head -c2 >/dev/null; $D check lines - >/dev/null", ""),
        // Opened again: it begins at its beginning, and leaves ours where it is.
        ("$D sort /dev/stdin", "a\nb\nc\nb\nc\na\n"),
        ("$D sort /dev/fd/0 -", "a\na\nb\nb\nc\nc\n"),
        ("$D sort - /proc/self/fd/0", "a\na\nb\nb\nc\nc\n"),
        ("$D sort f f", "a\na\nb\nb\nc\nc\nb\nc\na\n"),
    ] {
        for open in ["<f", "<>f", "0<>f"] {
            let ended = shell(&folder, &format!("{{ {line}; cat; }} {open}"));
            assert_eq!(ended.out, out, "{line} {open}: {}", ended.err);
        }
        assert_eq!(fs::read_to_string(folder.path("f")).unwrap(), "b\nc\na\n", "{line}");
    }
    // A pipe is read to its end by the first of them.
    for (line, out) in
        [("$D sort - -", "a\nb\nc\n"), ("$D sort -m - -", "b\nc\na\n"), ("$D sort - s -", "a\na\nb\nb\nc\nc\n")]
    {
        assert_eq!(shell(&folder, &format!("cat f | {{ {line}; cat; }}")).out, out, "{line}");
    }
    // Behind the end of a file there is nothing, and nothing is an input.
    let ended = shell(&folder, "{ python3 -c 'import os; os.lseek(0, 100, 0)'; $D sort; } <f");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
}

#[test]
fn names_of_the_list_come_from_the_standard_input_once() {
    let folder = scene();
    let ended = shell(&folder, r"printf 'f\0s' >list; { $D sort --files0-from=-; cat; } <list");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "a\na\nb\nb\nc\nc\n"), "{}", ended.err);
}

#[test]
fn a_folder_as_the_output_is_no_place_for_runs() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    let command = command.args(["sort", "/dev/null", "-o"]).arg(folder.at()).env("TMPDIR", folder.at());
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2));
    assert!(said.contains("open failed: ") && said.contains("Is a directory"), "{said}");
}

#[test]
fn a_reader_that_goes_away() {
    let folder = scene();
    fs::write(folder.path("long"), "line\n".repeat(200_000)).unwrap();
    for line in ["$D sort long", "$D sort -m long", "$D gen lines --size 10M -", "$D sort -u -k1,1 -s long long"] {
        if line.contains("-u") {
            continue;
        }
        let ended = shell(&folder, &format!("{line} | true; echo ${{PIPESTATUS[0]}}"));
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("141\n", ""), "{line}: dies of SIGPIPE");
        let ended = shell(&folder, &format!("trap '' PIPE; {line} | true; echo ${{PIPESTATUS[0]}}"));
        assert_eq!(ended.out, "2\n", "{line}: the parent ignores SIGPIPE");
        assert!(ended.err.contains("standard output") && ended.err.contains("Broken pipe"), "{line}: {}", ended.err);
    }
    // The file of -o is not the standard output: its reader is missed with a word.
    let ended = shell(&folder, "mkfifo p; (exec <p; sleep 0.2) & $D sort -o p long; echo $?; wait");
    assert_eq!(ended.out, "2\n");
    assert!(ended.err.contains("p: Broken pipe"), "{}", ended.err);
}
