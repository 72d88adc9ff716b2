//! What each manifest must say so that its package can be published, and that it names nothing that
//! the package does not use.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf()
}

/// The folders of the workspace's packages.
fn packages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for top in ["cli", "crates", "dev"] {
        find_packages(&root().join(top), &mut found);
    }
    assert!(found.len() > 12, "the packages were not found: {found:?}");
    found
}

fn find_packages(under: &Path, found: &mut Vec<PathBuf>) {
    if under.join("Cargo.toml").exists() {
        // The fuzz targets are a workspace of their own.
        if !manifest(under).contains("\n[workspace]") {
            found.push(under.to_path_buf());
        }
        return;
    }
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        find_packages(&entry, found);
    }
}

fn manifest(package: &Path) -> String {
    std::fs::read_to_string(package.join("Cargo.toml")).unwrap()
}

fn is_published(manifest: &str) -> bool {
    !manifest.lines().any(|line| line == "publish = false")
}

/// The section of each dependency, and the dependency's line.
fn dependencies(manifest: &str) -> Vec<(&str, &str)> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        match line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(name) => section = name,
            None if section.ends_with("dependencies") && line.contains('=') && !line.starts_with('#') => {
                found.push((section, line));
            }
            None => {}
        }
    }
    found
}

fn name_of(line: &str) -> &str {
    line.split(['.', '=', ' ']).next().unwrap_or("")
}

fn sources(under: &Path, text: &mut String) {
    let Ok(entries) = std::fs::read_dir(under) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether a source names a crate: as the first part of a path, or in `use` and `extern crate`.
fn is_named(source: &str, krate: &str) -> bool {
    source.match_indices(krate).any(|(at, _)| {
        let before = source[..at].chars().next_back();
        let after = &source[at + krate.len()..];
        let whole = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        whole && (after.starts_with("::") || after.starts_with(';') || after.starts_with(" as "))
    })
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    for package in packages() {
        let text = manifest(&package);
        let (mut shipped, mut tested) = (String::new(), String::new());
        sources(&package.join("src"), &mut shipped);
        for folder in ["tests", "examples", "benches"] {
            sources(&package.join(folder), &mut tested);
        }
        for (section, line) in dependencies(&text) {
            let krate = match name_of(line) {
                "md-5" => "md5".to_owned(),
                name => name.replace('-', "_"),
            };
            let used = is_named(&shipped, &krate) || (section.contains("dev-") && is_named(&tested, &krate));
            if !used {
                unused.push(format!("{}: [{section}] {}", package.display(), name_of(line)));
            }
        }
    }
    assert!(unused.is_empty(), "no source names these: {unused:#?}");
}

#[test]
fn published_packages_say_what_a_registry_asks() {
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut wrong = Vec::new();
    for package in packages() {
        let text = manifest(&package);
        let mut miss = |what: &str| wrong.push(format!("{}: {what}", package.display()));
        if !is_published(&text) {
            continue;
        }
        for key in ["description = ", "license.workspace", "keywords = ", "categories = ", "readme = ", "rust-version"]
        {
            if !text.contains(key) {
                miss(key);
            }
        }
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let bytes = std::fs::read(package.join(licence)).unwrap_or_default();
            if bytes != std::fs::read(root().join(licence)).unwrap() {
                miss(licence);
            }
        }
        for (section, line) in dependencies(&text).iter().filter(|(_, line)| line.starts_with("datapipes")) {
            let shared = workspace.lines().find(|row| name_of(row) == name_of(line)).unwrap_or("");
            let versioned = line.contains("version") || (line.contains("workspace") && shared.contains("version"));
            // A registry resolves what tests need, too; a crate that is tested with those above it
            // would have to be published after them.
            if versioned == section.contains("dev-") {
                miss(&format!("[{section}] {line}: a version, and none in tests"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_looked_for_is_found() {
    assert!(is_named("use rustix::io;", "rustix") && is_named("let a = libc::c_int;", "libc"));
    assert!(!is_named("use my_rustix::io;", "rustix") && !is_named("// libcurl", "libc"));
    let text =
        "[dependencies]\na.workspace = true\n# b = 1\n[dev-dependencies]\nc = { path = \"x\" }\n[lints]\nd = 1\n";
    let found: Vec<_> = dependencies(text).into_iter().map(|(section, line)| (section, name_of(line))).collect();
    assert_eq!(found, [("dependencies", "a"), ("dev-dependencies", "c")]);
}
