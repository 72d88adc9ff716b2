//! What was private stays so: the modes of all files that the commands make, by `cp`'s rules. A new
//! file is as readable as what it is made of, less the umask; a file that is replaced keeps its
//! mode, and its other names.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use scene::{TempFolder, folder};

/// Runs the program under a umask, in a folder.
fn run(folder: &TempFolder, arguments: &str) -> Output {
    let script = format!("umask 022; exec \"$DPIPE\" {arguments}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(folder.at()).env("DPIPE", env!("CARGO_BIN_EXE_dpipe"));
    command.env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap()
}

/// Runs what must succeed; what it says on the standard error.
fn good(folder: &TempFolder, arguments: &str) -> String {
    let output = run(folder, arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "dpipe {arguments}: {:?}\n{error}", output.status);
    error
}

fn put(folder: &TempFolder, name: &str, mode: u32) -> PathBuf {
    let path = folder.path(name);
    fs::write(&path, format!("the bytes of {name}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A new file, one that replaces a private one, and one that has a second name, all made by a
/// command that is told where.
fn targets(what: &str, new: u32, command: impl Fn(&str) -> String) {
    let folder = folder();
    let private = put(&folder, "secret", 0o600);
    let linked = put(&folder, "linked", 0o640);
    fs::hard_link(&linked, folder.path("other")).unwrap();

    assert_eq!(good(&folder, &command("new")).matches("in place").count(), 0, "{what}");
    assert_eq!(mode(folder.path("new")), new, "{what}: new");
    good(&folder, &command("secret"));
    assert_eq!(mode(&private), 0o600, "{what}: replaced");
    let said = good(&folder, &command("linked"));
    assert!(said.contains("linked was written in place, because it has 2 names"), "{what}: {said}");
    assert_eq!((mode(&linked), fs::metadata(&linked).unwrap().nlink()), (0o640, 2), "{what}: linked");
    let made = fs::read(folder.path("new")).unwrap();
    assert!(!made.is_empty() && fs::read(folder.path("other")).unwrap() == made, "{what}: linked");
    assert!(fs::read(&private).unwrap() == made, "{what}: replaced");
    assert_eq!(folder.names().unwrap(), ["linked", "new", "other", "secret"], "{what}");
}

#[test]
fn generated_files() {
    targets("gen", 0o644, |to| format!("gen records --size 1M {to}"));
}

#[test]
fn streams() {
    let origins = folder();
    put(&origins, "private", 0o600);
    put(&origins, "protected", 0o444);
    targets("stream, generated", 0o644, |to| format!("stream --from generate:1M --output {to}"));
    let from = |name: &str| origins.path(name).display().to_string();
    let private = from("private");
    targets("stream, private", 0o600, |to| format!("stream --from file:{private} --through lz4 --output {to}"));
    let protected = from("protected");
    targets("stream, protected", 0o644, |to| format!("stream --from file:{protected} --placement all --output {to}"));
}

#[test]
fn pictures() {
    targets("model", 0o644, |to| format!("model placements --svg {to}"));
    let folder = folder();
    let drawn = run(&folder, "model placements --svg /dev/stdout | head -c 4");
    assert_eq!(String::from_utf8_lossy(&drawn.stdout), "<svg", "{}", String::from_utf8_lossy(&drawn.stderr));
    // A picture never takes the place of a pipe.
    let made = Command::new("mkfifo").arg(folder.path("p")).status().unwrap();
    assert!(made.success());
    let mut reader = Command::new("cat").arg(folder.path("p")).stdout(Stdio::piped()).spawn().unwrap();
    good(&folder, "model placements --svg p");
    let mut read = String::new();
    reader.stdout.take().unwrap().read_to_string(&mut read).unwrap();
    assert!(reader.wait().unwrap().success() && read.starts_with("<svg"));
    assert!(fs::symlink_metadata(folder.path("p")).unwrap().file_type().is_fifo());
}

#[test]
fn copies_into_persistent_memory() {
    let folder = folder();
    put(&folder, "private", 0o600);
    good(&folder, "copy private 'pmem:new?emulated'");
    assert_eq!(mode(folder.path("new")), 0o600);
    let same = run(&folder, "copy --force private 'pmem:private?emulated'");
    let error = String::from_utf8_lossy(&same.stderr);
    assert!(same.status.code() == Some(2) && error.contains("are the same file"), "{error}");
    // What cannot be opened as persistent memory leaves nothing.
    assert!(!run(&folder, "copy private pmem:refused").status.success());
    assert_eq!(folder.names().unwrap(), ["new", "private"]);
}

#[test]
fn checkpoints_and_what_comes_out_of_them() {
    let folder = folder();
    put(&folder, "private", 0o600);
    put(&folder, "public", 0o644);
    put(&folder, "protected", 0o444);
    let number = |n: u32| folder.path(&format!("saved/checkpoint-{n:020}"));

    good(&folder, "checkpoint save saved public");
    assert_eq!(mode(number(1)), 0o644);
    good(&folder, "checkpoint save saved public private");
    assert_eq!(mode(number(2)), 0o600, "as private as the most private of its files");
    good(&folder, "checkpoint save saved public");
    assert_eq!(mode(number(3)), 0o600, "as private as the one before it");

    good(&folder, "checkpoint restore saved --number 2 --to out");
    assert_eq!((mode(folder.path("out/private")), mode(folder.path("out/public"))), (0o600, 0o600));
    fs::set_permissions(folder.path("out/public"), Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(folder.path("out/public"), folder.path("out/other")).unwrap();
    let said = good(&folder, "checkpoint restore saved --number 2 --to out");
    assert!(said.contains("in place"), "{said}");
    assert_eq!((mode(folder.path("out/public")), mode(folder.path("out/other"))), (0o640, 0o640));

    good(&folder, "checkpoint save other protected");
    let first = folder.path("other/checkpoint-00000000000000000001");
    assert_eq!(mode(&first), 0o644, "its owner will restore over what came out of it");
    good(&folder, "checkpoint restore other --to again");
    good(&folder, "checkpoint restore other --to again");
    let left = folder.names().unwrap().into_iter().filter(|name| name.contains(".dpipe")).count();
    assert_eq!(left, 0);
}

#[test]
fn logs_that_were_made_private() {
    let folder = folder();
    let append = |lines: u32| {
        let script = format!("umask 022; seq {lines} | \"$DPIPE\" log append log --quiet --segment 64K --batch 8K");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(folder.at()).env("DPIPE", env!("CARGO_BIN_EXE_dpipe"));
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let segments = || -> Vec<PathBuf> {
        let all = fs::read_dir(folder.path("log")).unwrap().map(|e| e.unwrap().path());
        let mut segments: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
        segments.sort();
        segments
    };
    append(1);
    let before = segments();
    assert!(before.iter().all(|s| mode(s) == 0o644), "{before:?}");
    before.iter().for_each(|s| fs::set_permissions(s, Permissions::from_mode(0o600)).unwrap());
    append(20_000);
    let after = segments();
    assert!(after.len() > before.len() + 1, "{after:?}");
    assert!(after.iter().all(|s| mode(s) == 0o600), "{after:?}");
}
