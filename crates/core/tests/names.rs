//! One name for one thing: names of public types are unique over all crates, and bounds are called
//! MAX_ and MIN_.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders that are left out: build output, and foreign or generated sources.
const LEFT_OUT: [&str; 3] = ["target", "tests", "examples"];

fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_str().unwrap();
        if entry.is_dir() {
            if !LEFT_OUT.contains(&name) && !name.starts_with('.') {
                sources(&entry, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(entry);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap();
    let mut found = Vec::new();
    sources(root, &mut found);
    assert!(found.len() > 200, "the sources were not found: {}", found.len());
    found
}

/// Returns the name of a public type that a line defines.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let name = ["struct ", "enum ", "trait ", "union "].iter().find_map(|word| rest.strip_prefix(word))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns the name of a constant that a line defines.
fn constant(line: &str) -> Option<&str> {
    let (_, rest) =
        line.trim_start().split_once("const ").filter(|(before, _)| before.is_empty() || before.starts_with("pub"))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_').then_some(name)
}

/// Whether a constant's name expresses a bound by another word than MAX or MIN.
fn is_odd_bound(name: &str) -> bool {
    let odd = ["MOST", "LEAST", "LONGEST", "SHORTEST", "LARGEST", "SMALLEST", "FEWEST", "HIGHEST", "LOWEST", "BIGGEST"];
    name.split('_').any(|word| odd.contains(&word))
}

#[test]
fn public_types_have_names_of_their_own() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in all_sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        // The developers' programs are not libraries.
        if file
            .components()
            .any(|part| ["xtask", "fuzz", "benchmarks", "cli"].contains(&part.as_os_str().to_str().unwrap()))
        {
            continue;
        }
        for name in text.lines().filter_map(public_type) {
            places.entry(name.to_owned()).or_default().push(file.display().to_string());
        }
    }
    let same: Vec<_> =
        places.iter().filter(|(_, files)| files.iter().collect::<std::collections::BTreeSet<_>>().len() > 1).collect();
    assert!(same.is_empty(), "one name, several types: {same:#?}");
}

#[test]
fn bounds_are_called_max_and_min() {
    let mut odd = Vec::new();
    for file in all_sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        odd.extend(
            text.lines()
                .filter_map(constant)
                .filter(|name| is_odd_bound(name))
                .map(|name| format!("{}: {name}", file.display())),
        );
    }
    assert!(odd.is_empty(), "call these MAX_ or MIN_: {odd:#?}");
}

#[test]
fn what_is_looked_for_is_found() {
    assert_eq!(public_type("pub struct Dram {"), Some("Dram"));
    assert_eq!(public_type("    pub enum Kind<T> {"), Some("Kind"));
    assert_eq!(public_type("pub(crate) struct Inner {"), None);
    assert_eq!(constant("const MOST: usize = 1;"), Some("MOST"));
    assert_eq!(constant("pub(crate) const LEAST_SHARE: f64 = 0.1;"), Some("LEAST_SHARE"));
    assert_eq!(constant("pub const fn new() -> Dram {"), None);
    assert!(
        is_odd_bound("LEAST_SHARE") && is_odd_bound("MOST") && !is_odd_bound("MAX_SHARE") && !is_odd_bound("ALMOST")
    );
}
