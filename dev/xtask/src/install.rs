//! `cargo xtask install --prefix DIR`: the libraries and headers for C and C++, with what
//! pkg-config and CMake read. `cargo xtask deb DIR` packs them for Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TaskResult;
use crate::steps::{cargo, finish, first_line, root, succeeds};

const USAGE: &str = "usage: cargo xtask install --prefix DIR [--destdir DIR]";
const DEB_USAGE: &str = "usage: cargo xtask deb DIR";

/// The version of the shared library's interface, by which programs find it (bindings/c/build.rs).
const SONAME: &str = "libdatapipes.so.0";

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    let (mut prefix, mut destdir) = (None, PathBuf::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a folder\n{USAGE}"));
        match arg.as_str() {
            "--prefix" => prefix = Some(PathBuf::from(value()?)),
            "--destdir" => destdir = PathBuf::from(value()?),
            other => return Err(format!("`{other}` is no option\n{USAGE}").into()),
        }
    }
    let prefix = prefix.ok_or(USAGE)?;
    if !prefix.is_absolute() {
        return Err(format!("{}: give the prefix as an absolute path\n{USAGE}", prefix.display()).into());
    }
    for_pkg_config(&prefix)?; // Building takes minutes.
    let written = install(&build()?, &prefix, &destdir)?;
    for file in written {
        println!("{}", file.display());
    }
    println!("The shared library is found by programs if {} is searched:", prefix.join("lib").display());
    println!("run ldconfig, link with -Wl,-rpath, or set LD_LIBRARY_PATH.");
    Ok(())
}

