//! Files that commands write beside their work: none of them may be what the command reads or
//! writes, by whatever name, and what is written to a descriptor keeps what is there.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use scene::folder;
use scene::helps::helps;

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");

/// A command line, and the files that it reads and writes, there or not. `fed` is its standard
/// input and `said` its standard output, always.
struct Case {
    line: &'static str,
    places: &'static [&'static str],
}

const fn case(line: &'static str, places: &'static [&'static str]) -> Case {
    Case { line, places }
}

const CASES: [Case; 26] = [
    case("sort in lines -o out", &["in", "lines", "out"]),
    case("sort -m in - -o in", &["in"]),
    case("sort -R --random-source random in -o out", &["random", "in", "out"]),
    case("sort --files0-from list -o out", &["list", "in", "lines", "out"]),
    case("sort --compress-program ./program in -o out", &["program"]),
    case("copy in out", &["in", "out"]),
    case("copy in folder", &["in", "folder/in"]),
    case("explain in out", &["in", "out"]),
    case("stream --from file:in --output out", &["in", "out"]),
    case("stream --from - --output -", &[]),
    case("fine stat in lines --reads 1", &["in", "lines"]),
    case("log append events", &["events/00000000000000000001.log", "events/00000000000000000009.log"]),
    case("log read events", &["events/00000000000000000001.log"]),
    case("log stat events", &["events/00000000000000000001.log"]),
    case("log release events --before 1", &["events/00000000000000000001.log"]),
    case("log bench --seconds 0.1", &[]),
    case("checkpoint save saves in lines", &["in", "lines", "saves/checkpoint-00000000000000000001", "saves/new"]),
    case("checkpoint restore saves --output restored", &["saves/checkpoint-00000000000000000001", "restored/in"]),
    case("checkpoint list saves", &["saves/checkpoint-00000000000000000001"]),
    case("checkpoint verify saves", &["saves/checkpoint-00000000000000000001"]),
    case("checkpoint bench --size 1M", &[]),
    case("demo --size 1MB", &[]),
    case("machine", &[]),
    case("model", &[]),
    case("experiment fig3", &[]),
    case("experiment fig5a", &[]),
];

/// Subcommands for which another one of their group stands: they share the code that opens files.
const STAND_INS: [(&str, &str); 9] = [
    ("model ddio", "model"),
    ("model dca", "model"),
    ("model pipette", "model"),
    ("model placements", "model"),
    ("model platform-dma", "model"),
    ("experiment fig4", "experiment fig3"),
    ("experiment fig5b", "experiment fig5a"),
    ("log", "log read"),
    ("checkpoint", "checkpoint list"),
];

/// Options whose file is read, or is the very result.
const READ_OR_RESULT: [(&str, &str); 7] = [
    ("sort", "random-source"),
    ("sort", "files0-from"),
    ("sort", "output"),
    ("model ddio", "trace"),
    ("model dca", "trace"),
    ("fine recommender", "file"),
    ("fine social", "file"),
];

fn fixtures(at: &Path) {
    for (name, text) in [("in", "b\na\n"), ("lines", "d\nc\n"), ("list", "in\0lines\0"), ("fed", "f\ne\n")] {
        fs::write(at.join(name), text).unwrap();
    }
    fs::write(at.join("random"), [7; 64]).unwrap();
    fs::write(at.join("program"), "#!/bin/sh\nexec cat\n").unwrap();
    fs::write(at.join("said"), "precious\n").unwrap();
    for folder in ["folder", "restored"] {
        fs::create_dir(at.join(folder)).unwrap();
    }
    let prepare = |words: &[&str]| {
        let output = Command::new(DPIPE).args(words).current_dir(at).stdin(File::open(at.join("in")).unwrap()).output();
        assert!(output.as_ref().unwrap().status.success(), "{words:?}: {output:?}");
    };
    prepare(&["log", "append", "events", "--quiet", "--segment-size", "64K", "--batch-size", "16K"]);
    prepare(&["checkpoint", "save", "saves", "in"]);
}

/// All that is there, by name.
fn contents(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![at.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            match entry.path().is_dir() {
                true => open.push(entry.path()),
                false => {
                    let bytes = fs::read(entry.path()).unwrap_or_default();
                    found.insert(entry.path().display().to_string(), bytes);
                }
            }
        }
    }
    found
}

fn run(at: &Path, words: &[&str]) -> Output {
    let said = File::options().append(true).open(at.join("said")).unwrap();
    let mut command = Command::new(DPIPE);
    command.args(words).current_dir(at).env("TMPDIR", at);
    command.stdin(File::open(at.join("fed")).unwrap()).stdout(said).output().unwrap()
}

/// The options of a help that name a file.
fn file_options(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let named = lines.filter_map(|line| {
        let words = line.split("  ").next()?;
        let (_, long) = words.split_once("--")?;
        let (name, value) = long.split_once([' ', '='])?;
        matches!(value.trim_matches(['<', '>']), "FILE" | "F").then(|| name.to_owned())
    });
    named.collect()
}

