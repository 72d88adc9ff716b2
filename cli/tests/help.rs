//! The helps: their examples run, their words are the same over all commands, and the completions
//! and man pages made from them can be used.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use scene::helps::{helps, options};
use scene::{TempFolder, folder, on_path};
use serde_json::Value;

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");

/// What the examples find in their folder.
const FIXTURES: &str = "
set -e
mkdir -p machine/run machine/sys/kernel/mm/transparent_hugepage
echo 'always [madvise] never' > machine/sys/kernel/mm/transparent_hugepage/enabled
for n in $(seq 400 -1 1); do echo \"$((n * 7919 % 1000)) $n\"; done > lines.txt
LC_ALL=C sort lines.txt > sorted.txt
dpipe gen u64 --size 2M numbers.u64
dpipe sort --u64 numbers.u64 -o sorted.u64
dpipe gen records --size 1M input.records
dpipe gen u64 --size 4M data.bin
seq 3 | dpipe log append events --quiet
dpipe checkpoint save saves data.bin
";

/// Runs a line of a shell in which `dpipe` is the program.
fn shell(folder: &Path, line: &str) -> Output {
    let programs = Path::new(DPIPE).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "240", "bash", "-o", "pipefail", "-c", line]);
    command.current_dir(folder).env("PATH", path).env("LC_ALL", "C").env("TMPDIR", folder).stdin(Stdio::null());
    command.output().unwrap()
}

fn good(folder: &Path, line: &str) -> String {
    let output = shell(folder, line);
    assert!(output.status.success(), "{line}: {:?}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_help_has_exit_codes_and_examples_and_one_word_for_an_option() {
    const OLD: [&str; 12] = [
        "svg", "budget", "requests", "len", "to", "patience", "require", "blocks", "segment", "record", "request",
        "packet",
    ];
    for help in helps() {
        let name = help.name();
        if name != "dpipe sort" {
            let long: Vec<&str> = help.text.lines().filter(|line| line.chars().count() > 100).collect();
            assert!(long.is_empty(), "{name}: more than 100 columns: {long:#?}");
        }
        let codes = help.below("Exit status:");
        assert!(codes.iter().any(|line| line.starts_with("0  ")), "{name}: {codes:?}");
        assert!(codes.iter().any(|line| line.starts_with("2  ")), "{name}: {codes:?}");
        let examples = help.below("Examples:");
        let begin = if help.words.is_empty() { "dpipe ".into() } else { help.name() };
        assert!(examples.iter().any(|line| line.contains(&begin)), "{name}: {examples:?}");
        let options = options(&help.text);
        assert!(options.contains(&"help"), "{name}: {options:?}");
        assert!(!options.iter().any(|option| OLD.contains(option)), "{name}: an old word in {options:?}");
        for option in ["plot", "output", "dir", "threads", "reads"] {
            let others: &[&str] = match option {
                "plot" => &["draw", "picture", "chart"],
                "output" => &["out", "target"],
                "dir" => &["folder", "directory"],
                "threads" => &["jobs", "workers"],
                _ => &["iterations", "count"],
            };
            assert!(!options.iter().any(|name| others.contains(name)), "{name}: {options:?} beside --{option}");
        }
    }
}

/// A time of day in the file format of checkpoints, and settings as the kernel calls them.
const GIVEN: [&str; 3] = ["created_unix_s", "max_hw_sectors_kb", "max_sectors_kb"];

/// The keys of an object that have a unit other than those agreed on.
fn wrong_keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let units = ["gb", "mb", "kb", "gib", "mib", "kib", "s", "sec", "secs", "elapsed"];
                if !GIVEN.contains(&key.as_str()) && key.split('_').any(|word| units.contains(&word)) {
                    found.push(key.clone());
                }
                wrong_keys(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| wrong_keys(value, found)),
        _ => {}
    }
}

