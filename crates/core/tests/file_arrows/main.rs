//! No circle of files over the border of a folder: whoever reads a folder needs to know only what
//! is below it. Circles within a folder are counted, and may only become fewer.
//!
//! An arrow leads from a file to each file in which a name is defined that it imports, or names by
//! a path that begins with `crate`, `super`, `self` or a module of its own. Methods of a type have
//! no arrows, wherever they are defined: they are called without a path.
#![allow(clippy::unwrap_used)]

mod graph;
mod syntax;
mod tokens;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use graph::{Arrows, Sources, arrows, circles, folder};

/// What is left: of each crate the files in circles within a folder, and in circles over borders of
/// folders. Both may only become fewer; a crate that is not here has none.
const LEFT: [(&str, usize, usize); 4] = [("cache", 6, 0), ("cpu", 5, 0), ("fabric", 11, 0), ("service", 4, 0)];

#[test]
fn no_circle_of_files_crosses_a_folder() {
    let mut wrong = Vec::new();
    for krate in crates() {
        let (name, sources) = (name_of(&krate), sources_of(&krate));
        let arrows = arrows(&sources);
        let (mut within, mut across) = (0, 0);
        let mut told = String::new();
        for circle in circles(&arrows) {
            let folders: BTreeSet<PathBuf> = circle.iter().map(|file| folder(&sources, file)).collect();
            *(if folders.len() == 1 { &mut within } else { &mut across }) += circle.len();
            told += &tell(&circle, &arrows, folders.len());
        }
        let borders = over_borders(&sources, &arrows);
        let count: usize = arrows.values().map(|to| to.len()).sum();
        println!(
            "{name}: {} files, {count} arrows, {borders} of them between folders; in circles: {within} files within a \
             folder, {across} over borders",
            sources.len()
        );
        let (_, most_within, most_across) = LEFT.into_iter().find(|(left, ..)| *left == name).unwrap_or(("", 0, 0));
        if within > most_within || across > most_across {
            wrong.push(format!(
                "{name}: {within} files in circles within a folder ({most_within} are allowed), {across} over borders \
                 ({most_across}):\n{told}"
            ));
        } else if (within, across) != (most_within, most_across) {
            println!("{name}: now {within} and {across}; lower its numbers in LEFT");
        }
    }
    assert!(wrong.is_empty(), "move what is shared downwards:\n{}", wrong.join("\n"));
}

/// The folders of the crates: each has a manifest and a `src`.
fn crates() -> Vec<PathBuf> {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap();
    let mut found = Vec::new();
    let mut open = vec![root.join("cli"), root.join("crates")];
    while let Some(dir) = open.pop() {
        match dir.join("src").is_dir() {
            true => found.push(dir),
            false => open.extend(std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir())),
        }
    }
    assert!(found.len() > 10, "the crates were not found: {found:?}");
    found.sort();
    found
}

fn name_of(krate: &Path) -> String {
    krate.file_name().unwrap().to_string_lossy().into_owned()
}

fn sources_of(krate: &Path) -> Sources {
    let src = krate.join("src");
    let (mut found, mut open) = (Sources::new(), vec![src.clone()]);
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.insert(path.strip_prefix(&src).unwrap().to_path_buf(), std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

/// The files of a circle, with the arrows that make it one.
fn tell(circle: &BTreeSet<PathBuf>, arrows: &Arrows, folders: usize) -> String {
    let mut told = format!("  a circle of {} files in {folders} folders:\n", circle.len());
    for from in circle {
        for (to, name) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
            told += &format!("    {} -> {} ({name})\n", from.display(), to.display());
        }
    }
    told
}

fn over_borders(sources: &Sources, arrows: &Arrows) -> usize {
    let crosses = |from: &Path, to: &Path| folder(sources, from) != folder(sources, to);
    arrows.iter().map(|(from, to)| to.keys().filter(|to| crosses(from, to)).count()).sum()
}

fn sources(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect()
}

/// The arrows of some files, as `from -> to`.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let tell = |(from, to): (&PathBuf, &PathBuf)| format!("{} -> {}", from.display(), to.display());
    let arrows = arrows(&sources(files));
    arrows.iter().flat_map(|(from, to)| to.keys().map(move |to| (from, to))).map(tell).collect()
}

#[test]
fn an_arrow_leads_to_where_a_name_is_defined() {
    let lib = ("lib.rs", "mod a; mod b;\npub use a::one::One; // crate::b::Two\n");
    let one = ("a/one.rs", "pub struct One; fn f() -> crate::b::Two { \"crate::a::two::X\"; 'x' }");
    let two = ("a/two.rs", "use super::one::{self, One as Uno};\n#[cfg(test)]\nmod tests { use crate::b::Two; }");
    let files = [lib, ("a/mod.rs", "pub mod one; mod two; pub use one::*;"), one, two];
    let b = ("b.rs", "pub struct Two; impl Two { fn new<'a>(x: &'a str) { crate::One; } }");
    assert_eq!(found(&[&files[..], &[b]].concat()), ["a/one.rs -> b.rs", "a/two.rs -> a/one.rs", "b.rs -> a/one.rs"]);
    // By a re-export of all of a module; by a module's name alone; and a re-export that is used.
    let b = ("b.rs", "pub struct Two; use crate::a::{One};");
    assert!(found(&[&files[..], &[b]].concat()).contains(&"b.rs -> a/one.rs".to_owned()));
    let used = ("lib.rs", "mod a;\npub use a::X; fn f(_: X) {}");
    assert_eq!(found(&[used, ("a.rs", "pub struct X; mod within { use super::X; }")]), ["lib.rs -> a.rs"]);
    let hidden = ("a.rs", "use std::io; pub struct X(pub u8); pub(in crate::a) fn f() {}");
    assert!(found(&[("lib.rs", "mod a;\npub(crate) use a::X;"), hidden]).is_empty());
}

#[test]
fn what_is_for_tests_alone_makes_no_arrow() {
    let a = (
        "a.rs",
        "#[cfg(test)]\nuse crate::b::B;\n#[test]\nfn t() { crate::b::f(); }\nstruct S { #[cfg(test)] b: crate::b::B, c: u8 }",
    );
    let b =
        ("b.rs", "#[cfg(not(test))]\nuse crate::a::S;\n#[cfg(all(test, not(miri)))]\nmod tests { use crate::c::C; }");
    assert_eq!(found(&[("lib.rs", "mod a; mod b; mod c;"), a, b, ("c.rs", "")]), ["b.rs -> a.rs"]);
}

#[test]
fn a_circle_is_found_and_its_folders_told() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a/mod.rs", "pub mod x;"),
        ("a/x.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::x;\nmod d;"),
        ("c/d.rs", "use super::C;"),
    ];
    let (sources, arrows) = (sources(&files), arrows(&sources(&files)));
    let circles = circles(&arrows);
    assert_eq!(circles.len(), 1);
    let names: Vec<_> = circles[0].iter().map(|file| (file.to_str().unwrap(), folder(&sources, file))).collect();
    assert_eq!(names, [("a/x.rs", "a".into()), ("b.rs", PathBuf::new()), ("c.rs", "c".into())]);
    // Who leads into a circle is not of it.
    assert_eq!(arrows[Path::new("c/d.rs")].keys().collect::<Vec<_>>(), [Path::new("c.rs")]);
}
