//! Comments can be read at once: prose has at most 100 columns, and no documentation is a fragment
//! such as "Of the route.".
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

const MAX_COLUMNS: usize = 100;

/// Words with which a fragment of at most three words begins.
const FRAGMENTS: [&str; 16] = [
    "Of ", "By ", "Which", "Whose", "Where ", "How ", "What ", "For ", "Without ", "As ", "From ", "It goes", "They ",
    "Ours", "With ", "Its own.",
];

fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&entry, found);
        } else if name.ends_with(".rs") {
            found.push(entry);
        }
    }
}

/// A line of a comment: how it begins (`//`, `///` or `//!`), and its text.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let lead = ["///", "//!", "//"].into_iter().find(|lead| line.starts_with(lead))?;
    let text = &line[lead.len()..];
    Some((lead, text.strip_prefix(' ').unwrap_or(text)))
}

/// Returns what is wrong with the comments of a text, with the numbers of the lines.
fn faults(text: &str) -> Vec<(usize, &'static str)> {
    let mut faults = Vec::new();
    let mut block: Option<(&str, usize, String)> = None;
    let mut drawing = false;
    for (number, line) in (1..).zip(text.lines().chain([""])) {
        let found = comment(line);
        if found.map(|(lead, _)| lead) != block.as_ref().map(|(lead, ..)| *lead) {
            if let Some((lead, begin, said)) = block.take()
                && lead != "//"
                && is_fragment(&said)
            {
                faults.push((begin, "a fragment: say what it is in words of its own"));
            }
            drawing = false;
            block = found.map(|(lead, _)| (lead, number, String::new()));
        }
        let (Some((_, said)), Some((_, _, all))) = (found, &mut block) else { continue };
        drawing ^= said.starts_with("```");
        if drawing || said.starts_with("```") || said.trim_start().starts_with('|') {
            continue;
        }
        if line.chars().count() > MAX_COLUMNS {
            faults.push((number, "more than 100 columns"));
        }
        *all += said;
        all.push(' ');
    }
    faults
}

fn is_fragment(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty() && text.split_whitespace().count() <= 3 && FRAGMENTS.iter().any(|begin| text.starts_with(begin))
}

#[test]
fn comments_are_narrow_and_no_fragments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap();
    let mut files = Vec::new();
    for folder in ["crates", "cli", "dev"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 300, "the sources were not found: {}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        wrong.extend(faults(&text).into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.display())));
    }
    assert!(wrong.is_empty(), "{} comments:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_is_looked_for_is_found() {
    let wide = format!("// {}", "word ".repeat(25));
    assert_eq!(faults(&wide), [(1, "more than 100 columns")]);
    assert!(faults(&format!("/// ```\n/{wide}\n/// ```\nfn f() {{}}")).is_empty());
    assert_eq!(faults("struct A {\n    /// Of the route.\n    route: u8,\n}").len(), 1);
    assert!(faults("/// Of the route, the part that the caller chose.\nstruct A;").is_empty());
    assert!(faults("// By hand.\nlet a = 1;").is_empty());
}
