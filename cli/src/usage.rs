//! A child process and what it used: time, processor time, peak memory, as the kernel counts them for it alone.
//!
//! Unsafe: `wait4` fills a structure; rustix and the standard library do not give its figures.
#![allow(unsafe_code)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::outcome::interrupted;
use crate::signals;

/// What a process used.
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

/// Runs a command to its end; returns what it used and what it wrote to its standard output. The standard error is ours.
pub(crate) fn run(command: &mut Command) -> Result<(Usage, String)> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::io("run", &e, shown.clone()))?;
    let mut output = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut output));
    let (status, rusage) = wait(&mut child)?;
    let seconds = started.elapsed().as_secs_f64();
    if signals::arrived() {
        return Err(interrupted("run"));
    }
    read.map_err(|e| Error::io("read the output of", &e, shown.clone()))?;
    if !(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
        let how = match libc::WIFSIGNALED(status) {
            true => format!("died of signal {}", libc::WTERMSIG(status)),
            false => format!("exit code {}", libc::WEXITSTATUS(status)),
        };
        return Err(Error::new(ErrorKind::System, "run", format!("{shown}: {how}")));
    }
    let time = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    let usage = Usage {
        seconds,
        user_seconds: time(rusage.ru_utime),
        system_seconds: time(rusage.ru_stime),
        // Linux counts it in KiB.
        peak_memory_bytes: u64::try_from(rusage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok((usage, output))
}

fn wait(child: &mut Child) -> Result<(libc::c_int, libc::rusage)> {
    let pid = child.id();
    loop {
        let mut status = 0;
        // SAFETY: rusage is a structure of numbers, for which zeros are values.
        let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to our own variables, which live through the call. The child is not waited for by
        // anybody else, so its id is still its own.
        let got = unsafe { libc::wait4(pid.cast_signed(), &mut status, 0, &mut rusage) };
        if got == pid.cast_signed() {
            return Ok((status, rusage));
        }
        let error = std::io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(Error::io("wait for", &error, format!("process {pid}")));
        }
        if signals::arrived() {
            // The terminal sent it to the child too; others did not.
            // SAFETY: as above, the id is that of our child.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGTERM) };
        }
    }
}
