//! What GNU sort does with the command lines of its own tests' kinds: keys, orders, -c, -m, -u, -z,
//! -o, --files0-from, --debug, sizes, and what it refuses. Output, exit code and words are recorded
//! in `gnu_cases.txt`, so the test needs no GNU sort; where there is one that is new enough, the
//! record is checked, too.
//!
//! `GNU_SORT` names another sort to check the record with.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(unused_imports)] // Of it, only the way to find a GNU sort is needed.
#[path = "../../crates/sort/tests/cases/mod.rs"]
mod cases;
mod scene;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cases::GnuSort;
use scene::{folder, on_path};

/// A command line of a shell, what is in the file `in`, and what comes of it.
#[derive(Debug, Default)]
struct Case {
    line: String,
    input: Option<Vec<u8>>,
    /// The GNU sort from which on it does this; empty for all.
    since: String,
    out: Vec<u8>,
    code: i32,
    err: Vec<u8>,
    /// What `dpipe sort` says where its words are others.
    says: Option<Vec<u8>>,
}

/// The records of `gnu_cases.txt`: `$ LINE`, then `name: value` lines with escapes.
fn recorded() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for text in include_str!("gnu_cases.txt").lines().filter(|text| !text.is_empty() && !text.starts_with('#')) {
        if let Some(line) = text.strip_prefix("$ ") {
            cases.push(Case { line: line.to_owned(), ..Case::default() });
            continue;
        }
        let (name, value) = text.split_once(": ").unwrap_or_else(|| panic!("no `name: value`: {text}"));
        let case = cases.last_mut().expect("a record begins with `$ `");
        match name {
            "in" => case.input = Some(unescaped(value)),
            "since" => case.since = value.to_owned(),
            "out" => case.out = unescaped(value),
            "code" => case.code = value.parse().unwrap(),
            "err" => case.err = unescaped(value),
            "says" => case.says = Some(unescaped(value)),
            _ => panic!("unknown name: {text}"),
        }
    }
    cases
}

/// `\n`, `\t`, `\0`, `\\` and `\xHH` are bytes; everything else is itself.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().expect("something behind a backslash") {
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b'x' => {
                let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
                digit() << 4 | digit()
            }
            other => other,
        });
    }
    bytes
}

impl Case {
    /// The line with its input by name, redirected, and through a pipe; or as it is, where it says
    /// itself what it reads.
    fn ways(&self) -> Vec<String> {
        let line = &self.line;
        let word = |word: &str| line.split([' ', '=', ';']).any(|w| w == word);
        if self.input.is_none() || line.contains(['|', '<']) || word("in") || word("list") {
            return vec![line.clone()];
        }
        vec![format!("{line} in"), format!("{line} < in"), format!("cat in | ({line})")]
    }

    /// Runs one of its ways in a fresh folder with a program that is called `sort`.
    fn run(&self, way: &str, place: &Path, sort: &OsStr, first: &str) -> (Option<i32>, Vec<u8>, Vec<u8>) {
        let _ = fs::remove_dir_all(place);
        fs::create_dir(place).unwrap();
        if let Some(input) = &self.input {
            fs::write(place.join("in"), input).unwrap();
        }
        let script = format!("sort() (exec -a sort \"$SORT\" {first} \"$@\")\n{way}");
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "120", "bash", "-c", &script]).current_dir(place).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("SORT", sort);
        for variable in ["TMPDIR", "POSIXLY_CORRECT", "_POSIX2_VERSION"] {
            command.env_remove(variable);
        }
        let output = command.output().unwrap();
        (output.status.code(), output.stdout, same_names(&output.stderr))
    }

    /// Whether a GNU sort of this version does what is recorded.
    fn is_of(&self, version: &str) -> bool {
        let number = |text: &str| -> Vec<u32> {
            let last = text.rsplit(' ').next().unwrap_or_default();
            last.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
        };
        self.since.is_empty() || number(version) >= number(&self.since)
    }
}

/// The words of a program without its own name, with `-` for the input however it was given.
fn same_names(err: &[u8]) -> Vec<u8> {
    let lines = err.split_inclusive(|byte| *byte == b'\n');
    let plain = lines.flat_map(|line| line.strip_prefix(b"dpipe ").unwrap_or(line)).copied().collect::<Vec<u8>>();
    let mut text = plain;
    for (from, to) in [(&b"'dpipe sort "[..], &b"'sort "[..]), (b"sort: in:", b"sort: -:")] {
        while let Some(at) = text.windows(from.len()).position(|window| window == from) {
            text.splice(at..at + from.len(), to.iter().copied());
        }
    }
    text
}

fn shown((code, out, err): &(Option<i32>, Vec<u8>, Vec<u8>)) -> String {
    format!("code {code:?}, output \"{}\", words \"{}\"", out.escape_ascii(), err.escape_ascii())
}

#[test]
fn recorded_cases() {
    if !on_path("bash") || !on_path("timeout") {
        println!("SKIPPED: recorded_cases: there is no bash and timeout");
        return;
    }
    let cases = recorded();
    assert!(cases.len() > 300, "{}", cases.len());
    let gnu = GnuSort::find("recorded_cases (the record)");
    let folder = folder();
    let (next, runs) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |worker: usize| {
        let place = folder.path(&worker.to_string());
        let mut wrong = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
            let recorded = (Some(case.code), case.out.clone(), case.err.clone());
            let ours = (recorded.0, recorded.1.clone(), case.says.clone().unwrap_or_else(|| case.err.clone()));
            for way in case.ways() {
                let mut compare = |who: &str, want: &_, got: &_| {
                    runs.fetch_add(1, Relaxed);
                    if want != got {
                        wrong.push(format!("{way}\n  recorded: {}\n  {who}: {}", shown(want), shown(got)));
                    }
                };
                compare("dpipe", &ours, &case.run(&way, &place, OsStr::new(env!("CARGO_BIN_EXE_dpipe")), "sort"));
                if let Some(gnu) = gnu.as_ref().filter(|gnu| case.is_of(&gnu.version)) {
                    compare(&gnu.version, &recorded, &case.run(&way, &place, &gnu.program, ""));
                }
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    println!("recorded_cases: {} cases, {} runs", cases.len(), runs.into_inner());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
