//! Tests of atomic files where something changes: files that appear, disappear and change while one
//! is being written, and file systems and kernels that refuse. A filter (seccomp) on the test's
//! thread refuses calls.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use datapipes_testkit::{Mounted, RefusedCall, RefusedUse, TempFolder as TestFolder, without_calls};

use super::*;

mod changing;
mod leftovers;
mod refusing;

/// A folder that is removed when the test ends.
struct Scene(TestFolder);

impl Scene {
    fn new() -> Scene {
        Scene(TestFolder::under(std::env::temp_dir()).unwrap())
    }

    fn at(&self) -> &Path {
        self.0.at()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn put(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        self.0.names().unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The mode of a file that this process creates in the usual way.
fn usual(scene: &Scene) -> u32 {
    let path = scene.path("usual");
    fs::write(&path, "").unwrap();
    let mode = mode(&path);
    fs::remove_file(&path).unwrap();
    mode
}

fn refused(number: i64, errno: i32) -> RefusedUse {
    RefusedCall { number, errno }.into()
}

/// Refuses nameless files.
fn no_nameless() -> RefusedUse {
    RefusedCall { number: libc::SYS_openat, errno: libc::EOPNOTSUPP }.with_bits(2, libc::O_TMPFILE as u32)
}

/// Runs a closure on a thread where calls are refused. Prints a line where none can be refused.
fn without<R: Send>(calls: &[RefusedUse], work: impl FnOnce() -> R + Send) -> Option<R> {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    without_calls(calls, work).map_err(|why| println!("SKIPPED: {test}: {why}")).ok()
}

fn publish(draft: AtomicFile) -> Result<PublishOutcome> {
    draft.write(b"new bytes")?;
    draft.publish(9)
}

fn replacing(path: &Path) -> AtomicFile {
    AtomicFile::replacing(path, FileMode::USUAL).unwrap()
}