#[test]
fn a_key_with_another_unit_is_found() {
    let value = serde_json::json!({"a": [{"gb_per_s": 1, "bytes_per_second": 2, "seconds": 3}], "save_gib_s": 4});
    let mut found = Vec::new();
    wrong_keys(&value, &mut found);
    found.sort();
    assert_eq!(found, ["gb_per_s", "save_gib_s"]);
}

#[test]
fn every_example_of_every_help_runs_and_json_has_bytes_per_second() {
    let place = folder();
    for help in helps() {
        let examples = help.below("Examples:");
        let has_json = options(&help.text).contains(&"json");
        let mut shown_json = false;
        let fresh = TempFolder::under(place.at()).unwrap();
        good(fresh.at(), FIXTURES);
        for example in examples {
            if let Some((_, why)) = example.split_once("# needs ") {
                println!("SKIPPED: {example}: it needs {why}");
                continue;
            }
            let output = shell(fresh.at(), example);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {example}: {:?}\n{error}", help.name(), output.status);
            let is_escaped = output.stdout.contains(&0x1b) || output.stderr.contains(&0x1b);
            assert!(!is_escaped, "{example}: an escape sequence, and no terminal");
            if example.contains("--json") {
                shown_json = true;
                for value in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>() {
                    let mut wrong = Vec::new();
                    wrong_keys(&value.unwrap_or_else(|e| panic!("{example}: {e}")), &mut wrong);
                    assert!(wrong.is_empty(), "{example}: {wrong:?}");
                }
                assert!(!output.stdout.is_empty(), "{example}: no JSON");
            }
        }
        assert_eq!(has_json, shown_json, "{}: an example shows --json if there is that option", help.name());
    }
}

#[test]
fn old_words_still_work() {
    let place = folder();
    good(place.at(), FIXTURES);
    for line in [
        "dpipe copy data.bin dram:1M --len 4096",
        "dpipe explain data.bin dram:1M --len 4096 --require pread --request 64K || [ $? = 2 ]",
        "dpipe checkpoint restore saves --to restored && cmp restored/data.bin data.bin",
        "seq 2 | dpipe log append old --segment 64K --batch 16K --quiet",
        "[ \"$(dpipe log read events --from 2)\" = \"$(seq 2 3)\" ]",
        "dpipe log bench --record 100 --seconds 0.1 --dir .",
        "dpipe fine stat data.bin --budget 4M --requests 100",
        "dpipe stream --from file:data.bin --blocks 64K --patience 60 --to old.bin && cmp old.bin data.bin",
        "dpipe model placements --set closed-form --packet 4K --svg old.svg && [ -s old.svg ]",
    ] {
        good(place.at(), line);
    }
    let error = shell(place.at(), "dpipe fine social --size 8M --skew 0.8");
    assert_eq!(error.status.code(), Some(2), "--skew is of the recommender");
    let error = shell(place.at(), "dpipe gen u64 x.u64");
    assert!(error.status.code() == Some(2) && String::from_utf8_lossy(&error.stderr).contains("--size"), "{error:?}");
}

#[test]
fn sort_takes_the_words_of_the_other_commands() {
    let place = folder();
    good(place.at(), FIXTURES);
    let line = "dpipe sort --memory=16M --threads 1 --json lines.txt -o new.txt && cmp new.txt sorted.txt";
    let json: Value = serde_json::from_str(&good(place.at(), line)).unwrap();
    assert!(json["memory_bytes"] == 16 << 20 && json["threads"] == 1, "{json}");
    let error = shell(place.at(), "dpipe sort --memory=x lines.txt");
    assert!(String::from_utf8_lossy(&error.stderr).contains("invalid --memory argument"), "{error:?}");
    assert_eq!(good(place.at(), "dpipe help sort"), good(place.at(), "dpipe sort --help"));
}

