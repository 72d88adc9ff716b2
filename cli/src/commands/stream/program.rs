//! A stage that is a program of the user's: it reads the stream on its standard input and writes the stream on its standard output.
//!
//! ```text
//! ... -> device "into NAME" -> pipe -> sh -c COMMAND -> pipe -> device "out of NAME" -> ...
//!                                        |  started, and ended, by a keeper (this program again)
//!                                        '- standard error -> a pipe of this command's, shown labelled and bounded
//! ```
//! A device can start nothing, so the program is no device: it runs as the user, with all that the user may do. The two devices at
//! its pipes are as locked down as all others.
//!
//! The keeper is there so that nothing of the program outlives the stream: orphans below it become its children, and it ends all of
//! them when the program ends, when the command lets go of the *lifeline* (a pipe that nobody writes to), and when the command dies.
//!
//! Unsafe: the keeper takes the lifeline, which it inherits, by its number.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use datapipes::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions};

use crate::{signals, standard};

/// The first argument of a keeper; the lifeline's number and the command follow.
const KEEPER: &str = "--stream-keeper";
/// The exit code of a keeper whose program was content, but did not read all: that of a program whose reader went away.
const UNREAD: u8 = 141;
/// How often a keeper looks where the kernel cannot tell it of its child.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a keeper may take to end what it keeps: a process that the kernel does not let go is left to it.
const FAREWELL: Duration = Duration::from_secs(5);
/// What is kept of standard error, to say how a program ended.
const LAST_WORDS: usize = 400;
/// Lines of standard error that wait to be shown; more are counted.
const MOST_LINES: usize = 256;
/// Bytes of one line.
const MOST_LINE: usize = 1 << 10;

/// A program at work.
pub(super) struct Program {
    /// The first word of its command, without folders.
    pub(super) name: String,
    keeper: Child,
    lifeline: Option<std::io::PipeWriter>,
    said: Arc<Mutex<Said>>,
    hears: Option<std::thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

/// Where a program reads and writes.
pub(super) struct Ends {
    pub(super) into: OwnedFd,
    pub(super) out_of: OwnedFd,
}

/// What it said on standard error.
#[derive(Default)]
struct Said {
    lines: VecDeque<String>,
    dropped: u64,
    last: VecDeque<u8>,
}

impl Program {
    /// Starts `sh -c COMMAND`.
    pub(super) fn start(command: &str) -> Result<(Program, Ends)> {
        let name = name(command);
        let fail = |e: &std::io::Error| Error::io("start", e, format!("the program {name}"));
        let os = |e: Errno| fail(&e.into());
        let (held, lifeline) = std::io::pipe().map_err(|e| fail(&e))?;
        fcntl_setfd(&held, FdFlags::empty()).map_err(os)?;
        let keeper = Command::new("/proc/self/exe")
            .args([KEEPER, &held.as_raw_fd().to_string(), command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        // It has its own now, and nobody else may.
        drop(held);
        let mut keeper = keeper.map_err(|e| fail(&e))?;
        let (stdin, stdout, stderr) = (keeper.stdin.take(), keeper.stdout.take(), keeper.stderr.take());
        let said = Arc::new(Mutex::new(Said::default()));
        let mut program = Program { name, keeper, lifeline: Some(lifeline), said, hears: None, status: None };
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(Error::new(ErrorKind::System, "start", format!("{}: no pipes", program.name)));
        };
        let (said, label) = (program.said.clone(), program.name.clone());
        program.hears = Some(datapipes::threads::spawn("stage-stderr", move || hear(stderr, &label, &said))?);
        let ends = Ends { into: stdin.into(), out_of: stdout.into() };
        for end in [&ends.into, &ends.out_of] {
            // The more a pipe holds, the less often anybody is woken; the usual size serves, too.
            let _ = rustix::pipe::fcntl_setpipe_size(end, 1 << 20);
        }
        Ok((program, ends))
    }

    pub(super) fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// How it ended, if it has; its status is that of the shell.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.keeper.try_wait().map_err(|e| Error::io("wait", &e, self.name.clone()))?;
        }
        Ok(self.status)
    }

    /// What it said since this was asked last, in lines with its name.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut said = lock(&self.said);
        let mut lines: Vec<String> = said.lines.drain(..).collect();
        if std::mem::take(&mut said.dropped) > 0 {
            lines.push(format!("{}: ... more lines were not shown", self.name));
        }
        lines
    }

    /// An error that says how it ended, and what it said last.
    pub(super) fn failed(&mut self, how: &str) -> Error {
        self.let_go();
        let last: Vec<u8> = lock(&self.said).last.iter().copied().collect();
        let last = String::from_utf8_lossy(&last).trim().lines().map(escaped).collect::<Vec<_>>().join("; ");
        let said = if last.is_empty() { String::new() } else { format!("; it said last: {last}") };
        Error::new(ErrorKind::Device, "stream", format!("the program {} {how}{said}", self.name))
    }

    /// Ends it and everything that it started; waits for that, but not for ever.
    fn let_go(&mut self) {
        self.lifeline = None;
        let since = Instant::now();
        while matches!(self.ended(), Ok(None)) && since.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(2));
        }
        while self.hears.as_ref().is_some_and(|h| !h.is_finished()) && since.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// How a program ended, for people.
pub(super) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended in a way that nobody knows".into(),
    }
}

