//! Dependencies point one way: between the modules of the core, by their imports; between the
//! crates, by their manifests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn core() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The modules in the order of the table in `lib.rs`.
fn order() -> Vec<String> {
    let lib = std::fs::read_to_string(core().join("src/lib.rs")).unwrap();
    let row = |line: &str| {
        let name = line.strip_prefix("//! | [`")?.split('`').next()?;
        Some(name.to_owned())
    };
    lib.lines().filter_map(row).collect()
}

/// Returns the first words of what is imported or named by `crate::`, without comments.
fn names_of_crate(text: &str) -> Vec<String> {
    let word = |s: &str| s.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("").to_owned();
    let code = text.lines().map(|l| l.split("//").next().unwrap_or(""));
    code.flat_map(|line| line.split("crate::").skip(1).map(word).collect::<Vec<_>>()).collect()
}

fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    if under.is_dir() {
        std::fs::read_dir(under).unwrap().for_each(|entry| sources(&entry.unwrap().path(), found));
    } else if under.extension().is_some_and(|e| e == "rs") && under.file_name().is_some_and(|n| n != "tests.rs") {
        found.push(under.to_path_buf());
    }
}

/// Returns the imports of a module from later modules of `order`.
fn wrong_imports(order: &[String], module: usize, text: &str) -> Vec<String> {
    // Names that `lib.rs` re-exports are not modules, and no module may use them.
    let later = |name: &String| match order.iter().position(|m| m == name) {
        Some(at) => at > module,
        None => true,
    };
    names_of_crate(text).into_iter().filter(later).collect()
}

#[test]
fn modules_of_the_core_import_only_those_before_them() {
    let order = order();
    let first = [
        "locks",
        "sync",
        "setters",
        "error",
        "process",
        "file_lock",
        "page_cache",
        "in_flight_limit",
        "guard",
        "thread_role",
        "threads",
        "thread_share",
        "control_group",
        "packet",
        "offer",
        "span",
        "topology",
        "watch",
        "memory",
        "locator",
        "backend",
        "plan",
        "pipe",
    ];
    assert_eq!(order, [&first[..], &["machine", "runtime", "graph", "descriptor"]].concat());
    for (at, module) in order.iter().enumerate() {
        let mut files = Vec::new();
        sources(&core().join(format!("src/{module}.rs")), &mut files);
        let folder = core().join(format!("src/{module}"));
        if folder.is_dir() {
            sources(&folder, &mut files);
        }
        files.retain(|f| f.exists());
        assert!(!files.is_empty(), "{module} is in the table and has no file");
        for file in files {
            let wrong = wrong_imports(&order, at, &std::fs::read_to_string(&file).unwrap());
            assert!(wrong.is_empty(), "{} is of `{module}` and names crate::{wrong:?}", file.display());
        }
    }
}

#[test]
fn every_module_of_the_core_is_in_the_table() {
    let order = order();
    let lib = std::fs::read_to_string(core().join("src/lib.rs")).unwrap();
    for line in lib.lines() {
        let Some(name) = line.trim_start_matches("pub ").strip_prefix("mod ") else { continue };
        let name = name.trim_end_matches(';');
        // The machine combines the other modules, so it may import all of them.
        assert!(name == "machine" || order.iter().any(|m| m == name), "`{name}` is not in the table of lib.rs");
    }
}

#[test]
fn an_arrow_that_points_back_is_found() {
    let order = order();
    let memory = order.iter().position(|m| m == "memory").unwrap();
    let wrong = |text| wrong_imports(&order, memory, text);
    assert!(wrong("use crate::error::Error;\n// crate::plan\nuse super::table;").is_empty());
    assert_eq!(wrong("use crate::plan::Route;"), ["plan"]);
    assert_eq!(wrong("fn f() -> crate::pipe::Pipe {"), ["pipe"]);
    assert_eq!(wrong("pub(crate) use crate::Machine;"), ["Machine"]);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Core,
    Backend,
    Bundle,
    Facade,
    Product,
    /// The service that gives pipes to other processes.
    Service,
    Testkit,
    /// The same for other languages.
    Binding,
    /// Generated data, access patterns and checkers.
    Data,
    /// Hardware in virtual time, under generated loads; the products' own decisions run in it.
    Models,
    /// What knows nothing of pipes: drawings, counters.
    Alone,
    /// TLS between machines, and UCX: what several crates reach others by.
    Wire,
    /// The names and units of what is measured, which everything may use.
    Vocabulary,
    /// The machine's settings.
    Knobs,
    /// The command line and the tasks, which may depend on all crates.
    Top,
}

