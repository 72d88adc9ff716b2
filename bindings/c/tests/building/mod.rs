//! Compiles the programs in `programs/` by the machine's C and C++ compilers, against the headers and
//! the libraries as a user has them.
// Not every test uses all of them.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use datapipes_testkit::TempFolder;

pub fn here() -> PathBuf {
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
pub fn has(compiler: &str, test: &str) -> bool {
    let there = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        println!("SKIPPED: {test}: {compiler} is not there");
    }
    there
}

pub struct Build<'a> {
    pub compiler: &'a str,
    pub standard: &'a str,
    pub flags: &'a [&'a str],
    pub is_static: bool,
}

/// A program that was compiled, in a folder of its own.
pub struct Built {
    pub dir: TempFolder,
}

impl Built {
    /// Compiles a program of `programs/`, or one whose path is given.
    pub fn from(build: &Build<'_>, source: &str) -> Built {
        let dir = TempFolder::beside_the_program().unwrap();
        libraries(dir.at());
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
            .arg(dir.path("program"));
        match build.is_static {
            true => compile.arg(dir.path("libdatapipes.a")).args(["-lm", "-ldl", "-lrt", "-lutil"]),
            false => {
                compile.arg("-L").arg(dir.at()).arg("-ldatapipes").arg(format!("-Wl,-rpath,{}", dir.at().display()))
            }
        };
        let compiled = compile.output().unwrap();
        assert!(compiled.status.success(), "{source}:\n{}", String::from_utf8_lossy(&compiled.stderr));
        Built { dir }
    }

    /// What runs the program, which finds its folder in FOLDER.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.dir.path("program"));
        command.env("FOLDER", self.dir.at()).stdin(Stdio::null());
        command
    }
}

/// Fails if a program did not find that everything holds; returns what it said.
pub fn holds(source: &str, output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("everything holds"), "{source}: {}\n{out}{err}", output.status);
    out.into_owned()
}

pub const C: Build<'_> = Build { compiler: "cc", standard: "-std=c11", flags: &[], is_static: false };
pub const CPP: Build<'_> = Build { compiler: "c++", standard: "-std=c++20", ..C };

/// The sanitizers of addresses and of undefined behaviour.
pub const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover"];
