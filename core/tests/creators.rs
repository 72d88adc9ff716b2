//! Files come to be through one door, `core/src/locator/atomic_file.rs`, which keeps private what
//! is private and leaves no halves. Whoever else makes files or names is listed here, with the
//! reason.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Ways to make a file, or to give one a name.
const MAKERS: &[&str] = &[
    "fs::write(",
    "fs::copy(",
    "fs::rename(",
    "File::create",
    "create_new(",
    ".create(true)",
    "OFlags::CREATE",
    "OFlags::TMPFILE",
    "O_CREAT",
    "O_TMPFILE",
    "Ssd::create(",
    "unlinked_in(",
    "hard_link(",
    "::linkat(",
    "renameat",
    "mknod",
];

/// Who makes files beside the door, and why that is right.
const OTHERS: &[(&str, &str)] = &[
    ("core/src/locator/atomic_file.rs", "the door"),
    ("core/src/locator/atomic_file/names.rs", "the door"),
    ("core/src/locator/atomic_file/target.rs", "the door"),
    ("core/src/locator/ssd.rs", "constructors for programs that write a file as they go"),
    ("core/src/locator/pmem/open.rs", "persistent memory is mapped and written where it is"),
    ("core/src/topology/storage.rs", "a nameless file is asked for its alignments and never written"),
    ("cli/src/any_locator.rs", "persistent memory is mapped and written where it is; the file has its source's mode"),
    ("cli/src/commands/explain.rs", "a nameless file stands in for a file that is not there"),
    ("cli/src/commands/machine/storage.rs", "a nameless file is measured"),
    ("cli/src/commands/fine/limit.rs", "files of a control group are the kernel's"),
    (
        "sort/src/output.rs",
        "a device or named pipe that is there is opened as if it were to be made, which is stricter",
    ),
    ("fabric/src/control/groups.rs", "files of a control group are the kernel's"),
    ("durable/src/dir_lock.rs", "the file of a lock, which holds no bytes"),
    ("service/src/server/listen.rs", "the file of a lock, which holds no bytes"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The sources of the programs and libraries: not of tests, of examples, of test kits and of what
/// developers run.
fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() {
            if !["target", "tests", "examples", "testkit", "xtask", "fuzz", "benchmarks"].contains(&name)
                && !name.starts_with('.')
            {
                sources(&entry, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(entry);
        }
    }
}

/// The code before the unit tests, without comments.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or("");
    let code = code.split("#[cfg(all(test").next().unwrap_or("");
    code.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn makers_in(text: &str) -> Vec<&'static str> {
    // The door itself.
    let code = code(text).replace("AtomicFile::create", "");
    MAKERS.iter().copied().filter(|maker| code.contains(maker)).collect()
}

#[test]
fn files_are_made_at_the_door() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    assert!(files.len() > 300, "only {} sources were found", files.len());
    let (mut wrong, mut met) = (Vec::new(), BTreeSet::new());
    for file in files {
        let makers = makers_in(&std::fs::read_to_string(&file).unwrap());
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        match OTHERS.iter().find(|(other, _)| *other == name) {
            Some((other, _)) if !makers.is_empty() => drop(met.insert(*other)),
            None if !makers.is_empty() => wrong.push(format!("{name}: {}", makers.join(", "))),
            _ => {}
        }
    }
    let why = "go through `AtomicFile` or `OutputFile` (core/src/locator/atomic_file.rs), or are listed in this test with a reason";
    assert!(wrong.is_empty(), "these make files; they {why}:\n{}", wrong.join("\n"));
    let stale: Vec<&str> = OTHERS.iter().map(|(name, _)| *name).filter(|name| !met.contains(name)).collect();
    assert!(stale.is_empty(), "these make no files any more: {stale:?}");
}

#[test]
fn makers_are_found_in_code_only() {
    assert_eq!(makers_in("fn f() { std::fs::write(path, x) }"), ["fs::write("]);
    assert_eq!(makers_in("let f = File::options().create(true).open(p); // fs::copy(\n"), [".create(true)"]);
    assert!(makers_in("/// fs::write(\nfn f() {}\n#[cfg(test)]\nmod tests { fs::write(p, x); }").is_empty());
}
