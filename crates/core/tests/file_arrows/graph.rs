//! The modules of a crate as a tree, and the arrows between its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::syntax::{self, Import};
use crate::tokens::tokens;

/// The files of a crate by their paths below its folder `src`, with what they say.
pub(crate) type Sources = BTreeMap<PathBuf, String>;

/// From each file to those whose names it uses, with one such name.
pub(crate) type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, String>>;

struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    text: syntax::Module,
}

/// A crate's modules; the first one is its root.
struct Tree(Vec<Module>);

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    ItemOf(usize),
}

impl Target {
    fn module(self) -> usize {
        match self {
            Target::Module(id) | Target::ItemOf(id) => id,
        }
    }
}

/// Re-exports that a path may lead through.
const MAX_TURNS: usize = 16;

/// The arrows of a crate: a library, programs, or both.
///
/// A re-export is a signpost: it is no arrow by itself (only where its file uses the name), and who
/// follows it has an arrow to the file where the name is defined.
pub(crate) fn arrows(sources: &Sources) -> Arrows {
    let is_root = |path: &&PathBuf| {
        let text = path.to_string_lossy();
        text == "lib.rs" || text == "main.rs" || text.starts_with("bin/") && is_program(path)
    };
    let mut all = Arrows::new();
    for root in sources.keys().filter(is_root) {
        let mut tree = Tree(Vec::new());
        tree.add(sources, root.clone(), None);
        for id in 0..tree.0.len() {
            for (target, name) in tree.named_by(id) {
                let (from, to) = (&tree.0[id].file, &tree.0[target].file);
                if from != to {
                    all.entry(from.clone()).or_default().entry(to.clone()).or_insert(name);
                }
            }
        }
    }
    all
}

/// `bin/name.rs` or `bin/name/main.rs`.
fn is_program(path: &Path) -> bool {
    path.components().count() == 2 || path.ends_with("main.rs") && path.components().count() == 3
}

impl Tree {
    /// Adds the module of a file and those that it declares.
    fn add(&mut self, sources: &Sources, file: PathBuf, parent: Option<usize>) -> usize {
        let words = tokens(&sources[&file]);
        let text = syntax::module(&words, &mut 0);
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "main.rs" | "mod.rs") => file.parent().unwrap_or(Path::new("")).to_path_buf(),
            // A program `bin/name.rs` has its modules beside it.
            _ if parent.is_none() => file.parent().unwrap_or(Path::new("")).to_path_buf(),
            _ => file.with_extension(""),
        };
        self.put(sources, (file, &folder), parent, text)
    }

    fn put(
        &mut self,
        sources: &Sources,
        (file, folder): (PathBuf, &Path),
        parent: Option<usize>,
        mut text: syntax::Module,
    ) -> usize {
        let id = self.0.len();
        let (declared, inline) = (std::mem::take(&mut text.declared), std::mem::take(&mut text.inline));
        self.0.push(Module { file: file.clone(), parent, children: BTreeMap::new(), text });
        for name in declared {
            let places = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            if let Some(place) = places.into_iter().find(|place| sources.contains_key(place)) {
                let child = self.add(sources, place, Some(id));
                self.0[id].children.insert(name, child);
            }
        }
        for (name, text) in inline {
            let child = self.put(sources, (file.clone(), &folder.join(&name)), Some(id), text);
            self.0[id].children.insert(name, child);
        }
        id
    }

    /// The modules whose names a module uses.
    fn named_by(&self, id: usize) -> Vec<(usize, String)> {
        let Module { children, text, .. } = &self.0[id];
        let is_used = |import: &&Import| !import.is_public || text.words.contains(&import.name);
        let imports = text.imports.iter().filter(is_used).map(|import| &import.path);
        let begins_here = |path: &&Vec<String>| {
            ["crate", "self", "super"].contains(&path[0].as_str()) || children.contains_key(&path[0])
        };
        let paths = text.paths.iter().filter(begins_here);
        let lead = |path: &Vec<String>| Some((self.follow(id, path, 0)?.module(), path.join("::")));
        imports.chain(paths).filter_map(lead).collect()
    }

    /// Where a path leads that is written in a module; None out of the crate.
    fn follow(&self, from: usize, path: &[String], turns: usize) -> Option<Target> {
        if turns > MAX_TURNS {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.0[from].parent?),
            name => match self.0[from].children.get(name) {
                Some(child) => Target::Module(*child),
                None => self.imported(from, name, turns)?,
            },
        };
        while let (Target::Module(id), Some((name, more))) = (at, rest.split_first()) {
            at = if name == "super" {
                Target::Module(self.0[id].parent?)
            } else if let Some(child) = self.0[id].children.get(name) {
                Target::Module(*child)
            } else if self.0[id].text.imports.iter().any(|import| import.name == *name) {
                self.imported(id, name, turns)?
            } else {
                self.by_glob(id, name, turns).unwrap_or(Target::ItemOf(id))
            };
            rest = more;
        }
        Some(at)
    }

    fn imported(&self, id: usize, name: &str, turns: usize) -> Option<Target> {
        let import = self.0[id].text.imports.iter().find(|import| import.name == name)?;
        // `use name::...` of another crate has no turn to take.
        (import.path[0] != name).then(|| self.follow(id, &import.path, turns + 1))?
    }

    /// A name that a module has by `pub use other::*`.
    fn by_glob(&self, id: usize, name: &str, turns: usize) -> Option<Target> {
        if self.0[id].text.items.contains(name) {
            return None;
        }
        let globs = self.0[id].text.imports.iter().filter(|import| import.name == "*" && import.is_public);
        globs.filter_map(|glob| self.follow(id, &glob.path, turns + 1)).find_map(|target| {
            let Target::Module(other) = target else { return None };
            let defines = self.0[other].text.items.contains(name);
            if defines { Some(Target::ItemOf(other)) } else { self.by_glob(other, name, turns + 1) }
        })
    }
}

/// The circles: files each of which leads to each other one, two at least.
pub(crate) fn circles(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let reach = |from: &PathBuf| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            open.extend(arrows.get(at).into_iter().flat_map(|to| to.keys()).filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = arrows.keys().map(|from| (from, reach(from))).collect();
    let circle_of = |(from, to): (&&PathBuf, &BTreeSet<PathBuf>)| -> BTreeSet<PathBuf> {
        to.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(*from))).cloned().collect()
    };
    let all: BTreeSet<BTreeSet<PathBuf>> = reached.iter().map(circle_of).filter(|circle| circle.len() > 1).collect();
    all.into_iter().collect()
}

/// The folder that a file belongs to: `a.rs` beside a folder `a` is the front of that folder, where
/// more than its tests is in there.
pub(crate) fn folder(sources: &Sources, file: &Path) -> PathBuf {
    let own = file.with_extension("");
    let is_code = |f: &Path| f.starts_with(&own) && f.file_name().is_some_and(|name| name != "tests.rs");
    let is_front = file.file_name().is_some_and(|name| name != "mod.rs") && sources.keys().any(|f| is_code(f));
    if is_front { own } else { file.parent().unwrap_or(Path::new("")).to_path_buf() }
}
