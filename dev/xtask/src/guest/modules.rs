//! The kernel's modules that a guest needs, in the order in which they load.
//!
//! What a module depends on is written in the module itself, so that no index (`modules.dep`) need
//! have been made.

use crate::TaskResult;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A module: its file name in the archive, and its bytes, not compressed.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// `wanted` and all they depend on, each after those that it needs. Those that are built into the
/// kernel are left out; one that is nowhere is an error, unless its name ends in `?`.
pub(crate) fn with_dependencies(tree: &Path, wanted: &[&str]) -> TaskResult<Vec<Module>> {
    let mut files = BTreeMap::new();
    collect(&tree.join("kernel"), &mut files);
    let builtin = std::fs::read_to_string(tree.join("modules.builtin")).unwrap_or_default();
    let builtin: Vec<String> = builtin.lines().map(|line| name_of(Path::new(line))).collect();
    let mut loaded = Vec::new();
    for name in wanted {
        let (name, optional) = name.strip_suffix('?').map_or((*name, false), |name| (name, true));
        if !optional || files.contains_key(name) {
            add(name, &files, &builtin, &mut loaded)?;
        }
    }
    Ok(loaded)
}

fn add(name: &str, files: &BTreeMap<String, PathBuf>, builtin: &[String], loaded: &mut Vec<Module>) -> TaskResult<()> {
    if loaded.iter().any(|module| module.name == name) || builtin.iter().any(|b| b == name) {
        return Ok(());
    }
    let file = files.get(name).ok_or_else(|| format!("the kernel has no module {name}"))?;
    let bytes = plain(file)?;
    for needed in depends(&bytes) {
        add(&needed, files, builtin, loaded)?;
    }
    loaded.push(Module { name: name.to_owned(), bytes });
    Ok(())
}

/// `nd_pmem` of `.../nd_pmem.ko.xz`; the kernel takes both strokes for the same.
fn name_of(file: &Path) -> String {
    let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.split(".ko").next().unwrap_or("").replace('-', "_")
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.to_string_lossy().contains(".ko") {
            files.insert(name_of(&path), path);
        }
    }
}

/// The bytes of a module, which may be compressed.
fn plain(file: &Path) -> TaskResult<Vec<u8>> {
    let program = match file.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return Ok(std::fs::read(file)?),
    };
    let output = Command::new(program).arg("-dc").arg(file).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{program} -dc {}", file.display()).into()) }
}

/// What follows `depends=` in the module's information, up to the zero.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let text = module[at + KEY.len()..].split(|b| *b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    text.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module() {
        assert_eq!(
            depends(b"ELF\0license=GPL\0depends=mbcache,jbd2,crc-ccitt\0retpoline=Y\0"),
            ["mbcache", "jbd2", "crc_ccitt"]
        );
        assert_eq!(depends(b"ELF\0depends=\0x"), [""; 0]);
        assert_eq!(depends(b"ELF"), [""; 0]);
    }

    #[test]
    fn what_a_module_needs_loads_before_it() {
        let tree = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        std::fs::create_dir_all(tree.join("kernel/fs")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(tree.join("kernel/fs").join(name), text).unwrap();
        write("a-one.ko", "\0depends=b,c,built-in\0");
        write("b.ko", "\0depends=c\0");
        write("c.ko", "\0depends=\0");
        std::fs::write(tree.join("modules.builtin"), "kernel/lib/built-in.ko\n").unwrap();
        let names = |wanted: &[&str]| {
            with_dependencies(&tree, wanted).map(|m| m.into_iter().map(|m| m.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["a_one", "nowhere?"]).unwrap(), ["c", "b", "a_one"]);
        assert!(names(&["nowhere"]).is_err_and(|e| e.to_string().contains("nowhere")));
        std::fs::remove_dir_all(&tree).unwrap();
    }
}
