//! Only `crates/core/src/locator/atomic_file.rs` creates files; it keeps private files private and
//! leaves no incomplete ones. Other sources that create files or names are listed here, with the
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

/// Other sources that create files, and why they may.
const OTHERS: &[(&str, &str)] = &[
    ("crates/core/src/locator/atomic_file.rs", "the door"),
    ("crates/core/src/locator/atomic_file/names.rs", "the door"),
    ("crates/core/src/locator/atomic_file/target.rs", "the door"),
    (
        "crates/core/src/offer/folder.rs",
        "a page in memory that its process removes, and that readers expect to be half written",
    ),
    ("crates/backends/net/src/control/key.rs", "a key is written once, into a file that is new and its owner's alone"),
    ("crates/core/src/control_group.rs", "files of a control group are the kernel's"),
    ("crates/core/src/locator/file/ssd.rs", "constructors for programs that write a file as they go"),
    ("crates/core/src/locator/pmem/open.rs", "persistent memory is mapped and written where it is"),
    ("crates/core/src/topology/storage/mod.rs", "a nameless file is asked for its alignments and never written"),
    ("cli/src/any_locator.rs", "persistent memory is mapped and written where it is; the file has its source's mode"),
    ("cli/src/commands/data/explain.rs", "a nameless file stands in for a missing file"),
    ("cli/src/commands/host/machine/storage.rs", "a nameless file is measured"),
    ("cli/src/commands/experiment/control.rs", "a nameless file is measured"),
    ("cli/src/commands/experiment/device.rs", "a nameless file is measured"),
    (
        "crates/sort/src/output.rs",
        "a device or named pipe that is there is opened as if it were to be made, which is stricter",
    ),
    ("bindings/c/src/place.rs", "the constructors of `Ssd`, for programs in C"),
    ("bindings/python/src/file.rs", "the constructors of `Ssd`, for programs in Python"),
    ("crates/knobs/src/tree.rs", "what the kernel puts into a folder, for trees that stand for a machine"),
    ("crates/durable/src/dir_lock.rs", "the file of a lock, which holds no bytes"),
    ("crates/backends/net/src/export/socket_path.rs", "the file of a lock, which holds no bytes"),
    ("crates/sort/src/shuffle/exchange/unnamed.rs", "a part that stays without a name, as runs do"),
    ("crates/service/src/server/entrance/listen.rs", "the file of a lock, which holds no bytes"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf()
}

/// Collects the sources of the programs and libraries, without tests, examples, test support and
/// developers' programs.
fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() {
            if !["target", "tests", "examples", "dev", "benchmarks"].contains(&name) && !name.starts_with('.') {
                sources(&entry, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(entry);
        }
    }
}

/// Returns the code before the unit tests, without comments.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or("");
    let code = code.split("#[cfg(all(test").next().unwrap_or("");
    code.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn makers_in(text: &str) -> Vec<&'static str> {
    // Creating an `AtomicFile` is the right way.
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
    let why = "go through `AtomicFile` or `OutputFile` (crates/core/src/locator/atomic_file.rs), or are listed in this test with a reason";
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
