//! A child process and what it used: time, processor time, peak memory, as the kernel counts them
//! for it alone.
//!
//! Unsafe: `wait4` fills a structure; rustix and the standard library do not give its figures.
#![allow(unsafe_code)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::system::signals;
use crate::system::signals::interrupted;

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The resources that a process used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Usage {
    /// Wall-clock time from start to end, in seconds.
    pub(crate) seconds: f64,
    /// Processor time in the program, in seconds.
    pub(crate) user_seconds: f64,
    /// Processor time in the kernel for it, in seconds.
    pub(crate) system_seconds: f64,
    /// The most memory it had resident, in bytes.
    pub(crate) peak_memory_bytes: u64,
}

impl Usage {
    /// Processor time in all, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

/// Processor time that this process used so far, in seconds.
pub(crate) fn own_cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Processor time that this process and those of its children that ended (and theirs) used so far,
/// in seconds.
pub(crate) fn family_cpu_seconds() -> f64 {
    // SAFETY: rusage is a structure of numbers, for which zeros are values; getrusage fills our own
    // variable.
    let children = unsafe {
        let mut children: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut children);
        children
    };
    own_cpu_seconds() + time(children.ru_utime) + time(children.ru_stime)
}

fn time(t: libc::timeval) -> f64 {
    t.tv_sec as f64 + t.tv_usec as f64 / 1e6
}

/// Runs a command to its end; returns what it used and what it wrote to its standard output. The
/// standard error is ours.
pub(crate) fn run(command: &mut Command) -> Result<(Usage, String)> {
    run_with_codes(command, &[0])
}

/// As [`run`], for a command that does not fail if it ends with one of these codes.
pub(crate) fn run_with_codes(command: &mut Command, codes: &[i32]) -> Result<(Usage, String)> {
    let shown = command.get_program().to_string_lossy().into_owned();
    signals::check("run")?;
    let started = Instant::now();
    signals::keep_children();
    let mut child = datapipes::threads::start_program(command.stdin(Stdio::null()).stdout(Stdio::piped()))
        .map_err(|e| Error::io("run", e, shown.clone()))?;
    // A signal that came before the child was there did not reach it, whoever sent it.
    let hears_terminal = !signals::arrived();
    let stdout = child.stdout.take();
    // Read meanwhile, lest the child wait for us.
    let reader = datapipes::threads::spawn("read", move || {
        let mut output = String::new();
        stdout.map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut output)).map(|_| output)
    });
    let reader = match reader {
        Ok(reader) => reader,
        Err(error) => {
            // It is told to end, and waited for, so that nothing of it is left; how it ends is of
            // no interest.
            let _ = child.kill().and_then(|()| child.wait());
            return Err(error);
        }
    };
    let (status, rusage) = wait(&mut child, hears_terminal)?;
    let seconds = started.elapsed().as_secs_f64();
    let read = datapipes::threads::join(reader).map_err(|lost| lost.error("run"))?;
    if signals::arrived() {
        return Err(interrupted("run"));
    }
    let output = read.map_err(|e| Error::io("read the output of", e, shown.clone()))?;
    if !(libc::WIFEXITED(status) && codes.contains(&libc::WEXITSTATUS(status))) {
        let how = match libc::WIFSIGNALED(status) {
            true => format!("died of signal {}", libc::WTERMSIG(status)),
            false => format!("exit code {}", libc::WEXITSTATUS(status)),
        };
        return Err(Error::new(ErrorKind::System, "run", format!("{shown}: {how}")));
    }
    let usage = Usage {
        seconds,
        user_seconds: time(rusage.ru_utime),
        system_seconds: time(rusage.ru_stime),
        // Linux counts it in KiB.
        peak_memory_bytes: u64::try_from(rusage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok((usage, output))
}

/// Waits, and asks the child to end where we were asked to. It looks again and again: a signal may
/// come to another thread, so that no call of this one would return. `hears_terminal` says that the
/// child gets what the terminal sends to us.
fn wait(child: &mut Child, hears_terminal: bool) -> Result<(libc::c_int, libc::rusage)> {
    let pid = child.id().cast_signed();
    let mut told = false;
    loop {
        let mut status = 0;
        // SAFETY: rusage is a structure of numbers, for which zeros are values.
        let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to our own variables, which live through the call. The child is
        // not waited for by anybody else, so its id is still its own.
        let got = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut rusage) };
        if got == pid {
            return Ok((status, rusage));
        }
        let error = std::io::Error::last_os_error();
        if got < 0 && error.raw_os_error() != Some(libc::EINTR) {
            return Err(Error::io("wait for", error, format!("process {pid}")));
        }
        // A child that is asked twice ends at once, without undoing anything.
        if signals::arrived() && !told && !(hears_terminal && signals::is_of_terminal()) {
            told = true;
            // SAFETY: as above, the id is that of our child.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
