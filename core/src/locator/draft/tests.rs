//! The door where the world is otherwise than it was: what comes, goes and changes while a file is under way, and file
//! systems and kernels that refuse. Calls are refused by a filter (seccomp) on the thread of the test.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;

mod changing;
mod leftovers;
mod refusing;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder that vanishes with the test.
struct Scene(PathBuf);

impl Scene {
    fn new() -> Scene {
        let name = format!("draft-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scene(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn put(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The mode of a file that this process makes in the usual way.
fn usual(scene: &Scene) -> u32 {
    let path = scene.path("usual");
    fs::write(&path, "").unwrap();
    let mode = mode(&path);
    fs::remove_file(&path).unwrap();
    mode
}

/// A call of the kernel that is refused: all of them, or those with these bits in an argument.
struct Refused {
    call: i64,
    with: Option<(u8, u64)>,
    errno: i32,
}

const fn refused(call: i64, errno: i32) -> Refused {
    Refused { call, with: None, errno }
}

const NO_NAMELESS: Refused =
    Refused { call: libc::SYS_openat, with: Some((2, libc::O_TMPFILE as u64)), errno: libc::EOPNOTSUPP };

/// Runs something on a thread on which calls are refused.
fn without<T: Send>(calls: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for Refused { call, with, errno } in calls {
                let rules = with.map(|(argument, bits)| {
                    let masked = SeccompCmpOp::MaskedEq(bits);
                    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, bits).unwrap();
                    SeccompRule::new(vec![condition]).unwrap()
                });
                let rules = BTreeMap::from([(*call, rules.into_iter().collect())]);
                let (allow, errno) = (SeccompAction::Allow, SeccompAction::Errno(*errno as u32));
                let filter = SeccompFilter::new(rules, allow, errno, std::env::consts::ARCH.try_into().unwrap());
                let program: BpfProgram = filter.unwrap().try_into().unwrap();
                seccompiler::apply_filter(&program).unwrap();
            }
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn publish(draft: Draft) -> Result<Published> {
    draft.write(b"new bytes")?;
    draft.publish(9)
}

fn replacing(path: &Path) -> Draft {
    Draft::replacing(path, FileMode::USUAL).unwrap()
}
