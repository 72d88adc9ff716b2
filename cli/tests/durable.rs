//! `dpipe log` and `dpipe checkpoint` as a user runs them: the real program, real files, real exit
//! codes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use scene::{folder, json};

fn dpipe(args: &[&str], path: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.args(args).arg(path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn with_input(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The standard output and error of what must end with this code.
fn ends(mut command: Command, code: i32) -> (String, String) {
    let output = command.output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {out}{err}");
    (out, err)
}

#[test]
fn lines_are_appended_acknowledged_read_and_released() {
    let folder = folder();
    let dir = folder.path("log");
    let small = ["log", "append", "--segment-size", "64K", "--batch-size", "16K"];
    assert_eq!(text(with_input(dpipe(&small, &dir), "one\ntwo\n\nlast without its end")), "1\n2\n3\n4\n");
    assert_eq!(text(with_input(dpipe(&[&small[..], &["-q"]].concat(), &dir), "five\n")), "");
    let read = |args: &[&str]| ends(dpipe(&[&["log", "read"], args].concat(), &dir), 0).0;
    assert_eq!(read(&[]), "one\ntwo\n\nlast without its end\nfive\n");
    assert_eq!(read(&["--from", "4"]), "last without its end\nfive\n");
    let lines: Vec<_> = read(&["--json"]).lines().map(json).collect();
    assert_eq!((&lines[1]["number"], &lines[1]["text"]), (&2.into(), &"two".into()));
    let many: String = (0..3000).map(|n| format!("line {n} with some more words in it, to fill segments\n")).collect();
    let stats = json(&text(with_input(dpipe(&[&small[..], &["--json"]].concat(), &dir), &many)));
    assert!(stats["records"] == 3000 && stats["batches"].as_u64().unwrap() < 1000, "{stats}");
    let stat = json(&ends(dpipe(&["log", "stat", "--json"], &dir), 0).0);
    assert_eq!((&stat["intact"], &stat["first"], &stat["next"]), (&true.into(), &1.into(), &3006.into()), "{stat}");
    assert!(stat["segments"].as_u64().unwrap() > 2, "{stat}");
    let (said, _) = ends(dpipe(&["log", "release", "--before", "2000"], &dir), 0);
    assert!(said.contains("released") && !said.starts_with('0'), "{said}");
    let (_, why) = ends(dpipe(&["log", "read", "--first", "5"], &dir), 2);
    assert!(why.contains("were released"), "{why}");
    // A damaged byte in the middle: what is before it is shown, and then an error.
    let first =
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some()).min().unwrap();
    let mut bytes = fs::read(&first).unwrap();
    bytes[20_000] ^= 4;
    fs::write(&first, &bytes).unwrap();
    let (out, why) = ends(dpipe(&["log", "read"], &dir), 2);
    assert!(!out.is_empty() && why.contains("is damaged"), "{why}");
    let (out, _) = ends(dpipe(&["log", "stat"], &dir), 1);
    assert!(out.contains("DAMAGED") && out.contains("at offset"), "{out}");
    let (_, why) = ends(dpipe(&["log", "read"], &folder.path("nothing")), 2);
    assert!(why.starts_with("dpipe log: ") && why.contains("nothing"), "{why}");
}

#[test]
fn what_was_acknowledged_on_the_output_survives_kill_9() {
    let folder = folder();
    let dir = folder.path("log");
    let mut wanted = Vec::new();
    for turn in 0..6 {
        let mut child = dpipe(&["log", "append", "--segment-size", "64K", "--batch-size", "16K"], &dir)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            for n in 0.. {
                if writeln!(input, "turn {turn} line {n}").is_err() {
                    break;
                }
            }
        });
        let mut acks = BufReader::new(child.stdout.take().unwrap()).lines();
        // Killed in the middle of its work, with acknowledgements still on their way.
        for _ in 0..300 * turn {
            acks.next().unwrap().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        datapipes_testkit::joined(feeder);
        let last = acks.map_while(Result::ok).filter_map(|l| l.parse::<usize>().ok()).last().unwrap_or(300 * turn);
        if !dir.exists() {
            continue;
        }
        let output = dpipe(&["log", "read"], &dir).output().unwrap();
        let records: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert!(records.len() >= last, "turn {turn}: {last} were acknowledged, {} are there", records.len());
        assert!(records.starts_with(&wanted), "turn {turn}: what was there is not any more");
        for (n, line) in records[wanted.len()..].iter().enumerate() {
            assert_eq!(*line, format!("turn {turn} line {n}"));
        }
        wanted = records;
    }
    assert!(wanted.len() > 1500, "{}", wanted.len());
}

#[test]
fn files_are_saved_listed_verified_and_restored() {
    let folder = folder();
    let (store, out) = (folder.path("store"), folder.path("out"));
    let (a, b) = (folder.path("weights"), folder.path("index"));
    fs::write(&a, (0..3_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    fs::write(&b, b"small").unwrap();
    let mut save = dpipe(&["checkpoint", "save", "--json", "--keep", "2"], &store);
    save.arg(&a).arg(&b);
    for n in 1..=3 {
        let saved = json(&text(save.output().unwrap()));
        assert_eq!((&saved["number"], &saved["bytes"]), (&n.into(), &12_000_005.into()));
    }
    let listed = json(&ends(dpipe(&["checkpoint", "list", "--json"], &store), 0).0);
    assert_eq!(listed.as_array().unwrap().iter().map(|l| l["number"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 3]);
    let (said, _) = ends(dpipe(&["checkpoint", "list"], &store), 0);
    assert!(said.contains("weights (12.0 MB), index (5 B)"), "{said}");
    assert_eq!(ends(dpipe(&["checkpoint", "verify"], &store), 0).0, "2: intact\n3: intact\n");
    let restore = |more: &[&str]| {
        let mut command = dpipe(&["checkpoint", "restore"], &store);
        command.arg("--output").arg(&out).args(more);
        command
    };
    ends(restore(&[]), 0);
    assert!(fs::read(out.join("weights")).unwrap() == fs::read(&a).unwrap());
    assert_eq!(fs::read(out.join("index")).unwrap(), b"small");
    // The newest is damaged: an error, unless an older one is asked for.
    let newest = store.join("checkpoint-00000000000000000003");
    let mut bytes = fs::read(&newest).unwrap();
    bytes[5_000_000] ^= 1;
    fs::write(&newest, &bytes).unwrap();
    let (_, why) = ends(restore(&[]), 2);
    assert!(why.contains("region `weights`") && why.contains("at offset 4194304"), "{why}");
    let (said, _) = ends(dpipe(&["checkpoint", "verify"], &store), 1);
    assert!(said.starts_with("2: intact\n3: DAMAGED: "), "{said}");
    let restored = json(&ends(restore(&["--fallback", "--json"]), 0).0);
    assert!(restored["number"] == 2 && restored["skipped"]["3"].as_str().unwrap().contains("weights"), "{restored}");
    // Half of it: not even listed as one.
    fs::File::options().write(true).open(&newest).unwrap().set_len(6_000_000).unwrap();
    let (said, _) = ends(dpipe(&["checkpoint", "list"], &store), 1);
    assert!(said.contains("3: DAMAGED") && said.starts_with("2: 12.0 MB"), "{said}");
    ends(restore(&["--number", "2"]), 0);
    let (_, why) = ends(dpipe(&["checkpoint", "list"], &folder.path("nothing")), 2);
    assert!(why.contains("nothing"), "{why}");
}

#[test]
fn the_measurements_run() {
    let folder = folder();
    let log = ["log", "bench", "--seconds", "1", "--threads", "2", "--json", "--dir"];
    let log = json(&ends(dpipe(&log, folder.at()), 0).0);
    assert!(
        log["records"].as_u64().unwrap() > 0 && log["stats"]["acknowledged"]["p50_ns"].as_u64().unwrap() > 0,
        "{log}"
    );
    let checkpoint = ["checkpoint", "bench", "--size", "9M", "--regions", "3", "--json", "--dir"];
    let checkpoint = json(&ends(dpipe(&checkpoint, folder.at()), 0).0);
    assert!(checkpoint["same"] == true && checkpoint["save_bytes_per_second"].as_f64().unwrap() > 0.0, "{checkpoint}");
    assert!(folder.names().unwrap().is_empty(), "something is left");
}
