//! The standard error of devices: the controller reads it from a pipe, limits it, labels it, and
//! shows it.
//!
//! A device never has the application's standard error. That may be a terminal, which can be read
//! from, or a socket, which can be shut down. The output of a device is only text for display:
//! control characters of terminals are escaped.
//!
//! A thread shows it, because standard error may block, and the controller must go on.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use datapipes_core::threads;

use rustix::io::Errno;

use crate::process::inherited;

/// The most bytes of one device that are shown. Further ones are counted.
const MAX_SHOWN: usize = 64 << 10;
/// The most bytes of a line.
const MAX_LINE: usize = 1 << 10;
/// The number of last bytes that are kept to explain a device's end.
const LAST_WORDS: usize = 400;
/// The most lines of all devices that wait to be shown.
const MAX_WAITING: usize = 256;
/// How long the end of the controller waits for lines that are not shown yet.
const FAREWELL: Duration = Duration::from_millis(200);
/// The number of reads in one turn.
const TURN: usize = 4;

/// A writer that shows lines.
pub(crate) struct StderrWriter {
    lines: Option<SyncSender<String>>,
    done: Receiver<()>,
}

impl StderrWriter {
    /// Shows lines on standard error. If no thread can be started, nothing is shown.
    pub(crate) fn open() -> StderrWriter {
        let (lines, waiting) = sync_channel::<String>(MAX_WAITING);
        let (told, done) = sync_channel(1);
        let show = move || {
            inherited::only_standard();
            for line in waiting {
                // Nobody may read it.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            let _ = told.send(());
        };
        let shown = threads::spawn("device-stderr", show);
        StderrWriter { lines: shown.ok().map(|_| lines), done }
    }

    fn show(&self, line: String) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.try_send(line).is_ok())
    }

    /// Closes the writer. Waiting lines are shown if that takes a short time.
    pub(crate) fn close(&mut self) {
        if self.lines.take().is_some() {
            let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(FAREWELL);
        }
    }
}

/// The standard error of one device.
pub(crate) struct DeviceStderr {
    pipe: Option<OwnedFd>,
    label: String,
    line: Vec<u8>,
    shown: usize,
    dropped: usize,
    last: VecDeque<u8>,
}

impl DeviceStderr {
    /// Uses the reading end of a pipe, which must be non-blocking.
    pub(crate) fn new(pipe: OwnedFd, device: &str) -> DeviceStderr {
        let label = escaped(device.as_bytes());
        DeviceStderr { pipe: Some(pipe), label, line: Vec::new(), shown: 0, dropped: 0, last: VecDeque::new() }
    }

    /// A descriptor that is readable when there is output, or at its end.
    pub(crate) fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads the output for one turn.
    pub(crate) fn listen(&mut self, writer: &StderrWriter) {
        let mut buffer = [0; 4096];
        for _ in 0..TURN {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(n) => self.heard(&buffer[..n], writer),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    fn heard(&mut self, bytes: &[u8], writer: &StderrWriter) {
        for byte in bytes {
            if self.last.len() >= LAST_WORDS {
                self.last.pop_front();
            }
            self.last.push_back(*byte);
            if *byte != b'\n' {
                self.line.push(*byte);
            }
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                self.say(writer);
            }
        }
    }

    fn say(&mut self, writer: &StderrWriter) {
        let line = std::mem::take(&mut self.line);
        let fits = self.shown + line.len() <= MAX_SHOWN;
        if fits && writer.show(format!("device {}: {}\n", self.label, escaped(&line))) {
            self.shown += line.len();
        } else {
            self.dropped += line.len() + 1;
        }
    }

    /// Ends with the device. Returns its last output, if there was any.
    pub(crate) fn end(mut self, writer: &StderrWriter) -> Option<String> {
        // After the writer has ended, the pipe has all remaining output, which is at most its
        // capacity.
        for _ in 0..64 {
            self.listen(writer);
        }
        if !self.line.is_empty() {
            self.say(writer);
        }
        if self.dropped > 0 {
            writer.show(format!("device {}: ({} bytes more were not shown)\n", self.label, self.dropped));
        }
        let last: Vec<u8> = self.last.into();
        let last = escaped(last.trim_ascii());
        (!last.is_empty()).then_some(last)
    }
}

/// Escapes control characters, so that a terminal shows the text and executes nothing.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '\n' => text.push_str(" | "),
            '\t' => text.push(' '),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    /// A writer whose lines the test receives.
    fn writer() -> (StderrWriter, Receiver<String>) {
        let (lines, shown) = sync_channel(MAX_WAITING);
        let (_told, done) = sync_channel(1);
        (StderrWriter { lines: Some(lines), done }, shown)
    }

    fn said_by(name: &str) -> (DeviceStderr, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = OwnedFd::from(reader);
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
        (DeviceStderr::new(reader, name), writer)
    }

    #[test]
    fn lines_are_labelled_and_a_terminal_is_not_commanded() {
        let (writer, shown) = writer();
        let (mut said, mut pipe) = said_by("a\x1b[2J");
        pipe.write_all(b"one\ntwo\x1b]0;title\x07\nthe rest").unwrap();
        said.listen(&writer);
        drop(pipe);
        assert_eq!(said.end(&writer).unwrap(), r"one | two\u{1b}]0;title\u{7} | the rest");
        let lines: Vec<_> = shown.try_iter().collect();
        let label = r"device a\u{1b}[2J: ";
        assert_eq!(
            lines,
            [format!("{label}one\n"), format!("{label}two\\u{{1b}}]0;title\\u{{7}}\n"), format!("{label}the rest\n")]
        );
    }

    #[test]
    fn long_output_is_cut_and_the_cut_is_shown() {
        let (writer, shown) = writer();
        let (mut said, mut pipe) = said_by("loud");
        for _ in 0..40 {
            pipe.write_all(&[b'x'; 4000]).unwrap();
            said.listen(&writer);
        }
        drop(pipe);
        said.end(&writer);
        let lines: Vec<_> = shown.try_iter().collect();
        let bytes: usize = lines.iter().map(|line| line.matches('x').count()).sum();
        assert!(bytes <= MAX_SHOWN && bytes > MAX_SHOWN / 2, "{bytes}");
        assert!(lines.last().unwrap().contains("more were not shown"), "{:?}", lines.last());
    }

    #[test]
    fn a_blocked_standard_error_delays_nobody() {
        let (lines, _kept) = sync_channel(1);
        let (_told, done) = sync_channel(1);
        let mut writer = StderrWriter { lines: Some(lines), done };
        assert!(writer.show("one".into()) && !writer.show("two".into()));
        writer.close();
    }
}
