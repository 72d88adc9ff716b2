//! The programs in `programs/` are compiled by the machine's C and C++ compilers, against the
//! headers and the libraries as a user has them, and hold what they check.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use datapipes_testkit::{TempFolder, output_of};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with the libraries under the names that programs link.
fn libraries(dir: &Path) {
    let built = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let find = |end: &str| {
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libdatapipes_c") && name.ends_with(end)
        };
        let mut found: Vec<_> =
            std::fs::read_dir(&built).unwrap().map(|entry| entry.unwrap().path()).filter(is_it).collect();
        found.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
        found.pop().unwrap_or_else(|| panic!("no libdatapipes_c*{end} in {}", built.display()))
    };
    for (end, name) in [(".so", "libdatapipes.so"), (".so", "libdatapipes.so.0"), (".a", "libdatapipes.a")] {
        std::os::unix::fs::symlink(find(end), dir.join(name)).unwrap();
    }
}

/// Whether a compiler is there; a test that has none says so.
fn has(compiler: &str, test: &str) -> bool {
    let there = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        println!("SKIPPED: {test}: {compiler} is not there");
    }
    there
}

struct Build<'a> {
    compiler: &'a str,
    standard: &'a str,
    flags: &'a [&'a str],
    is_static: bool,
}

/// Compiles a program and runs it in a folder of its own.
fn run(build: &Build<'_>, source: &str) {
    let dir = TempFolder::beside_the_program().unwrap();
    libraries(dir.at());
    let program = dir.path("program");
    let mut compile = Command::new(build.compiler);
    compile
        .args([build.standard, "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"])
        .args(build.flags)
        .arg("-I")
        .arg(here().join("include"))
        .arg("-I")
        .arg(here().join("tests/programs"))
        .arg(here().join("tests/programs").join(source))
        .arg("-o")
        .arg(&program);
    match build.is_static {
        true => compile.arg(dir.path("libdatapipes.a")).args(["-lm", "-ldl", "-lrt", "-lutil"]),
        false => compile.arg("-L").arg(dir.at()).arg("-ldatapipes").arg(format!("-Wl,-rpath,{}", dir.at().display())),
    };
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{source}:\n{}", String::from_utf8_lossy(&compiled.stderr));
    let mut command = Command::new(&program);
    let output = output_of(command.env("FOLDER", dir.at()).stdin(Stdio::null())).unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("everything holds"), "{source}: {}\n{out}{err}", output.status);
}

const C: Build<'_> = Build { compiler: "cc", standard: "-std=c11", flags: &[], is_static: false };

#[test]
fn the_flavors_in_c() {
    if has("cc", "the_flavors_in_c") {
        run(&C, "flavors.c");
    }
}

#[test]
fn the_products_in_c_with_the_static_library() {
    if has("cc", "the_products_in_c_with_the_static_library") {
        run(&Build { is_static: true, ..C }, "products.c");
    }
}

const CPP: Build<'_> = Build { compiler: "c++", standard: "-std=c++20", ..C };

#[test]
fn figures_and_objects_in_cpp() {
    if has("c++", "figures_and_objects_in_cpp") {
        run(&CPP, "objects.cpp");
    }
}

/// The same by Clang, which is not everywhere.
#[test]
fn by_clang() {
    if has("clang", "by_clang") && has("clang++", "by_clang") {
        run(&Build { compiler: "clang", ..C }, "flavors.c");
        run(&Build { compiler: "clang++", ..CPP }, "objects.cpp");
    }
}

#[test]
fn misuse_in_c() {
    if has("cc", "misuse_in_c") {
        run(&C, "misuse.c");
    }
}

#[test]
fn children_of_programs_with_threads() {
    if has("cc", "children_of_programs_with_threads") {
        run(&C, "forks.c");
    }
}

#[test]
fn threads_that_are_cancelled() {
    if has("cc", "threads_that_are_cancelled") {
        run(&C, "cancel.c");
    }
}

#[test]
fn arguments_in_c() {
    if has("cc", "arguments_in_c") {
        run(&C, "arguments.c");
    }
}

/// The header of C may stand before those of the system, in C++, too.
#[test]
fn the_header_before_those_of_the_system() {
    if has("c++", "the_header_before_those_of_the_system") {
        run(&CPP, "order.cpp");
        run(&Build { standard: "-std=c++11", ..CPP }, "order.cpp");
    }
}

#[test]
fn what_cpp_adds() {
    if has("c++", "what_cpp_adds") {
        run(&CPP, "surface.cpp");
    }
}

/// What lacks the language that datapipes.hpp needs is told so, in one error.
#[test]
fn another_language_is_refused_by_name() {
    if !has("c++", "another_language_is_refused_by_name") {
        return;
    }
    for flags in [&["-std=c++17"][..], &["-std=c++20", "-fno-exceptions"]] {
        let header = here().join("include/datapipes.hpp");
        let mut compile = Command::new("c++");
        let output = compile.args(flags).args(["-fsyntax-only", "-x", "c++"]).arg(header).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("needs C++20 with exceptions"), "{flags:?}: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{flags:?}: {said}");
    }
}

const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover"];

#[test]
fn under_the_address_and_undefined_behaviour_sanitizers() {
    if has("cc", "under_the_address_and_undefined_behaviour_sanitizers") {
        for source in ["flavors.c", "products.c", "arguments.c"] {
            run(&Build { flags: SANITIZERS, ..C }, source);
        }
        if has("c++", "under_the_address_and_undefined_behaviour_sanitizers") {
            run(&Build { flags: SANITIZERS, ..CPP }, "objects.cpp");
        }
    }
}

/// The first programs of docs/c.md are those that the tests of the installation build.
#[test]
fn the_document_has_the_programs_that_are_built() {
    let document = std::fs::read_to_string(here().join("../../docs/c.md")).unwrap();
    for (language, folder, file) in [("c", "cmake", "first.c"), ("c", "make", "first.c"), ("cpp", "cmake", "first.cpp")]
    {
        let block = document.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap();
        let built = std::fs::read_to_string(here().join("tests/projects").join(folder).join(file)).unwrap();
        assert_eq!(block, built, "{folder}/{file}");
    }
}
