//! The header is the one that the sources give, and it declares what the library exports.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(under: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_src(here().join("src/lib.rs"));
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn it_is_generated_from_the_sources() {
    let path = here().join("include/datapipes.h");
    let generated = generated();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == generated,
        "include/datapipes.h is not what the sources give: UPDATE_HEADER=1 cargo test -p datapipes-c --test header"
    );
}

#[test]
fn it_declares_every_function() {
    let header = std::fs::read_to_string(here().join("include/datapipes.h")).unwrap();
    let mut functions = 0;
    for file in sources(&here().join("src")) {
        let text = std::fs::read_to_string(file).unwrap();
        for part in text.split("#[unsafe(no_mangle)]").skip(1) {
            let name = part.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            assert_eq!(header.matches(&format!("{name}(")).count(), 1, "{name} is declared once");
            functions += 1;
        }
    }
    assert!(functions > 80, "{functions}");
}

/// C++ has what C has.
#[test]
fn the_header_for_cpp_uses_every_function() {
    let read = |name: &str| std::fs::read_to_string(here().join("include").join(name)).unwrap();
    let (c, cpp) = (read("datapipes.h"), read("datapipes.hpp"));
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let names = c.split('(').map(|part| part.rsplit(|c| !is_of_name(c)).next().unwrap());
    let is_used = |name: &str| cpp.split(|c| !is_of_name(c)).any(|word| word == name);
    let mut unused: Vec<_> = names.filter(|name| name.starts_with("dp_") && !is_used(name)).collect();
    unused.sort_unstable();
    // `then` tells results, `run` gives the whole report, `enter` takes bodies too; the others are for a program's checks.
    let without =
        ["dp_abi_version", "dp_fabric_enter", "dp_graph_run", "dp_open_handles", "dp_runtime_pipe_transfer_then"];
    assert_eq!(unused, without);
}

/// A function without the prefix would be one of the machine's, which its own headers declare.
#[test]
fn it_declares_nothing_else() {
    let header = std::fs::read_to_string(here().join("include/datapipes.h")).unwrap();
    let code: Vec<_> = header.lines().filter(|line| !line.trim_start().starts_with(['/', '*'])).collect();
    // In a pointer to a function, a parenthesis stands between the name and the arguments.
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let code = code.join("\n");
    let before: Vec<_> = code.split('(').map(|part| part.rsplit(|c| !is_of_name(c)).next().unwrap()).collect();
    let others: Vec<_> = before.iter().filter(|name| !name.is_empty() && !name.starts_with("dp_")).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// The numbers of errors are those of the descriptor's wire, which programs read, and programs that
/// were compiled long ago have them inside: none ever changes.
#[test]
fn the_numbers_of_errors_are_those_of_the_wire() {
    use datapipes::ErrorKind;
    use datapipes::descriptor::wire::code_of;
    let text = std::fs::read_to_string(here().join("src/error.rs")).unwrap();
    let number = |name: &str| -> u32 {
        let rest = text.split(&format!("{name} = ")).nth(1).unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    let header = std::fs::read_to_string(here().join("include/datapipes.h")).unwrap();
    for (name, literal, kind) in [
        ("DP_INVALID_INPUT", 1, ErrorKind::InvalidInput),
        ("DP_OUT_OF_RANGE", 2, ErrorKind::OutOfRange),
        ("DP_MISALIGNED", 3, ErrorKind::Misaligned),
        ("DP_BUSY", 4, ErrorKind::Busy),
        ("DP_UNSUPPORTED", 5, ErrorKind::Unsupported),
        ("DP_UNAVAILABLE", 6, ErrorKind::Unavailable),
        ("DP_NOT_FOUND", 7, ErrorKind::NotFound),
        ("DP_PERMISSION_DENIED", 8, ErrorKind::PermissionDenied),
        ("DP_NO_SPACE", 9, ErrorKind::NoSpace),
        ("DP_OUT_OF_MEMORY", 10, ErrorKind::OutOfMemory),
        ("DP_END_OF_FILE", 11, ErrorKind::EndOfFile),
        ("DP_DEVICE", 12, ErrorKind::Device),
        ("DP_INTERRUPTED", 13, ErrorKind::Interrupted),
        ("DP_CORRUPT", 14, ErrorKind::Corrupt),
        ("DP_SYSTEM", 15, ErrorKind::System),
        ("DP_FORKED", 16, ErrorKind::Forked),
        ("DP_PANICKED", 17, ErrorKind::Panicked),
    ] {
        assert_eq!((number(name), code_of(kind)), (literal, literal), "{name}");
        assert!(header.contains(&format!("  {name} = {literal},")), "{name}");
    }
}