#[test]
fn completions_complete() {
    let place = folder();
    let complete = |words: &str, at: usize| {
        let line = format!(
            "dpipe completions bash > dpipe.bash && source dpipe.bash && COMP_WORDS=({words}) && COMP_CWORD={at} && \
             _dpipe dpipe \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at} - 1]}}\" && echo \"${{COMPREPLY[@]}}\""
        );
        good(place.at(), &line).trim().to_owned()
    };
    assert_eq!(complete("dpipe com", 1), "completions");
    assert_eq!(complete("dpipe copy --ver", 2), "--verify");
    assert_eq!(complete("dpipe log append --seg", 3), "--segment-size");
    assert_eq!(complete("dpipe sort --buf", 2), "--buffer-size");
    assert_eq!(complete("dpipe stream --placement cen", 3), "central");
    for (name, check) in [("zsh", "zsh -n"), ("fish", "fish --no-execute")] {
        let script = good(place.at(), &format!("dpipe completions {name} | tee dpipe.{name}"));
        assert!(script.contains("spill-order") && script.contains("segment-size"), "{name}");
        if on_path(name) {
            good(place.at(), &format!("{check} dpipe.{name}"));
        } else {
            println!("SKIPPED: completions_complete: no {name} to read the script of {name}");
        }
    }
    assert!(good(place.at(), "dpipe completions elvish").contains("spill-order"));
}

#[test]
fn man_pages_are_written_for_every_command_and_render() {
    let place = folder();
    good(place.at(), "dpipe man man1");
    for help in helps() {
        let words = [&["dpipe".to_owned()], &help.words[..]].concat();
        let page = fs::read_to_string(place.path("man1").join(words.join("-") + ".1")).unwrap();
        assert!(page.contains("Exit status:"), "{}", help.name());
        for option in options(&help.text) {
            assert!(page.replace('\\', "").contains(&format!("-{option}")), "{}: --{option}", help.name());
        }
    }
    if !on_path("groff") {
        println!("SKIPPED: man_pages_are_written_for_every_command_and_render: no groff to render them");
        return;
    }
    for page in fs::read_dir(place.path("man1")).unwrap() {
        let line = format!("groff -man -Tascii -P-cbou -ww '{}'", page.unwrap().path().display());
        let output = shell(place.at(), &line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !error.contains("error"), "{line}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("NAME") && text.contains("Examples:"), "{line}");
    }
}

/// Whether there is a sequence that sets a colour or another rendition: `ESC [ ... m`.
fn has_colour(bytes: &[u8]) -> bool {
    let sequences = bytes.split(|byte| *byte == 0x1b).skip(1).filter_map(|rest| rest.strip_prefix(b"["));
    sequences.into_iter().any(|rest| {
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b';');
        end.is_some_and(|end| rest[end] == b'm')
    })
}

#[test]
fn a_terminal_gets_no_colour_where_it_is_unwanted() {
    assert!(has_colour(b"a\x1b[1;32mb") && !has_colour(b"a\x1b[2K\x1b[1Ab"));
    if !on_path("script") {
        println!("SKIPPED: a_terminal_gets_no_colour_where_it_is_unwanted: no `script` to make a terminal");
        return;
    }
    let place = folder();
    good(place.at(), FIXTURES);
    for command in [
        "dpipe --help",
        "dpipe copy --nonsense",
        "dpipe sort -S16M data.bin -o out",
        "dpipe demo --size 20MB --memory 16M --dir . --no-compare",
    ] {
        let line = format!("NO_COLOR=1 script -qc '{command}' typed < /dev/null > shown || true");
        good(place.at(), &line);
        let shown = fs::read(place.path("shown")).unwrap();
        // A sort this short may end before it has anything to show.
        assert!(!shown.is_empty() || command.starts_with("dpipe sort"), "{command}");
        assert!(!has_colour(&shown), "{command}: {}", String::from_utf8_lossy(&shown));
        // A terminal that can do nothing gets no sequences at all.
        good(place.at(), &line.replace("NO_COLOR=1", "TERM=dumb"));
        let shown = fs::read(place.path("shown")).unwrap();
        assert!(!shown.contains(&0x1b), "{command}: {}", String::from_utf8_lossy(&shown));
    }
}
