//! A stage that is a program of the user's: it reads the stream on its standard input and writes
//! the stream on its standard output.
//!
//! ```text
//! ... -> device "into NAME" -> pipe -> sh -c COMMAND -> pipe -> device "out of NAME" -> ...
//!                                        |  started, and ended, by keepers (this program again)
//!                                        '- standard error -> a pipe of this command's, shown labelled and bounded
//! ```
//! A device can start nothing, so the program is no device: it runs as the user, with all that the
//! user may do. The two devices at its pipes are as locked down as all others.
//!
//! Nothing of the program outlives the stream: its keepers, see [`mod@super::supervisor`], end all
//! of it when the command lets go of their *lifeline* (a pipe that nobody writes to), and so when
//! the command dies.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes::locks::Mutex;
use datapipes::threads::start_program;
use datapipes::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::supervisor;

/// How long keepers may take to end what they keep: a process that the kernel does not let go is
/// left to them.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the second one may take when the first one, which somebody stops again and again, was
/// killed.
const FORCED_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval of the checks whether the keepers are done.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The bytes of standard error that are kept, to report how a program ended.
const LAST_WORDS: usize = 400;
/// Lines of standard error that wait to be shown; more are counted.
const MAX_PENDING_LINES: usize = 256;
/// Bytes of one line.
const MAX_LINE_BYTES: usize = 1 << 10;

/// A program at work.
pub(in crate::commands::stream) struct Program {
    /// The first word of its command, without folders.
    pub(in crate::commands::stream) name: String,
    keeper: Child,
    lifeline: Option<std::io::PipeWriter>,
    said: Arc<Mutex<StderrTail>>,
    hears: Option<datapipes::threads::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

/// The pipes of a program.
pub(in crate::commands::stream) struct Ends {
    pub(in crate::commands::stream) into: OwnedFd,
    pub(in crate::commands::stream) out_of: OwnedFd,
}

/// What it said on standard error.
#[derive(Default)]
struct StderrTail {
    lines: VecDeque<String>,
    dropped: u64,
    last: VecDeque<u8>,
}

impl Program {
    /// Starts `sh -c COMMAND`.
    pub(in crate::commands::stream) fn start(command: &str) -> Result<(Program, Ends)> {
        let name = name(command);
        let fail = |e: std::io::Error| Error::io("start", e, format!("the program {name}"));
        let mut start = supervisor::first(command.as_ref()).map_err(fail)?;
        let keeper = start_program(start.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        // It has its own now, and nobody else may.
        drop(start.held);
        let lifeline = start.lifeline;
        let mut keeper = keeper.map_err(fail)?;
        let (stdin, stdout, stderr) = (keeper.stdin.take(), keeper.stdout.take(), keeper.stderr.take());
        let said = Arc::new(Mutex::new(StderrTail::default()));
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

    pub(in crate::commands::stream) fn pid(&self) -> u32 {
        self.keeper.id()
    }

    /// How it ended, if it has; its status is that of the shell.
    pub(in crate::commands::stream) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.keeper.try_wait().map_err(|e| Error::io("wait", e, self.name.clone()))?;
        }
        Ok(self.status)
    }

    /// What it said since this was asked last, in lines with its name.
    pub(in crate::commands::stream) fn lines(&self) -> Vec<String> {
        let mut said = self.said.lock();
        let mut lines: Vec<String> = said.lines.drain(..).collect();
        if std::mem::take(&mut said.dropped) > 0 {
            lines.push(format!("{}: ... more lines were not shown", self.name));
        }
        lines
    }

    /// An error that says how it ended, and what it said last.
    pub(in crate::commands::stream) fn failed(&mut self, how: &str) -> Error {
        self.shut_down();
        let last: Vec<u8> = self.said.lock().last.iter().copied().collect();
        let last = String::from_utf8_lossy(&last).trim().lines().map(escaped).collect::<Vec<_>>().join("; ");
        let said = if last.is_empty() { String::new() } else { format!("; it said last: {last}") };
        Error::new(ErrorKind::Device, "stream", format!("the program {} {how}{said}", self.name))
    }

    /// Ends it and everything that it started; waits for that, once, and not for ever.
    fn shut_down(&mut self) {
        if self.lifeline.take().is_none() {
            return;
        }
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        while self.is_at_work() && Instant::now() < until {
            if self.is_stopped() {
                self.signal(Signal::CONT);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        if !self.is_stopped() {
            return;
        }
        self.signal(Signal::KILL);
        let until = Instant::now() + FORCED_SHUTDOWN_TIMEOUT;
        while self.is_at_work() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether a keeper is: where the first one was killed the second one is as long as standard
    /// error is open.
    fn is_at_work(&mut self) -> bool {
        matches!(self.ended(), Ok(None)) || self.hears.as_ref().is_some_and(|hears| !hears.is_finished())
    }

    /// Whether somebody stopped the first keeper.
    fn is_stopped(&mut self) -> bool {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_there = matches!(self.ended(), Ok(None));
        is_there && matches!(waitid(WaitId::Pid(Pid::from_child(&self.keeper)), look), Ok(Some(how)) if how.stopped())
    }

    /// To the first keeper, if it is there still: then its number is nobody else's.
    fn signal(&mut self, signal: Signal) {
        if matches!(self.ended(), Ok(None)) {
            let _ = rustix::process::kill_process(Pid::from_child(&self.keeper), signal);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// How a program ended, for people.
pub(in crate::commands::stream) fn how(status: ExitStatus) -> String {
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

/// What a terminal would obey is shown, not sent.
fn escaped(line: &str) -> String {
    line.chars().map(|c| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.into() }).collect()
}

/// Reads standard error to its end, which is the end of all that have it.
fn hear(mut stderr: impl Read, label: &str, said: &Mutex<StderrTail>) {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let n = match stderr.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut said = said.lock();
        said.last.extend(&buffer[..n]);
        let too_many = said.last.len().saturating_sub(LAST_WORDS);
        said.last.drain(..too_many);
        for byte in &buffer[..n] {
            match byte {
                b'\n' => said.take(label, &mut line),
                byte if line.len() < MAX_LINE_BYTES => line.push(*byte),
                _ => {}
            }
        }
    }
    if !line.is_empty() {
        said.lock().take(label, &mut line);
    }
}

impl StderrTail {
    fn take(&mut self, label: &str, line: &mut Vec<u8>) {
        if self.lines.len() < MAX_PENDING_LINES {
            self.lines.push_back(format!("{label}: {}", escaped(&String::from_utf8_lossy(line))));
        } else {
            self.dropped += 1;
        }
        line.clear();
    }
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
        let said = Mutex::new(StderrTail::default());
        hear(format!("{}\n{}end", "x".repeat(5000), "line\n".repeat(400)).as_bytes(), "tr", &said);
        let said = said.into_inner();
        assert_eq!((said.lines.len(), said.dropped), (MAX_PENDING_LINES, 146));
        assert_eq!((said.lines[0].len(), said.lines[1].as_str()), (4 + MAX_LINE_BYTES, "tr: line"));
        assert!(said.last.len() == LAST_WORDS && said.last.iter().copied().collect::<Vec<u8>>().ends_with(b"end"));
    }
}
