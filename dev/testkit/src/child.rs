//! Pieces of tests in processes of their own: a copy made by `fork`, or the test's program again,
//! as another user and within limits.
//!
//! Unsafe code: the system calls that make such processes.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use datapipes_core::{ErrorKind, Result};

/// What a process may take: a bound against hanging for ever.
const PATIENCE: Duration = Duration::from_secs(120);
/// How a copy ends that panicked.
const PANICKED: i32 = 101;
/// In the environment of a program that was started again: for which test.
const AGAIN: &str = "DATAPIPES_TEST_AGAIN";
/// The first of the users that nobody is, as whom programs are started again: each has its own
/// count of threads.
const NOBODYS: u32 = 1_610_000_000;

/// What belongs to another process says so.
///
/// # Panics
/// Where it was done, or refused for another reason.
#[track_caller]
pub fn assert_forked_error<T>(result: Result<T>) {
    match result {
        Ok(_) => panic!("it is done, with what belongs to the parent"),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Forked, "{e}"),
    }
}

/// Runs `work` in a copy made by the C library's `fork`.
///
/// # Panics
/// Where the copy panics, dies or does not end.
pub fn in_child(work: &dyn Fn()) {
    // SAFETY: the copy has this thread alone. It calls `work`, which is written for that, and ends
    // by `_exit`.
    let pid = unsafe { libc::fork() };
    run_or_wait(pid, work);
}

/// The same by the system call itself, of which the C library hears nothing.
///
/// # Panics
/// As [`in_child`].
pub fn in_child_by_system_call(work: &dyn Fn()) {
    // SAFETY: as above; the flags share nothing.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    run_or_wait(i32::try_from(pid).unwrap_or(-1), work);
}

/// Makes a copy here, in the middle of something: 0 in the copy, which goes on from here as this
/// process does, and must end by
/// [`end_copy`].
pub fn fork_here() -> i32 {
    // SAFETY: the copy has this thread alone, and goes on with what the test is about.
    unsafe { libc::fork() }
}

/// For a fork_here made by [`fork_here`]: in it, runs `work` and ends. In the parent: waits for
/// that.
///
/// # Panics
/// As [`in_child`].
pub fn end_copy(pid: i32, work: &dyn Fn()) {
    run_or_wait(pid, work);
}

/// In the copy: runs `work` and ends. In the parent: waits for that.
fn run_or_wait(pid: i32, work: &dyn Fn()) {
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let code = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(()) => 0,
            Err(payload) => {
                // What the test harness captures is lost with the copy, so it is written here.
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
                let text = format!("in a child: {text}\n");
                // SAFETY: the text is live memory of that length.
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
                PANICKED
            }
        };
        // SAFETY: it ends this process, whose other threads do not exist, without running what the
        // parent registered.
        unsafe { libc::_exit(code) };
    }
    let status = wait(pid);
    assert_eq!(status, Some(0), "the child ended with this status; None: it did not end, and was killed");
}

/// The status of a child; None if it did not end in time.
fn wait(pid: i32) -> Option<i32> {
    let (begun, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: the status is a live variable.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        assert!(ended >= 0, "waitpid: {}", std::io::Error::last_os_error());
        if ended == pid {
            return Some(status);
        }
        if begun.elapsed() > PATIENCE {
            // SAFETY: a child of ours that was not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs this test's program once more for this test alone, as a user of its own without any
/// privilege, where root runs it. True in that program, where the test goes on; false in the first
/// one, when that is over: it has nothing left to do. `test` is the test's name as the harness
/// knows it.
///
/// # Panics
/// Where the other program fails or does not end.
pub fn as_another_user(test: &str) -> bool {
    if std::env::var_os(AGAIN).is_some_and(|name| name == test) {
        return true;
    }
    // SAFETY: it cannot fail and takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIPPED: {test}: only root can become a user who has no other thread");
        return false;
    }
    let user = NOBODYS + std::process::id();
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("where this program is: {e}"));
    let mut command = Command::new(&program);
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]).env(AGAIN, test).uid(user).gid(user);
    let mut child = match command.spawn() {
        Ok(child) => child,
        // A folder on the way to the program that others may not search, say.
        Err(e) => {
            println!("SKIPPED: {test}: {} as user {user}: {e}", program.display());
            return false;
        }
    };
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() > PATIENCE => {
                let _ = child.kill();
                panic!("{test} as user {user} did not end within {PATIENCE:?}");
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(e) => panic!("{test} as user {user}: {e}"),
        }
    };
    assert!(status.success(), "{test} as user {user}: {status}");
    false
}

/// While it lives, this user gets no further thread or process. For a program that was started by
/// [`as_another_user`].
#[derive(Debug)]
pub struct NoThreads(libc::rlimit);

impl NoThreads {
    /// Sets the limit to what there is.
    ///
    /// # Panics
    /// Where the limit cannot be set.
    pub fn from_now_on() -> NoThreads {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is a live variable.
        let rc = unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &raw mut before) };
        assert_eq!(rc, 0, "getrlimit: {}", std::io::Error::last_os_error());
        set(libc::rlimit { rlim_cur: 1, ..before });
        NoThreads(before)
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        set(self.0);
    }
}

fn set(limit: libc::rlimit) {
    // SAFETY: the limit is a live variable.
    let rc = unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) };
    assert_eq!(rc, 0, "setrlimit: {}", std::io::Error::last_os_error());
}
