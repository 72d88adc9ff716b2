//! The check that a device has one thread and no children when it locks itself down.
//!
//! The lock-down affects one thread, and what that thread starts afterwards. A thread or process
//! that the body's constructor left running would keep all rights beside a device that seems to be
//! confined. So there must be none, and the kernel is asked.

use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};
use rustix::thread::gettid;

use super::status::figure;

/// The kernel's flag of a thread that has begun to end and runs no code of the program any more
/// (`PF_EXITING`).
const EXITING: u64 = 4;
/// The longest wait for threads that have begun to end.
const FAREWELL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(1);

/// Makes orphans of child processes children of this process, so that [`check`] finds them.
pub(super) fn keep_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).map_err(|e| Error::os("confine", e.raw_os_error(), "children of children"))
}

/// Checks that there is no other thread and no child.
///
/// # Errors
/// `PermissionDenied` where there is one. `Unavailable` where that cannot be determined.
pub(super) fn check() -> Result<()> {
    let since = Instant::now();
    while threads()? > 1 {
        // A thread that was joined may not have gone yet.
        if !others_end() || since.elapsed() > FAREWELL {
            return Err(refused("a thread"));
        }
        std::thread::sleep(SOON);
    }
    // This includes children that were not made by `fork`.
    const ALL_KINDS: WaitIdOptions = WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | ALL_KINDS;
    loop {
        match waitid(WaitId::All, ended) {
            Err(Errno::CHILD) => return Ok(()),
            // A child that has ended does nothing more.
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Err(refused("a process")),
            Err(e) => return Err(Error::os("confine", e.raw_os_error(), "children")),
        }
    }
}

fn refused(what: &str) -> Error {
    let context = format!("{what} that runs before the lock-down would not be locked down");
    Error::new(ErrorKind::PermissionDenied, "confine", context)
        .with_advice("start threads in the body's `run`, and processes outside of devices")
}

/// Returns the kernel's count of threads. If it is one, only the caller could make another.
fn threads() -> Result<u64> {
    let unseen = || Error::new(ErrorKind::Unavailable, "confine", "threads cannot be counted: /proc/self/status");
    let status = std::fs::read("/proc/self/status").map_err(|_| unseen())?;
    figure(&status, "Threads").ok_or_else(unseen)
}

/// Whether all other threads have begun to end. Threads that cannot be inspected count as running.
fn others_end() -> bool {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    let own = gettid();
    let numbers = tasks.map(|task| task.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    numbers.filter(|tid| *tid != Some(own)).all(|tid| tid.is_some_and(ends))
}

fn ends(tid: Pid) -> bool {
    match std::fs::read(format!("/proc/self/task/{tid}/stat")) {
        Ok(stat) => flags(&stat).is_some_and(|flags| flags & EXITING != 0),
        // It has gone since it was listed.
        Err(_) => true,
    }
}

/// The flags in a line of `stat`. The name in it can have any bytes, also brackets and spaces.
fn flags(stat: &[u8]) -> Option<u64> {
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_is_found_and_one_that_has_gone_is_not_waited_for() {
        // A test program has at least two threads.
        let e = check().unwrap_err();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("a thread"), "{e}");
        let (tell, told) = channel();
        let (end, ends_now) = channel::<()>();
        let thread = std::thread::Builder::new().spawn(move || {
            tell.send(gettid()).unwrap();
            let _ = ends_now.recv();
        });
        let tid = told.recv().unwrap();
        assert!(!ends(tid));
        drop(end);
        thread.unwrap().join().unwrap();
        while !ends(tid) {
            std::thread::sleep(SOON);
        }
    }

    #[test]
    fn flags_are_found_behind_any_name() {
        assert_eq!(flags(b"12 (a) S (\xff) R 1 2 3 4 5 4194564 6 7"), Some(4_194_564));
        assert_eq!(flags(b"12 (a) R 1 2"), None);
        assert_eq!(flags(b""), None);
    }
}
