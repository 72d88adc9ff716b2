//! One run of one program: wall time, CPU seconds, peak memory. Promise of the unsafe part: one
//! call of `wait4`, for a child that we started and that nobody else waits for.
#![allow(unsafe_code)]

use crate::{TaskResult, steps};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(in crate::bench) const METHOD: &str = "wall: spawn to exit by a monotonic clock; CPU seconds (user + system) and peak RSS: \
     rusage of wait4 (with children it waited for; peak RSS is that of the largest process, never below our own \
     few MiB); kernel threads (writeback, io_uring workers of others) are in nobody's CPU seconds";

/// Nothing measured here should take longer; a peer that hangs must not hang the whole bench.
const LIMIT: Duration = Duration::from_secs(1800);

pub(in crate::bench) struct Usage {
    pub(in crate::bench) wall_s: f64,
    pub(in crate::bench) user_s: f64,
    pub(in crate::bench) sys_s: f64,
    pub(in crate::bench) peak_rss_mib: f64,
    pub(in crate::bench) stdout: String,
}

/// Runs the command to its end. An exit code other than 0 is an error that carries the end of its
/// stderr.
pub(in crate::bench) fn measure(command: &mut Command) -> TaskResult<Usage> {
    let what = steps::shown(command);
    command.env_remove("LD_LIBRARY_PATH").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("{what}: {e}"))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let stop_watch = watchdog(&child);
    let (status, usage) = wait(&child)?;
    let wall_s = start.elapsed().as_secs_f64();
    drop(stop_watch);
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
        let how = if libc::WIFSIGNALED(status) {
            format!("signal {}", libc::WTERMSIG(status))
        } else {
            format!("exit code {}", libc::WEXITSTATUS(status))
        };
        let tail: Vec<&str> = stderr.lines().rev().take(4).collect();
        let tail = tail.into_iter().rev().collect::<Vec<_>>().join(" | ");
        return Err(format!("{what}: {how} after {wall_s:.1} s: {tail}").into());
    }
    Ok(Usage {
        wall_s,
        user_s: seconds(usage.ru_utime),
        sys_s: seconds(usage.ru_stime),
        peak_rss_mib: usage.ru_maxrss as f64 / 1024.0,
        stdout,
    })
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

fn collect(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = from.map(|mut from| from.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Kills the child after the limit, unless the sender that it returns is dropped before.
fn watchdog(child: &Child) -> mpsc::Sender<()> {
    let (stop, stopped) = mpsc::channel::<()>();
    let pid = rustix::process::Pid::from_child(child);
    std::thread::spawn(move || {
        if stopped.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    });
    stop
}

/// Waits as `Child::wait` does, but keeps the child's resource usage, which the standard library
/// throws away.
fn wait(child: &Child) -> TaskResult<(i32, libc::rusage)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live local variables of the types that wait4 writes; the
        // child was spawned by our caller, who never calls `Child::wait`, so its pid cannot have
        // been reaped and given to another.
        let pid = unsafe { libc::wait4(child.id().cast_signed(), &raw mut status, 0, usage.as_mut_ptr()) };
        if pid >= 0 {
            // SAFETY: all bit patterns are valid for this struct of integers, and it started as
            // zeroes.
            return Ok((status, unsafe { usage.assume_init() }));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_cpu_and_memory_of_a_child() {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done";
        let usage = measure(Command::new("sh").args(["-c", work])).unwrap();
        assert_eq!(usage.stdout, "done\n");
        assert!(usage.user_s + usage.sys_s > 0.0 && usage.wall_s > 0.0);
        assert!(usage.peak_rss_mib > 0.5);
    }

    #[test]
    fn a_failure_says_what_and_why() {
        let error = measure(Command::new("sh").args(["-c", "echo bad disk >&2; exit 3"])).err().unwrap();
        assert!(error.to_string().contains("exit code 3"), "{error}");
        assert!(error.to_string().contains("bad disk"), "{error}");
    }
}