fn name(command: &str) -> String {
    let first = command.split_whitespace().next().unwrap_or("sh");
    let base = first.rsplit('/').next().unwrap_or(first);
    let plain: String = base.chars().filter(|c| c.is_ascii_alphanumeric() || "._-+".contains(*c)).take(24).collect();
    if plain.is_empty() { "sh".into() } else { plain }
}

fn lock(said: &Mutex<Said>) -> std::sync::MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a terminal would obey is shown, not sent.
fn escaped(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.into() }).collect()
}

/// Reads standard error to its end, which is the end of all that have it.
fn hear(mut stderr: impl Read, label: &str, said: &Mutex<Said>) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let n = match stderr.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut said = lock(said);
        said.last.extend(&buffer[..n]);
        let too_many = said.last.len().saturating_sub(LAST_WORDS);
        said.last.drain(..too_many);
        for byte in &buffer[..n] {
            match byte {
                b'\n' => said.take(label, &mut line),
                byte if line.len() < MOST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        lock(said).take(label, &mut line);
    }
}

impl Said {
    fn take(&mut self, label: &str, line: &mut Vec<u8>) {
        if self.lines.len() < MOST_LINES {
            self.lines.push_back(format!("{label}: {}", escaped(&String::from_utf8_lossy(line))));
        } else {
            self.dropped += 1;
        }
        line.clear();
    }
}

/// If this process was started as a keeper, is that, and returns what `main` shall return. To be called before there are threads.
pub(crate) fn enter() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let [_, role, lifeline, command] = &arguments[..] else { return None };
    if role != KEEPER {
        return None;
    }
    let number = lifeline.to_str().and_then(|text| text.parse::<i32>().ok()).filter(|number| *number > 2)?;
    // SAFETY: who started this process left this descriptor open for it and told its number; nothing else here has opened any yet.
    let lifeline = unsafe { OwnedFd::from_raw_fd(number) };
    Some(match keep(&lifeline, command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            crate::outcome::complain(&format!("{e}\n"));
            ExitCode::from(127)
        }
    })
}

/// Runs a command until it ends or the lifeline does, and ends what it leaves; its exit code.
fn keep(lifeline: &OwnedFd, command: &OsString) -> Result<u8> {
    let os = |e: Errno| Error::os("start", e.raw_os_error(), "the keeper of a program");
    fcntl_setfd(lifeline, FdFlags::CLOEXEC).map_err(os)?;
    // A signal of the terminal is for the program, and for the command, which then lets go of the lifeline.
    signals::outlive();
    signals::keep_children();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(os)?;
    let spawned = Command::new("/bin/sh").arg("-c").arg(command).spawn();
    let mut child = spawned.map_err(|e| Error::io("start", &e, "/bin/sh"))?;
    // Only the program writes, so the end of what it writes is seen. What it reads stays open here, to see what it leaves.
    standard::leave_output()?;
    let status = await_end(lifeline, &mut child);
    end_all();
    let Some(status) = status? else { return Ok(137) };
    let left = standard::unread_input();
    if status.success() && left > 0 {
        crate::outcome::complain(&format!("it ended before it had read all: {left} bytes are left in its pipe\n"));
        return Ok(UNREAD);
    }
    if let Some(signal) = status.signal() {
        // As it was ended, so is this; its core, if it has one, was written.
        let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        signals::die_of(signal);
    }
    Ok(u8::try_from(status.code().unwrap_or(255)).unwrap_or(255))
}

/// How the child ended; None where the lifeline did before.
fn await_end(lifeline: &OwnedFd, child: &mut Child) -> Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let told = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    loop {
        if let Some(status) = child.try_wait().map_err(|e| Error::io("wait", &e, "the program"))? {
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

/// Ends every process below this one. An orphan becomes a child of this process, so the last generation comes up in the end; what
/// may not be ended (it changed its user) is left.
fn end_all() {
    loop {
        let children = children();
        let ended = children.iter().filter(|pid| rustix::process::kill_process(**pid, Signal::KILL).is_ok()).count();
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
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let child = |entry: std::io::Result<std::fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may have anything in it: "12 (sh) S 11 ...".
        let (_, fields) = stat.rsplit_once(')')?;
        let parent: i32 = fields.split_whitespace().nth(1)?.parse().ok()?;
        if parent == own { Pid::from_raw(pid) } else { None }
    };
    processes.filter_map(child).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_by_its_first_word() {
        for (command, expected) in
            [("tr a-z A-Z", "tr"), ("/usr/bin/sort -n", "sort"), ("", "sh"), ("(a; b)", "a"), ("\u{1b}[2J", "2J")]
        {
            assert_eq!(name(command), expected, "{command:?}");
        }
        assert_eq!(escaped("a\u{1b}[2Jb\tc"), "a\\u{1b}[2Jb\tc");
    }

    #[test]
    fn lines_are_labelled_and_bounded() {
        let said = Mutex::new(Said::default());
        hear(format!("{}\n{}end", "x".repeat(5000), "line\n".repeat(400)).as_bytes(), "tr", &said);
        let said = said.into_inner().unwrap();
        assert_eq!((said.lines.len(), said.dropped), (MOST_LINES, 146));
        assert_eq!((said.lines[0].len(), said.lines[1].as_str()), (4 + MOST_LINE, "tr: line"));
        assert!(said.last.len() == LAST_WORDS && said.last.iter().copied().collect::<Vec<u8>>().ends_with(b"end"));
    }
}