fn role(package: &str) -> Role {
    match package {
        "datapipes-core" => Role::Core,
        "datapipes-cpu" | "datapipes-dax" | "datapipes-dma" | "datapipes-file" | "datapipes-net"
        | "datapipes-object" | "datapipes-gpu" => Role::Backend,
        "datapipes-bundle" => Role::Bundle,
        "datapipes" => Role::Facade,
        "datapipes-sort" | "datapipes-durable" | "datapipes-cache" | "datapipes-fabric" => Role::Product,
        "datapipes-service" => Role::Service,
        "datapipes-testkit" | "datapipes-objectserver" => Role::Testkit,
        "datapipes-c" => Role::Binding,
        "datapipes-data" => Role::Data,
        "datapipes-models" => Role::Models,
        "datapipes-picture" | "datapipes-counters" => Role::Alone,
        "datapipes-metrics" => Role::Vocabulary,
        "datapipes-tls" | "datapipes-ucx" => Role::Wire,
        "datapipes-knobs" => Role::Knobs,
        "datapipes-cli" | "dpipe" | "xtask" => Role::Top,
        other => panic!("give `{other}` its role in crates/core/tests/arrows.rs"),
    }
}

fn may(from: Role, to: Role) -> bool {
    match from {
        Role::Vocabulary => false,
        _ if to == Role::Vocabulary => true,
        Role::Core | Role::Alone => false,
        Role::Backend | Role::Product => matches!(to, Role::Core | Role::Wire),
        Role::Testkit | Role::Data | Role::Knobs | Role::Wire => to == Role::Core,
        Role::Bundle => matches!(to, Role::Backend | Role::Core),
        Role::Facade => matches!(to, Role::Bundle | Role::Core | Role::Product | Role::Service),
        Role::Binding => to == Role::Facade,
        Role::Service => matches!(to, Role::Bundle | Role::Core),
        Role::Models => matches!(to, Role::Core | Role::Product | Role::Data),
        Role::Top => true,
    }
}

/// Returns our crates that a manifest names in its dependencies. Those for tests may be any.
fn dependencies(manifest: &str) -> (String, Vec<String>) {
    let (mut section, mut package, mut ours) = ("", String::new(), Vec::new());
    for line in manifest.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            let table = section.rsplit_once('.').filter(|(s, _)| s.ends_with("dependencies") && !s.contains("dev-"));
            ours.extend(table.map(|(_, name)| name.to_owned()).filter(|n| n.starts_with("datapipes")));
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim().split('.').next().unwrap_or("");
            if section == "package" && key == "name" {
                package = value.trim().trim_matches('"').to_owned();
            } else if section.ends_with("dependencies") && !section.contains("dev-") && key.starts_with("datapipes") {
                ours.push(key.to_owned());
            }
        }
    }
    (package, ours)
}

/// Collects the manifests of the workspace below a folder.
fn find_manifests(under: &Path, found: &mut Vec<PathBuf>) {
    let own = under.join("Cargo.toml");
    if own.exists() {
        // The fuzz targets are a workspace of their own.
        if !std::fs::read_to_string(&own).unwrap().contains("\n[workspace]") {
            found.push(own);
        }
        return;
    }
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        find_manifests(&entry, found);
    }
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let root = core().ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf();
    let mut manifests = Vec::new();
    for top in ["bindings", "cli", "crates", "dev"] {
        find_manifests(&root.join(top), &mut manifests);
    }
    let mut seen = BTreeMap::new();
    for manifest in manifests {
        let (package, ours) = dependencies(&std::fs::read_to_string(&manifest).unwrap());
        for to in &ours {
            assert!(may(role(&package), role(to)), "{package} depends on {to}, against the arrows of the design");
        }
        seen.insert(package, ours);
    }
    assert!(seen.len() > 12 && !seen["datapipes-bundle"].is_empty(), "the manifests were not understood: {seen:?}");
}

#[test]
fn a_dependency_against_the_arrows_is_found() {
    let manifest = "[package]\nname = \"datapipes-cpu\"\n[dependencies]\nlibc.workspace = true\n\
        datapipes-file.workspace = true\n[target.'cfg(unix)'.dependencies.datapipes]\npath = \"x\"\n\
        [dev-dependencies]\ndatapipes-testkit.workspace = true\n";
    let (package, ours) = dependencies(manifest);
    assert_eq!(
        (package.as_str(), ours.as_slice()),
        ("datapipes-cpu", ["datapipes-file".to_owned(), "datapipes".into()].as_slice())
    );
    assert!(!may(role(&package), role("datapipes-file")) && !may(Role::Product, Role::Backend));
}
