//! The keepers of a program, so that nothing of it outlives the stream.
//!
//! ```text
//! dpipe --lifeline--> keeper --lifeline--> keeper -> sh -c COMMAND
//!                     the first            the second
//! ```
//! Orphans below a keeper become its children. It ends all of them when what it started ends, when
//! its *lifeline* does (a pipe that nobody writes to, held by who started it), and so when that
//! process dies. Any process can be killed, and a program is free to kill its keeper: then the
//! other one ends the program. One that was stopped goes on when who started it dies, and the first
//! one when the command asks it to; with the second one nobody has patience.
//!
//! Where both are killed at once, the shell itself is ended by the kernel; what it started is not.
//!
//! Unsafe: a keeper takes the lifeline, which it inherits, by its number; and a system call between
//! fork and exec.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use datapipes::threads::start_program;
use datapipes::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions};

use crate::{system::signals, system::standard_streams};

/// The first argument of each keeper; the lifeline's number and the command follow.
const FIRST: &str = "--stream-keeper";
const SECOND: &str = "--stream-second-keeper";
/// The exit code of a keeper whose program was content, but did not read all: that of a program
/// whose reader went away.
const UNREAD: u8 = 141;
/// How often a keeper looks where the kernel cannot tell it of its child.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which of the two keepers this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supervisor {
    First,
    Second,
}

/// A keeper to be started, and what it has of its lifeline.
pub(in crate::commands::stream) struct Start {
    pub(in crate::commands::stream) command: Command,
    /// To be let go of once it was started.
    pub(in crate::commands::stream) held: std::io::PipeReader,
    /// The keeper ends what it keeps when this is closed.
    pub(in crate::commands::stream) lifeline: std::io::PipeWriter,
}

/// The start of a program's first keeper. Whatever else this process starts before `held` is
/// dropped inherits it.
pub(in crate::commands::stream) fn first(command: &OsStr) -> std::io::Result<Start> {
    start(FIRST, command)
}

fn start(role: &str, command: &OsStr) -> std::io::Result<Start> {
    let (held, lifeline) = std::io::pipe()?;
    fcntl_setfd(&held, FdFlags::empty())?;
    let mut keeper = Command::new("/proc/self/exe");
    keeper.args([role, &held.as_raw_fd().to_string()]).arg(command);
    Ok(Start { command: keeper, held, lifeline })
}

/// If this process was started as a keeper, is that, and returns what `main` shall return. To be
/// called before there are threads.
pub(crate) fn enter() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let [_, role, lifeline, command] = &arguments[..] else { return None };
    let keeper = match role.to_str()? {
        FIRST => Supervisor::First,
        SECOND => Supervisor::Second,
        _ => return None,
    };
    let number = lifeline.to_str().and_then(|text| text.parse::<i32>().ok()).filter(|number| *number > 2)?;
    // SAFETY: who started this process left this descriptor open for it and told its number;
    // nothing else here has opened any yet.
    let lifeline = unsafe { OwnedFd::from_raw_fd(number) };
    Some(match keeper.keep(&lifeline, command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            crate::outcome::print_error(&format!("{e}\n"));
            ExitCode::from(127)
        }
    })
}

impl Supervisor {
    /// Runs a command until it ends or the lifeline does, and ends what it leaves; its exit code.
    fn keep(self, lifeline: &OwnedFd, command: &OsStr) -> Result<u8> {
        let os = |e: Errno| Error::os("start", e.raw_os_error(), "the keeper of a program");
        fcntl_setfd(lifeline, FdFlags::CLOEXEC).map_err(os)?;
        // A signal of the terminal is for the program, and for the command, which then lets go of
        // the lifeline.
        signals::outlive();
        signals::keep_children();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(os)?;
        // One that somebody stopped shall see that it is alone.
        rustix::process::set_parent_process_death_signal(Some(Signal::CONT)).map_err(os)?;
        // The second one's lifeline lasts as long as this process.
        let (mut child, _lifeline) = self.spawn(command)?;
        // Only the program writes, so the end of what it writes is seen.
        standard_streams::leave_output()?;
        if self == Supervisor::First {
            standard_streams::leave_input()?;
        }
        let status = await_end(lifeline, &mut child);
        end_all();
        let Some(status) = status? else { return Ok(137) };
        // What the program reads stays open in the second, to see what it leaves.
        let left = if self == Supervisor::Second { standard_streams::unread_input() } else { 0 };
        if status.success() && left > 0 {
            crate::outcome::print_error(&format!(
                "it ended before it had read all: {left} bytes are left in its pipe\n"
            ));
            return Ok(UNREAD);
        }
        if let Some(signal) = status.signal() {
            // As it was ended, so is this; its core, if it has one, was written.
            let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
            signals::die_of(signal);
        }
        Ok(u8::try_from(status.code().unwrap_or(255)).unwrap_or(255))
    }

    /// Starts what it keeps.
    fn spawn(self, command: &OsStr) -> Result<(Child, Option<std::io::PipeWriter>)> {
        if self == Supervisor::First {
            let second =
                start(SECOND, command).and_then(|mut start| Ok((start_program(&mut start.command)?, start.lifeline)));
            let (child, lifeline) = second.map_err(|e| Error::io("start", e, "the keeper of a program"))?;
            return Ok((child, Some(lifeline)));
        }
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command);
        let parent = rustix::process::getpid();
        // SAFETY: two system calls, which may be made between fork and exec; nothing is allocated.
        unsafe {
            shell.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // It may have died before.
                if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
            });
        }
        let child = start_program(&mut shell).map_err(|e| Error::io("start", e, "/bin/sh"))?;
        Ok((child, None))
    }
}

/// The exit status of the child; None if the lifeline ended first.
fn await_end(lifeline: &OwnedFd, child: &mut Child) -> Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let told = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::io("wait", e, "the program"))? {
            return Ok(Some(status));
        }
        let mut polled = vec![PollFd::new(lifeline, PollFlags::IN)];
        polled.extend(told.as_ref().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
        let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
        match poll(&mut polled, if told.is_some() { None } else { Some(&limit) }) {
            Ok(_) if !polled[0].revents().is_empty() => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("wait", e.raw_os_error(), "the program")),
        }
    }
}

/// Ends every process below this one. An orphan becomes a child of this process, so the last
/// generation comes up in the end; what may not be ended (it changed its user) is left.
fn end_all() {
    loop {
        let ended = children().filter(|pid| rustix::process::kill_process(*pid, Signal::KILL).is_ok()).count();
        if ended == 0 {
            return;
        }
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
    }
}

/// The children of this process, dead ones that nobody waited for included.
///
/// `/proc` gives numbers only, and the kernel says of each whether it is a child. No file of
/// `/proc/PID` is read: to read one may take for ever, as with a process that is about to run
/// another program and has to close a file of a server that does not answer.
fn children() -> impl Iterator<Item = Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| is_child(*pid))
}

fn is_child(pid: Pid) -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::Pid(pid), look).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_alive_and_dead_and_nobody_else() {
        let own = Pid::from_raw(std::process::id().cast_signed()).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let parent = rustix::process::getppid();
        let has = |pid| children().any(|child| child == pid);
        assert!(has(pid) && !has(own) && !parent.is_some_and(has));
        child.kill().unwrap();
        assert!(has(pid));
        child.wait().unwrap();
        assert!(!is_child(pid));
    }
}
