//! Advice is for callers in every language: a library names its settings, and no option of a
//! command line.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// Crates that are a command line, or advise whoever runs one: a service's operator, whoever turns
/// knobs of the machine by hand.
const OF_COMMANDS: [&str; 2] = ["service", "knobs"];

fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|ending| ending == "rs") {
            found.push(entry);
        }
    }
}

/// The texts in quotes that are given as advice in a source.
fn advice(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let calls = code.split("with_advice(").skip(1).chain(code.split("advice = ").skip(1));
    let text_of = |call: &str| {
        let quoted = call.split('"').nth(1)?;
        Some(quoted.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    calls.filter_map(text_of).collect()
}

/// A text without the whole commands that it quotes: a program and what it is given, in backquotes.
fn without_commands(text: &str) -> String {
    let quoted = text.split('`').enumerate();
    let is_command = |part: &str| part.starts_with(char::is_alphabetic) && part.contains(' ');
    quoted.filter(|(place, part)| place % 2 == 0 || !is_command(part)).map(|(_, part)| part).collect()
}

/// Whether a text names an option: `-S`, `--parallel`. A whole command, and `ulimit`, keep theirs.
fn names_an_option(text: &str) -> bool {
    let text = without_commands(text);
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '-')).collect::<Vec<_>>();
    let is_option = |word: &&str| {
        let letters = word.trim_start_matches('-');
        word.starts_with('-') && letters.starts_with(|c: char| c.is_alphabetic())
    };
    !text.contains("ulimit") && words.iter().any(is_option)
}

#[test]
fn no_library_advises_an_option() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap().to_owned();
        if !OF_COMMANDS.contains(&name.as_str()) {
            sources(&entry, &mut found);
        }
    }
    found.retain(|path| path.components().any(|part| part.as_os_str() == "src"));
    let mut seen = 0;
    let mut wrong = Vec::new();
    for path in found {
        let texts = advice(&std::fs::read_to_string(&path).unwrap());
        seen += texts.len();
        wrong.extend(texts.into_iter().filter(|text| names_an_option(text)).map(|text| (path.clone(), text)));
    }
    assert!(wrong.is_empty(), "name the setting in backquotes, and let the command line find its option: {wrong:#?}");
    assert!(seen > 100, "{seen}");
    assert!(names_an_option("give more memory with -S") && names_an_option("or (--parallel)"));
    assert!(names_an_option("set `--parallel`") && names_an_option("run `dpipe knobs` with --all"));
    assert!(!names_an_option("a copy-on-write file - or another"));
    assert!(!names_an_option("put what `aws configure --format env` prints into the environment"));
}