/// Builds the libraries. Returns where they are.
fn build() -> TaskResult<PathBuf> {
    finish(&mut cargo(&["build", "--release", "-p", "datapipes-c"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release"))
}

pub(crate) fn run_deb(args: &[String]) -> TaskResult<()> {
    let [dir] = args else { return Err(DEB_USAGE.into()) };
    if !succeeds(Command::new("dpkg-deb").arg("--version")) {
        println!("SKIPPED: deb: dpkg-deb is not there; `apt-get install dpkg` adds it");
        return Ok(());
    }
    println!("{}", deb(&build()?, Path::new(dir), &[])?.display());
    Ok(())
}

/// Packs the libraries and headers for Debian, from where they were built to a folder. Returns the
/// package.
fn deb(built: &Path, dir: &Path, options: &[&str]) -> TaskResult<PathBuf> {
    let asked = |program: &str, option: &str| {
        first_line(Command::new(program).arg(option)).ok_or_else(|| format!("{program} {option} gives no answer"))
    };
    let architecture = asked("dpkg", "--print-architecture")?;
    // The library needs at most what the machine has that built it.
    let libc = first_line(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    let libc = libc.as_deref().and_then(|line| line.strip_prefix("glibc ")).ok_or("getconf names no glibc")?.to_owned();
    let name = format!("datapipes-dev_{}_{architecture}", env!("CARGO_PKG_VERSION"));
    let (files, package) = (dir.join(&name), dir.join(format!("{name}.deb")));
    if files.exists() {
        return Err(format!("{}: it is there already", files.display()).into());
    }
    install(built, Path::new("/usr"), &files)?;
    let control = format!(
        "Package: datapipes-dev\nVersion: {}\nArchitecture: {architecture}\nMaintainer: the Data Pipes project\n\
         Section: libdevel\nPriority: optional\nDepends: libc6 (>= {libc}), libgcc-s1\n\
         Description: Data Pipes for C and C++\n Libraries, headers, and what pkg-config and CMake read.\n",
        env!("CARGO_PKG_VERSION")
    );
    std::fs::create_dir_all(files.join("DEBIAN"))?;
    std::fs::write(files.join("DEBIAN/control"), control)?;
    std::fs::write(files.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
    let mut pack = Command::new("dpkg-deb");
    finish(pack.args(["--build", "--root-owner-group"]).args(options).args([&files, &package]))?;
    std::fs::remove_dir_all(&files)?;
    Ok(package)
}

/// Copies libraries from where they were built. `destdir` is put before the prefix, as packagers
/// need it. Returns what was written.
fn install(built: &Path, prefix: &Path, destdir: &Path) -> TaskResult<Vec<PathBuf>> {
    let version = env!("CARGO_PKG_VERSION");
    let prefix_for_pkg_config = for_pkg_config(prefix)?;
    let to = match destdir.as_os_str().is_empty() {
        true => prefix.to_path_buf(),
        false => destdir.join(prefix.strip_prefix("/")?),
    };
    let source = root().join("bindings/c");
    let mut written = Vec::new();
    let mut place = |folder: &str, name: &str| -> TaskResult<PathBuf> {
        let folder = to.join(folder);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        written.push(folder.join(name));
        Ok(folder.join(name))
    };
    let copy = |from: &Path, to: &Path| -> TaskResult<()> {
        // A program may use the old library: it is replaced, not overwritten.
        let new = to.with_extension("new");
        std::fs::copy(from, &new).map_err(|e| format!("{} to {}: {e}", from.display(), new.display()))?;
        Ok(std::fs::rename(&new, to).map_err(|e| format!("{}: {e}", to.display()))?)
    };
    for header in ["datapipes.h", "datapipes.hpp"] {
        copy(&source.join("include").join(header), &place("include", header)?)?;
    }
    let library = format!("libdatapipes.so.{version}");
    copy(&built.join("libdatapipes_c.so"), &place("lib", &library)?)?;
    copy(&built.join("libdatapipes_c.a"), &place("lib", "libdatapipes.a")?)?;
    for (name, target) in [(SONAME, library.as_str()), ("libdatapipes.so", SONAME)] {
        let link = place("lib", name)?;
        let new = link.with_extension("new");
        let _ = std::fs::remove_file(&new); // It is there only after a run that was stopped.
        std::os::unix::fs::symlink(target, &new).map_err(|e| format!("{}: {e}", new.display()))?;
        std::fs::rename(&new, &link).map_err(|e| format!("{}: {e}", link.display()))?;
    }
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    for (template, folder) in [
        ("datapipes.pc.in", "lib/pkgconfig"),
        ("datapipes-config.cmake.in", "lib/cmake/datapipes"),
        ("datapipes-config-version.cmake.in", "lib/cmake/datapipes"),
    ] {
        let text = std::fs::read_to_string(source.join("install").join(template))?;
        let text = text.replace("@PREFIX@", &prefix_for_pkg_config).replace("@VERSION@", version);
        let path = place(folder, template.trim_end_matches(".in"))?;
        std::fs::write(&path, text.replace("@MAJOR_MINOR@", minor)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(written)
}

/// A folder as pkg-config takes it. It splits flags at blanks, except after a backslash.
///
/// pkg-config, make and the shell give other characters a meaning, and differ in how to take it
/// away. A folder with one of those is refused.
fn for_pkg_config(folder: &Path) -> TaskResult<String> {
    let named = folder.display();
    let text = folder.to_str().ok_or_else(|| format!("{named}: pkg-config needs a prefix in UTF-8"))?;
    if let Some(bad) = text.chars().find(|c| c.is_control() || "\"'\\$#()".contains(*c)) {
        return Err(format!("{named}: pkg-config cannot have {bad:?} in the prefix; choose another one").into());
    }
    Ok(text.replace(' ', "\\ "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The libraries of the profile that is tested, built if need be.
    fn built() -> PathBuf {
        let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        if !deps.join("libdatapipes_c.so").exists() || !deps.join("libdatapipes_c.a").exists() {
            finish(&mut cargo(&["build", "-p", "datapipes-c"])).unwrap();
        }
        deps
    }

    fn is_there(program: &str) -> bool {
        succeeds(Command::new(program).arg("--version"))
    }

    fn output(command: &mut Command) -> String {
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    #[test]
    fn programs_outside_of_the_tree_are_built_against_it() {
        // With blanks, as in some home folders.
        let dir = std::env::temp_dir().join(format!("datapipes install {}", std::process::id()));
        let prefix = dir.join("prefix");
        let written = install(&built(), &prefix, Path::new("")).unwrap();
        assert!(written.len() == 9 && written.iter().all(|file| file.exists()), "{written:?}");
        // Again, over what is there.
        install(&built(), &prefix, Path::new("")).unwrap();
        let input = dir.join("input");
        std::fs::write(&input, format!("everything holds\n{}", " ".repeat(4096))).unwrap();
        let projects = root().join("bindings/c/tests/projects");
        let holds = |program: &Path| {
            let said = output(Command::new(program).arg(&input).env("LD_LIBRARY_PATH", prefix.join("lib")));
            assert_eq!(said, "everything holds\n", "{}", program.display());
        };
        if is_there("cmake") && is_there("cc") && is_there("c++") {
            let build = dir.join("cmake");
            let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
            output(Command::new("cmake").arg("-S").arg(projects.join("cmake")).arg("-B").arg(&build).arg(prefix));
            output(Command::new("cmake").arg("--build").arg(&build));
            holds(&build.join("c_user"));
            holds(&build.join("cpp_user"));
        } else {
            println!("SKIPPED: programs_outside_of_the_tree_are_built_against_it: cmake, cc or c++ is not there");
        }
        if is_there("make") && is_there("pkg-config") && is_there("cc") {
            let build = dir.join("make");
            std::fs::create_dir_all(&build).unwrap();
            for file in ["make/Makefile", "cmake/first.c"] {
                let file = projects.join(file);
                std::fs::copy(&file, build.join(file.file_name().unwrap())).unwrap();
            }
            let packages = prefix.join("lib/pkgconfig");
            output(Command::new("make").arg("-C").arg(&build).env("PKG_CONFIG_PATH", packages));
            holds(&build.join("first"));
        } else {
            println!("SKIPPED: programs_outside_of_the_tree_are_built_against_it: make, pkg-config or cc is not there");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_prefix_that_pkg_config_cannot_have_is_refused_before_anything_is_written() {
        use std::os::unix::ffi::OsStrExt;
        let dir = std::env::temp_dir().join(format!("datapipes-refused-{}", std::process::id()));
        for name in [&b"a'b"[..], b"a\"b", b"a$b", b"a#b", b"a\\b", b"a(b", b"a\nb", b"a\xffb"] {
            let prefix = dir.join(std::ffi::OsStr::from_bytes(name));
            let refused = install(Path::new("/nowhere"), &prefix, Path::new("")).unwrap_err().to_string();
            assert!(refused.contains("pkg-config"), "{refused}");
            assert!(!dir.exists());
        }
        assert_eq!(for_pkg_config(Path::new("/home/one of us/x")).unwrap(), "/home/one\\ of\\ us/x");
    }

    #[test]
    fn a_package_is_built_beside_the_system() {
        let dir = std::env::temp_dir().join(format!("datapipes-destdir-{}", std::process::id()));
        install(&built(), Path::new("/usr"), &dir).unwrap();
        let package = std::fs::read_to_string(dir.join("usr/lib/pkgconfig/datapipes.pc")).unwrap();
        assert!(package.starts_with("prefix=/usr\n") && !package.contains('@'), "{package}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_debian_package_has_all_files() {
        if !is_there("dpkg-deb") || !is_there("dpkg") || !is_there("getconf") {
            println!("SKIPPED: a_debian_package_has_all_files: dpkg-deb, dpkg or getconf is not there");
            return;
        }
        let dir = std::env::temp_dir().join(format!("datapipes-deb-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let package = deb(&built(), &dir, &["-Znone"]).unwrap();
        let control = output(Command::new("dpkg-deb").arg("--info").arg(&package));
        for line in ["Package: datapipes-dev", "Depends: libc6 (>= 2.", "triggers"] {
            assert!(control.contains(line), "{line}: {control}");
        }
        let contents = output(Command::new("dpkg-deb").arg("--contents").arg(&package));
        for file in ["include/datapipes.hpp", "lib/libdatapipes.a", "lib/pkgconfig/datapipes.pc"] {
            assert!(contents.contains(&format!(" ./usr/{file}\n")), "{file}: {contents}");
        }
        assert!(contents.contains("./usr/lib/libdatapipes.so.0 -> libdatapipes.so.0."), "{contents}");
        assert!(contents.lines().all(|line| line.contains("root/root")), "{contents}");
        let unpacked = dir.join("unpacked");
        output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked));
        let header = std::fs::read(unpacked.join("usr/include/datapipes.h")).unwrap();
        assert_eq!(header, std::fs::read(root().join("bindings/c/include/datapipes.h")).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for args in [&[][..], &["--prefix"], &["--prefix", "relative"], &["--root", "/x"]] {
            assert!(run(&args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>()).is_err(), "{args:?}");
        }
        assert!(run_deb(&[]).is_err());
    }
}