#[test]
fn no_command_writes_a_side_file_over_what_it_reads_or_writes() {
    let dir = folder();
    let at = dir.at();
    fixtures(at);
    let before = contents(at);
    let mut tried = 0;
    for help in helps() {
        let name = help.words.join(" ");
        let options = file_options(&help.text);
        let side: Vec<&String> =
            options.iter().filter(|option| !READ_OR_RESULT.contains(&(name.as_str(), option.as_str()))).collect();
        if side.is_empty() {
            continue;
        }
        let stand_in = STAND_INS.iter().find(|(of, _)| *of == name).map_or(name.as_str(), |(_, other)| *other);
        let cases: Vec<&Case> = CASES
            .iter()
            .filter(|case| case.line == stand_in || case.line.starts_with(&format!("{stand_in} ")))
            .collect();
        assert!(!cases.is_empty(), "dpipe {name} has {side:?} and no case here");
        for case in cases {
            let line = if stand_in == "model" { name.as_str() } else { case.line };
            for option in &side {
                for place in case.places.iter().chain(&["fed", "said"]) {
                    let alias = at.join("alias");
                    symlink(place, &alias).unwrap();
                    for file in [place, "alias"] {
                        let option = format!("--{option}");
                        let words: Vec<&str> = line.split(' ').chain([option.as_str(), file]).collect();
                        let refused = run(at, &words);
                        let told = String::from_utf8_lossy(&refused.stderr);
                        assert_eq!(refused.status.code(), Some(2), "{words:?}, which is {place}: {told}");
                        let why = told.contains("the same file as") || told.contains("this is a file of");
                        assert!(told.contains(&option) && why, "{words:?}, which is {place}: {told}");
                        tried += 1;
                    }
                    fs::remove_file(&alias).unwrap();
                    assert!(contents(at) == before, "{line} {option} {place} changed something");
                }
            }
        }
    }
    assert!(tried > 200, "only {tried} were tried");
}

#[test]
fn two_side_files_are_not_one_file() {
    let dir = folder();
    fixtures(dir.at());
    symlink("x", dir.path("y")).unwrap();
    for line in [
        "sort in -o out --report-html x --metrics y",
        "stream --from file:in --output out --plot x --report-html y",
        "fine stat in --reads 1 --plot x --plot-memory y",
        "log bench --seconds 0.1 --metrics x --report-html y",
        "checkpoint bench --size 1M --metrics x --report-html y",
        "experiment fig3 --chunks 4K --plot x --trace y",
    ] {
        let refused = run(dir.at(), &line.split(' ').collect::<Vec<_>>());
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && told.contains("the same file as --"), "{line}: {told}");
        assert!(!dir.path("x").exists(), "{line}");
    }
}

#[test]
fn a_descriptor_under_any_name_keeps_what_is_there() {
    let dir = folder();
    let at = dir.at();
    fs::write(at.join("in"), "b\na\n").unwrap();
    symlink("/dev/stdout", at.join("link")).unwrap();
    let names = ["/dev/stdout", "//dev/stdout", "/dev/./stdout", "/dev/../dev/stdout", "/dev/fd/1", "link"];
    for name in names.into_iter().chain(["/proc/self/fd/1", "/proc/thread-self/fd/1"]) {
        for option in ["--report-html", "--metrics"] {
            fs::write(at.join("log"), "precious\n").unwrap();
            let log = File::options().append(true).open(at.join("log")).unwrap();
            let mut sort = Command::new(DPIPE);
            let ended = sort.current_dir(at).args(["sort", "in", option, name]).stdout(log).output().unwrap();
            let text = fs::read_to_string(at.join("log")).unwrap();
            assert!(ended.status.success() && text.starts_with("precious\n"), "{option} {name}: {ended:?}: {text}");
            assert!(text.contains("\na\nb\n"), "{option} {name}: {text}");
            let page = text.contains("<!DOCTYPE html>") || text.contains("datapipes_command_state");
            assert!(page, "{option} {name}: {text}");
        }
    }
}

#[test]
fn descriptors_of_a_shell_share_their_position() {
    let dir = folder();
    let at = dir.at();
    fs::write(at.join("in"), "b\na\n").unwrap();
    let shell = |line: &str| {
        let path = format!("{}:{}", Path::new(DPIPE).parent().unwrap().display(), std::env::var("PATH").unwrap());
        Command::new("sh").args(["-c", line]).current_dir(at).env("PATH", path).output().unwrap()
    };
    let ended = shell("dpipe sort in --metrics /dev/fd/3 > out 3>&1");
    let text = fs::read_to_string(at.join("out")).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(text.starts_with("# HELP") && text.contains("\na\nb\n"), "{text}");
    // Descriptors that lead to a place, or that cannot be written, are none for a side file.
    for line in [
        "dpipe sort in -o sorted --metrics /dev/fd/3 3>> in",
        "dpipe sort -o sorted --metrics /dev/stdin < in",
        "dpipe sort - -o sorted --report-html /dev/stdin <> in",
        "dpipe sort -o /dev/stdout --metrics /dev/stdout in > other",
        "dpipe sort in -o sorted --metrics /dev/fd/4 4< out",
    ] {
        let refused = shell(line);
        assert_eq!(refused.status.code(), Some(2), "{line}: {refused:?}");
        assert!(!at.join("sorted").exists(), "{line}");
        assert_eq!(fs::read(at.join("in")).unwrap(), b"b\na\n", "{line}");
    }
}
